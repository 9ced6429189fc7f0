//! Chooses the endpoint for a request, passing over endpoints that failed of late. It opens no connection.
//!
//! Failures of requests eject an endpoint for a time that doubles with each further failure, and one success clears it,
//! as its [`Ejection`](crate::model::Ejection) says. Requests that were under way together and fail together are one
//! failure. Endpoints that checks find wanting get no requests either. When no endpoint is fit, all get requests.

use std::{
    net::SocketAddr,
    sync::{
        Arc, LazyLock, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::sync::OwnedSemaphorePermit;

use super::upstream::{Connector, Transport};
use crate::model::{Protocol, ProxyVersion, Retry, Upkeep, Upstream, UpstreamKey, UpstreamTls};

mod caps;
mod checked;
mod counts;
mod health;
mod load;
mod ring;
#[cfg(test)]
mod tests;

pub use caps::Full;
use caps::Gate;
pub(super) use checked::Checked;
use counts::Counts;
pub use counts::{CheckResult, UpstreamView};
use health::Health;
pub(super) use load::Busy;
use load::Load;
use ring::Ring;
pub(super) use ring::hash;

/// Of upstreams that nobody asks anything in particular for, nearly all.
static DEFAULT: LazyLock<Arc<Upkeep>> = LazyLock::new(Arc::default);

/// One upstream as the request path sees it. Shared by all workers and by successive snapshots while its endpoints stay
/// the same.
#[derive(Debug)]
pub(super) struct UpstreamState {
    key: UpstreamKey,
    protocol: Protocol,
    /// If the protocol is over TLS.
    connector: Option<Arc<Connector>>,
    upkeep: Arc<Upkeep>,
    introduction: Option<ProxyVersion>,
    endpoints: Vec<EndpointState>,
    common: Arc<Common>,
    next: AtomicU32,
    /// Made when the first request is hashed: most upstreams need none.
    ring: OnceLock<Ring>,
    mark: OnceLock<u32>,
}

/// What outlives snapshots of one upstream, whatever becomes of its endpoints.
#[derive(Debug)]
struct Common {
    /// Held by who ejects, so that no two at one time eject more than may be.
    ejecting: Mutex<()>,
    gate: Option<Gate>,
    /// Made when there is something to count: for most upstreams there is nothing.
    counts: OnceLock<Box<Counts>>,
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
        let Upstream { protocol, tls: _, upkeep, introduction, endpoints } = upstream;
        let upkeep = upkeep.as_ref().unwrap_or(&DEFAULT);
        let known = previous.map_or(&[][..], |state| &state.endpoints);
        if let Some(previous) = previous
            && previous.protocol == *protocol
            && previous.upkeep == *upkeep
            && previous.introduction == *introduction
            && previous.connector.as_ref().map(Arc::as_ptr) == connector.as_ref().map(Arc::as_ptr)
            && known.iter().map(|e| e.address).eq(endpoints.iter().map(|e| e.address))
        {
            return Arc::clone(previous);
        }
        let is_first = known.is_empty();
        let carry = |address: SocketAddr| {
            // Both are sorted by address.
            let known = known.binary_search_by(|e| e.address.cmp(&address)).map(|i| &known[i]).ok();
            let (health, load) = match known {
                Some(known) => (Arc::clone(&known.health), Arc::clone(&known.load)),
                None if is_first => Default::default(),
                None => (Arc::new(Health::newcomer()), Arc::default()),
            };
            EndpointState { address, health, load }
        };
        let common = previous.filter(|state| state.upkeep.caps == upkeep.caps).map(|state| Arc::clone(&state.common));
        let common = common.unwrap_or_else(|| Arc::new(Common::new(upkeep)));
        Arc::new(Self {
            key: key.clone(),
            protocol: *protocol,
            connector,
            upkeep: Arc::clone(upkeep),
            introduction: *introduction,
            endpoints: endpoints.iter().map(|e| carry(e.address)).collect(),
            common,
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

    /// In which version its endpoints are told whose a connection is, if they are.
    pub(super) fn introduction(&self) -> Option<ProxyVersion> {
        self.introduction
    }

    /// What makes its connections, if it is for `protocol` under `policy`.
    pub(super) fn connector(&self, protocol: Protocol, policy: Option<&Arc<UpstreamTls>>) -> Option<&Arc<Connector>> {
        self.connector.as_ref().filter(|known| self.protocol == protocol && known.policy() == policy)
    }

    /// What carries that.
    pub(super) fn transport(&self) -> Transport<'_> {
        self.connector.as_deref().map_or(Transport::Plain, Transport::Tls)
    }

    /// A place among the requests that the upstream takes, if that is capped, for as long as the result is kept.
    ///
    /// # Errors
    /// If there is none within `wait`, or none may wait for one.
    pub(super) async fn enter(&self, wait: Duration) -> Result<Option<OwnedSemaphorePermit>, Full> {
        let Some(gate) = &self.common.gate else { return Ok(None) };
        // Boxed, so that where there is no cap nothing carries its size.
        let entered = Box::pin(gate.enter(wait)).await;
        entered.map(Some).inspect_err(|full| self.common.counts().refuse(*full))
    }

    /// An endpoint as [`UpstreamState::pick`] has it, with what counts the request there, if anybody looks at that.
    /// `None` also if none has room.
    pub(super) fn engage(
        &self,
        choice: Choice,
        now_ms: impl Fn() -> u64,
        tried: &mut Tried,
    ) -> Option<(Picked<'_>, Option<Busy>)> {
        let cap = self.upkeep.caps.requests;
        loop {
            let picked = self.pick(choice, &now_ms, tried)?;
            if cap.is_none() && !matches!(choice, Choice::LeastRequest | Choice::Ewma) {
                return Some((picked, None));
            }
            match picked.endpoint().load.begin(cap) {
                Some(busy) => return Some((picked, Some(busy))),
                // Another worker was faster. It was not tried, and is seen to have no room from now on.
                None => tried.count -= 1,
            }
        }
    }

    /// Why there is no endpoint for a request that tried none: each is at its cap, or there are none.
    pub(super) fn refuse(&self) -> Option<Full> {
        let is_full = !self.is_empty() && self.upkeep.caps.requests.is_some();
        is_full.then_some(Full::Requests).inspect(|full| self.common.counts().refuse(*full))
    }

    /// Counts a request that goes to another endpoint.
    pub(super) fn retried(&self) {
        self.common.counts().retries.fetch_add(1, Relaxed);
    }

    /// An endpoint that is fit, has room and was not tried already, as `choice` has it; if none that remains is fit,
    /// one of those. `None` when every endpoint, or enough of them, have been tried. The clock is read only if an
    /// endpoint has failed.
    pub(super) fn pick(&self, choice: Choice, now_ms: impl Fn() -> u64, tried: &mut Tried) -> Option<Picked<'_>> {
        let count = self.endpoints.len();
        if tried.count >= count.min(tried.max) {
            return None;
        }
        let is_fit = |index: &usize| {
            !tried.contains(*index) && self.has_room(*index) && self.endpoints[*index].health.is_fit(&now_ms)
        };
        let may_begin = |index: &usize| is_fit(index) && self.is_its_share(*index);
        let chosen = match choice {
            Choice::Next => None,
            Choice::LeastRequest => self.better(may_begin, |endpoint| u64::from(endpoint.load.in_flight())),
            Choice::Ewma => self.better(may_begin, |endpoint| endpoint.load.expected_us(now_ms())),
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
        let (mut begun, mut unfit) = (None, None);
        for index in (start..count).chain(0..start) {
            if tried.contains(index) || !self.has_room(index) {
                continue;
            }
            match self.endpoints[index].health.is_fit(&now_ms) {
                true if self.is_its_share(index) => return Some(self.take(index, tried)),
                true => begun = begun.or(Some(index)),
                false => unfit = unfit.or(Some(index)),
            }
        }
        begun.or(unfit).map(|index| self.take(index, tried))
    }

    fn take(&self, index: usize, tried: &mut Tried) -> Picked<'_> {
        tried.indices[tried.count] = u32::try_from(index).unwrap_or(u32::MAX);
        tried.count += 1;
        let failures = self.endpoints[index].health.failures();
        Picked { upstream: self, index, failures }
    }

    /// The endpoint of that address, if it is one of these still.
    pub(super) fn at(&self, address: SocketAddr) -> Option<Picked<'_>> {
        let index = self.endpoints.binary_search_by(|endpoint| endpoint.address.cmp(&address)).ok()?;
        Some(Picked { upstream: self, index, failures: self.endpoints[index].health.failures() })
    }

    fn has_room(&self, index: usize) -> bool {
        let cap = self.upkeep.caps.requests;
        cap.is_none_or(|cap| self.endpoints[index].load.in_flight() < cap.get())
    }

    /// Whether an endpoint gets the request that it would get if it had been there for long.
    fn is_its_share(&self, index: usize) -> bool {
        let Some(time) = self.upkeep.slow_start else { return true };
        let share = self.endpoints[index].health.share(time);
        share >= 1.0 || fastrand::f64() < share
    }

    /// Leaves an endpoint alone for `time`, if others remain.
    fn eject(&self, index: usize, now_ms: u64, time: Duration) {
        let _alone = self.common.ejecting.lock().unwrap_or_else(PoisonError::into_inner);
        let all = || self.endpoints.iter().map(|endpoint| &endpoint.health);
        let ejected = all().filter(|health| health.is_ejected(|| now_ms)).count();
        let fit = all().filter(|health| health.is_fit(|| now_ms)).count();
        if ejected < self.upkeep.ejection.most(self.endpoints.len()) && fit > 1 {
            let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            self.endpoints[index].health.eject(now_ms.saturating_add(time));
            self.common.counts().ejections.fetch_add(1, Relaxed);
        }
    }

    /// What is to be checked of it.
    pub(super) fn checked(&self) -> impl Iterator<Item = Checked> {
        let check = self.upkeep.check.as_ref();
        check.into_iter().flat_map(|check| self.endpoints.iter().map(|endpoint| Checked::of(self, endpoint, check)))
    }

    /// How its endpoints are, and what has happened to its requests.
    pub(super) fn view(&self, now_ms: u64) -> UpstreamView {
        let Common { ejecting: _, gate: _, counts } = &*self.common;
        let nothing = Counts::default();
        let counts = counts.get().map_or(&nothing, |counts| &**counts);
        let (mut fit, mut ejected, mut unwell) = (0, 0, 0);
        // Each is looked at once: others change it meanwhile.
        for EndpointState { health, .. } in &self.endpoints {
            if health.is_unwell() {
                unwell += 1;
            } else if health.is_ejected(|| now_ms) {
                ejected += 1;
            } else {
                fit += 1;
            }
        }
        UpstreamView {
            key: self.key.clone(),
            fit,
            ejected,
            unwell,
            ejections: counts.ejections.load(Relaxed),
            retries: counts.retries.load(Relaxed),
            refused: counts.refused(),
            checks: counts.checks(),
        }
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

    /// A response head came after this time.
    pub(super) fn observe(self, took: Duration, now_ms: u64) {
        self.endpoint().load.observe(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), now_ms);
    }

    /// The request found the endpoint wanting. Counts once for all that were chosen before it was known.
    pub(super) fn failed(self, now_ms: u64) {
        let Self { upstream, index, failures } = self;
        let health = &upstream.endpoints[index].health;
        // Tried while it was out because there was nothing better: it is out as it is.
        if health.is_ejected(|| now_ms) || !health.fail(failures) {
            return;
        }
        if let Some(time) = upstream.upkeep.ejection.time(failures.saturating_add(1)) {
            upstream.eject(index, now_ms, time);
        }
    }

    /// A response came, of this status.
    pub(super) fn answered(self, status: u16, now_ms: impl Fn() -> u64) {
        if self.upstream.upkeep.ejection.errors && status >= 500 {
            self.failed(now_ms());
        } else {
            self.succeeded();
        }
    }

    pub(super) fn succeeded(self) {
        self.endpoint().health.succeed();
    }
}

// === impl Common ===

impl Common {
    fn new(upkeep: &Upkeep) -> Self {
        Self { ejecting: Mutex::new(()), gate: Gate::new(upkeep.caps), counts: OnceLock::new() }
    }

    fn counts(&self) -> &Counts {
        self.counts.get_or_init(Box::default)
    }
}
