//! Random numbers that nobody can guess, of which a few are wanted now and then.

use std::hash::{BuildHasher as _, RandomState};

/// One that neither clients nor tenants can guess, whichever others they have seen: the hash of nothing under keys that
/// the standard library gets from the system. `fastrand`, which is for choices that nobody gains by knowing, gives its
/// next numbers away by those it has given.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(())
}
