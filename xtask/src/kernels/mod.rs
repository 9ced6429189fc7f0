//! `cargo xtask kernels`: the product under kernels that others run. Each boots in a machine that QEMU emulates, with
//! two NICs; the product steers real requests that come in by each, and what it says of itself is compared with what it
//! must say there. Should a kernel refuse the programs, the fallback that the product names is tried instead.
//!
//! ```text
//!  this process                       QEMU, user-mode networks          machine
//!  client ── 127.x.y.z:8000 ──────────── virtio-net 10.0.2.15:80 ──┐
//!  client ── 127.x.y.z:8001 ──────────── e1000      10.0.3.15:80 ──┴─ xdp-ingress
//!  client ── 127.x.y.z:9110 ──────────── virtio-net :9110             │
//!  pod    ── 127.0.0.1:PORT ──────────── 10.0.2.2:PORT ───────────────┘
//! ```

mod console;
mod initramfs;
mod machine;
mod scenario;
mod table;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use self::scenario::Findings;
use crate::build::Profile;
use crate::image::{self, oci::File};
use crate::progress::Progress;
use crate::setup;

/// What `kernels --help` says below the options.
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
    /// The kernels to boot; all of them when none is named
    #[arg(long = "kernel", value_name = "KERNEL", value_enum, value_delimiter = ',')]
    kernels: Vec<Version>,
    /// Take the program that tests use, with the libraries it needs, and not the static one of the image
    #[arg(long)]
    dev: bool,
    /// Show the console of each machine
    #[arg(long)]
    console: bool,
}

/// A kernel that Debian builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Version {
    /// Of Debian 11: the programs for kernels before 5.18
    #[value(name = "5.10")]
    Bullseye,
    /// Of Debian 12: without tcx
    #[value(name = "6.1")]
    Bookworm,
    /// Of Debian 13
    #[value(name = "6.12")]
    Trixie,
    /// Of Debian unstable
    #[value(name = "newest")]
    Sid,
}

/// What the product makes of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Support {
    /// Programs run, and steer.
    Programs(Attached),
    /// They do not, for this reason, which the product gives; it serves by ordinary listeners.
    Refused(String),
}

/// How programs are attached to each NIC, in the order of [`NICS`].
type Attached = [Hooks; NICS.len()];

/// Where the programs of a NIC are, in the words of the admin address.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hooks {
    receives: String,
    transmits: String,
}

/// A NIC of every machine.
#[derive(Debug)]
struct Nic {
    /// The name of its interface, too.
    driver: &'static str,
    /// What QEMU calls the device.
    device: &'static str,
    /// The third byte of its network.
    subnet: u8,
    /// Where port 80 of the machine by this NIC is on this one.
    port: u16,
    /// How XDP runs there in the kernels of today.
    receives: &'static str,
}

/// One whose driver runs XDP, and one whose driver never learnt it.
const NICS: [Nic; 2] = [
    Nic { driver: "virtio_net", device: "virtio-net-pci", subnet: 2, port: 8000, receives: "native" },
    Nic { driver: "e1000", device: "e1000", subnet: 3, port: 8001, receives: "generic" },
];

/// The kernel that is booted among the tests: the oldest that Debian supports.
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

    /// The suite of Debian's archive, as its mirrors have it.
    fn suite(self) -> &'static str {
        match self {
            Self::Bullseye => "bullseye",
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Sid => "sid",
        }
    }

    /// How packets that leave are counted: by tcx from Linux 6.6 on (commit e420bed02507).
    fn transmits(self) -> &'static str {
        match self {
            Self::Bullseye | Self::Bookworm => "clsact",
            Self::Trixie | Self::Sid => "tcx",
        }
    }

    /// What is wrong with `support`, if anything.
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
/// When something cannot be fetched or built, a machine does not come up, or the product does not what it must there.
pub fn run(args: &Args) -> Result<()> {
    let Args { kernels, dev, console } = args;
    let kernels = if kernels.is_empty() { Version::value_variants() } else { kernels };
    boot(kernels, if *dev { Profile::Dev } else { Profile::Release }, *console)
}

/// One kernel, with the program that other tests have built.
///
/// # Errors
/// As [`run`].
pub(crate) fn short() -> Result<()> {
    boot(&[SHORT], Profile::Dev, false)
}

fn boot(kernels: &[Version], profile: Profile, show_console: bool) -> Result<()> {
    let fetch =
        |version: &Version| -> Result<_> { Ok((*version, setup::kernels::ensure(version.name(), version.suite())?)) };
    let kernels: Vec<_> = kernels.iter().map(fetch).collect::<Result<_>>()?;
    let product = image::product(profile)?;
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    for (version, kernel) in kernels {
        // One that fails does not hide the next.
        match observe(&kernel, &product, show_console) {
            Ok(findings) => {
                failed.extend(version.objection(&findings.support).map(|why| format!("{}: {why}", kernel.release)));
                rows.push((kernel.release, findings));
            }
            Err(error) => failed.push(format!("{}: {error:#}", kernel.release)),
        }
    }
    println!("\n{}", table::table(&rows));
    if failed.is_empty() { Ok(()) } else { bail!("not as it must be:\n{}", failed.join("\n")) }
}

fn observe(kernel: &setup::kernels::Kernel, product: &[File], show_console: bool) -> Result<Findings> {
    let progress = Progress::begin(format!("Linux {}", kernel.release));
    let (findings, console) = scenario::observe(kernel, product);
    progress.end(if findings.is_ok() { "done" } else { "failed" });
    if show_console {
        println!("{console}");
    }
    findings.with_context(|| format!("the machine last said:\n{}", console::tail(&console)))
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
    fn each_kernel_must_show_what_it_has_and_no_less() {
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
    fn names_are_those_of_the_command_line() {
        for version in Version::value_variants() {
            let value = version.to_possible_value().map(|value| value.get_name().to_owned());
            assert_eq!(value.as_deref(), Some(version.name()));
        }
    }
}
