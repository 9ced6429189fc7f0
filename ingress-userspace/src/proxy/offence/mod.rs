//! What clients did that the proxy had to refuse, counted by client, and who has done it so often that the node is to
//! drop its packets. It refuses nothing and denies nobody: what is refused, others decide, and
//! [`super::Shared::take_offenders`] hands on who is to be denied.
//!
//! A client is the peer of a connection, an IPv4 address or a /64 of IPv6, because that is what the kernel sees:
//! whoever is only known through a hop is not counted, and neither is the hop. Only refusals come here; memory is
//! bounded, whoever comes.

use std::{
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use ipnet::IpNet;

use crate::model::{Escalation, FurtherOffences};

mod table;

use table::Table;

/// Offenders that wait to be denied, at most; those beyond that begin to count anew.
const PENDING_MAX: usize = 1024;

/// What a client is refused for, of what may count against it. Not what may happen to anybody: a route or a pod that is
/// not there, credentials that are missing, a head or body that is too large. Nor what a web page makes its visitors'
/// browsers send: any path, a host of odd letters, another protocol than HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offence {
    /// A request that two servers could read differently, or frames that are none: no browser sends it; 400.
    Malformed,
    /// A flood of HTTP/2 frames that carry nothing.
    Flood,
    /// A client, or what it says of itself, that no host lets in (`block-…`); 403.
    Blocked,
    /// An address that the host does not let in; 403.
    Denied,
    /// A password or token that is not right; 401.
    Credentials,
    /// More requests than one client may send; 429 or 503.
    Limit,
}

/// A client that has been refused too often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offender {
    pub network: IpNet,
    /// The last of them.
    pub offence: Offence,
    /// What was asked for at that time.
    pub escalation: Escalation,
}

/// What became of an offender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Escalated {
    Denied,
    /// Nothing: it was to be said only.
    DryRun,
    /// Nothing: it may speak for others.
    Trusted,
    /// Nothing: there was no room, or the kernel refused.
    Failed,
}

/// What was counted of offences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffenceStats {
    /// Offences that counted against a client, in the order of [`Offence::ALL`].
    pub offences: [u64; Offence::ALL.len()],
    /// Offenders, in the order of [`Escalated::ALL`].
    pub escalated: [u64; Escalated::ALL.len()],
    /// Clients forgotten before their time because others needed the room.
    pub forgotten: u64,
}

/// The offences of all clients of the node.
#[derive(Debug)]
pub(super) struct Offences {
    /// Keyed at random, so that nobody can choose with whom to share a bucket.
    hasher: RandomState,
    table: Table,
    pending: Mutex<Vec<Offender>>,
    offences: [AtomicU64; Offence::ALL.len()],
    escalated: [AtomicU64; Escalated::ALL.len()],
}

impl Offence {
    pub const ALL: [Self; 6] =
        [Self::Malformed, Self::Flood, Self::Blocked, Self::Denied, Self::Credentials, Self::Limit];

    /// Whether it counts against its client.
    pub(super) const fn counts(self, escalation: &Escalation) -> bool {
        let FurtherOffences { blocked, credentials, denied, limit } = escalation.also;
        match self {
            Self::Malformed | Self::Flood => true,
            Self::Blocked => blocked,
            Self::Denied => denied,
            Self::Credentials => credentials,
            Self::Limit => limit,
        }
    }

    /// The value of the metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Flood => "flood",
            Self::Blocked => "blocked",
            Self::Denied => "denied",
            Self::Credentials => "credentials",
            Self::Limit => "limit",
        }
    }
}

impl Escalated {
    pub const ALL: [Self; 4] = [Self::Denied, Self::DryRun, Self::Trusted, Self::Failed];

    /// The value of the metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::DryRun => "dry_run",
            Self::Trusted => "trusted",
            Self::Failed => "failed",
        }
    }
}

impl Offences {
    pub(super) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            table: Table::new(),
            pending: Mutex::default(),
            offences: Default::default(),
            escalated: Default::default(),
        }
    }

    /// Counts an offence of `peer` at `now`, a time since any fixed moment. The one that is one too many makes it an
    /// offender, and the next one counts as the first again.
    pub(super) fn note(&self, offence: Offence, peer: IpAddr, escalation: &Escalation, now: Duration) {
        self.offences[offence as usize].fetch_add(1, Relaxed);
        let network = client(peer);
        let Escalation { after, within, lasts: _, dry_run: _, also: _ } = *escalation;
        if !self.table.count(self.key(network), after, within, now) {
            return;
        }
        let mut pending = self.pending();
        if pending.len() < PENDING_MAX && pending.iter().all(|offender| offender.network != network) {
            pending.push(Offender { network, offence, escalation: *escalation });
        }
    }

    /// Those that have become offenders since the last call.
    pub(super) fn take(&self) -> Vec<Offender> {
        std::mem::take(&mut *self.pending())
    }

    /// Whatever was counted against `network` no longer is.
    pub(super) fn forgive(&self, network: IpNet) {
        self.table.forget(self.key(network));
        self.pending().retain(|offender| offender.network != network);
    }

    pub(super) fn escalated(&self, what: Escalated) {
        self.escalated[what as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn stats(&self) -> OffenceStats {
        let load = |count: &AtomicU64| count.load(Relaxed);
        OffenceStats {
            offences: self.offences.each_ref().map(load),
            escalated: self.escalated.each_ref().map(load),
            forgotten: self.table.forgotten(),
        }
    }

    fn key(&self, network: IpNet) -> u64 {
        self.hasher.hash_one(network)
    }

    fn pending(&self) -> MutexGuard<'_, Vec<Offender>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one client has: an address of IPv4, or a /64 of IPv6, which is what one subscriber has.
fn client(peer: IpAddr) -> IpNet {
    match peer.to_canonical() {
        address @ IpAddr::V4(_) => address.into(),
        address @ IpAddr::V6(_) => IpNet::new_assert(address, 64).trunc(),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn escalation(after: u32) -> Escalation {
        Escalation {
            after: NonZeroU32::new(after).expect("some"),
            within: Duration::from_secs(10),
            lasts: Duration::from_secs(60),
            dry_run: false,
            also: FurtherOffences::default(),
        }
    }

    fn networks(offenders: &[Offender]) -> Vec<String> {
        offenders.iter().map(|offender| offender.network.to_string()).collect()
    }

    #[test]
    fn offences_of_any_kind_count_together_by_address_or_64() {
        let (offences, escalation) = (Offences::new(), escalation(3));
        for (offence, peer) in [
            (Offence::Malformed, "192.0.2.1"),
            (Offence::Limit, "192.0.2.2"),
            (Offence::Limit, "::ffff:192.0.2.1"),
            (Offence::Denied, "2001:db8::1"),
            (Offence::Denied, "2001:db8::2"),
            (Offence::Denied, "2001:db8:0:1::1"),
            (Offence::Limit, "192.0.2.2"),
        ] {
            offences.note(offence, peer.parse().expect("an address"), &escalation, Duration::ZERO);
        }
        assert!(offences.take().is_empty());
        for peer in ["192.0.2.1", "2001:db8::3"] {
            offences.note(Offence::Credentials, peer.parse().expect("an address"), &escalation, Duration::ZERO);
        }
        let taken = offences.take();
        assert_eq!(networks(&taken), ["192.0.2.1/32", "2001:db8::/64"]);
        assert_eq!(taken[0], Offender { network: taken[0].network, offence: Offence::Credentials, escalation });
        assert!(offences.take().is_empty(), "each is taken once");
        let OffenceStats { offences: counted, escalated, forgotten } = offences.stats();
        assert_eq!((counted, escalated, forgotten), ([1, 0, 0, 3, 2, 3], [0; 4], 0));
    }

    #[test]
    fn who_is_forgiven_begins_anew() {
        let (offences, escalation) = (Offences::new(), escalation(2));
        let peer = IpAddr::from([192, 0, 2, 1]);
        let note = || offences.note(Offence::Denied, peer, &escalation, Duration::ZERO);
        note();
        offences.forgive(client(peer));
        note();
        assert!(offences.take().is_empty());
        note();
        offences.forgive(client(peer));
        assert!(offences.take().is_empty(), "not even what waits");
        note();
        note();
        assert_eq!(networks(&offences.take()), ["192.0.2.1/32"]);
    }

    #[test]
    fn a_crowd_of_offenders_is_bounded() {
        let (offences, escalation) = (Offences::new(), escalation(1));
        for n in 0..10_000_u32 {
            let peer = std::net::Ipv4Addr::from(0x0a00_0000 + n);
            offences.note(Offence::Malformed, peer.into(), &escalation, Duration::ZERO);
        }
        assert_eq!(offences.take().len(), PENDING_MAX);
    }
}
