//! The share of the clients whose new connections this ingress takes on this node. Another listener of the same ports
//! gets the other clients (ADR 0056).
//!
//! The share is one word in a pinned map, and works whether or not a process lives. Every write is one atomic
//! operation: it waits for no lock, because the way back must not wait for a process that holds one. A renewal is a
//! compare-and-exchange, so that it never undoes what an operator has set.

use std::{
    fmt, io,
    path::Path,
    str::FromStr,
    sync::atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
    time::Duration,
};

use ingress_common::{
    Share,
    map::{SHARE, SHARE_MAX},
    share::{SHARE_ALL, SHARE_KEPT, SHARE_LASTS_S, SHARE_UNSET, SHARE_WATCHED},
};

use super::{
    error::Error,
    maps::Maps,
    pinned,
    pins::Pins,
    sys::{self, Mapping, PinAccess, SharedCell},
    table::MapTable,
};

const SECOND_NS: u64 = 1_000_000_000;

/// [`Share`] in memory shared between processes and the kernel.
#[repr(transparent)]
struct ShareCell(AtomicU64);

const _: () = assert!(size_of::<ShareCell>() == size_of::<Share>());

// SAFETY: one atomic of 8 bytes.
unsafe impl SharedCell for ShareCell {}

/// A part of all clients, in steps of 1/32768.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientShare(u16);

/// A text that is no share.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no percentage from 0 to 100, such as `10%`")]
pub struct NotAShare(String);

/// The process that must renew a share within five minutes. Otherwise the programs leave all new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The process that serves, with its heartbeat. A share of no clients, or of all, needs no renewal.
    Process,
    /// The caller, by [`NodeShare::renew`].
    Caller,
}

/// The share of a node as its programs apply it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppliedShare {
    /// Share that was set; all clients if none was.
    pub share: ClientShare,
    /// Whether a share was ever set on this node.
    pub is_set: bool,
    pub renewal: Renewal,
    /// Time left without renewal. `None` for a share that does not expire; zero for an expired one, which takes no
    /// client.
    pub lasts: Option<Duration>,
}

/// The share of a node, for reading and writing from outside of the serving process.
#[derive(Debug)]
pub struct NodeShare {
    maps: Maps,
    word: ShareWord,
}

/// The word that the programs read.
#[derive(Debug)]
pub(super) struct ShareWord(Mapping<ShareCell>);

// === impl ClientShare ===

impl ClientShare {
    pub const NONE: Self = Self(0);
    pub const ALL: Self = Self(SHARE_ALL);

    /// Returns this part of all clients: the nearest step, but neither none nor all unless the fraction is exactly 0
    /// or 1. Returns `None` for a fraction outside 0 to 1.
    #[must_use]
    pub fn of_fraction(fraction: f64) -> Option<Self> {
        if !(0.0..=1.0).contains(&fraction) {
            return None;
        }
        let nearest = (fraction * f64::from(SHARE_ALL)).round() as u16;
        let is_part = fraction > 0.0 && fraction < 1.0;
        Some(Self(if is_part { nearest.clamp(1, SHARE_ALL - 1) } else { nearest }))
    }

    /// Returns the part of all clients, 0 to 1.
    #[must_use]
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / f64::from(SHARE_ALL)
    }
}

impl fmt::Display for ClientShare {
    /// Writes a percentage with at most two decimals, such as `12.5 %`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = (self.fraction() * 10_000.0).round() / 100.0;
        write!(f, "{hundredths} %")
    }
}

impl FromStr for ClientShare {
    type Err = NotAShare;

    /// Reads a percentage, with or without its sign: `0`, `12.5%`.
    fn from_str(text: &str) -> Result<Self, NotAShare> {
        let number = text.strip_suffix('%').unwrap_or(text).trim();
        let share = number.parse::<f64>().ok().and_then(|percent| Self::of_fraction(percent / 100.0));
        share.ok_or_else(|| NotAShare(text.to_owned()))
    }
}

// === impl AppliedShare ===

impl AppliedShare {
    fn of(share: Share, now_ns: u64) -> Self {
        let Share { expires_s, taken, state } = share;
        let left = (u64::from(expires_s) * SECOND_NS).saturating_sub(now_ns);
        Self {
            share: if state == SHARE_UNSET { ClientShare::ALL } else { ClientShare(taken.min(SHARE_ALL)) },
            is_set: state != SHARE_UNSET,
            renewal: if state == SHARE_WATCHED { Renewal::Caller } else { Renewal::Process },
            lasts: (expires_s != 0).then(|| Duration::from_nanos(left)),
        }
    }

    /// Returns the share of the clients that are taken now: none after the share has expired.
    #[must_use]
    pub fn effective(&self) -> ClientShare {
        if self.lasts == Some(Duration::ZERO) { ClientShare::NONE } else { self.share }
    }
}

// === impl NodeShare ===

impl NodeShare {
    /// Opens the pins below `bpffs` for writing.
    ///
    /// # Errors
    /// Fails like [`super::Pinned::open`], and with [`Error::NoShare`] if the pins are of a version without a share.
    pub fn open(bpffs: &Path) -> Result<Self, Error> {
        let (pins, maps) = pinned::open(bpffs, PinAccess::Write)?;
        match ShareWord::open(&pins) {
            Ok(word) => Ok(Self { maps, word }),
            Err(Error::Kernel { source, .. }) if source.kind() == io::ErrorKind::NotFound => Err(Error::NoShare),
            Err(error) => Err(error),
        }
    }

    /// Returns the readable maps of the node.
    #[must_use]
    pub const fn maps(&self) -> &Maps {
        &self.maps
    }

    /// Returns the share.
    #[must_use]
    pub fn get(&self) -> AppliedShare {
        AppliedShare::of(self.word.load(), sys::now_ns())
    }

    /// Sets the share, at once and whether or not a process serves. Open connections stay where they are.
    ///
    /// A share of some clients lasts for five minutes without renewal. So does a share of all clients that the caller
    /// renews.
    pub fn set(&self, share: ClientShare, renewal: Renewal) {
        self.word.store(wanted(share, renewal, sys::now_ns()));
    }

    /// Renews a share that the caller has set with [`Renewal::Caller`]. Returns `false` if another share has been set
    /// meanwhile, or if the share has expired; the share then stays as it is.
    #[must_use]
    pub fn renew(&self, share: ClientShare) -> bool {
        let current = self.word.load();
        let is_own = current.state == SHARE_WATCHED && current.taken == share.0;
        is_own && (current.expires_s == 0 || self.word.renew(current))
    }

    /// Leaves the renewal of a share that the caller has set with [`Renewal::Caller`] to the serving process. Returns
    /// `false` under the conditions of [`NodeShare::renew`]; the share then stays as it is.
    #[must_use]
    pub fn hand_over(&self, share: ClientShare) -> bool {
        let (current, now_ns) = (self.word.load(), sys::now_ns());
        let is_own = current.state == SHARE_WATCHED && current.taken == share.0 && !current.is_over(now_ns);
        is_own && self.word.replace(current, wanted(share, Renewal::Process, now_ns))
    }
}

// === impl ShareWord ===

impl ShareWord {
    pub(super) fn open(pins: &Pins) -> Result<Self, Error> {
        let table = MapTable::<u32, Share>::open(pins, SHARE, PinAccess::Write)?;
        let cells = Mapping::new(table.fd(), SHARE_MAX as usize).map_err(|e| Error::kernel("map", SHARE, e))?;
        Ok(Self(cells))
    }

    /// Sets the first share of a node; keeps a share that was ever set.
    pub(super) fn begin(&self, share: ClientShare) {
        let wanted = wanted(share, Renewal::Process, sys::now_ns());
        let _is_set_already = !self.replace(Share::default(), wanted);
    }

    /// Renews a share that the serving process renews, unless it has expired.
    pub(super) fn keep(&self) {
        let current = self.load();
        if current.state == SHARE_KEPT && current.expires_s != 0 {
            let _is_set_anew = !self.renew(current);
        }
    }

    /// Renews `current`, and returns whether it was still the share and had not expired.
    fn renew(&self, current: Share) -> bool {
        let now_ns = sys::now_ns();
        if current.is_over(now_ns) {
            return false;
        }
        self.replace(current, Share { expires_s: expiry(now_ns), ..current })
    }

    /// Sets `share` if `current` is still the share. Returns whether it was.
    fn replace(&self, current: Share, share: Share) -> bool {
        self.0
            .as_slice()
            .first()
            .is_some_and(|ShareCell(word)| word.compare_exchange(current.word(), share.word(), AcqRel, Relaxed).is_ok())
    }

    fn load(&self) -> Share {
        self.0.as_slice().first().map_or_else(Share::default, |ShareCell(word)| Share::of(word.load(Acquire)))
    }

    fn store(&self, share: Share) {
        if let Some(ShareCell(word)) = self.0.as_slice().first() {
            word.store(share.word(), Release);
        }
    }
}

impl fmt::Debug for ShareCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Share::of(self.0.load(Relaxed)).fmt(f)
    }
}

/// Returns the entry for a share.
fn wanted(ClientShare(taken): ClientShare, renewal: Renewal, now_ns: u64) -> Share {
    let expires_s = expiry(now_ns);
    match renewal {
        Renewal::Process if taken == 0 || taken == SHARE_ALL => Share { expires_s: 0, taken, state: SHARE_KEPT },
        Renewal::Process => Share { expires_s, taken, state: SHARE_KEPT },
        Renewal::Caller => Share { expires_s, taken, state: SHARE_WATCHED },
    }
}

/// Returns the second at which a share that is renewed now ends. The clock starts with the machine and fits for 136 years.
fn expiry(now_ns: u64) -> u32 {
    u32::try_from(now_ns / SECOND_NS).unwrap_or(u32::MAX).saturating_add(SHARE_LASTS_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000 * SECOND_NS;

    #[test]
    fn fractions_are_rounded_but_never_to_none_or_all() {
        for (fraction, expect) in [
            (0.0, Some(0)),
            (1e-9, Some(1)),
            (0.1, Some(3_277)),
            (0.5, Some(16_384)),
            (1.0 - 1e-9, Some(SHARE_ALL - 1)),
            (1.0, Some(SHARE_ALL)),
            (-0.1, None),
            (1.1, None),
            (f64::NAN, None),
        ] {
            assert_eq!(ClientShare::of_fraction(fraction), expect.map(ClientShare), "{fraction}");
        }
    }

    #[test]
    fn percentages_are_read_and_written() {
        for (text, shown) in [
            ("0", Some("0 %")),
            ("0%", Some("0 %")),
            ("10%", Some("10 %")),
            ("12.5 %", Some("12.5 %")),
            ("33.333%", Some("33.33 %")),
            ("100", Some("100 %")),
            ("", None),
            ("%", None),
            ("101%", None),
            ("-1", None),
            ("nan", None),
            ("ten", None),
        ] {
            let share = text.parse::<ClientShare>();
            assert_eq!(share.as_ref().ok().map(ToString::to_string).as_deref(), shown, "{text}");
        }
    }

    #[test]
    fn only_a_share_without_a_way_back_lasts_for_ever() {
        let ten = ClientShare::of_fraction(0.1).expect("a fraction");
        for (share, renewal, lasts) in [
            (ClientShare::NONE, Renewal::Process, None),
            (ClientShare::ALL, Renewal::Process, None),
            (ten, Renewal::Process, Some(300)),
            (ten, Renewal::Caller, Some(300)),
            (ClientShare::ALL, Renewal::Caller, Some(300)),
        ] {
            let applied = AppliedShare::of(wanted(share, renewal, NOW), NOW);
            let lasts = lasts.map(Duration::from_secs);
            assert_eq!(applied, AppliedShare { share, is_set: true, renewal, lasts });
        }
        let over = AppliedShare::of(wanted(ten, Renewal::Process, NOW), NOW + 300 * SECOND_NS);
        assert_eq!((over.share, over.effective()), (ten, ClientShare::NONE));
        let unset = AppliedShare::of(Share::default(), NOW);
        assert_eq!((unset.effective(), unset.is_set, unset.lasts), (ClientShare::ALL, false, None));
    }
}
