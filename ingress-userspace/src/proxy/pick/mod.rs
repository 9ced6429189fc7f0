//! Chooses the endpoint for a request, passing over endpoints that failed of late. It opens no connection.
//!
//! Failures are learned from traffic only (passive): a connect error or a time-out keeps the endpoint out for a time that
//! doubles with each further failure, and one success clears it. Requests that were under way together and fail together are
//! one failure. When every endpoint is out, none is.

use std::{
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::upstream::{Connector, Transport};
use crate::model::{Protocol, Retry, Upstream, UpstreamKey, UpstreamTls};

mod load;
mod ring;

pub(super) use load::Busy;
use load::Load;
use ring::Ring;
pub(super) use ring::hash;

/// How long the first failure keeps an endpoint out.
const OUT_FIRST_MS: u64 = 500;
/// The longest time an endpoint is kept out before it is tried again.
const OUT_MAX_MS: u64 = 16_000;

/// One upstream as the request path sees it. Shared by all workers and by successive snapshots while its endpoints stay
/// the same.
#[derive(Debug)]
pub(super) struct UpstreamState {
    key: UpstreamKey,
    protocol: Protocol,
    /// If the protocol is over TLS.
    connector: Option<Arc<Connector>>,
    endpoints: Vec<EndpointState>,
    next: AtomicU32,
    /// Made when the first request is hashed: most upstreams need none.
    ring: OnceLock<Ring>,
    mark: OnceLock<u32>,
}

/// How the endpoint for a request is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Choice {
    /// In turn.
    #[default]
    Next,
    /// The less busy of two.
    LeastRequest,
    /// The one of two that is expected to answer sooner.
    Ewma,
    /// The same for the same key.
    Hash(u64),
    /// The one of that id, else the next in turn.
    Sticky(u64),
}

/// One endpoint and what traffic has shown of it.
#[derive(Debug)]
pub(super) struct EndpointState {
    address: SocketAddr,
    health: Arc<Health>,
    load: Arc<Load>,
}

/// An endpoint chosen for a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Picked<'u> {
    upstream: &'u UpstreamState,
    index: usize,
    /// Its failures when it was chosen. A later count means that another request has reported what this one runs into.
    failures: u32,
}

/// Outlives snapshots: the same endpoint of the same upstream keeps it.
#[derive(Debug, Default)]
struct Health {
    failures: AtomicU32,
    /// Kept out until then, in milliseconds of the proxy's clock; 0 for not at all.
    out_until_ms: AtomicU64,
}

/// The endpoints tried for one request.
#[derive(Debug)]
pub(super) struct Tried {
    indices: [u32; Retry::TRIES_MAX],
    count: usize,
    max: usize,
}

// === impl UpstreamState ===

impl UpstreamState {
    /// The state for `upstream`: `previous` itself if nothing changed, else a new one that knows what
    /// `previous` knew of the endpoints that remain.
    pub(super) fn carry(
        key: &UpstreamKey,
        upstream: &Upstream,
        connector: Option<Arc<Connector>>,
        previous: Option<&Arc<Self>>,
    ) -> Arc<Self> {
        let Upstream { protocol, tls: _, endpoints } = upstream;
        let known = previous.map_or(&[][..], |state| &state.endpoints);
        if let Some(previous) = previous
            && previous.protocol == *protocol
            && previous.connector.as_ref().map(Arc::as_ptr) == connector.as_ref().map(Arc::as_ptr)
            && known.iter().map(|e| e.address).eq(endpoints.iter().map(|e| e.address))
        {
            return Arc::clone(previous);
        }
        let carry = |address: SocketAddr| {
            // Both are sorted by address.
            let known = known.binary_search_by(|e| e.address.cmp(&address)).map(|i| &known[i]).ok();
            let (health, load) = known.map(|e| (Arc::clone(&e.health), Arc::clone(&e.load))).unwrap_or_default();
            EndpointState { address, health, load }
        };
        Arc::new(Self {
            key: key.clone(),
            protocol: *protocol,
            connector,
            endpoints: endpoints.iter().map(|e| carry(e.address)).collect(),
            next: AtomicU32::new(previous.map_or(0, |state| state.next.load(Relaxed))),
            ring: OnceLock::new(),
            mark: OnceLock::new(),
        })
    }

    /// Whether nothing can take its requests.
    pub(super) fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    pub(super) fn key(&self) -> &UpstreamKey {
        &self.key
    }

    /// What names it to clients, the same on every node.
    pub(super) fn mark(&self) -> u32 {
        *self.mark.get_or_init(|| (hash(self.key.as_str().as_bytes()) >> 32) as u32)
    }

    /// What its endpoints speak.
    pub(super) fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// What makes its connections, if it is for `protocol` under `policy`.
    pub(super) fn connector(&self, protocol: Protocol, policy: Option<&Arc<UpstreamTls>>) -> Option<&Arc<Connector>> {
        self.connector.as_ref().filter(|known| self.protocol == protocol && known.policy() == policy)
    }

    /// What carries that.
    pub(super) fn transport(&self) -> Transport<'_> {
        self.connector.as_deref().map_or(Transport::Plain, Transport::Tls)
    }

    /// An endpoint that is neither out nor tried already, as `choice` has it; if all that remain are out, one of those. `None`
    /// when every endpoint, or enough of them, have been tried. The clock is read only if an endpoint has failed.
    pub(super) fn pick(&self, choice: Choice, now_ms: impl Fn() -> u64, tried: &mut Tried) -> Option<Picked<'_>> {
        let count = self.endpoints.len();
        if tried.count >= count.min(tried.max) {
            return None;
        }
        let is_fit = |index: &usize| !tried.contains(*index) && !self.endpoints[*index].health.is_out(&now_ms);
        let chosen = match choice {
            Choice::Next => None,
            Choice::LeastRequest => self.better(is_fit, |endpoint| u64::from(endpoint.load.in_flight())),
            Choice::Ewma => self.better(is_fit, |endpoint| endpoint.load.expected_us(now_ms())),
            Choice::Hash(key) => self.ring().from(key).find(is_fit),
            Choice::Sticky(id) => self.ring().index(id).filter(is_fit),
        };
        match chosen {
            Some(index) => Some(self.take(index, tried)),
            None => self.next(now_ms, tried),
        }
    }

    /// What of two that are drawn costs less (Mitzenmacher 2001, "The Power of Two Choices").
    fn better(&self, is_fit: impl Fn(&usize) -> bool, cost: impl Fn(&EndpointState) -> u64) -> Option<usize> {
        let count = self.endpoints.len();
        let draw = || Some(fastrand::usize(..count)).filter(&is_fit);
        let first = draw()?;
        // One of all others, so that the two differ.
        let second = Some((first + 1 + fastrand::usize(..(count - 1).max(1))) % count).filter(&is_fit);
        second.filter(|second| cost(&self.endpoints[*second]) < cost(&self.endpoints[first])).or(Some(first))
    }

    fn next(&self, now_ms: impl Fn() -> u64, tried: &mut Tried) -> Option<Picked<'_>> {
        let count = self.endpoints.len();
        let start = self.next.fetch_add(1, Relaxed) as usize % count;
        let mut last_resort = None;
        for index in (start..count).chain(0..start) {
            if tried.contains(index) {
                continue;
            }
            if !self.endpoints[index].health.is_out(&now_ms) {
                return Some(self.take(index, tried));
            }
            last_resort = last_resort.or(Some(index));
        }
        last_resort.map(|index| self.take(index, tried))
    }

    fn take(&self, index: usize, tried: &mut Tried) -> Picked<'_> {
        tried.indices[tried.count] = u32::try_from(index).unwrap_or(u32::MAX);
        tried.count += 1;
        let failures = self.endpoints[index].health.failures.load(Relaxed);
        Picked { upstream: self, index, failures }
    }

    fn ring(&self) -> &Ring {
        self.ring.get_or_init(|| Ring::new(self.endpoints.iter().map(|endpoint| endpoint.address)))
    }

    /// Whether there is an endpoint that `id` names.
    pub(super) fn knows(&self, id: u64) -> bool {
        self.ring().index(id).is_some()
    }
}

// === impl Tried ===

impl Tried {
    /// None so far; at most `max` in the end.
    pub(super) fn up_to(max: usize) -> Self {
        Self { indices: [0; Retry::TRIES_MAX], count: 0, max: max.min(Retry::TRIES_MAX) }
    }

    fn contains(&self, index: usize) -> bool {
        self.indices[..self.count].iter().any(|&tried| tried as usize == index)
    }
}

// === impl Picked ===

impl Picked<'_> {
    fn endpoint(&self) -> &EndpointState {
        &self.upstream.endpoints[self.index]
    }

    pub(super) fn address(self) -> SocketAddr {
        self.endpoint().address
    }

    /// What names it to clients.
    pub(super) fn id(self) -> Option<u64> {
        self.upstream.ring().id(self.index)
    }

    /// Counts a request that goes there.
    pub(super) fn begin(self) -> Busy {
        self.endpoint().load.begin()
    }

    /// A response head came after this time.
    pub(super) fn observe(self, took: Duration, now_ms: u64) {
        self.endpoint().load.observe(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), now_ms);
    }

    /// The request found the endpoint wanting. Counts once for all that were chosen before it was known.
    pub(super) fn failed(self, now_ms: u64) {
        let (health, failures) = (&self.endpoint().health, self.failures);
        // Tried while it was out because there was nothing better: it is out as it is.
        if health.is_out(|| now_ms) {
            return;
        }
        if health.failures.compare_exchange(failures, failures.saturating_add(1), Relaxed, Relaxed).is_ok() {
            let out = OUT_FIRST_MS.saturating_mul(1 << failures.min(10)).min(OUT_MAX_MS);
            health.out_until_ms.store(now_ms + out, Relaxed);
        }
    }

    pub(super) fn succeeded(self) {
        let health = &self.endpoint().health;
        // A plain read first: the line stays shared between the workers in the usual case.
        if health.failures.load(Relaxed) != 0 {
            health.failures.store(0, Relaxed);
            health.out_until_ms.store(0, Relaxed);
        }
    }
}

// === impl Health ===

impl Health {
    fn is_out(&self, now_ms: impl Fn() -> u64) -> bool {
        let until = self.out_until_ms.load(Relaxed);
        until != 0 && until > now_ms()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Endpoint;

    fn upstream(ports: &[u16]) -> Upstream {
        let endpoints = ports.iter().map(|&port| Endpoint { address: ([10, 0, 0, 1], port).into() }).collect();
        Upstream { endpoints, ..Upstream::default() }
    }

    fn key() -> UpstreamKey {
        UpstreamKey::new("default", "web", "80")
    }

    fn state(ports: &[u16]) -> Arc<UpstreamState> {
        UpstreamState::carry(&key(), &upstream(ports), None, None)
    }

    fn picks(state: &UpstreamState, now_ms: u64, count: usize) -> Vec<u16> {
        (0..count)
            .filter_map(|_| state.pick(Choice::Next, || now_ms, &mut Tried::up_to(3)).map(|e| e.address().port()))
            .collect()
    }

    /// Endpoint `index` as a request that is sent there now has it.
    fn take(state: &UpstreamState, index: usize) -> Picked<'_> {
        state.take(index, &mut Tried::up_to(3))
    }

    #[test]
    fn endpoints_take_turns() {
        assert_eq!(picks(&state(&[1, 2, 3]), 0, 6), [1, 2, 3, 1, 2, 3]);
        assert!(picks(&state(&[]), 0, 2).is_empty());
    }

    #[test]
    fn one_request_tries_each_endpoint_once_and_at_most_three() {
        let state = state(&[1, 2, 3, 4]);
        let mut tried = Tried::up_to(3);
        let ports: Vec<_> =
            std::iter::from_fn(|| state.pick(Choice::Next, || 0, &mut tried)).map(|e| e.address().port()).collect();
        assert_eq!(ports, [1, 2, 3]);
        let state = self::state(&[1, 2]);
        let mut tried = Tried::up_to(3);
        assert_eq!(std::iter::from_fn(|| state.pick(Choice::Next, || 0, &mut tried)).count(), 2);
    }

    #[test]
    fn a_failed_endpoint_sits_out_longer_each_time_until_it_succeeds() {
        let state = state(&[1, 2]);
        take(&state, 0).failed(1000);
        assert_eq!(picks(&state, 1499, 4), [2, 2, 2, 2]);
        assert_eq!(picks(&state, 1500, 2), [1, 2]);
        take(&state, 0).failed(2000);
        assert_eq!(picks(&state, 2999, 2), [2, 2]);
        assert!(picks(&state, 3000, 2).contains(&1));
        for time in 1..=40 {
            take(&state, 0).failed(time * 20_000);
        }
        assert_eq!(picks(&state, 800_000 + OUT_MAX_MS - 1, 2), [2, 2]);
        assert!(picks(&state, 800_000 + OUT_MAX_MS, 2).contains(&1));
        take(&state, 0).succeeded();
        assert!(picks(&state, 800_000, 2).contains(&1));
    }

    #[test]
    fn requests_that_fail_together_are_one_failure() {
        let state = state(&[1, 2]);
        let under_way: Vec<_> = (0..20).map(|_| take(&state, 0)).collect();
        for (picked, now_ms) in under_way.into_iter().zip((1000..).step_by(100)) {
            picked.failed(now_ms);
        }
        assert_eq!(picks(&state, 1499, 2), [2, 2]);
        assert!(picks(&state, 1500, 2).contains(&1));
        // The next one counts.
        take(&state, 0).failed(4000);
        assert_eq!(picks(&state, 4999, 2), [2, 2]);
        // Those that are tried although the endpoint is out do not.
        (0..20).for_each(|_| take(&state, 0).failed(4500));
        assert!(picks(&state, 5000, 2).contains(&1));
    }

    #[test]
    fn when_all_are_out_none_is() {
        let state = state(&[1, 2]);
        (0..2).for_each(|index| take(&state, index).failed(0));
        assert_eq!(picks(&state, 1, 4), [1, 2, 1, 2]);
    }

    #[test]
    fn health_carries_over_by_address() {
        let first = state(&[1, 2]);
        take(&first, 1).failed(0);
        assert!(Arc::ptr_eq(&first, &UpstreamState::carry(&key(), &upstream(&[1, 2]), None, Some(&first))));
        let other = Upstream { protocol: Protocol::H2c, ..upstream(&[1, 2]) };
        assert_eq!(UpstreamState::carry(&key(), &other, None, Some(&first)).protocol(), Protocol::H2c);
        let second = UpstreamState::carry(&key(), &upstream(&[2, 3]), None, Some(&first));
        assert_eq!(picks(&second, 1, 3), [3, 3, 3]);
    }

    fn chosen(state: &UpstreamState, choice: Choice) -> u16 {
        state.pick(choice, || 0, &mut Tried::up_to(3)).expect("an endpoint").address().port()
    }

    #[test]
    fn the_less_busy_of_two_is_chosen() {
        let state = state(&[1, 2]);
        let busy: Vec<_> = (0..3).map(|_| take(&state, 0).begin()).collect();
        assert!((0..20).all(|_| chosen(&state, Choice::LeastRequest) == 2));
        drop(busy);
        let ports: std::collections::BTreeSet<_> = (0..100).map(|_| chosen(&state, Choice::LeastRequest)).collect();
        assert_eq!(ports, [1, 2].into());
        take(&state, 0).observe(Duration::from_millis(50), 0);
        take(&state, 1).observe(Duration::from_millis(1), 0);
        assert!((0..20).all(|_| chosen(&state, Choice::Ewma) == 2));
        take(&state, 1).failed(0);
        assert!((0..20).all(|_| chosen(&state, Choice::Ewma) == 1), "one that is out is not chosen");
        assert_eq!(chosen(&self::state(&[1]), Choice::LeastRequest), 1);
    }

    #[test]
    fn keys_and_ids_lead_to_the_same_endpoint_until_it_is_out() {
        let state = state(&[1, 2, 3]);
        let picked = |choice, tried: &mut Tried| state.pick(choice, || 0, tried).expect("an endpoint");
        for key in 0..20 {
            let mut tried = Tried::up_to(3);
            let first = picked(Choice::Hash(hash(&[key])), &mut tried);
            assert_eq!(chosen(&state, Choice::Hash(hash(&[key]))), first.address().port());
            let id = first.id().expect("an id");
            assert!(state.knows(id));
            assert_eq!(chosen(&state, Choice::Sticky(id)), first.address().port());
            let second = picked(Choice::Hash(hash(&[key])), &mut tried);
            assert_ne!(first.address(), second.address());
        }
        let first = picked(Choice::Hash(7), &mut Tried::up_to(3));
        let id = first.id().expect("an id");
        first.failed(0);
        assert_ne!(chosen(&state, Choice::Hash(7)), first.address().port());
        assert_ne!(chosen(&state, Choice::Sticky(id)), first.address().port());
        assert!(!state.knows(0));
    }
}
