//! Counts datagrams of nodes that do not count, and warns of each reason at most once a minute.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;
use tracing::warn;

use super::{auth::Refusal, choice::NodeId};

/// Shortest interval of warnings of a reason.
const WARNED: Duration = Duration::from_mins(1);

/// The number of refused datagrams, by reason.
#[derive(Debug, Default)]
pub(in crate::daemon) struct Refusals([AtomicU64; Refusal::ALL.len()]);

/// Counts, and warns.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    counts: Arc<Refusals>,
    /// Time of the latest warning, by reason: datagrams of a stranger hide no fault of a node.
    warned: [Option<Instant>; Refusal::ALL.len()],
    /// Refused datagrams since then, by reason.
    unwarned: [u64; Refusal::ALL.len()],
}

// === impl Refusals ===

impl Refusals {
    /// Returns the number of each reason.
    pub(in crate::daemon) fn by_reason(&self) -> [(&'static str, u64); Refusal::ALL.len()] {
        let Self(counts) = self;
        Refusal::ALL.map(|refusal| (refusal.name(), counts[refusal as usize].load(Relaxed)))
    }
}

// === impl Alarm ===

impl Alarm {
    pub(super) fn counts(&self) -> Arc<Refusals> {
        Arc::clone(&self.counts)
    }

    /// Counts a datagram in the name of a node.
    pub(super) fn refuse(&mut self, refusal: Refusal, node: NodeId, now: Instant) {
        if let Some(refused) = self.count(refusal, now) {
            let [a, b, c, d, e, f] = node;
            let node = format_args!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
            let reason = refusal.name();
            warn!(%node, reason, refused, "ignored a datagram in the name of another node: {}", refusal.explained());
        }
    }

    /// Returns the number of datagrams since the latest warning of the same reason, if it is time for another one.
    fn count(&mut self, refusal: Refusal, now: Instant) -> Option<u64> {
        let Refusals(counts) = &*self.counts;
        let reason = refusal as usize;
        counts[reason].fetch_add(1, Relaxed);
        let (warned, unwarned) = (&mut self.warned[reason], &mut self.unwarned[reason]);
        *unwarned += 1;
        if warned.is_some_and(|warned| now.saturating_duration_since(warned) < WARNED) {
            return None;
        }
        *warned = Some(now);
        Some(std::mem::take(unwarned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_and_one_of_a_reason_a_minute_is_warned_of() {
        let (mut alarm, start) = (Alarm::default(), Instant::now());
        assert_eq!(alarm.count(Refusal::Replayed, start), Some(1));
        for second in 1..59 {
            assert_eq!(alarm.count(Refusal::Replayed, start + Duration::from_secs(second)), None);
        }
        let late = start + Duration::from_secs(59);
        assert_eq!(alarm.count(Refusal::BadMac, late), Some(1), "another reason");
        assert_eq!(alarm.count(Refusal::BadMac, start + WARNED), None);
        assert_eq!(alarm.count(Refusal::Replayed, start + WARNED), Some(59));
        let counts = alarm.counts().by_reason();
        assert_eq!(
            counts.iter().filter(|(_, count)| *count > 0).collect::<Vec<_>>(),
            [&("bad_mac", 2), &("replayed", 60)]
        );
    }

    #[test]
    fn each_reason_has_its_own_place() {
        for (place, refusal) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(refusal as usize, place);
        }
    }
}
