//! SYN cookies in XDP: their settings, the state of a flood, and the rates at which a flood begins and ends (ADR 0063).
//!
//! Programs on all CPUs count requests without locks. Each one counts on its own CPU, and adds every
//! [`BATCH`] requests to the window that all of them share.

/// Requests that a CPU counts before it adds them to the shared window.
pub const BATCH: u32 = 64;
/// Fewest requests per second that can be a threshold. A window counts whole batches of each CPU, so that smaller numbers
/// would begin a flood by chance.
pub const THRESHOLD_MIN: u32 = 1000;
/// Fewest requests of a window with which a flood begins.
const BEGIN_MIN: u32 = 4 * BATCH;
/// Time without enough requests after which a flood is over.
pub const HOLD_NS: u64 = 10_000_000_000;
/// Age up to which the kernel's note that a listener sends cookies is recent enough to send another one. The kernel itself
/// keeps the note for two minutes (`TCP_SYNCOOKIE_VALID`).
pub const STAMP_FRESH_NS: u64 = 30_000_000_000;
/// Age of the note up to which an ACK may confirm a cookie. Longer, so that clients have time to answer; shorter than the
/// kernel's, so that the ACK reaches the stack in time.
pub const STAMP_VALID_NS: u64 = 90_000_000_000;
/// Value of [`SynFlood::until_ns`] for a flood that does not end, by a threshold of 0.
pub const ALWAYS: u64 = u64::MAX;

/// Requests are only counted ([`crate::Total::WouldSendSynCookie`]).
pub const SYN_COOKIES_DRY_RUN: u32 = 1;
/// The stack finds window scale and SACK in the timestamp of a cookie's ACK: it adds no random offset to timestamps.
pub const SYN_COOKIES_OPTIONS: u32 = 2;

/// A window of 2²⁸ ns, about 0.27 s.
const WINDOW_SHIFT: u32 = 28;

/// Value of [`crate::map::SYN_COOKIES`]; the default is off.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SynCookies {
    /// Requests per second of the node from which on there is a flood; 0 for a flood that does not end, or for off.
    pub per_second: u32,
    /// The same number for a window; 0 for off.
    pub begin: u32,
    /// Bits of `SYN_COOKIES_*`.
    pub flags: u32,
    /// Window scale that the stack gives to connections from cookies (RFC 7323, 2.3).
    pub window_scale: u32,
}

/// Value of [`crate::map::SYN_FLOOD`]. The two words are in separate cache lines, because every packet reads the first
/// one.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SynFlood {
    /// `CLOCK_MONOTONIC` up to which there is a flood; 0 for none.
    pub until_ns: u64,
    pub pad: [u64; 7],
    /// Number of the window, and in the lower half the requests in it.
    pub window: u64,
    pub pad2: [u64; 7],
}

/// Value of [`crate::map::SYN_STAMPS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SynStamp {
    /// Time at which the kernel last noted that a listener in the slot sends cookies; 0 for never.
    pub time_ns: u64,
    /// Number of that listener.
    pub noted: u32,
    /// Number of the present listener: the lower half of its `SO_COOKIE`, which another socket has only after 2³² of
    /// them. Userspace changes it with the listener.
    pub listener: u32,
}

impl SynCookies {
    /// Returns settings for this number of requests per second.
    #[must_use]
    pub const fn new(per_second: u32, flags: u32, window_scale: u32) -> Self {
        // At most 2³⁰, so that sums of windows fit.
        let begin = (((per_second as u64) << WINDOW_SHIFT) / 1_000_000_000) as u32;
        let begin = if begin < BEGIN_MIN { BEGIN_MIN } else { begin };
        Self { per_second, begin, flags, window_scale }
    }

    /// Returns the new end of the flood after a window has got `count` requests so far; `None` if the end stays.
    ///
    /// A flood begins with the whole number of requests, and goes on with half of it.
    #[must_use]
    #[inline(always)]
    pub const fn flood_until(&self, count: u32, until_ns: u64, now_ns: u64) -> Option<u64> {
        let enough = if until_ns > now_ns { self.begin / 2 } else { self.begin };
        let end = now_ns.saturating_add(HOLD_NS);
        if self.begin != 0 && count >= enough && end > until_ns { Some(end) } else { None }
    }
}

impl SynStamp {
    /// Returns `true` if the present listener has a note of at most this age.
    #[must_use]
    #[inline(always)]
    pub const fn is_within(&self, age_ns: u64, now_ns: u64) -> bool {
        let age = now_ns.saturating_sub(self.time_ns);
        self.noted == self.listener && self.time_ns != 0 && age <= age_ns
    }

    /// Returns the stamp of the slot once it has the listener with this number. The present listener keeps its note.
    #[must_use]
    pub const fn with(self, listener: u32) -> Self {
        if self.listener == listener { self } else { Self { time_ns: 0, noted: self.listener, listener } }
    }
}

/// Returns the word of a window that begins with one batch.
#[must_use]
#[inline(always)]
pub const fn begun(now_ns: u64) -> u64 {
    (window(now_ns) as u64) << 32 | BATCH as u64
}

/// Returns the requests in the window of this time; `None` if the word is of an earlier window.
#[must_use]
#[inline(always)]
pub const fn counted(word: u64, now_ns: u64) -> Option<u32> {
    if (word >> 32) as u32 == window(now_ns) { Some(word as u32) } else { None }
}

#[inline(always)]
const fn window(now_ns: u64) -> u32 {
    (now_ns >> WINDOW_SHIFT) as u32
}

const _: () = assert!(size_of::<SynCookies>() == 16 && align_of::<SynCookies>() == 4);
const _: () = assert!(size_of::<SynFlood>() == 128 && align_of::<SynFlood>() == 8);
const _: () = assert!(size_of::<SynStamp>() == 16 && align_of::<SynStamp>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 100_000_000_000;
    const SECOND: u64 = 1_000_000_000;

    /// Does the same as the program, on one CPU, and returns whether there is a flood after so many requests per second
    /// for so many seconds.
    fn after(settings: &SynCookies, flood: &mut SynFlood, now_ns: &mut u64, per_second: u64, seconds: u64) -> bool {
        for _ in 0..per_second * seconds / u64::from(BATCH) {
            *now_ns += SECOND * u64::from(BATCH) / per_second;
            flood.window = match counted(flood.window, *now_ns) {
                None => begun(*now_ns),
                Some(_) => flood.window + u64::from(BATCH),
            };
            let count = counted(flood.window, *now_ns).expect("the present window");
            if let Some(until) = settings.flood_until(count, flood.until_ns, *now_ns) {
                flood.until_ns = until;
            }
        }
        flood.until_ns > *now_ns
    }

    #[test]
    fn a_flood_begins_at_the_threshold_and_goes_on_at_half_of_it() {
        let settings = SynCookies::new(10_000, 0, 7);
        let (mut flood, mut now) = (SynFlood::default(), NOW);
        for (per_second, seconds, expect) in [
            (9_000, 30, false),
            (11_000, 1, true),
            (6_000, 60, true),
            (4_000, 5, true),
            (4_000, 10, false),
            (9_000, 30, false),
            (1_000_000, 1, true),
        ] {
            let is_flood = after(&settings, &mut flood, &mut now, per_second, seconds);
            assert_eq!(is_flood, expect, "{per_second}/s for {seconds} s");
        }
    }

    #[test]
    fn a_flood_without_end_stays_and_without_settings_there_is_none() {
        let settings = SynCookies::new(0, 0, 0);
        assert_eq!(settings.flood_until(u32::MAX, ALWAYS, NOW), None);
        assert!(SynCookies::new(u32::MAX, 0, 0).begin < 1 << 31);
        assert_eq!(SynCookies::default().flood_until(u32::MAX, 0, NOW), None, "off");
    }

    #[test]
    fn a_window_does_not_count_what_an_earlier_one_had() {
        let word = begun(NOW);
        assert_eq!(counted(word, NOW), Some(BATCH));
        assert_eq!(counted(word + u64::from(BATCH), NOW), Some(2 * BATCH));
        assert_eq!(counted(word, NOW + SECOND), None);
    }

    #[test]
    fn one_batch_of_each_of_two_cpus_in_a_window_is_no_flood() {
        let settings = SynCookies::new(THRESHOLD_MIN, 0, 0);
        for (count, expect) in [(BATCH, false), (2 * BATCH, false), (3 * BATCH, false), (5 * BATCH, true)] {
            assert_eq!(settings.flood_until(count, 0, NOW).is_some(), expect, "{count}");
        }
    }

    #[test]
    fn the_stamp_of_another_listener_or_an_old_one_is_not_fresh() {
        let stamp = SynStamp { time_ns: NOW, noted: 3, listener: 3 };
        for (later, expect) in [(0, true), (STAMP_FRESH_NS, true), (STAMP_FRESH_NS + 1, false)] {
            assert_eq!(stamp.is_within(STAMP_FRESH_NS, NOW + later), expect, "{later} ns");
        }
        assert!(!SynStamp::default().is_within(STAMP_FRESH_NS, 1));
        assert_eq!(stamp.with(3), stamp, "the same listener");
        let replaced = stamp.with(7);
        assert!(!replaced.is_within(STAMP_FRESH_NS, NOW));
        // A program that looked the listener up before the change writes its note after it.
        assert!(!SynStamp { time_ns: NOW, noted: stamp.listener, ..replaced }.is_within(STAMP_FRESH_NS, NOW));
        assert!(SynStamp { time_ns: NOW, noted: replaced.listener, ..replaced }.is_within(STAMP_FRESH_NS, NOW));
    }
}
