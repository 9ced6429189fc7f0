//! Decides what responses over TLS tell their clients of HTTP/3 (RFC 7838): an offer where it works, and for a day after
//! its end that it is gone, because clients remember an offer for so long. A process knows of its own offers alone.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use http::HeaderValue;
use ingress_model::{
    HostPattern, HostRoutes, Listener, ListenerName, RouteTable, Settings, Tree, Versions, tree::Difference,
};

use crate::server::{clock, shared::Shared};

/// Time for which clients remember an offer.
const MAX_AGE: Duration = Duration::from_hours(24);

/// Content of a response's `alt-svc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advice {
    /// Keeps the field of the pod, if there is one.
    Silence,
    Offer,
    /// Ends earlier offers.
    Clear,
}

/// Whether HTTP/3 answers at its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// No answer has come yet, so HTTP/3 was never offered.
    Untried,
    Answers,
    /// Answers came until this time of the shared clock.
    Silent(Duration),
}

/// A [`Reach`] that workers read without a lock.
#[derive(Debug, Default)]
pub(crate) struct ReachCell(AtomicU64);

/// The part of a worker in what clients are told of HTTP/3.
#[derive(Debug, Default)]
pub(crate) struct WorkerOffer {
    /// The value of `alt-svc` for an offer, if the worker has served HTTP/3 and does not drain.
    value: RefCell<Option<HeaderValue>>,
    /// Whether the worker serves HTTP/3.
    serves: Cell<bool>,
    /// The port of its socket.
    port: Cell<u16>,
}

/// Returns the value for an offer of `port`.
fn offer(port: u16) -> Option<HeaderValue> {
    HeaderValue::try_from(format!("h3=\":{port}\"; ma={}", MAX_AGE.as_secs())).ok()
}

/// Returns what a response for a host tells. HTTP/3 serves the host, or it has not since `withdrawn`, if the process knows
/// that; `works_here` says whether the worker serves HTTP/3.
fn advice(
    reach: Reach,
    serves_host: bool,
    withdrawn: Option<Duration>,
    works_here: bool,
    now: impl FnOnce() -> Duration,
) -> Advice {
    let ended = match (reach, serves_host) {
        (Reach::Untried, _) => return Advice::Silence,
        (Reach::Answers, true) => return if works_here { Advice::Offer } else { Advice::Silence },
        (Reach::Answers, false) => withdrawn,
        (Reach::Silent(since), true) => Some(since),
        (Reach::Silent(since), false) => withdrawn.map(|withdrawn| withdrawn.min(since)),
    };
    if ended.is_some_and(|ended| is_remembered(ended, now())) { Advice::Clear } else { Advice::Silence }
}

/// Returns whether clients may remember an offer that was last made at `ended`.
fn is_remembered(ended: Duration, now: Duration) -> bool {
    now.saturating_sub(ended) < MAX_AGE
}

/// Returns whether the settings permit HTTP/3: it needs TLS 1.3, and UDP has no PROXY header.
pub(crate) fn is_permitted(settings: &Settings) -> bool {
    let Settings { http3, handshakes, trust, .. } = settings;
    *http3 && handshakes.versions != Versions::Tls12 && !trust.proxy_protocol
}

// === impl WorkerOffer ===

impl WorkerOffer {
    /// Notes that the worker serves HTTP/3 at `port`, which clients are told to use at `advertised`.
    pub(crate) fn serve(&self, shared: &Shared, port: u16, advertised: Option<u16>) {
        self.port.set(port);
        if !self.serves.replace(true) {
            shared.http3_workers.fetch_add(1, Relaxed);
        }
        self.value.replace(advertised.and_then(offer));
    }

    /// Notes that the worker does not serve HTTP/3 any more. Others may.
    pub(crate) fn fail(&self, shared: &Shared) {
        if self.serves.replace(false) {
            shared.http3_workers.fetch_sub(1, Relaxed);
        }
    }

    /// Notes that the worker drains: a successor may serve HTTP/3, so clients are not told.
    pub(crate) fn leave(&self, shared: &Shared) {
        self.fail(shared);
        self.value.replace(None);
    }

    /// Returns the port of the worker's socket, if it has served HTTP/3.
    pub(crate) fn port(&self) -> u16 {
        self.port.get()
    }

    /// Returns whether clients may have to be told of HTTP/3.
    #[inline]
    pub(crate) fn is_told(&self) -> bool {
        self.value.borrow().is_some()
    }

    /// Returns the value of `alt-svc` for a host, if its clients are to be told of HTTP/3. `withdrawn` is the time at which
    /// HTTP/3 has ceased to serve the host. The copy shares its bytes.
    pub(crate) fn value(&self, shared: &Shared, serves_host: bool, withdrawn: Option<Duration>) -> Option<HeaderValue> {
        match advice(shared.http3_reach.get(), serves_host, withdrawn, self.serves.get(), clock::now) {
            Advice::Silence => None,
            Advice::Offer => self.value.borrow().clone(),
            Advice::Clear => Some(HeaderValue::from_static("clear")),
        }
    }
}

// === impl ReachCell ===

impl ReachCell {
    const UNTRIED: u64 = 0;
    const ANSWERS: u64 = u64::MAX;

    /// Notes whether HTTP/3 answers. A port that has never answered stays untried.
    pub(crate) fn set(&self, answers: bool, now: Duration) {
        if answers {
            self.0.store(Self::ANSWERS, Relaxed);
            return;
        }
        // One above the milliseconds, so that none is `UNTRIED`.
        let since = u64::try_from(now.as_millis()).unwrap_or(0).saturating_add(1);
        let _it_was_silent = self.0.compare_exchange(Self::ANSWERS, since, Relaxed, Relaxed);
    }

    pub(crate) fn get(&self) -> Reach {
        match self.0.load(Relaxed) {
            Self::UNTRIED => Reach::Untried,
            Self::ANSWERS => Reach::Answers,
            since => Reach::Silent(Duration::from_millis(since - 1)),
        }
    }
}

/// The hosts that HTTP/3 served in an earlier configuration of this process, with the time of the shared clock at which
/// that ended. Entries of more than a day are dropped with the next configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Withdrawn {
    /// Time since which the settings do not permit HTTP/3.
    all: Option<Duration>,
    hosts: Tree<HostPattern, Duration>,
    /// The hosts that the entries were made from.
    source: Tree<HostPattern, Arc<HostRoutes>>,
    /// The same for listeners of Gateways.
    listeners: BTreeMap<ListenerName, Duration>,
    listener_source: Tree<ListenerName, Arc<Listener>>,
}

impl Withdrawn {
    /// Returns the state for `table`, at `now`. `before` are the settings of the previous snapshot, if there was any, and
    /// `self` is its state. The cost is that of the difference.
    pub(crate) fn next(self, before: Option<&Settings>, table: &RouteTable, now: Duration) -> Self {
        let mut next = self;
        let was_permitted = before.is_some_and(is_permitted);
        // The last offer to a host that ceases to be served now.
        let latest = if was_permitted { Some(now) } else { next.all };
        next.all = match is_permitted(&table.settings) {
            true => None,
            false => latest.filter(|since| is_remembered(*since, now)),
        };
        let known = std::mem::replace(&mut next.source, table.hosts.clone());
        for Difference { key, old, new } in known.differences(&table.hosts) {
            match (old.is_some_and(|old| old.takes_http3()), new.map(|new| new.takes_http3())) {
                (true, Some(false)) => {
                    if let Some(since) = latest {
                        next.hosts.insert(key.clone(), since);
                    }
                }
                (_, Some(true) | None) => drop(next.hosts.remove(key)),
                (false, Some(false)) => {}
            }
        }
        let known = std::mem::replace(&mut next.listener_source, table.listeners.clone());
        for Difference { key, old, new } in known.differences(&table.listeners) {
            match (old.is_some_and(|old| old.takes_http3()), new.map(|new| new.takes_http3())) {
                (true, Some(false)) => {
                    if let Some(since) = latest {
                        next.listeners.insert(key.clone(), since);
                    }
                }
                (_, Some(true) | None) => drop(next.listeners.remove(key)),
                (false, Some(false)) => {}
            }
        }
        next.listeners.retain(|_, since| is_remembered(*since, now));
        let expired = next.hosts.iter().filter(|(_, since)| !is_remembered(**since, now));
        let expired: Vec<_> = expired.map(|(pattern, _)| pattern.clone()).collect();
        for pattern in expired {
            next.hosts.remove(&pattern);
        }
        next
    }

    /// Returns since when HTTP/3 does not serve a host, if it has served it in this process. `takes` says whether it would
    /// with other settings.
    pub(crate) fn since(&self, pattern: &HostPattern, takes: bool) -> Option<Duration> {
        if takes { self.all } else { self.hosts.get(pattern).copied() }
    }

    /// Returns since when HTTP/3 does not serve a listener that does not take it, if it has served it in this process.
    pub(crate) fn of_listener(&self, name: &ListenerName) -> Option<Duration> {
        self.listeners.get(name).copied()
    }
}

#[cfg(test)]
mod tests {
    use ingress_model::{Handshakes, Trust};

    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    #[test]
    fn an_offer_needs_an_answer_and_its_end_is_told_for_a_day() {
        use Advice::{Clear, Offer, Silence};
        use Reach::{Answers, Silent, Untried};
        let silent = Silent(HOUR * 10);
        for (reach, serves_host, withdrawn, hour, expected) in [
            (Untried, true, None, 1, Silence),
            (Untried, false, Some(HOUR), 2, Silence),
            (Answers, true, None, 1, Offer),
            (Answers, false, None, 1, Silence),
            (Answers, false, Some(HOUR), 1, Clear),
            (Answers, false, Some(HOUR), 24, Clear),
            (Answers, false, Some(HOUR), 25, Silence),
            (silent, true, None, 10, Clear),
            (silent, true, None, 33, Clear),
            (silent, true, None, 34, Silence),
            (silent, false, None, 10, Silence),
            (silent, false, Some(HOUR), 24, Clear),
            (silent, false, Some(HOUR), 25, Silence),
            // Withdrawn while it was silent: the last offer was before that.
            (silent, false, Some(HOUR * 20), 33, Clear),
            (silent, false, Some(HOUR * 20), 34, Silence),
        ] {
            let found = advice(reach, serves_host, withdrawn, true, || HOUR * hour);
            assert_eq!(found, expected, "{reach:?} {serves_host} {withdrawn:?} at {hour} h");
        }
        let elsewhere = advice(Answers, true, None, false, Duration::default);
        assert_eq!(elsewhere, Silence, "a worker without HTTP/3 offers none");
    }

    #[test]
    fn a_port_that_never_answered_is_untried_and_silence_begins_once() {
        let reach = ReachCell::default();
        reach.set(false, HOUR);
        assert_eq!(reach.get(), Reach::Untried);
        reach.set(true, HOUR);
        assert_eq!(reach.get(), Reach::Answers);
        for hour in [2, 3] {
            reach.set(false, HOUR * hour);
            assert_eq!(reach.get(), Reach::Silent(HOUR * 2));
        }
        reach.set(true, HOUR * 4);
        assert_eq!(reach.get(), Reach::Answers);
    }

    #[test]
    fn each_worker_that_serves_http3_counts_once() {
        let cells = Box::leak(Box::new([ingress_common::HostL7Cell::default()]));
        let shared = Shared::new(cells, None).expect("shared state");
        let workers = [0, 1].map(|_| WorkerOffer::default());
        shared.set_http3_answers(true);
        let [first, second] = &workers;
        for worker in [first, first, second] {
            worker.serve(&shared, 443, Some(443));
        }
        assert_eq!(shared.http3_workers(), 2);
        // Its driver has failed: it makes no offer, but tells clients that HTTP/3 is gone, as the others do.
        for _ in 0..2 {
            first.fail(&shared);
        }
        assert_eq!(shared.http3_workers(), 1);
        assert!(
            first.is_told()
                && first.value(&shared, true, None).is_none()
                && second.value(&shared, true, None).is_some()
        );
        shared.set_http3_answers(false);
        for worker in &workers {
            assert_eq!(worker.value(&shared, true, None), Some(HeaderValue::from_static("clear")));
        }
        // A process that drains leaves the word to its successor.
        second.leave(&shared);
        assert_eq!((shared.http3_workers(), second.is_told()), (0, false));
    }

    fn table(hosts: &[(&str, bool)], settings: Settings) -> RouteTable {
        let mut table = RouteTable { settings, ..RouteTable::default() };
        for (host, refuses_http3) in hosts {
            let routes = HostRoutes { refuses_http3: *refuses_http3, ..HostRoutes::default() };
            table.hosts.insert(HostPattern::parse(host).expect("valid host"), Arc::new(routes));
        }
        table
    }

    #[test]
    fn a_host_is_withdrawn_when_it_was_served_before() {
        let pattern = |host| HostPattern::parse(host).expect("valid host");
        let mut state = Withdrawn::default();
        let on = || Settings::default();
        let mut before = None;
        for (hour, hosts, expected) in [
            (1, &[("a.test", false), ("b.test", true)][..], [None, None]),
            (2, &[("a.test", true), ("b.test", true)], [Some(2), None]),
            (3, &[("a.test", true), ("b.test", false)], [Some(2), None]),
            (4, &[("a.test", false), ("b.test", true)], [None, Some(4)]),
            (5, &[("a.test", true)], [Some(5), None]),
            (6, &[("a.test", true), ("b.test", true)], [Some(5), None]),
            (28, &[("a.test", true), ("b.test", true)], [Some(5), None]),
            (29, &[("a.test", true), ("b.test", true)], [None, None]),
        ] {
            state = state.next(before.as_ref(), &table(hosts, on()), HOUR * hour);
            before = Some(on());
            let takes = |name| hosts.iter().any(|(host, refuses)| *host == name && !refuses);
            let found = ["a.test", "b.test"].map(|host| state.since(&pattern(host), takes(host)));
            assert_eq!(found, expected.map(|hour: Option<u32>| hour.map(|hour| HOUR * hour)), "at {hour} h");
        }
    }

    #[test]
    fn settings_withdraw_all_hosts() {
        let off = || Settings { http3: false, ..Settings::default() };
        let tls12 = Handshakes { versions: Versions::Tls12, ..Handshakes::default() };
        let pattern = HostPattern::parse("a.test").expect("valid host");
        let after = |before: Option<Settings>, settings: Settings| {
            let state = Withdrawn::default();
            state.next(before.as_ref(), &table(&[("a.test", false)], settings), HOUR).since(&pattern, true)
        };
        assert_eq!(after(None, off()), None, "a process that starts so has made no offer");
        assert_eq!(after(Some(off()), off()), None);
        assert_eq!(after(Some(Settings::default()), Settings::default()), None);
        for settings in [
            off(),
            Settings { handshakes: tls12, ..Settings::default() },
            Settings { trust: Trust { proxy_protocol: true, ..Trust::default() }, ..Settings::default() },
        ] {
            assert_eq!(after(Some(Settings::default()), settings), Some(HOUR));
        }
    }
}
