//! How many files and sockets this process, and each that it starts from now on, may have open.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the limit to `count`, unless it is there already.
///
/// # Errors
/// If this process may not have as many.
pub fn raise(count: u64) -> anyhow::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    anyhow::ensure!(
        count <= hard,
        "{count} descriptors are needed and {hard} may be had: raise the limit (ulimit -Hn)"
    );
    Ok(setrlimit(Resource::RLIMIT_NOFILE, soft.max(count), hard)?)
}
