//! Programs from the distribution. Installs only missing packages, only as root, and only through apt-get.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use xtask_tools::{process, progress};

const LIMIT: Duration = Duration::from_secs(900);

/// Debian packages, each with a program that proves its presence.
const PROGRAMS: [(&str, &str); 23] = [
    ("chromium", "chromium"),
    ("chromium-driver", "chromedriver"),
    ("curl", "curl"),
    ("ethtool", "ethtool"),
    ("firefox-esr", "firefox-esr"),
    ("g++", "g++"),
    ("gcc-aarch64-linux-gnu", "aarch64-linux-gnu-gcc"),
    ("haproxy", "haproxy"),
    ("iproute2", "ip"),
    ("libnss3-tools", "certutil"),
    ("linux-perf", "perf"),
    ("nginx", "nginx"),
    ("nftables", "nft"),
    ("nghttp2-client", "h2load"),
    ("ngtcp2-client", "gtlsclient"),
    ("openssl", "openssl"),
    ("pngquant", "pngquant"),
    ("python3", "python3"),
    ("qemu-system-x86", "qemu-system-x86_64"),
    ("skopeo", "skopeo"),
    ("util-linux", "nsenter"),
    ("wrk", "wrk"),
    ("xz-utils", "xz"),
];

/// Packages for namespaces, real requests, certificates, and rules of nftables.
pub const LAB: [&str; 5] = ["curl", "iproute2", "nftables", "openssl", "util-linux"];
/// Package for typos, which is published as a Python wheel.
pub const CHECK: [&str; 1] = ["python3"];
/// Packages for machines that boot other kernels, and for unpacking modules of these.
pub const KERNELS: [&str; 2] = ["qemu-system-x86", "xz-utils"];
/// The browser that tests the dashboard, and its WebDriver server; and Python for axe-core.
pub const BROWSER: [&str; 3] = ["chromium", "chromium-driver", "python3"];
/// Package for libFuzzer, which is C++.
pub const FUZZ: [&str; 1] = ["g++"];
/// The measured programs and the load generators.
pub const BENCH: [&str; 6] = ["haproxy", "iproute2", "nghttp2-client", "nginx", "util-linux", "wrk"];

/// Installs the missing ones of the Debian packages; `what` is the command that needs them.
///
/// # Errors
/// Fails if a package is missing and cannot be installed here; the error names the command that would help.
pub fn ensure(packages: &[&str], what: &str) -> Result<()> {
    let missing = || packages.iter().copied().filter(|package| process::find_program(program(package)).is_none());
    let absent: Vec<&str> = missing().collect();
    if absent.is_empty() {
        return Ok(());
    }
    install(&absent).with_context(|| format!("`cargo xtask {what}` needs programs that are not installed"))?;
    match missing().next() {
        Some(package) => bail!("`{}` is still missing after `{package}` was installed", program(package)),
        None => Ok(()),
    }
}

/// Installs Debian packages, as root only.
///
/// # Errors
/// Fails if this is not root, if there is no apt-get, or if apt-get fails; each error names the command that would
/// help.
pub fn install(packages: &[&str]) -> Result<()> {
    let names = packages.join(" ");
    if process::find_program("apt-get").is_none() {
        bail!("missing on this machine: {names} (names of Debian's packages); install them with its package manager");
    }
    if !process::is_root() {
        bail!("missing on this machine: {names}; run `sudo apt-get install {names}`");
    }
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(["-q", "-y"]).args(arguments).env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
        // Services of packages, such as that of nginx, do not start: invoke-rc.d(8) takes this for single-user mode.
        command.env("RUNLEVEL", "1");
        command
    };
    let mut arguments = vec!["install", "--no-install-recommends"];
    arguments.extend(packages);
    let label = format!("installing {names}");
    let Err(first) = process::run_shown(&label, &mut apt(&arguments), LIMIT) else { return Ok(()) };
    // A new machine has no package lists, and old lists name files that mirrors have dropped.
    progress::note("the package lists may be missing or old; fetching them");
    process::run_shown("apt-get update", &mut apt(&["update"]), LIMIT).with_context(|| format!("{first:#}"))?;
    process::run_shown(&label, &mut apt(&arguments), LIMIT)
        .with_context(|| format!("cannot install {names}; `apt-get install {names}` shows why"))
}

/// Installs Python's package installer if it is missing.
///
/// # Errors
/// Fails if it cannot be installed here; the error names the command that would help.
pub fn ensure_pip() -> Result<()> {
    if process::capture(Command::new("python3").args(["-m", "pip", "--version"])).is_ok() {
        return Ok(());
    }
    install(&["python3-pip"])
}

fn program(package: &str) -> &str {
    PROGRAMS.iter().find(|(name, _)| *name == package).map_or(package, |(_, program)| program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_requested_package_has_a_known_program() {
        for package in LAB.iter().chain(&CHECK).chain(&KERNELS).chain(&BROWSER).chain(&BENCH) {
            assert!(PROGRAMS.iter().any(|(name, _)| name == package), "{package}");
        }
        assert_eq!(program("iproute2"), "ip");
        assert_eq!(program("unlisted"), "unlisted");
    }

    #[test]
    fn installed_programs_are_not_installed_again() {
        assert!(ensure(&["sh"], "x").is_ok());
    }
}
