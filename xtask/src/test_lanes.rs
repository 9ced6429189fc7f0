//! `cargo xtask test`: assigns cargo's tests to lanes, and checks the requirements of each lane on the machine.
//! Tests are selected by target, not by name.

use anyhow::Result;
use clap::ValueEnum;

use xtask_setup::Purpose;
use xtask_setup::build;
use xtask_tools::summary::{Outcome, Summary, step_of};
use xtask_tools::{cargo_test, process};

/// The tests that compare a model with a real nginx.
const BESIDE_NGINX: &[&str] = &["--test", "nginx"];

/// Text below the options in `test --help`.
pub const AFTER_HELP: &str = "\
Lanes:
  unit     library and binary tests of every package, the golden translations, and the model of ingress-nginx beside a
           real nginx; no privileges, no network. As root, nginx is installed where it is missing; otherwise its test is
           skipped loudly, and with REQUIRE_NGINX=1 that is an error
  proxy    the proxy in one process with scripted clients and upstreams, on loopback
  kernel   the kernel programs on crafted packets (BPF_PROG_TEST_RUN) and in namespaces; root, a kernel with XDP and
           sk_lookup. Skipped loudly where the machine lacks something; with REQUIRE_KERNEL=1 that is an error
  cluster  images and manifests in a real Kubernetes of two nodes (`cargo xtask cluster`), asked from outside; root, and
           programs that are fetched and built once. Skipped loudly where they cannot be had; with REQUIRE_KUBE=1 that is
           an error. XDP_INGRESS_CHANGES=N times N changes (40), XDP_INGRESS_OUTAGE=S takes the API server away for S
           seconds (15), XDP_INGRESS_SCALE=N makes N Ingresses (1000) and XDP_INGRESS_TLS_SCALE=N makes N with a Secret
           each (200); XDP_INGRESS_BINARY=PATH is another build of the product to test
  kernels  the oldest kernel that Debian supports and the programs run on, booted in an emulated machine: real requests, steered
           and counted; `cargo xtask kernels` has more of them. The first time it needs root, for QEMU, and a Debian
           mirror; where these cannot be had it fails. Parts of a test's name mean nothing to it. Skipped loudly on other
           architectures than x86-64
  monitoring
           the alerts by promtool, and a real Prometheus that scrapes the product on loopback, evaluates the alerts and
           answers the queries of the dashboards. Go builds Prometheus the first time, in some minutes; without Go it is
           skipped loudly, and with REQUIRE_KUBE=1 that is an error. Parts of a test's name mean nothing to it
  ui       the dashboard in headless Chromium, with few hosts and with 10,000, on loopback. Debian's packages chromium and
           chromium-driver are installed as root, and axe-core is fetched once; where these cannot be had it is skipped
           loudly, and with REQUIRE_UI=1 that is an error
  interop  HTTP/3 with clients from elsewhere, on loopback: quic-go, aioquic, qh3, ngtcp2, libcurl, Chromium and Firefox.
           Go builds the first; pip fetches aioquic, qh3 and libcurl; the others are Debian's packages, installed as root. A client
           that cannot be had is skipped loudly, and with REQUIRE_INTEROP=1 that is an error. Other arguments than names of clients mean nothing to it.
           XDP_INGRESS_INTEROP=all runs the cases on paths with faults with all clients instead of quic-go and aioquic
  docs     examples in the documentation
  gateway  the conformance tests of Gateway API in a real Kubernetes of two nodes, from outside; root, and programs that
           are fetched and built once. Skipped loudly where they cannot be had; with
           REQUIRE_KUBE=1 that is an error. `cargo xtask test gateway -- --help` has more

Examples:
  cargo xtask test
  cargo xtask test unit proxy
  sudo -E env REQUIRE_KERNEL=1 cargo xtask test kernel
  cargo xtask test unit -- exact_host          # only tests whose name contains this";

/// Run everything that can be tested on one machine, or some of its lanes
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The lanes to run; if none is named, all
    lane: Vec<Lane>,
    /// Arguments for the test programs, such as a part of a test's name
    #[arg(last = true)]
    pass_on: Vec<String>,
}

/// A set of tests with the same requirements on the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Lane {
    /// Libraries, binaries and golden translations
    Unit,
    /// The proxy in one process
    Proxy,
    /// Kernel programs and namespaces
    Kernel,
    /// A real Kubernetes
    Cluster,
    /// A kernel other than this machine's
    Kernels,
    /// Alerts and dashboards
    Monitoring,
    /// The dashboard in a browser
    Ui,
    /// Clients of HTTP/3 from elsewhere
    Interop,
    /// Examples in the documentation
    Docs,
    /// Conformance to Gateway API
    Gateway,
}

/// Runs `cargo xtask test`.
///
/// # Errors
/// Fails if a test fails, does not compile, or a tool is missing.
pub fn run(args: &Args) -> Result<()> {
    build::kernel_programs()?;
    let lanes = if args.lane.is_empty() { Lane::value_variants().to_vec() } else { args.lane.clone() };
    let mut summary = Summary::default();
    for lane in lanes {
        summary.step(lane.name(), || lane.run(&args.pass_on));
    }
    summary.finish("cargo xtask test")
}

impl Lane {
    fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Proxy => "proxy",
            Self::Kernel => "kernel",
            Self::Cluster => "cluster",
            Self::Kernels => "kernels",
            Self::Monitoring => "monitoring",
            Self::Ui => "ui",
            Self::Interop => "interop",
            Self::Docs => "docs",
            Self::Gateway => "gateway",
        }
    }

    fn run(self, pass_on: &[String]) -> Result<Outcome> {
        if self == Self::Cluster {
            return step_of(build::tool("xtask-kube-lab")?.args(["lane", "--"]).args(pass_on));
        }
        if self == Self::Gateway {
            return step_of(build::tool("xtask-conformance")?.arg("lane").args(pass_on));
        }
        if self == Self::Kernels {
            return step_of(build::tool("xtask-kernels")?.arg("lane"));
        }
        if self == Self::Monitoring {
            return step_of(build::tool("xtask-check")?.arg("monitoring"));
        }
        if self == Self::Ui {
            return step_of(build::tool("xtask-ui")?.args(["lane", "--"]).args(pass_on));
        }
        if self == Self::Interop {
            return step_of(build::tool("xtask-interop")?.arg("lane").args(pass_on));
        }
        if self == Self::Kernel {
            if process::is_root() {
                xtask_setup::ensure(Purpose::Demo)?;
            }
            let capable = step_of(build::tool("xtask-demo")?.args(["capable", "cargo xtask test kernel"]))?;
            if capable != Outcome::Passed {
                return Ok(capable);
            }
        }
        let harness: Vec<&str> = pass_on.iter().map(String::as_str).collect();
        let mut outcome = Outcome::Passed;
        for selection in self.selections() {
            if *selection == BESIDE_NGINX
                && let Err(error) = xtask_setup::packages(&["nginx"], "test unit")
            {
                if process::is_required("REQUIRE_NGINX") {
                    return Err(error.context("the comparison with nginx must run because `REQUIRE_NGINX=1` is set"));
                }
                outcome = outcome.and(Outcome::Skipped(format!("the comparison with nginx: {error:#}")));
                continue;
            }
            let cargo = || {
                let mut cargo = build::cargo();
                cargo.args(["test", "--workspace", "--no-fail-fast"]).args(*selection);
                cargo
            };
            outcome = outcome.and(cargo_test::run(cargo, &harness)?);
        }
        Ok(outcome)
    }

    /// Returns the arguments of each `cargo test` of this lane. For a target that does not exist cargo reports an
    /// error.
    fn selections(self) -> &'static [&'static [&'static str]] {
        match self {
            // The workspace includes `ingress-ebpf`, which has its pure parts tested on the host.
            Self::Unit => &[&["--lib", "--bins"], &["--test", "translate"], BESIDE_NGINX],
            Self::Proxy => &[
                &["--test", "proxy"],
                &["--test", "h3"],
                &["--test", "annotations", "--test", "commands", "--test", "descriptors", "--test", "log"],
            ],
            Self::Kernel => &[&["--test", "kernel"], &["--test", "namespaces"]],
            Self::Cluster | Self::Gateway | Self::Interop | Self::Kernels | Self::Monitoring | Self::Ui => &[],
            Self::Docs => &[&["--doc"]],
        }
    }
}
