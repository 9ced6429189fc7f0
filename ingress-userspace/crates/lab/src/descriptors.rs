//! The limit of open files and sockets for this process, and for each process that it starts from now on.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the limit to `count`, unless it is that high already.
///
/// # Errors
/// Fails if this process may not have that many.
pub fn raise(count: u64) -> anyhow::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    anyhow::ensure!(
        count <= hard,
        "{count} descriptors are needed and {hard} may be had: raise the limit (ulimit -Hn)"
    );
    Ok(setrlimit(Resource::RLIMIT_NOFILE, soft.max(count), hard)?)
}
