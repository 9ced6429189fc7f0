//! The rate at which a client sends or receives bytes while the proxy waits for it. It reads no clock and closes
//! nothing.
//!
//! Only waiting counts: a slow or silent pod never costs a client its connection. Older samples lose weight, so that a
//! client cannot be quick for a moment and slow for hours after that.

use std::{num::NonZeroU32, time::Duration};

/// A client is not judged before it has been waited for this long.
const GRACE_MS: u32 = 5000;
/// Beyond this much waiting, all counts are halved.
const WINDOW_MS: u32 = 60_000;

/// Time spent waiting for a client, and the bytes that arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pace {
    waited_ms: u32,
    bytes: u32,
}

impl Pace {
    /// Adds bytes that came without a wait.
    pub(crate) fn with(self, bytes: usize) -> Self {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Self { bytes: self.bytes.saturating_add(bytes), ..self }
    }

    /// Adds a wait and the bytes that it brought.
    pub(crate) fn add(self, waited: Duration, bytes: usize) -> Self {
        let waited_ms = u32::try_from(waited.as_millis()).unwrap_or(u32::MAX);
        let Self { waited_ms, bytes } =
            Self { waited_ms: self.waited_ms.saturating_add(waited_ms), ..self.with(bytes) };
        if waited_ms > WINDOW_MS {
            Self { waited_ms: waited_ms / 2, bytes: bytes / 2 }
        } else {
            Self { waited_ms, bytes }
        }
    }

    /// Returns whether the rate is below `min` bytes per second.
    pub(crate) fn is_below(self, min: Option<NonZeroU32>) -> bool {
        let is_less = |min: NonZeroU32| u64::from(self.bytes) * 1000 < u64::from(min.get()) * u64::from(self.waited_ms);
        self.waited_ms > GRACE_MS && min.is_some_and(is_less)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_below(steps: impl IntoIterator<Item = (u64, usize)>) -> bool {
        let add = |pace: Pace, (ms, bytes)| pace.add(Duration::from_millis(ms), bytes);
        steps.into_iter().fold(Pace::default(), add).is_below(NonZeroU32::new(240))
    }

    #[test]
    fn the_rate_is_bytes_per_time_waited() {
        assert!(!is_below([]));
        assert!(!is_below([(5000, 0)]), "within the grace");
        assert!(is_below([(5001, 0)]));
        assert!(!is_below([(10_000, 2400)]));
        assert!(is_below([(10_000, 2399)]));
        assert!(is_below([(1000, 100); 6]));
        assert!(!is_below([(1000, 250); 1000]));
        assert!(is_below([(1000, 239); 1000]));
        assert!(!Pace::default().add(Duration::MAX, 0).is_below(None));
    }

    #[test]
    fn older_bytes_count_less() {
        let trickle = |seconds| [(0, usize::MAX)].into_iter().chain(std::iter::repeat_n((1000, 1), seconds));
        assert!(!is_below(trickle(60)));
        assert!(is_below(trickle(1200)), "four gigabytes and then 20 minutes");
    }
}
