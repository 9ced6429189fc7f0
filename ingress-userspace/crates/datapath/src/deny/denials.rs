//! Denials in addition to those of the configuration, with origin and expiry. `apply` derives the dropped networks from
//! them.

use std::time::Duration;

use ingress_common::{
    DenialKey, DenialReason,
    denial::{self, ORIGIN_ESCALATION, ORIGIN_OPERATOR},
    map::DENIALS_MAX,
};
use ipnet::IpNet;

use super::{
    super::{error::Error, maps::Maps, sys},
    prefix,
};

/// Origin of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DenialOrigin {
    /// An operator, through `xdp-ingress deny add`.
    Operator,
    /// A process, after repeated refusals by its proxy.
    Escalation,
}

/// A network that is denied for some time, or until the denial is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denial {
    pub network: IpNet,
    pub origin: DenialOrigin,
    /// Duration from now on, or the remaining time of a denial read from the map. `None` lasts until removal.
    pub lasts: Option<Duration>,
    pub reason: DenialReason,
}

/// Reason why a denial is not entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    #[error(
        "`{network}` is in `{by}`, a network of trusted proxies: dropping their packets would shut out all clients \
         behind them; name those clients in `block-cidrs`, so that the proxy refuses them, or remove the network from \
         `proxy-real-ip-cidr`"
    )]
    Trusted { network: IpNet, by: IpNet },
    #[error("there are {max} denials already; remove some that `xdp-ingress deny list` shows", max = DENIALS_MAX)]
    Full,
}

/// A pinned entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PinnedDenial {
    pub(super) network: IpNet,
    pub(super) origin: DenialOrigin,
    /// Expiry, or `None` if the entry lasts until removal.
    expires_ns: Option<u64>,
    reason: DenialReason,
}

// === impl DenialOrigin ===

impl DenialOrigin {
    pub const ALL: [Self; 2] = [Self::Operator, Self::Escalation];

    /// Returns the name for tools.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Escalation => "escalation",
        }
    }

    const fn code(self) -> u32 {
        match self {
            Self::Operator => ORIGIN_OPERATOR,
            Self::Escalation => ORIGIN_ESCALATION,
        }
    }

    fn of_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|origin| origin.code() == code)
    }
}

// === impl PinnedDenial ===

impl PinnedDenial {
    /// Creates an entry for a denial that begins at `now_ns`.
    pub(super) fn begin(denial: &Denial, now_ns: u64) -> Self {
        let Denial { network, origin, lasts, reason } = *denial;
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let expires_ns = lasts.map(|lasts| now_ns.saturating_add(nanos(lasts)));
        Self { network: prefix::canonical(network), origin, expires_ns, reason }
    }

    pub(super) fn has_ended(&self, now_ns: u64) -> bool {
        self.expires_ns.is_some_and(|expires| expires <= now_ns)
    }

    fn denial(self, now_ns: u64) -> Denial {
        let Self { network, origin, expires_ns, reason } = self;
        let lasts = expires_ns.map(|expires| Duration::from_nanos(expires.saturating_sub(now_ns)));
        Denial { network, origin, lasts, reason }
    }

    fn key(&self) -> DenialKey {
        let (prefix_len, addr) = prefix::mapped(self.network);
        DenialKey { origin: self.origin.code(), prefix_len, addr }
    }

    fn value(&self) -> denial::DenialValue {
        // The value 0 means no expiry.
        denial::DenialValue { expires_ns: self.expires_ns.map_or(0, |expires| expires.max(1)), reason: self.reason }
    }

    /// Returns `None` for entries of unknown versions.
    fn of(key: DenialKey, value: denial::DenialValue) -> Option<Self> {
        let DenialKey { origin, prefix_len, addr } = key;
        let denial::DenialValue { expires_ns, reason } = value;
        Some(Self {
            network: prefix::unmapped(prefix_len, addr)?,
            origin: DenialOrigin::of_code(origin)?,
            expires_ns: (expires_ns != 0).then_some(expires_ns),
            reason,
        })
    }

    /// Writes the entry, replacing one of the same origin. Returns `false` if there is no room.
    pub(super) fn set(&self, maps: &Maps) -> Result<bool, Error> {
        maps.denials.set_if_room(&self.key(), &self.value())
    }

    pub(super) fn remove(&self, maps: &Maps) -> Result<bool, Error> {
        maps.denials.remove(&self.key())
    }
}

/// Returns all entries, including expired ones.
pub(super) fn entries(maps: &Maps) -> Result<Vec<PinnedDenial>, Error> {
    let entries = maps.denials.entries()?.into_iter().filter_map(|(key, value)| PinnedDenial::of(key, value));
    let mut entries: Vec<_> = entries.collect();
    entries.sort_by_key(|entry| (entry.network, entry.origin));
    Ok(entries)
}

/// Removes expired entries, and returns the others in the order of [`entries`].
pub(super) fn end(maps: &Maps, now_ns: u64) -> Result<Vec<PinnedDenial>, Error> {
    let (ended, standing): (Vec<_>, Vec<_>) = entries(maps)?.into_iter().partition(|entry| entry.has_ended(now_ns));
    ended.iter().try_for_each(|entry| entry.remove(maps).map(drop))?;
    Ok(standing)
}

/// Returns the result of [`super::super::Maps::denials`].
pub(crate) fn read(maps: &Maps) -> Result<Vec<Denial>, Error> {
    let now_ns = sys::now_ns();
    Ok(entries(maps)?.into_iter().map(|entry| entry.denial(now_ns)).collect())
}

// === impl Maps ===

impl Maps {
    /// Returns the denials by operators and escalations, sorted by network, including expired ones that no process has
    /// removed yet.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn denials(&self) -> Result<Vec<Denial>, Error> {
        read(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(network: &str, lasts: Option<u64>) -> Denial {
        Denial {
            network: network.parse().expect("a network"),
            origin: DenialOrigin::Operator,
            lasts: lasts.map(Duration::from_nanos),
            reason: DenialReason::new("scans").expect("a reason"),
        }
    }

    #[test]
    fn denials_expire_after_their_lifetime_if_they_have_one() {
        for (lasts, now_ns, left) in [
            (Some(10), 100, Some(10)),
            (Some(10), 109, Some(1)),
            (Some(10), 110, Some(0)),
            (Some(10), 999, Some(0)),
            (Some(0), 100, Some(0)),
            (Some(u64::MAX), 109, Some(u64::MAX - 109)),
            (None, u64::MAX, None),
        ] {
            let entry = PinnedDenial::begin(&denial("192.0.2.0/24", lasts), 100);
            assert_eq!(entry.has_ended(now_ns), left == Some(0), "{lasts:?} at {now_ns}");
            assert_eq!(entry.denial(now_ns).lasts, left.map(Duration::from_nanos), "{lasts:?} at {now_ns}");
        }
    }

    #[test]
    fn pinned_denials_round_trip() {
        for network in ["192.0.2.7/32", "10.0.0.0/8", "2001:db8:1::/64", "::/0"] {
            for (origin, lasts) in DenialOrigin::ALL.into_iter().zip([Some(7), None]) {
                let entry = PinnedDenial::begin(&Denial { origin, ..denial(network, lasts) }, 100);
                assert_eq!(PinnedDenial::of(entry.key(), entry.value()), Some(entry), "{network}");
            }
        }
        let entry = PinnedDenial::begin(&denial("192.0.2.77/24", None), 100);
        assert_eq!(entry.network.to_string(), "192.0.2.0/24");
        assert_eq!(PinnedDenial::of(DenialKey { origin: 9, ..entry.key() }, entry.value()), None);
        assert_eq!(PinnedDenial::of(DenialKey { prefix_len: 129, ..entry.key() }, entry.value()), None);
    }

    #[test]
    fn a_reason_is_short_and_printable() {
        for (text, expect) in [
            ("", true),
            ("ticket 4711: scans /wp-admin", true),
            (&"x".repeat(47), true),
            (&"x".repeat(48), false),
            ("two\nlines", false),
            ("\u{1b}[31m", false),
            ("gr\u{fc}n", false),
        ] {
            assert_eq!(
                DenialReason::new(text).map(|reason| reason.to_string()),
                expect.then(|| text.to_owned()),
                "{text}"
            );
        }
    }
}
