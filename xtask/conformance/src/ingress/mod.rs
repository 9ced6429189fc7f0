//! The tests that Kubernetes publishes for Ingress, `sigs.k8s.io/ingress-controller-conformance`, some times in a row in
//! one cluster. Scenarios follow each other while the namespace of the last one is still being deleted.

mod report;
mod suite;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use self::report::Counts;
use self::suite::Suite;
use super::install;
use xtask_kube_lab::{Cluster, Plan, Services, programs};
use xtask_setup::Purpose;
use xtask_setup::build::Profile;
use xtask_tools::progress::{self, Progress};
use xtask_tools::summary::Outcome;
use xtask_tools::workspace;

/// Number of nodes: the fewest that show differences between nodes.
const NODES: u8 = 2;
/// Manifests of the product, relative to the work tree.
const PRODUCT: &str = "deploy/base";
/// The suite's Ingresses name no class, so this one becomes the cluster's default.
const CLASS: &str = "xdp";
/// Longest wait for an address in a status. One scenario waits as long as this to see that there is none; the default is
/// five minutes.
const PATIENCE: &str = "30s";
/// The program ends itself then. A run took 14 minutes.
const LIMIT: &str = "40m";

/// Text below the options in `--help`.
pub const AFTER_HELP: &str = "\
Without --suite, Go fetches the newest version of the module. If it cannot be had, the command
fails and says why; it never passes without tests. Only the digest of the image of the suite's pods
is changed: the image is built from the suite's sources. The output of the program and its reports
are kept in target/ingress-conformance.

Examples:
  cargo xtask ingress-conformance --runs 5
  cargo xtask ingress-conformance --suite ~/ingress-controller-conformance";

/// Run the conformance tests for Ingress against the product in a Kubernetes
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory with the sources of the suite, such as a clone of its repository
    #[arg(long, value_name = "DIR")]
    suite: Option<PathBuf>,
    /// Number of runs, one after the other in the same cluster
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    runs: u8,
}

/// Runs the tests. A cluster that was already running is reused and stays; a new one is removed afterwards.
///
/// # Errors
/// Fails if a part cannot be had, created or installed, or a scenario does not pass.
pub fn run(args: &Args) -> Result<Outcome> {
    if !programs::required_or_skip("cargo xtask ingress-conformance")? {
        bail!("the conformance tests for Ingress were NOT run: they need a real Kubernetes, see above");
    }
    xtask_setup::ensure(Purpose::Demo)?;
    let suite = suite::build(args.suite.as_deref(), &directory())
        .context("the conformance tests for Ingress were NOT run, because their program cannot be built")?;
    let images = xtask_image::make(Profile::Dev, &xtask_image::directory(), env!("CARGO_PKG_VERSION"))?;
    let ran_before = Cluster::running()?.is_some();
    let cluster = Cluster::up(Plan::new(NODES, Services::Unrouted)?)?;
    let result = install(&cluster, &[&suite.image, &images.xdp_ingress.file])
        .and_then(|()| (1..=args.runs).try_fold(true, |all, number| Ok(once(&cluster, &suite, number)? && all)));
    if ran_before {
        progress::note("the cluster ran before and stays; `cargo xtask cluster down` removes it");
    } else {
        // A failure of the tests takes precedence over one of the removal.
        let removed = Cluster::down();
        if result.is_ok() {
            removed?;
        }
    }
    ensure!(result?, "some scenarios do not pass, see above");
    Ok(Outcome::Passed)
}

fn install(cluster: &Cluster, images: &[&Path]) -> Result<()> {
    images.iter().try_for_each(|image| cluster.import_image(image))?;
    install::product(cluster, PRODUCT)?;
    let default = "ingressclass.kubernetes.io/is-default-class=true";
    cluster.kubectl(&["annotate", "--overwrite", "ingressclass", CLASS, default]).map(drop)
}

/// Runs all scenarios once, prints the result, and returns whether all passed.
fn once(cluster: &Cluster, suite: &Suite, number: u8) -> Result<bool> {
    let dir = directory().join(format!("run-{number}"));
    // Reports of an earlier run must not be taken for those of this one.
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("cannot remove `{}`", dir.display()))?;
    }
    fs::create_dir_all(&dir).with_context(|| format!("cannot make `{}`", dir.display()))?;
    let output = dir.join("output.txt");
    let file = File::create(&output).with_context(|| format!("cannot write `{}`", output.display()))?;
    let mut program = Command::new(&suite.program);
    program.args(["-test.run=^TestSuite$", "-format=cucumber", "-no-colors"]).arg(format!("-test.timeout={LIMIT}"));
    program.arg(format!("-wait-time-for-ingress-status={PATIENCE}")).arg(format!("-ingress-class={CLASS}"));
    program.arg(format!("-output-directory={}", dir.display()));
    program.current_dir(&suite.dir).env("KUBECONFIG", cluster.places().kubeconfig()).stdin(Stdio::null());
    program.stdout(file.try_clone().context("cannot share a file")?).stderr(file);
    let began = Instant::now();
    let mut progress = Progress::begin(format!("run {number} of the scenarios (about 14 minutes)"));
    let mut child = cluster.client()?.run(|| program.spawn().context("cannot start the conformance tests"))?;
    let status = loop {
        if let Some(status) = child.try_wait().context("cannot wait for the conformance tests")? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(500));
        progress.tick();
    };
    progress.end(if status.success() { "done" } else { "failed" });
    let counts = Counts::read(&dir, &suite.features)
        .with_context(|| format!("the program reports no result ({status}), see `{}`", output.display()))?;
    println!(
        "run {number}: {} of {} scenarios pass in {:.0} s",
        counts.passed,
        counts.passed + counts.failed.len(),
        began.elapsed().as_secs_f64()
    );
    counts.failed.iter().for_each(|failure| println!("  {failure}"));
    let is_right = counts.failed.is_empty() && status.success();
    if !is_right {
        progress::note(&format!("output  {} ({status})", output.display()));
    }
    Ok(is_right)
}

fn directory() -> PathBuf {
    workspace::target_dir().join("ingress-conformance")
}
