//! `cargo xtask kernels`: runs the product under the kernels of distributions. Each kernel boots in a machine that QEMU
//! emulates, with two NICs. The product steers real requests that arrive on each, and its admin output is compared with
//! the expected one. If a kernel refuses the programs, the fallback that the product recommends is tried instead. A second
//! machine, with SYN cookies of XDP, gets a flood of SYNs from spoofed senders, and requests meanwhile. A program that the
//! kernel's verifier would soon find too large is a failure as well.
//!
//! ```text
//!  this process                       QEMU, user-mode networks          machine
//!  client ── 127.x.y.z:8000 ──────────── virtio-net 10.0.2.15:80 ──┐
//!  client ── 127.x.y.z:8001 ──────────── e1000      10.0.3.15:80 ──┴─ xdp-ingress
//!  client ── 127.x.y.z:9110 ──────────── virtio-net :9110             │
//!  pod    ── 127.0.0.1:PORT ──────────── 10.0.2.2:PORT ───────────────┘
//! ```
#![allow(clippy::print_stdout, reason = "a command-line tool talks on its standard output")]

mod console;
mod debian;
mod flood;
mod initramfs;
mod machine;
mod scenario;
mod table;

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

pub use self::debian::can_boot;
use self::scenario::Findings;
use xtask_image::oci::File;
use xtask_setup::build::Profile;
use xtask_tools::progress::Progress;

/// Text below the options in `kernels --help`.
pub const AFTER_HELP: &str = "\
Kernels and busybox come as packages from the Debian mirror that `/etc/apt` names, and stay in the cache, 15 MB each;
delete `kernel-*` there to have newer ones. QEMU is the distribution's, and emulates: no KVM is needed, nor root once
it is installed. On two cores a machine takes about ten seconds.

Examples:
  cargo xtask kernels                              # all of them, with the program as the image has it
  cargo xtask kernels --kernel 6.1 --dev           # one, with the program that tests use: nothing is optimised
  cargo xtask kernels --kernel newest --console    # with all that the machine has said";

/// Boot Debian's kernels in emulated machines and see the product steer there
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The kernels to boot; all of them if none is named
    #[arg(long = "kernel", value_name = "KERNEL", value_enum, value_delimiter = ',')]
    kernels: Vec<Version>,
    /// Use the program that tests use, with its shared libraries, instead of the static one of the image
    #[arg(long)]
    dev: bool,
    /// Show the console of each machine
    #[arg(long)]
    console: bool,
}

/// A kernel that Debian builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Version {
    /// Debian 11: the programs for kernels before 5.18
    #[value(name = "5.10")]
    Bullseye,
    /// Debian 12: without tcx
    #[value(name = "6.1")]
    Bookworm,
    /// Debian 13
    #[value(name = "6.12")]
    Trixie,
    /// Debian unstable
    #[value(name = "newest")]
    Sid,
}

/// The product's behaviour on a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Support {
    /// The programs run and steer.
    Programs(Attached),
    /// The programs do not load, for the reason that the product reports; it serves with ordinary listeners.
    Refused(String),
}

/// Attachment of the programs to each NIC, in the order of [`NICS`].
type Attached = [Hooks; NICS.len()];

/// Attachment of a NIC's programs, in the words of the admin address.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hooks {
    receives: String,
    transmits: String,
}

/// A NIC of every machine.
#[derive(Debug)]
struct Nic {
    /// Name of the kernel driver, which is also the name of the interface.
    driver: &'static str,
    /// QEMU's name of the device.
    device: &'static str,
    /// The third byte of its network.
    subnet: u8,
    /// Port on this machine that forwards to port 80 of the emulated machine through this NIC.
    port: u16,
    /// XDP mode of this NIC on current kernels.
    receives: &'static str,
}

/// A NIC with XDP support in its driver, and one without.
const NICS: [Nic; 2] = [
    Nic { driver: "virtio_net", device: "virtio-net-pci", subnet: 2, port: 8000, receives: "native" },
    Nic { driver: "e1000", device: "e1000", subnet: 3, port: 8001, receives: "generic" },
];

/// Verified instructions at which every kernel refuses a program (`BPF_COMPLEXITY_LIMIT_INSNS`), and the share of them
/// that a program may have: growth fails here before a kernel refuses the program.
const VERIFIED_MAX: u32 = 1_000_000;
const VERIFIED_PERCENT: u32 = 90;

/// The kernel that boots as part of the tests: the oldest that Debian supports.
const SHORT: Version = Version::Bookworm;

// === impl Version ===

impl Version {
    fn name(self) -> &'static str {
        match self {
            Self::Bullseye => "5.10",
            Self::Bookworm => "6.1",
            Self::Trixie => "6.12",
            Self::Sid => "newest",
        }
    }

    /// Returns the suite of Debian's archive, as named on its mirrors.
    fn suite(self) -> &'static str {
        match self {
            Self::Bullseye => "bullseye",
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Sid => "sid",
        }
    }

    /// Returns the attachment that counts packets that leave: tcx from Linux 6.6 on (commit e420bed02507).
    fn transmits(self) -> &'static str {
        match self {
            Self::Bullseye | Self::Bookworm => "clsact",
            Self::Trixie | Self::Sid => "tcx",
        }
    }

    /// Returns whether XDP can send SYN cookies: from Linux 6.0 on.
    fn has_syn_cookies(self) -> bool {
        self != Self::Bullseye
    }

    /// Returns whether the kernel says how many instructions of a program it has verified: from Linux 5.16 on.
    fn counts_verified(self) -> bool {
        self != Self::Bullseye
    }

    /// Returns the faults of `findings`.
    fn objections(self, findings: &Findings) -> Vec<String> {
        const LIMIT: u32 = VERIFIED_MAX / 100 * VERIFIED_PERCENT;
        let Findings { support, verified, .. } = findings;
        let mut objections: Vec<String> = self.objection(support).into_iter().collect();
        if verified.is_empty() && self.counts_verified() && matches!(support, Support::Programs(_)) {
            objections.push("the product does not say how many instructions the kernel has verified".to_owned());
        }
        let large = verified.iter().filter(|(_, verified)| **verified > LIMIT).map(|(program, verified)| {
            format!(
                "`{program}` has {verified} verified instructions, and may have {LIMIT} ({VERIFIED_PERCENT} % of those \
                 at which a kernel refuses a program)"
            )
        });
        objections.extend(large);
        objections
    }

    /// Returns the fault of `support`, if any.
    fn objection(self, support: &Support) -> Option<String> {
        match support {
            Support::Refused(reason) => Some(format!("refuses the programs: {reason}")),
            Support::Programs(attached) => {
                let expect = NICS
                    .each_ref()
                    .map(|nic| Hooks { receives: nic.receives.to_owned(), transmits: self.transmits().to_owned() });
                (*attached != expect).then(|| format!("programs are attached as {attached:?}, and not as {expect:?}"))
            }
        }
    }
}

/// Runs `cargo xtask kernels`.
///
/// # Errors
/// Fails if a download or a build fails, a machine does not boot, or the product behaves unexpectedly there.
pub fn run(args: &Args) -> Result<()> {
    let Args { kernels, dev, console } = args;
    let kernels = if kernels.is_empty() { Version::value_variants() } else { kernels };
    boot(kernels, if *dev { Profile::Dev } else { Profile::Release }, *console)
}

/// Boots one kernel, with the program that other tests have built.
///
/// # Errors
/// Fails like [`run`].
pub fn short() -> Result<()> {
    boot(&[SHORT], Profile::Dev, false)
}

fn boot(kernels: &[Version], profile: Profile, show_console: bool) -> Result<()> {
    let fetch = |version: &Version| -> Result<_> { Ok((*version, debian::ensure(version.name(), version.suite())?)) };
    let kernels: Vec<_> = kernels.iter().map(fetch).collect::<Result<_>>()?;
    let product = xtask_image::product(profile)?;
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    for (version, kernel) in kernels {
        // A failure does not hide the results of the other kernels.
        match observe(version, &kernel, &product, show_console) {
            Ok(findings) => {
                failed.extend(version.objections(&findings).iter().map(|why| format!("{}: {why}", kernel.release)));
                rows.push((kernel.release, findings));
            }
            Err(error) => failed.push(format!("{}: {error:#}", kernel.release)),
        }
    }
    println!("\n{}", table::table(&rows));
    if let Some(verified) = table::verified(&rows) {
        println!("\n{verified}");
    }
    if failed.is_empty() { Ok(()) } else { bail!("not as it must be:\n{}", failed.join("\n")) }
}

fn observe(version: Version, kernel: &debian::Kernel, product: &[File], show_console: bool) -> Result<Findings> {
    let release = &kernel.release;
    let (mut findings, verified) =
        shown(format!("Linux {release}"), show_console, || scenario::observe(kernel, product))?;
    findings.verified = verified;
    if version.has_syn_cookies() && matches!(findings.support, Support::Programs(_)) {
        let label = format!("Linux {release}, a flood of SYNs");
        let (cookies, verified) = shown(label, show_console, || flood::observe(kernel, product))?;
        findings.cookies = Some(cookies);
        findings.verified.extend(verified);
    }
    Ok(findings)
}

/// Shows the progress of one machine, and its console if wanted. Also returns the verified instructions of each program.
fn shown<T>(
    label: String,
    show_console: bool,
    run: impl FnOnce() -> (Result<T>, String),
) -> Result<(T, BTreeMap<String, u32>)> {
    let progress = Progress::begin(label);
    let (findings, console) = run();
    progress.end(if findings.is_ok() { "done" } else { "failed" });
    if show_console {
        println!("{console}");
    }
    let findings = findings.with_context(|| format!("the machine last said:\n{}", console::tail(&console)))?;
    Ok((findings, console::verified(&console)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs(receives: [&str; 2], transmits: &str) -> Support {
        Support::Programs(
            receives.map(|receives| Hooks { receives: receives.to_owned(), transmits: transmits.to_owned() }),
        )
    }

    #[test]
    fn each_kernel_must_support_its_expected_programs() {
        let old = Support::Refused("kernel `5.10` is too old".to_owned());
        let stack = ["generic", "generic"];
        let verifier = Support::Refused("the kernel refuses the program `ingress_xdp`".to_owned());
        let usual = ["native", "generic"];
        for (version, support, is_well) in [
            (Version::Bullseye, &programs(usual, "clsact"), true),
            (Version::Bullseye, &programs(stack, "clsact"), false),
            (Version::Bullseye, &programs(usual, "tcx"), false),
            (Version::Bullseye, &old, false),
            (Version::Bullseye, &verifier, false),
            (Version::Bookworm, &programs(usual, "clsact"), true),
            (Version::Bookworm, &programs(usual, "tcx"), false),
            (Version::Bookworm, &programs(stack, "clsact"), false),
            (Version::Bookworm, &verifier, false),
            (Version::Trixie, &programs(usual, "tcx"), true),
            (Version::Sid, &programs(usual, "failed"), false),
            (Version::Sid, &old, false),
        ] {
            assert_eq!(version.objection(support).is_none(), is_well, "{version:?}: {support:?}");
        }
    }

    #[test]
    fn programs_stay_below_the_limit_of_the_verifier() {
        let findings = |verified: &[u32]| Findings {
            support: programs(["native", "generic"], "clsact"),
            requests: 16,
            steered: 16,
            cookies: None,
            verified: verified.iter().enumerate().map(|(n, &verified)| (format!("program_{n}"), verified)).collect(),
        };
        for (version, verified, faults) in [
            (Version::Bookworm, &[400_000, 900_000][..], 0),
            (Version::Bookworm, &[400_000, 900_001], 1),
            (Version::Bookworm, &[900_001, 999_999], 2),
            (Version::Bookworm, &[], 1),
            (Version::Bullseye, &[], 0),
        ] {
            let objections = version.objections(&findings(verified));
            assert_eq!(objections.len(), faults, "{version:?}: {objections:?}");
        }
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        for version in Version::value_variants() {
            let value = version.to_possible_value().map(|value| value.get_name().to_owned());
            assert_eq!(value.as_deref(), Some(version.name()));
        }
    }
}
