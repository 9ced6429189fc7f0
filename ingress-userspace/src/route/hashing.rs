//! Hashing of names and paths, partly per request.

use std::sync::LazyLock;

use foldhash::{SharedSeed, quality::SeedableRandomState};

use crate::random::random;

/// A hasher that needs a quarter of the standard hasher's time for short inputs such as names and paths. Its secrets
/// cannot be guessed, but an attacker may infer them from long measurements of lookups. That could slow down lookups of
/// one shard of the hosts, or of the paths of one host, but nothing else.
pub(super) type Hashing = SeedableRandomState;

/// Returns a hasher with a seed per process, because tenants choose the hashed texts, and with its own seed.
pub(super) fn hashing() -> Hashing {
    static OF_PROCESS: LazyLock<SharedSeed> = LazyLock::new(|| SharedSeed::from_u64(random()));
    SeedableRandomState::with_seed(random(), &OF_PROCESS)
}
