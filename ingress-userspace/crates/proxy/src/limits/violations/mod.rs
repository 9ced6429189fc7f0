//! Counts the violations of each client, and reports clients with so many that the node is to drop their packets. This
//! module neither refuses requests nor denies clients: other code refuses, and [`crate::Shared::take_violators`] passes
//! on the clients to be denied.
//!
//! A client is the peer of a connection, an IPv4 address or an IPv6 /64, because the kernel sees only that. Clients
//! behind a trusted proxy are not counted, and neither is the proxy. Only refusals are counted here. Memory is bounded
//! for any number of clients.

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

use ingress_model::{Escalation, FurtherViolations};

mod table;

use table::ViolationTable;

/// Longest queue of violators to be denied; the counts of further violators start again from zero.
const PENDING_MAX: usize = 1024;

/// The refusals that may count against a client. Refusals that can affect any client are not among them: a missing
/// route or pod, missing credentials, a head or body that is too large. Neither are requests that a web page can make
/// its visitors' browsers send: any path, a host with unusual letters, another protocol than HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A request that two servers could parse differently, or malformed frames; no browser sends these. Refused with
    /// 400.
    Malformed,
    /// A flood of HTTP/2 frames without payload.
    Flood,
    /// A client address or request header that is blocked for all hosts (`block-…`); 403.
    Blocked,
    /// An address that the host does not allow; 403.
    Denied,
    /// A wrong password or token; 401.
    Credentials,
    /// More requests than one client may send; 429 or 503.
    Limit,
}

/// A client that has been refused too often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violator {
    pub network: IpNet,
    /// The latest violation.
    pub violation: Violation,
    /// The settings at the time of that violation.
    pub escalation: Escalation,
}

/// The outcome for a violator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Escalated {
    Denied,
    /// Only logged, because of the dry run.
    DryRun,
    /// Not denied, because it is a trusted proxy.
    Trusted,
    /// Not denied, because the deny list was full or the kernel returned an error.
    Failed,
}

/// Statistics of violations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ViolationStats {
    /// Violations by kind, in the order of [`Violation::ALL`].
    pub violations: [u64; Violation::ALL.len()],
    /// Violators by outcome, in the order of [`Escalated::ALL`].
    pub escalated: [u64; Escalated::ALL.len()],
    /// Clients evicted from the full table before their counts expired.
    pub forgotten: u64,
}

/// The violations of all clients of the node.
#[derive(Debug)]
pub(crate) struct Violations {
    /// Randomly keyed, so that clients cannot choose an address that shares a bucket with another client.
    hasher: RandomState,
    table: ViolationTable,
    pending: Mutex<Vec<Violator>>,
    violations: [AtomicU64; Violation::ALL.len()],
    escalated: [AtomicU64; Escalated::ALL.len()],
}

impl Violation {
    pub const ALL: [Self; 6] =
        [Self::Malformed, Self::Flood, Self::Blocked, Self::Denied, Self::Credentials, Self::Limit];

    /// Returns whether this violation counts against its client.
    pub(crate) const fn counts(self, escalation: &Escalation) -> bool {
        let FurtherViolations { blocked, credentials, denied, limit } = escalation.also;
        match self {
            Self::Malformed | Self::Flood => true,
            Self::Blocked => blocked,
            Self::Denied => denied,
            Self::Credentials => credentials,
            Self::Limit => limit,
        }
    }

    /// Returns the value of the metric's label.
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

    /// Returns the value of the metric's label.
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

impl Violations {
    pub(crate) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            table: ViolationTable::new(),
            pending: Mutex::default(),
            violations: Default::default(),
            escalated: Default::default(),
        }
    }

    /// Counts a violation of `peer` at `now`, a time since any fixed moment. The violation that reaches the limit makes
    /// the peer a violator, and its count starts again from zero.
    pub(crate) fn note(&self, violation: Violation, peer: IpAddr, escalation: &Escalation, now: Duration) {
        self.violations[violation as usize].fetch_add(1, Relaxed);
        let network = client(peer);
        let Escalation { after, within, lasts: _, dry_run: _, also: _ } = *escalation;
        if !self.table.count(self.key(network), after, within, now) {
            return;
        }
        let mut pending = self.pending();
        if pending.len() < PENDING_MAX && pending.iter().all(|violator| violator.network != network) {
            pending.push(Violator { network, violation, escalation: *escalation });
        }
    }

    /// Takes the clients that have become violators since the last call.
    pub(crate) fn take(&self) -> Vec<Violator> {
        std::mem::take(&mut *self.pending())
    }

    /// Clears the violations counted against `network`.
    pub(crate) fn forgive(&self, network: IpNet) {
        self.table.forget(self.key(network));
        self.pending().retain(|violator| violator.network != network);
    }

    pub(crate) fn escalated(&self, what: Escalated) {
        self.escalated[what as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn stats(&self) -> ViolationStats {
        let load = |count: &AtomicU64| count.load(Relaxed);
        ViolationStats {
            violations: self.violations.each_ref().map(load),
            escalated: self.escalated.each_ref().map(load),
            forgotten: self.table.forgotten(),
        }
    }

    fn key(&self, network: IpNet) -> u64 {
        self.hasher.hash_one(network)
    }

    fn pending(&self) -> MutexGuard<'_, Vec<Violator>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the network of one client: an IPv4 address, or an IPv6 /64, which is the size that one subscriber has.
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
            also: FurtherViolations::default(),
        }
    }

    fn networks(violators: &[Violator]) -> Vec<String> {
        violators.iter().map(|violator| violator.network.to_string()).collect()
    }

    #[test]
    fn violations_of_all_kinds_count_together_per_client() {
        let (violations, escalation) = (Violations::new(), escalation(3));
        for (violation, peer) in [
            (Violation::Malformed, "192.0.2.1"),
            (Violation::Limit, "192.0.2.2"),
            (Violation::Limit, "::ffff:192.0.2.1"),
            (Violation::Denied, "2001:db8::1"),
            (Violation::Denied, "2001:db8::2"),
            (Violation::Denied, "2001:db8:0:1::1"),
            (Violation::Limit, "192.0.2.2"),
        ] {
            violations.note(violation, peer.parse().expect("an address"), &escalation, Duration::ZERO);
        }
        assert!(violations.take().is_empty());
        for peer in ["192.0.2.1", "2001:db8::3"] {
            violations.note(Violation::Credentials, peer.parse().expect("an address"), &escalation, Duration::ZERO);
        }
        let taken = violations.take();
        assert_eq!(networks(&taken), ["192.0.2.1/32", "2001:db8::/64"]);
        assert_eq!(taken[0], Violator { network: taken[0].network, violation: Violation::Credentials, escalation });
        assert!(violations.take().is_empty(), "each is taken once");
        let ViolationStats { violations: counted, escalated, forgotten } = violations.stats();
        assert_eq!((counted, escalated, forgotten), ([1, 0, 0, 3, 2, 3], [0; 4], 0));
    }

    #[test]
    fn forgiving_a_client_resets_its_count() {
        let (violations, escalation) = (Violations::new(), escalation(2));
        let peer = IpAddr::from([192, 0, 2, 1]);
        let note = || violations.note(Violation::Denied, peer, &escalation, Duration::ZERO);
        note();
        violations.forgive(client(peer));
        note();
        assert!(violations.take().is_empty());
        note();
        violations.forgive(client(peer));
        assert!(violations.take().is_empty(), "not even what waits");
        note();
        note();
        assert_eq!(networks(&violations.take()), ["192.0.2.1/32"]);
    }

    #[test]
    fn pending_violators_are_limited() {
        let (violations, escalation) = (Violations::new(), escalation(1));
        for n in 0..10_000_u32 {
            let peer = std::net::Ipv4Addr::from(0x0a00_0000 + n);
            violations.note(Violation::Malformed, peer.into(), &escalation, Duration::ZERO);
        }
        assert_eq!(violations.take().len(), PENDING_MAX);
    }
}
