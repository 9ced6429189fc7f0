//! Cached results for tokens: those whose signature was verified, and parsed key sets.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use aws_lc_rs::error::Unspecified;

use super::keys::{Keys, Verified};
use crate::auth::hmac_cache::HmacCache;

/// Number of tokens with a cached verification.
const CACHED_MAX: usize = 8 * 1024;
/// Number of parsed key sets in the cache.
const SETS_MAX: usize = 256;

/// Caches of verified tokens and parsed key sets, for the whole process.
pub(crate) struct Tokens {
    pub(super) verified: HmacCache<Arc<Verified>>,
    /// Number of signatures verified.
    pub(super) count: AtomicU64,
    pub(super) sets: HmacCache<Arc<Keys>>,
}

impl Tokens {
    /// # Errors
    /// If the system provides no randomness.
    pub(crate) fn new() -> Result<Self, Unspecified> {
        let count = AtomicU64::new(0);
        Ok(Self { verified: HmacCache::new(CACHED_MAX)?, count, sets: HmacCache::new(SETS_MAX)? })
    }

    /// Returns the number of signatures verified.
    pub(crate) fn verified(&self) -> u64 {
        self.count.load(Relaxed)
    }
}
