//! How names and paths are hashed: some of it for each request.

use std::sync::LazyLock;

use foldhash::{SharedSeed, quality::SeedableRandomState};

use crate::random::random;

/// A quarter of the work of the standard hasher for what is as short as names and paths. Its secrets cannot be guessed,
/// but perhaps found out by whoever measures lookups at length; that could slow down those of one shard of the hosts,
/// or of the paths of one host, and nothing else.
pub(super) type Hashing = SeedableRandomState;

/// One with secrets of this process, because tenants choose what is hashed, and with one of its own.
pub(super) fn hashing() -> Hashing {
    static OF_PROCESS: LazyLock<SharedSeed> = LazyLock::new(|| SharedSeed::from_u64(random()));
    SeedableRandomState::with_seed(random(), &OF_PROCESS)
}
