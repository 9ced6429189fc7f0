//! Selects the streams and connections to evict when memory is scarce: those that buffer most for clients that read too
//! slowly. The eviction itself is in `worker`.

use std::{cmp::Reverse, time::Duration};

use tokio::task::AbortHandle;

use crate::{downstream::h2_backlog::CONNECTION_MAX, server::memory::Pressure};

/// Interval between looks at the connections while memory is scarce. A client that has taken nothing between two looks
/// is stuck.
pub(crate) const PERIOD: Duration = Duration::from_millis(250);

/// Consecutive looks that must find a stream stuck on a connection that is read. The streams of such a connection share
/// the bytes that its client takes, so each may have to wait for its turn.
pub(crate) const STREAM_LOOKS: u8 = 4;

/// Fewer bytes are not worth a connection: two of HTTP/2's usual frames.
const WORTHWHILE: usize = 32 * 1024;
/// Approximate memory of a waiting stream besides its queued bytes: its task, its request, and the exchange with its
/// pod. Each stuck stream is therefore worth evicting.
pub(crate) const STREAM: usize = WORTHWHILE;

/// Twice the bytes that a connection may buffer, not counting streams without queued bytes. A stuck connection above
/// this has requested many streams and reads none.
const EXCESSIVE: usize = 2 * CONNECTION_MAX;

/// Memory that a connection, or one of its streams, holds for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLoad {
    /// Buffered bytes of responses.
    pub(crate) bytes: usize,
    /// The client takes none of them.
    pub(crate) stuck: bool,
}

/// A candidate for eviction.
pub(crate) enum Keeper<C> {
    Connection(C),
    /// The task of a stream.
    Stream(AbortHandle),
}

/// Returns the `keepers` to evict in this round, largest first. Without pressure these are a quarter of those that are
/// stuck and buffer more than they may; under pressure a quarter, then half of all that are stuck; and in the end half
/// of all that buffer bytes, stuck or not. Fractions are rounded up.
pub(crate) fn evict<K>(pressure: Pressure, keepers: impl Iterator<Item = (MemoryLoad, K)>) -> impl Iterator<Item = K> {
    let (share, stuck_only, least) = match pressure {
        Pressure::None => (4, true, EXCESSIVE),
        Pressure::Tight => (4, true, WORTHWHILE),
        Pressure::Scarce => (2, true, WORTHWHILE),
        Pressure::Critical => (2, false, WORTHWHILE),
    };
    let is_due = |load: &MemoryLoad| load.bytes >= least && (load.stuck || !stuck_only);
    let mut due: Vec<_> = keepers.filter(|(load, _)| is_due(load)).collect();
    due.sort_by_key(|(load, _)| Reverse(load.bytes));
    let count = due.len().div_ceil(share);
    due.into_iter().take(count).map(|(_, keeper)| keeper)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_connections_are_evicted_first_and_small_ones_never() {
        use Pressure::{Critical, None as Calm, Scarce, Tight};
        let kib = |kib: usize, stuck| MemoryLoad { bytes: kib * 1024, stuck };
        let many = [kib(40, true), kib(300, true), kib(900, false), kib(250, true), kib(31, true), kib(50, true)];
        for (pressure, loads, expect) in [
            (Calm, &many[..], &[][..]),
            (Calm, &[kib(511, true), kib(512, true), kib(900, false)], &[1]),
            (Tight, &many, &[1]),
            (Scarce, &many, &[1, 3]),
            (Critical, &many, &[2, 1, 3]),
            (Tight, &[kib(40, true)], &[0]),
            (Scarce, &[kib(900, false)], &[]),
            (Critical, &[kib(900, false)], &[0]),
            (Critical, &[kib(31, true), kib(0, false)], &[]),
        ] {
            let ended: Vec<_> = evict(pressure, loads.iter().copied().zip(0..)).collect();
            assert_eq!(ended, expect, "{pressure:?}");
        }
    }
}
