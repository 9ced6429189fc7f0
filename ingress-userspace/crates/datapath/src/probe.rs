//! Checks whether this machine and process can run the datapath, without changing anything.

use std::{
    fs,
    path::{Path, PathBuf},
};

use aya::programs::ProgramType;

use super::{error::Missing, kernel, object, sys};

/// Returns the unmet requirements of the datapath; empty if it can run with its pins below `bpffs`.
#[must_use]
pub fn probe(bpffs: &Path) -> Vec<Missing> {
    let mut missing = Vec::new();
    if object::is_stub() {
        missing.push(Missing::Programs);
    }
    missing.extend(age());
    let capabilities = capabilities();
    missing.extend(capabilities.iter().cloned());
    // Without the capabilities, the kernel refuses every probe, and each refusal would be reported as a missing
    // feature.
    if capabilities.is_empty() {
        for (kind, name) in [(ProgramType::Xdp, "xdp"), (ProgramType::SkLookup, "sk_lookup")] {
            match aya::sys::is_program_supported(kind) {
                Ok(true) => {}
                // Not a missing feature; the error at the creation of maps explains it.
                Err(error) if kernel::lacks_locked_memory(&error) => {}
                Ok(false) | Err(_) => missing.push(Missing::ProgramType(name)),
            }
        }
        if aya::features().btf().is_none() {
            missing.push(Missing::Btf);
        }
    }
    missing.extend(file_system(bpffs));
    missing
}

/// Checks the minimum kernel version.
fn age() -> Option<Missing> {
    let is_older = kernel::running()? < kernel::OLDEST;
    is_older.then(|| Missing::Kernel { running: kernel::release(), needed: kernel::OLDEST_TEXT })
}

/// Checks the additional requirements of `--steer rewrite`.
pub(super) fn rewriting() -> Option<Missing> {
    let is_older = kernel::running()? < kernel::FULL;
    is_older.then(|| Missing::Rewriting { running: kernel::release(), needed: kernel::FULL_TEXT })
}

/// Returns the capabilities missing from the effective set. `CAP_SYS_ADMIN` replaces the other two of bpf(2) (kernel
/// commit 2c78ee898d8f).
fn capabilities() -> Vec<Missing> {
    const SYS_ADMIN: u32 = 21;
    const NEEDED: [(u32, &str); 3] = [(12, "CAP_NET_ADMIN"), (38, "CAP_PERFMON"), (39, "CAP_BPF")];
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    let has = |bit: u32| effective >> bit & 1 == 1;
    let lacks = |bit| !has(bit) && (bit == 12 || !has(SYS_ADMIN));
    NEEDED.iter().filter(|(bit, _)| lacks(*bit)).map(|(_, name)| Missing::Capability(name)).collect()
}

/// Checks that the nearest existing directory above the pins is on a BPF file system.
fn file_system(bpffs: &Path) -> Option<Missing> {
    let existing = bpffs.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
    match sys::is_bpffs(existing) {
        Ok(true) => None,
        Ok(false) | Err(_) => Some(Missing::Bpffs(mount_point(bpffs))),
    }
}

/// Returns the expected mount point of a BPF file system for pins at `bpffs`.
fn mount_point(bpffs: &Path) -> PathBuf {
    const USUAL: &str = "/sys/fs/bpf";
    if bpffs.starts_with(USUAL) { PathBuf::from(USUAL) } else { bpffs.to_owned() }
}
