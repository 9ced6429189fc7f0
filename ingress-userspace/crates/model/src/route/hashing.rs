//! Hashing of names and paths, partly per request.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::LazyLock,
};

use foldhash::{SharedSeed, quality::SeedableRandomState};

/// A hasher that needs a quarter of the standard hasher's time for short inputs such as names and paths. Its secrets
/// cannot be guessed, but an attacker may infer them from long measurements of lookups. That could slow down lookups of
/// one shard of the hosts, or of the paths of one host, but nothing else.
pub(super) type Hashing = SeedableRandomState;

/// Returns a hasher with a seed per process, because tenants choose the hashed texts, and with its own seed.
pub(super) fn hashing() -> Hashing {
    static OF_PROCESS: LazyLock<SharedSeed> = LazyLock::new(|| SharedSeed::from_u64(seed()));
    SeedableRandomState::with_seed(seed(), &OF_PROCESS)
}

/// Returns the hash of an empty value under the keys of the standard library's hash maps, which come from the operating
/// system and protect maps from chosen keys, too.
fn seed() -> u64 {
    RandomState::new().hash_one(())
}
