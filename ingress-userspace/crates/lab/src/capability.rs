//! Checks this machine for the requirements of work that needs the kernel. It changes nothing outside a namespace that
//! ends with the probe.

use std::{
    fs,
    io::{self, Write as _},
    process::{Command, Stdio},
    thread,
};

use anyhow::Context as _;
use aya::{programs::ProgramType, sys::is_program_supported};
use nix::sched::{CloneFlags, unshare};

use xtask_tools::process::is_required;

/// Bits of the effective set in `/proc/self/status` (capabilities(7)).
const CAPABILITIES: [(u32, &str); 3] = [(12, "CAP_NET_ADMIN"), (21, "CAP_SYS_ADMIN"), (39, "CAP_BPF")];

/// Returns the missing requirements of namespaces, XDP and sk_lookup, each with a remedy; empty if all are met.
#[must_use]
pub fn missing() -> Vec<String> {
    let lacking = capabilities().unwrap_or_else(|error| vec![format!("{error:#}")]);
    if !lacking.is_empty() {
        // Every further probe would fail for the same reason.
        return lacking;
    }
    let mut missing = Vec::new();
    for (kind, name, version) in [(ProgramType::Xdp, "XDP", "4.8"), (ProgramType::SkLookup, "sk_lookup", "5.9")] {
        match is_program_supported(kind) {
            Ok(true) => {}
            Ok(false) => missing.push(format!("BPF programs of type {name} (a kernel from {version} on)")),
            Err(error) => missing.push(format!("BPF programs of type {name}: {error}")),
        }
    }
    if !fs::read_to_string("/proc/filesystems").is_ok_and(|all| all.lines().any(|line| line.ends_with("\tbpf"))) {
        missing.push("the BPF file system (a kernel with CONFIG_BPF_SYSCALL)".into());
    }
    if let Err(error) = namespaces() {
        missing.push(format!("network namespaces with veth links: {error:#}"));
    }
    missing
}

/// Returns `true` if the requirements are met, else `false` after a loud notice. If `REQUIRE_KERNEL` is set, a missing
/// requirement is an error and not a reason to skip.
///
/// # Errors
/// Fails with a message that names everything that is missing.
pub fn required_or_skip(what: &str) -> anyhow::Result<bool> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(true);
    }
    let missing = missing.join("; ");
    anyhow::ensure!(!is_required("REQUIRE_KERNEL"), "`{what}` needs what this machine lacks: {missing}");
    skipped(what, &format!("this machine lacks {missing}; REQUIRE_KERNEL=1 makes this an error"));
    Ok(false)
}

/// Reports loudly, on standard error, that `what` is skipped. Does not use `eprintln!`, because libtest hides its
/// output when a test passes.
pub fn skipped(what: &str, why: &str) {
    // A closed standard error is no reason to fail.
    writeln!(io::stderr(), "\n!!! SKIPPED, NOTHING WAS TESTED: `{what}`: {why}\n").ok();
}

fn capabilities() -> anyhow::Result<Vec<String>> {
    let status = fs::read_to_string("/proc/self/status").context("cannot read `/proc/self/status`")?;
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:")).context("no `CapEff` in the status")?;
    let set = u64::from_str_radix(set.trim(), 16).context("`CapEff` is no number")?;
    let has = |bit: u32| set & (1 << bit) != 0;
    let lacking = CAPABILITIES.iter().filter(|(bit, _)| !has(*bit));
    Ok(lacking.map(|(_, name)| format!("the capability {name} (run as root)")).collect())
}

/// Creates a veth pair in a namespace that ends with the thread.
fn namespaces() -> anyhow::Result<()> {
    let probe = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).context("cannot make a network namespace")?;
        let output = Command::new("ip")
            .args(["link", "add", "probe0", "type", "veth", "peer", "name", "probe1"])
            .stdin(Stdio::null())
            .output()
            .context("cannot run `ip` (package `iproute2`)")?;
        anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    });
    probe.join().unwrap_or_else(|_panic| anyhow::bail!("the probe failed"))
}
