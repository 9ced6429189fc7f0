//! Version of the running kernel, and decisions that depend on nothing else.

use std::{error::Error, fs, io, iter};

use aya::util::KernelVersion;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

/// Minimum version for the programs: the first with sk_lookup (kernel commit e9ddbb7707ff) and XDP links
/// (aa8d3a716b59).
pub(super) const OLDEST: KernelVersion = KernelVersion::new(5, 9, 0);
pub(super) const OLDEST_TEXT: &str = "5.9";

/// Minimum version for all features: `xdp.frags` (f45d5b6ce2e8) and, since 5.17, `ingress_ifindex` in sk_lookup
/// (f89315650ba3).
pub(super) const FULL: KernelVersion = KernelVersion::new(5, 18, 0);
pub(super) const FULL_TEXT: &str = "5.18";

/// First version with SYN cookies for programs (33bf9885040c, 9a4d6dd554b8).
pub(super) const SYN_COOKIES: KernelVersion = KernelVersion::new(6, 0, 0);
pub(super) const SYN_COOKIES_TEXT: &str = "6.0";

/// First version that charges the memory of maps and programs to a cgroup rather than to locked memory (bdb15a29cc28,
/// 3ac1f01b43b6).
const UNLOCKED: KernelVersion = KernelVersion::new(5, 11, 0);

/// Returns the version of the running kernel as aya reads it for its own decisions, or `None` if unknown.
pub(super) fn running() -> Option<KernelVersion> {
    KernelVersion::current().ok()
}

/// Returns the release of the running kernel, as in `uname -r`.
pub(super) fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// Returns whether `error` is caused by the limit of locked memory, to which this kernel charges maps and programs.
/// (aya raises the limit after a refusal, if permitted.)
pub(super) fn lacks_locked_memory(error: &(dyn Error + 'static)) -> bool {
    is_forbidden(error)
        && running().is_some_and(|version| version < UNLOCKED)
        && getrlimit(Resource::RLIMIT_MEMLOCK).is_ok_and(|(soft, _)| soft != RLIM_INFINITY)
}

fn is_forbidden<'a>(error: &'a (dyn Error + 'static)) -> bool {
    iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| (*error).source())
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .any(|error| error.raw_os_error() == Some(libc::EPERM))
}

#[cfg(test)]
mod tests {
    use aya::{EbpfError, maps::MapError};

    use super::*;

    #[test]
    fn version_texts_match_the_constants() {
        for (version, text) in [(OLDEST, OLDEST_TEXT), (FULL, FULL_TEXT), (SYN_COOKIES, SYN_COOKIES_TEXT)] {
            assert_eq!(version.to_string(), format!("{text}.0"));
        }
    }

    #[test]
    fn eperm_is_found_below_the_errors_of_aya() {
        let error = |number| {
            let io_error = io::Error::from_raw_os_error(number);
            EbpfError::from(MapError::CreateError { name: "flows".to_owned(), io_error })
        };
        assert!(is_forbidden(&error(libc::EPERM)));
        assert!(!is_forbidden(&error(libc::EINVAL)));
    }
}
