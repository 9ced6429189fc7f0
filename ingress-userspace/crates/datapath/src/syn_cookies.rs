//! SYN cookies in XDP (ADR 0063): finds out the options that the stack takes from a cookie, learns the usual rate of
//! connections, and writes the settings of `ingress_xdp_cookies`. The settings outlive the process, and apply to every
//! process that has this program.

use std::{
    fs,
    os::fd::BorrowedFd,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use aya::util::KernelVersion;
use socket2::SockRef;

use super::{
    error::Error,
    kernel,
    options::{SynCookieOptions, SynThreshold},
    report::SynCookieState,
    shared::DatapathShared,
    sys::{self, PinAccess},
    table::{MapTable, PerCpu},
};
use ingress_common::{
    SynCookies as Settings, SynFlood, SynStamp, Total,
    map::{SYN_COOKIES, SYN_COOKIES_ONLY, SYN_COUNTS, SYN_COUNTS_ONLY, SYN_FLOOD, SYN_FLOOD_ONLY, SYN_STAMPS},
    syn_cookies::{ALWAYS, SYN_COOKIES_DRY_RUN, SYN_COOKIES_OPTIONS, THRESHOLD_MIN},
};

/// Smallest and largest threshold that is learned, in SYNs per second.
const LEARNED_MIN: u32 = 5_000;
const LEARNED_MAX: u32 = 100_000;
/// A learned threshold is so many times the usual rate.
const TIMES_USUAL: u32 = 8;
/// Time in which the usual rate follows a change by two thirds, in seconds. Long, so that a sender cannot soon make its own
/// rate usual.
const LEARNING_SECONDS: f64 = 600.0;

/// SYN cookies of this process.
#[derive(Debug)]
pub struct SynCookies {
    shared: Arc<DatapathShared>,
    settings: MapTable<u32, Settings>,
    flood: MapTable<u32, SynFlood>,
    stamps: MapTable<u32, SynStamp>,
    counts: PerCpu<u64>,
    options: Option<SynCookieOptions>,
    /// State of the program; that of the stack can change.
    state: SynCookieState,
    watch: Mutex<Watch>,
}

/// Floods of SYNs as this process sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SynFloodView {
    /// SYNs per second from which on there is a flood; `None` while cookies are not ready, or for every SYN.
    pub threshold: Option<u32>,
    /// SYNs per second to steered ports, between the latest two calls of [`SynCookies::tend`].
    pub rate: u32,
    /// Whether there is a flood.
    pub is_flood: bool,
}

/// The latest numbers of SYNs and confirmed cookies, and the rates that follow.
#[derive(Debug)]
struct Watch {
    at: Option<(Instant, [u64; 2])>,
    usual: Usual,
    view: SynFloodView,
}

/// Usual rate of connections, per second.
#[derive(Clone, Copy, Debug)]
struct Usual(f64);

/// Settings of the stack of this network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stack {
    cookies: u32,
    timestamps: u32,
    has_scaling: bool,
    has_sack: bool,
    /// Largest receive buffer.
    buffer: u32,
}

/// Returns the state by the kernel's version; an unknown one counts as recent.
pub(super) fn state(version: Option<KernelVersion>, options: Option<SynCookieOptions>) -> SynCookieState {
    if options.is_none() {
        return SynCookieState::Off;
    }
    if version.is_some_and(|version| version < kernel::SYN_COOKIES) {
        return SynCookieState::OldKernel { running: kernel::release(), needed: kernel::SYN_COOKIES_TEXT };
    }
    SynCookieState::Ready { has_options: false, fills_queues: false }
}

// === impl SynCookies ===

impl SynCookies {
    pub(super) fn new(
        shared: Arc<DatapathShared>,
        options: Option<SynCookieOptions>,
        state: SynCookieState,
    ) -> Result<Self, Error> {
        let settings: MapTable<u32, Settings> = MapTable::open(&shared.pins, SYN_COOKIES, PinAccess::Write)?;
        let before = settings.get(&SYN_COOKIES_ONLY)?.unwrap_or_default();
        let watch = Watch { at: None, usual: Usual::starting_at(before.per_second), view: SynFloodView::default() };
        Ok(Self {
            settings,
            flood: MapTable::open(&shared.pins, SYN_FLOOD, PinAccess::Write)?,
            stamps: MapTable::open(&shared.pins, SYN_STAMPS, PinAccess::Write)?,
            counts: PerCpu::open(&shared.pins, SYN_COUNTS, PinAccess::Write)?,
            shared,
            options,
            state,
            watch: Mutex::new(watch),
        })
    }

    /// Returns whether XDP can answer SYNs now.
    #[must_use]
    pub fn state(&self) -> SynCookieState {
        let SynCookieState::Ready { .. } = self.state else { return self.state.clone() };
        let stack = Stack::read();
        if stack.cookies == 0 {
            return SynCookieState::Refused;
        }
        SynCookieState::Ready { has_options: stack.takes_options(), fills_queues: stack.cookies == 1 }
    }

    /// Returns the floods of SYNs after the latest [`SynCookies::tend`].
    #[must_use]
    pub fn view(&self) -> SynFloodView {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).view
    }

    /// Starts or stops SYN cookies as [`super::Options::syn_cookies`] and the stack's settings say. Must be called by the
    /// owner of the node, at first under the lock held by [`super::Datapath::take_over_with`]. A flood goes on. Idempotent.
    ///
    /// # Errors
    /// Fails if the kernel refuses a write; the previous settings then apply.
    pub fn apply(&self) -> Result<(), Error> {
        self.apply_with(self.threshold())
    }

    /// Learns the usual rate, adopts the stack's present settings, and returns the state of floods. For the owner of the
    /// node, about each second.
    ///
    /// # Errors
    /// Fails if the kernel refuses a read or a write; the previous settings then apply.
    pub fn tend(&self) -> Result<SynFloodView, Error> {
        if !matches!(self.state, SynCookieState::Ready { .. }) {
            return Ok(SynFloodView::default());
        }
        let requests = self.counts.sum(SYN_COUNTS_ONLY)?;
        let confirmed = self.shared.maps.totals()?.get(Total::SynCookieValid).packets;
        let until_ns = self.flood.get(&SYN_FLOOD_ONLY)?.unwrap_or_default().until_ns;
        let is_flood = until_ns > sys::now_ns();
        {
            let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            if let Some((before, counts)) = watch.at.replace((now, [requests, confirmed])) {
                let seconds = (now - before).as_secs_f64();
                let rate = |now: u64, before: u64| per_second(now.wrapping_sub(before), seconds);
                watch.view.rate = rate(requests, counts[0]);
                let is_dry_run = self.options.is_some_and(|options| options.is_dry_run);
                let usual = usual(is_flood, is_dry_run, watch.view.rate, rate(confirmed, counts[1]));
                watch.usual.learn(usual, seconds);
            }
            watch.view.is_flood = is_flood;
        }
        let threshold = self.threshold();
        self.apply_with(threshold)?;
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let is_ready = matches!(self.state(), SynCookieState::Ready { .. });
        watch.view.threshold = (is_ready && threshold != 0).then_some(threshold);
        Ok(watch.view)
    }

    /// Records the listener that has just been put into this slot. If it is another one than before, it has no note of the
    /// kernel. A changed configuration puts the same listeners into their slots again.
    pub(super) fn record(&self, slot: u32, listener: BorrowedFd<'_>) -> Result<(), Error> {
        let cookie = SockRef::from(&listener).cookie();
        // Another socket has the same lower half only after 2³² sockets.
        let number = cookie.map_err(|e| Error::kernel("read the cookie of", "a listener", e))? as u32;
        let before = self.stamps.get(&slot)?.unwrap_or_default();
        let stamp = before.with(number);
        if stamp == before { Ok(()) } else { self.stamps.set(&slot, &stamp) }
    }

    /// Returns the threshold; 0 for every SYN.
    fn threshold(&self) -> u32 {
        match self.options.map(|options| options.threshold) {
            None | Some(SynThreshold::EverySyn) => 0,
            Some(SynThreshold::PerSecond(number)) => number.get().max(THRESHOLD_MIN),
            Some(SynThreshold::Learned) => self.watch.lock().unwrap_or_else(PoisonError::into_inner).usual.threshold(),
        }
    }

    fn apply_with(&self, threshold: u32) -> Result<(), Error> {
        let wanted = match (&self.state, self.options, Stack::read()) {
            (SynCookieState::Ready { .. }, Some(options), stack) if stack.cookies != 0 => {
                stack.terms(threshold, options.is_dry_run)
            }
            _ => Settings::default(),
        };
        let found = self.settings.get(&SYN_COOKIES_ONLY)?.unwrap_or_default();
        if found == wanted {
            return Ok(());
        }
        self.settings.set(&SYN_COOKIES_ONLY, &wanted)?;
        let has_threshold = |settings: &Settings| settings.begin != 0 && settings.per_second != 0;
        if has_threshold(&found) && has_threshold(&wanted) {
            return Ok(());
        }
        let until_ns = if wanted.begin != 0 && wanted.per_second == 0 { ALWAYS } else { 0 };
        self.flood.set(&SYN_FLOOD_ONLY, &SynFlood { until_ns, ..SynFlood::default() })
    }
}

// === impl Usual ===

impl Usual {
    /// Returns the rate that belongs to the threshold of an earlier process.
    fn starting_at(threshold: u32) -> Self {
        Self(f64::from(threshold.min(LEARNED_MAX)) / f64::from(TIMES_USUAL))
    }

    fn learn(&mut self, rate: u32, seconds: f64) {
        let share = (seconds / LEARNING_SECONDS).clamp(0.0, 1.0);
        self.0 += (f64::from(rate.min(LEARNED_MAX)) - self.0) * share;
    }

    fn threshold(self) -> u32 {
        let rate = self.0 * f64::from(TIMES_USUAL);
        rounded(rate).clamp(LEARNED_MIN, LEARNED_MAX)
    }
}

/// Returns the rate that counts for the usual one. In a flood, only the clients that confirm are usual. A dry run sends no
/// cookies to confirm.
const fn usual(is_flood: bool, is_dry_run: bool, requests: u32, confirmed: u32) -> u32 {
    if is_flood && !is_dry_run { confirmed } else { requests }
}

fn per_second(count: u64, seconds: f64) -> u32 {
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 52 bits")]
    let count = count as f64;
    rounded(count / seconds.max(0.001))
}

fn rounded(number: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    let rounded = number.round() as u32;
    rounded
}

// === impl Stack ===

impl Stack {
    /// Reads the settings; what cannot be read counts as the kernel's default.
    fn read() -> Self {
        let text = |path: &str| fs::read_to_string(Path::new("/proc/sys/net").join(path)).unwrap_or_default();
        let last = |path: &str| text(path).split_whitespace().next_back().and_then(|word| word.parse::<u32>().ok());
        let buffers = [last("ipv4/tcp_rmem"), last("core/rmem_max")];
        Self {
            cookies: last("ipv4/tcp_syncookies").unwrap_or(1),
            timestamps: last("ipv4/tcp_timestamps").unwrap_or(1),
            has_scaling: last("ipv4/tcp_window_scaling") != Some(0),
            has_sack: last("ipv4/tcp_sack") != Some(0),
            buffer: buffers.into_iter().flatten().max().unwrap_or(0),
        }
    }

    /// Returns whether the stack takes window scale and SACK from the timestamp of a cookie: with 1, it adds a random
    /// number to timestamps that programs cannot know. It refuses cookies with options that it does not use itself.
    const fn takes_options(self) -> bool {
        self.timestamps == 2 && self.has_scaling && self.has_sack
    }

    /// Returns the window scale by the rule of the stack (`tcp_select_initial_window`): the ACK of a cookie does not say
    /// what the SYN-ACK offered, so both have to agree.
    const fn window_scale(self) -> u32 {
        const UNSCALED_BITS: u32 = 15;
        const SCALE_MAX: u32 = 14;
        let Some(bits) = self.buffer.checked_ilog2() else { return 0 };
        let scale = bits.saturating_sub(UNSCALED_BITS);
        if scale > SCALE_MAX { SCALE_MAX } else { scale }
    }

    /// Returns what is to apply with this threshold.
    fn terms(self, per_second: u32, is_dry_run: bool) -> Settings {
        let dry_run = if is_dry_run { SYN_COOKIES_DRY_RUN } else { 0 };
        let options = if self.takes_options() { SYN_COOKIES_OPTIONS } else { 0 };
        Settings::new(per_second, dry_run | options, self.window_scale())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: Stack = Stack { cookies: 1, timestamps: 1, has_scaling: true, has_sack: true, buffer: 6_291_456 };

    #[test]
    fn the_window_scale_follows_the_largest_buffer() {
        for (buffer, expect) in [
            (0, 0),
            (1, 0),
            (65_535, 0),
            (65_536, 1),
            (212_992, 2),
            (4_194_304, 7),
            (6_291_456, 7),
            (33_554_432, 10),
            (u32::MAX, 14),
        ] {
            assert_eq!(Stack { buffer, ..DEFAULT }.window_scale(), expect, "{buffer}");
        }
    }

    #[test]
    fn options_need_timestamps_without_offset_and_a_stack_that_uses_them() {
        let plain = Stack { timestamps: 2, ..DEFAULT };
        for (stack, expect) in [
            (DEFAULT, false),
            (plain, true),
            (Stack { timestamps: 0, ..DEFAULT }, false),
            (Stack { has_scaling: false, ..plain }, false),
            (Stack { has_sack: false, ..plain }, false),
        ] {
            assert_eq!(stack.takes_options(), expect, "{stack:?}");
            let Settings { per_second, flags, .. } = stack.terms(5000, true);
            assert_eq!((per_second, flags & SYN_COOKIES_DRY_RUN != 0), (5000, true));
            assert_eq!(flags & SYN_COOKIES_OPTIONS != 0, expect);
        }
    }

    #[test]
    fn a_usual_rate_of_minutes_is_learned_and_one_second_is_not() {
        let mut rate = Usual::starting_at(0);
        assert_eq!(rate.threshold(), LEARNED_MIN);
        rate.learn(1_000_000, 1.0);
        assert!(rate.threshold() < 20_000, "{rate:?}");
        (0..3600).for_each(|_| rate.learn(2_000, 1.0));
        assert!((15_000..17_000).contains(&rate.threshold()), "{rate:?}");
        (0..7200).for_each(|_| rate.learn(10, 1.0));
        assert_eq!(rate.threshold(), LEARNED_MIN);
        (0..7200).for_each(|_| rate.learn(u32::MAX, 1.0));
        assert_eq!(rate.threshold(), LEARNED_MAX);
    }

    #[test]
    fn confirmed_clients_are_usual_in_a_flood_unless_none_can_confirm() {
        for (is_flood, is_dry_run, expect) in
            [(false, false, 9000), (true, false, 70), (false, true, 9000), (true, true, 9000)]
        {
            assert_eq!(usual(is_flood, is_dry_run, 9000, 70), expect, "{is_flood} {is_dry_run}");
        }
    }

    #[test]
    fn a_later_process_goes_on_with_the_threshold_of_the_one_before() {
        for per_second in [LEARNED_MIN, 16_000, LEARNED_MAX] {
            assert_eq!(Usual::starting_at(per_second).threshold(), per_second);
        }
    }

    #[test]
    fn old_kernels_do_without() {
        let wanted = SynCookieOptions { threshold: SynThreshold::Learned, is_dry_run: false };
        for (version, expect) in [
            (Some(KernelVersion::new(5, 10, 0)), "old_kernel"),
            (Some(KernelVersion::new(5, 19, 9)), "old_kernel"),
            (Some(KernelVersion::new(6, 0, 0)), "ready"),
            (None, "ready"),
        ] {
            assert_eq!(state(version, Some(wanted)).as_str(), expect, "{version:?}");
            assert_eq!(state(version, None).as_str(), "off");
        }
    }
}
