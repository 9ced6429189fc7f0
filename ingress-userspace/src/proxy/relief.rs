//! Which connections end when memory is scarce: those that keep most for clients which take it too slowly. It ends none
//! itself.

use std::{cmp::Reverse, time::Duration};

use super::memory::Pressure;

/// How often connections are looked at while memory is scarce. A client that has taken nothing from one look to the next
/// is stuck.
pub(super) const PERIOD: Duration = Duration::from_millis(250);

/// Fewer bytes are not worth a connection: two of HTTP/2's usual frames.
const WORTHWHILE: usize = 32 * 1024;

/// What a connection keeps for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    /// Bytes of responses.
    pub(super) bytes: usize,
    /// The client takes none of them.
    pub(super) stuck: bool,
}

/// Those of `connections` that end in this round, largest first: under pressure a quarter of those that are stuck, then
/// half of them, and in the end half of all that keep something, stuck or not. A quarter or half of one is one.
pub(super) fn evict<C>(pressure: Pressure, connections: impl Iterator<Item = (Load, C)>) -> impl Iterator<Item = C> {
    let (share, stuck_only) = match pressure {
        Pressure::None => (0, true),
        Pressure::Tight => (4, true),
        Pressure::Scarce => (2, true),
        Pressure::Critical => (2, false),
    };
    let is_due = |load: &Load| share > 0 && load.bytes >= WORTHWHILE && (load.stuck || !stuck_only);
    let mut due: Vec<_> = connections.filter(|(load, _)| is_due(load)).collect();
    due.sort_by_key(|(load, _)| Reverse(load.bytes));
    let count = if share == 0 { 0 } else { due.len().div_ceil(share) };
    due.into_iter().take(count).map(|(_, connection)| connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connections_that_keep_most_end_first_and_small_ones_never() {
        use Pressure::{Critical, None as Calm, Scarce, Tight};
        let kib = |kib: usize, stuck| Load { bytes: kib * 1024, stuck };
        let many = [kib(40, true), kib(300, true), kib(900, false), kib(250, true), kib(31, true), kib(50, true)];
        for (pressure, loads, expect) in [
            (Calm, &many[..], &[][..]),
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
