//! Load balancing: chooses the endpoint for a request, and avoids endpoints that failed recently. It opens no
//! connection.
//!
//! Endpoints that [outlier detection](outlier_detection) has ejected, or that fail their health checks, get no requests.
//! When no endpoint is healthy, all get requests.

use std::{
    net::SocketAddr,
    sync::{
        Arc, LazyLock, Mutex, OnceLock,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::sync::OwnedSemaphorePermit;

use crate::{
    observe::durations::SharedHistogram,
    upstream::{Connector, UpstreamTransport},
};
use ingress_model::{HealthPolicy, Protocol, ProxyVersion, Retry, Upstream, UpstreamKey, UpstreamTls};

mod checked;
mod circuit_breaker;
mod counts;
mod endpoint_health;
mod load;
mod outlier_detection;
mod ring;
#[cfg(test)]
mod tests;

pub(crate) use checked::Checked;
pub use circuit_breaker::Full;
use circuit_breaker::Gate;
use counts::UpstreamCounts;
pub use counts::{CheckResult, UpstreamView};
use endpoint_health::EndpointHealth;
use load::EndpointLoad;
pub(crate) use load::LoadGuard;
use ring::Ring;
pub(crate) use ring::hash;

/// The default policy, shared by upstreams without annotations for health and load balancing: nearly all.
static DEFAULT: LazyLock<Arc<HealthPolicy>> = LazyLock::new(Arc::default);

/// Runtime state of one upstream. All workers share it, and so do successive snapshots while the endpoints stay the
/// same.
#[derive(Debug)]
pub(crate) struct UpstreamState {
    key: UpstreamKey,
    protocol: Protocol,
    /// Present if the protocol uses TLS.
    connector: Option<Arc<Connector>>,
    health_policy: Arc<HealthPolicy>,
    proxy_header: Option<ProxyVersion>,
    endpoints: Vec<EndpointState>,
    common: Arc<UpstreamCommon>,
    next: AtomicU32,
    /// Built for the first request that is hashed, because most upstreams never need it.
    ring: OnceLock<Ring>,
    mark: OnceLock<u32>,
}

/// State of one upstream that outlives snapshots even when the endpoints change.
#[derive(Debug)]
struct UpstreamCommon {
    /// Locked while ejecting, so that concurrent ejections cannot exceed the limit of ejected endpoints.
    ejecting: Mutex<()>,
    gate: Option<Gate>,
    /// Allocated for the first event, because most upstreams never have one.
    counts: OnceLock<Box<UpstreamCounts>>,
    /// The time to the head of responses, if it is counted; allocated for the first one.
    latency: OnceLock<Box<SharedHistogram>>,
}

/// The load-balancing policy for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Round robin.
    #[default]
    Next,
    /// The one of two random endpoints with fewer requests in flight.
    LeastRequest,
    /// The one of two random endpoints with the lower expected response time.
    Ewma,
    /// The same endpoint for the same key.
    Hash(u64),
    /// A random one of so many endpoints, which are the same for the same key.
    Subset(u64, usize),
    /// The endpoint with this id, or round robin if it is not available.
    Sticky(u64),
}

/// An endpoint with its health and load.
#[derive(Debug)]
pub(crate) struct EndpointState {
    address: SocketAddr,
    health: Arc<EndpointHealth>,
    load: Arc<EndpointLoad>,
}

/// An endpoint chosen for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Picked<'u> {
    upstream: &'u UpstreamState,
    index: usize,
    /// Its count of failures when it was chosen. A higher count later means that another request has reported the same
    /// failure.
    failures: u32,
}

/// The endpoints tried for one request.
#[derive(Debug)]
pub(crate) struct Tried {
    indices: [u32; Retry::TRIES_MAX],
    count: usize,
    max: usize,
    /// Tries before the endpoints were forgotten.
    before: usize,
}

// === impl UpstreamState ===

impl UpstreamState {
    /// Returns the state for `upstream`. This is `previous` itself if nothing has changed; otherwise a new state that
    /// keeps the health and load of the remaining endpoints.
    pub(crate) fn carry(
        key: &UpstreamKey,
        upstream: &Upstream,
        connector: Option<Arc<Connector>>,
        previous: Option<&Arc<Self>>,
    ) -> Arc<Self> {
        let Upstream { protocol, tls: _, health_policy, proxy_header, endpoints } = upstream;
        let health_policy = health_policy.as_ref().unwrap_or(&DEFAULT);
        let known = previous.map_or(&[][..], |state| &state.endpoints);
        if let Some(previous) = previous
            && previous.protocol == *protocol
            && previous.health_policy == *health_policy
            && previous.proxy_header == *proxy_header
            && previous.connector.as_ref().map(Arc::as_ptr) == connector.as_ref().map(Arc::as_ptr)
            && known.iter().map(|e| e.address).eq(endpoints.iter().map(|e| e.address))
        {
            return Arc::clone(previous);
        }
        let is_first = known.is_empty();
        let carry = |address: SocketAddr| {
            // Both lists are sorted by address.
            let known = known.binary_search_by(|e| e.address.cmp(&address)).map(|i| &known[i]).ok();
            let (health, load) = match known {
                Some(known) => (Arc::clone(&known.health), Arc::clone(&known.load)),
                None if is_first => Default::default(),
                None => (Arc::new(EndpointHealth::newcomer()), Arc::default()),
            };
            EndpointState { address, health, load }
        };
        let common = previous
            .filter(|state| state.health_policy.circuit_breaker == health_policy.circuit_breaker)
            .map(|state| Arc::clone(&state.common));
        let common = common.unwrap_or_else(|| Arc::new(UpstreamCommon::new(health_policy)));
        Arc::new(Self {
            key: key.clone(),
            protocol: *protocol,
            connector,
            health_policy: Arc::clone(health_policy),
            proxy_header: *proxy_header,
            endpoints: endpoints.iter().map(|e| carry(e.address)).collect(),
            common,
            next: AtomicU32::new(previous.map_or(0, |state| state.next.load(Relaxed))),
            ring: OnceLock::new(),
            mark: OnceLock::new(),
        })
    }

    /// Returns whether the upstream has no endpoints.
    pub(crate) fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// Returns the number of endpoints.
    pub(crate) fn len(&self) -> usize {
        self.endpoints.len()
    }

    pub(crate) fn key(&self) -> &UpstreamKey {
        &self.key
    }

    /// Returns the mark that identifies the upstream to clients. It is the same on every node.
    pub(crate) fn mark(&self) -> u32 {
        *self.mark.get_or_init(|| (hash(self.key.as_str().as_bytes()) >> 32) as u32)
    }

    /// Returns the protocol of the endpoints.
    pub(crate) fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns the version of the PROXY protocol header sent to the endpoints, if any.
    pub(crate) fn proxy_header(&self) -> Option<ProxyVersion> {
        self.proxy_header
    }

    /// Returns the connector for reuse if it was made for `protocol` and `policy`.
    pub(crate) fn connector(&self, protocol: Protocol, policy: Option<&Arc<UpstreamTls>>) -> Option<&Arc<Connector>> {
        self.connector.as_ref().filter(|known| self.protocol == protocol && known.policy() == policy)
    }

    /// Returns the transport of connections to the endpoints.
    pub(crate) fn transport(&self) -> UpstreamTransport<'_> {
        self.connector.as_deref().map_or(UpstreamTransport::Plain, UpstreamTransport::Tls)
    }

    /// Acquires a place among the concurrent requests of the upstream, if their number is limited. The place is held
    /// until the permit is dropped.
    ///
    /// # Errors
    /// If no place becomes free within `wait`, or the queue for a place is full.
    pub(crate) async fn enter(&self, wait: Duration) -> Result<Option<OwnedSemaphorePermit>, Full> {
        let Some(gate) = &self.common.gate else { return Ok(None) };
        // Boxed so that requests to upstreams without a limit do not carry its size.
        let entered = Box::pin(gate.enter(wait)).await;
        entered.map(Some).inspect_err(|full| self.common.counts().refuse(*full))
    }

    /// Chooses an endpoint like [`UpstreamState::pick`], and counts the request there if a limit or the policy needs
    /// that. Also returns `None` if no endpoint has room.
    pub(crate) fn engage(
        &self,
        choice: Choice,
        now_ms: impl Fn() -> u64,
        tried: &mut Tried,
    ) -> Option<(Picked<'_>, Option<LoadGuard>)> {
        let cap = self.health_policy.circuit_breaker.requests;
        loop {
            let picked = self.pick(choice, &now_ms, tried)?;
            if cap.is_none() && !matches!(choice, Choice::LeastRequest | Choice::Ewma) {
                return Some((picked, None));
            }
            match picked.endpoint().load.begin(cap) {
                Some(busy) => return Some((picked, Some(busy))),
                // Another worker took the last place. This endpoint was not tried, and is seen as full from now on.
                None => tried.count -= 1,
            }
        }
    }

    /// Returns the reason why there is no endpoint for a request that tried none, if every endpoint is at its limit.
    pub(crate) fn refuse(&self) -> Option<Full> {
        let is_full = !self.is_empty() && self.health_policy.circuit_breaker.requests.is_some();
        is_full.then_some(Full::Requests).inspect(|full| self.common.counts().refuse(*full))
    }

    /// Counts the time to the head of a response.
    pub(crate) fn answered_after(&self, took: Duration) {
        self.common.latency.get_or_init(Box::default).add(took);
    }

    /// Counts a request that is retried on another endpoint.
    pub(crate) fn retried(&self) {
        self.common.counts().retries.fetch_add(1, Relaxed);
    }

    /// Chooses by `choice` an endpoint that is healthy, has room and was not tried yet; if none is healthy, an
    /// unhealthy one. Returns `None` when every endpoint, or the maximum number, has been tried. The clock is read only
    /// if an endpoint has failed.
    pub(crate) fn pick(&self, choice: Choice, now_ms: impl Fn() -> u64, tried: &mut Tried) -> Option<Picked<'_>> {
        let count = self.endpoints.len();
        if tried.count >= count.min(tried.max) {
            return None;
        }
        let is_available = |index: &usize| {
            !tried.contains(*index) && self.has_room(*index) && self.endpoints[*index].health.is_available(&now_ms)
        };
        let may_begin = |index: &usize| is_available(index) && self.is_its_share(*index);
        let chosen = match choice {
            Choice::Next => None,
            Choice::LeastRequest => self.better(may_begin, |endpoint| u64::from(endpoint.load.in_flight())),
            Choice::Ewma => self.better(may_begin, |endpoint| endpoint.load.expected_us(now_ms())),
            Choice::Hash(key) => self.ring().from(key).find(is_available),
            Choice::Subset(key, size) => {
                self.one_of(key, size, is_available).or_else(|| self.ring().from(key).find(is_available))
            }
            Choice::Sticky(id) => self.ring().index(id).filter(is_available),
        };
        match chosen {
            Some(index) => Some(self.take(index, tried)),
            None => self.next(now_ms, tried),
        }
    }

    /// Returns a random available endpoint of the first `size` ones from `key` on.
    fn one_of(&self, key: u64, size: usize, is_available: impl Fn(&usize) -> bool) -> Option<usize> {
        let size = size.min(self.endpoints.len());
        let mut subset = Vec::with_capacity(size);
        for index in self.ring().from(key) {
            if subset.len() == size {
                break;
            }
            if !subset.contains(&index) {
                subset.push(index);
            }
        }
        subset.retain(is_available);
        (!subset.is_empty()).then(|| subset[fastrand::usize(..subset.len())])
    }

    /// Draws two random endpoints and returns the one with the lower cost (Mitzenmacher 2001, "The Power of Two
    /// Choices").
    fn better(&self, is_available: impl Fn(&usize) -> bool, cost: impl Fn(&EndpointState) -> u64) -> Option<usize> {
        let count = self.endpoints.len();
        let draw = || Some(fastrand::usize(..count)).filter(&is_available);
        let first = draw()?;
        // Drawn from all others, so that the two differ.
        let second = Some((first + 1 + fastrand::usize(..(count - 1).max(1))) % count).filter(&is_available);
        second.filter(|second| cost(&self.endpoints[*second]) < cost(&self.endpoints[first])).or(Some(first))
    }

    fn next(&self, now_ms: impl Fn() -> u64, tried: &mut Tried) -> Option<Picked<'_>> {
        let count = self.endpoints.len();
        let start = self.next.fetch_add(1, Relaxed) as usize % count;
        let (mut begun, mut unavailable) = (None, None);
        for index in (start..count).chain(0..start) {
            if tried.contains(index) || !self.has_room(index) {
                continue;
            }
            match self.endpoints[index].health.is_available(&now_ms) {
                true if self.is_its_share(index) => return Some(self.take(index, tried)),
                true => begun = begun.or(Some(index)),
                false => unavailable = unavailable.or(Some(index)),
            }
        }
        begun.or(unavailable).map(|index| self.take(index, tried))
    }

    fn take(&self, index: usize, tried: &mut Tried) -> Picked<'_> {
        tried.indices[tried.count] = u32::try_from(index).unwrap_or(u32::MAX);
        tried.count += 1;
        let failures = self.endpoints[index].health.failures();
        Picked { upstream: self, index, failures }
    }

    /// Returns the endpoint with that address, if it still belongs to this upstream.
    pub(crate) fn at(&self, address: SocketAddr) -> Option<Picked<'_>> {
        let index = self.endpoints.binary_search_by(|endpoint| endpoint.address.cmp(&address)).ok()?;
        Some(Picked { upstream: self, index, failures: self.endpoints[index].health.failures() })
    }

    fn has_room(&self, index: usize) -> bool {
        let cap = self.health_policy.circuit_breaker.requests;
        cap.is_none_or(|cap| self.endpoints[index].load.in_flight() < cap.get())
    }

    /// Decides whether an endpoint gets a request that it would get without slow start.
    fn is_its_share(&self, index: usize) -> bool {
        let Some(time) = self.health_policy.slow_start else { return true };
        let share = self.endpoints[index].health.share(time);
        share >= 1.0 || fastrand::f64() < share
    }

    /// Returns the endpoints with active health checks.
    pub(crate) fn checked(&self) -> impl Iterator<Item = Checked> {
        let check = self.health_policy.check.as_ref();
        check.into_iter().flat_map(|check| self.endpoints.iter().map(|endpoint| Checked::of(self, endpoint, check)))
    }

    /// Returns the health of the endpoints and the counters.
    pub(crate) fn view(&self, now_ms: u64) -> UpstreamView {
        let UpstreamCommon { ejecting: _, gate: _, counts, latency } = &*self.common;
        let nothing = UpstreamCounts::default();
        let counts = counts.get().map_or(&nothing, |counts| &**counts);
        let (mut healthy, mut ejected, mut unhealthy) = (0, 0, 0);
        // Reads each state once, because other threads change them meanwhile.
        for EndpointState { health, .. } in &self.endpoints {
            if health.is_unhealthy() {
                unhealthy += 1;
            } else if health.is_ejected(|| now_ms) {
                ejected += 1;
            } else {
                healthy += 1;
            }
        }
        UpstreamView {
            key: self.key.clone(),
            healthy,
            ejected,
            unhealthy,
            ejections: counts.ejections.load(Relaxed),
            retries: counts.retries.load(Relaxed),
            refused: counts.refused(),
            checks: counts.checks(),
            latency: latency.get().map(|latency| latency.view()),
        }
    }

    fn ring(&self) -> &Ring {
        self.ring.get_or_init(|| Ring::new(self.endpoints.iter().map(|endpoint| endpoint.address)))
    }

    /// Returns whether an endpoint with this id exists.
    pub(crate) fn knows(&self, id: u64) -> bool {
        self.ring().index(id).is_some()
    }
}

// === impl Tried ===

impl Tried {
    /// Returns an empty list for at most `max` endpoints.
    pub(crate) fn up_to(max: usize) -> Self {
        Self { indices: [0; Retry::TRIES_MAX], count: 0, max: max.min(Retry::TRIES_MAX), before: 0 }
    }

    /// Forgets the endpoints, so that they may be tried again. Returns `false` if there were none, or if `total` tries
    /// are used up.
    pub(crate) fn begin_again(&mut self, total: usize) -> bool {
        let tried = std::mem::take(&mut self.count);
        self.before += tried;
        self.max = total.saturating_sub(self.before).min(Retry::TRIES_MAX);
        tried > 0 && self.max > 0
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

    pub(crate) fn address(self) -> SocketAddr {
        self.endpoint().address
    }

    /// Returns the id that identifies the endpoint to clients.
    pub(crate) fn id(self) -> Option<u64> {
        self.upstream.ring().id(self.index)
    }

    /// Records the time until the response head.
    pub(crate) fn observe(self, took: Duration, now_ms: u64) {
        self.endpoint().load.observe(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), now_ms);
    }
}

// === impl UpstreamCommon ===

impl UpstreamCommon {
    fn new(health_policy: &HealthPolicy) -> Self {
        let gate = Gate::new(health_policy.circuit_breaker);
        Self { ejecting: Mutex::new(()), gate, counts: OnceLock::new(), latency: OnceLock::new() }
    }

    fn counts(&self) -> &UpstreamCounts {
        self.counts.get_or_init(Box::default)
    }
}
