//! Unpredictable random numbers, for occasional use.

use std::hash::{BuildHasher as _, RandomState};

/// Returns a number that clients and tenants cannot predict from others they have seen: the hash of nothing under keys
/// from the operating system. `fastrand` is for choices without security impact, because its output reveals later
/// values.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(())
}
