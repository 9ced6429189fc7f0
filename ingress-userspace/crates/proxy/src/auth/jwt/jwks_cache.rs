//! Caches the keys of JWKS endpoints. [`refresh`](super::refresh) keeps them fresh. It verifies no token.
//!
//! A snapshot has a JWKS cache for each endpoint that its rules use, and passes it on to the next snapshot, so that
//! keys are kept as long as rules use them. One task on one worker refreshes a JWKS cache for all workers, starting
//! with the first token that needs it. Requests read the cached keys without a lock and without waiting, except while
//! there are none.
//!
//! ```text
//! request ──▶ snapshot ──▶ JwksCache ── keys? ──▶ verify
//!                             │ none, or no task
//!                             └──▶ task of this worker: fetch ─▶ wait until due, or sought ─▶ fetch …
//! ```

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed},
        },
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use tokio::sync::{Notify, watch};

use ingress_model::{Filter, HostPattern, HostRoutes, JwksEndpoint, KeySource, Tree};

use super::times::Times;
use crate::auth::jwt::keys::Keys;
use crate::server::clock;

/// The age up to which keys are used when refreshing fails, and the time for which unused keys are still refreshed.
pub(super) const KEPT_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// The JWKS caches of a snapshot. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct JwksCaches {
    /// Each JWKS cache with the number of rules that use its endpoint.
    rings: Tree<Arc<JwksEndpoint>, (usize, Arc<JwksCache>)>,
    /// The hosts that the JWKS caches were built from.
    source: Tree<HostPattern, Arc<HostRoutes>>,
}

/// The most recently fetched keys of one JWKS endpoint.
pub(crate) struct JwksCache {
    pub(super) server: Arc<JwksEndpoint>,
    pub(super) keys: ArcSwapOption<Fetched>,
    /// Time of the last request that needed keys, in seconds of the process's clock.
    pub(super) asked: AtomicU64,
    /// Whether a task refreshes the keys. Changed only while `times` is locked.
    pub(super) has_task: AtomicBool,
    times: Mutex<Times>,
    pub(super) is_fetching: watch::Sender<bool>,
    /// Wakes the task.
    pub(super) sought: Notify,
}

/// Keys, and the time when they were fetched.
pub(super) struct Fetched {
    pub(super) keys: Keys,
    pub(super) at: Duration,
}

// === impl JwksCaches ===

impl JwksCaches {
    /// Updates the JWKS caches to those of `hosts`, at a cost proportional to the differences. Endpoints that are still
    /// in use keep their JWKS cache.
    pub(crate) fn update(&mut self, hosts: &Tree<HostPattern, Arc<HostRoutes>>) {
        let known = std::mem::replace(&mut self.source, hosts.clone());
        let differences = known.differences(hosts);
        // Additions are applied before removals, so that keys are kept when a host is renamed.
        let coming = differences.iter().filter_map(|difference| difference.new);
        for server in coming.flat_map(|routes| jwks_endpoints(routes)) {
            match self.rings.get_mut::<JwksEndpoint>(server) {
                Some((uses, _)) => *uses += 1,
                None => drop(self.rings.insert(Arc::clone(server), (1, Arc::new(JwksCache::of(Arc::clone(server)))))),
            }
        }
        let going = differences.iter().filter_map(|difference| difference.old);
        for server in going.flat_map(|routes| jwks_endpoints(routes)) {
            let Some((uses, _)) = self.rings.get_mut::<JwksEndpoint>(server) else { continue };
            *uses -= 1;
            if *uses == 0 {
                self.rings.remove::<JwksEndpoint>(server);
            }
        }
    }

    /// Returns the JWKS cache of `server`, or `None` if no rule uses it.
    pub(crate) fn of(&self, server: &JwksEndpoint) -> Option<&Arc<JwksCache>> {
        self.rings.get(server).map(|(_, ring)| ring)
    }
}

/// Returns the JWKS endpoints that rules of one host use.
fn jwks_endpoints(routes: &HostRoutes) -> impl Iterator<Item = &Arc<JwksEndpoint>> {
    let HostRoutes { rules, fallback, clients: _, passthrough: _, refuses_http3: _ } = routes;
    let filters = rules.iter().chain(fallback.as_deref()).flat_map(|rule| &rule.filters);
    filters.filter_map(|filter| match filter {
        Filter::Authentication(authentication) => match &authentication.token.as_ref()?.keys {
            KeySource::Server(server) => Some(server),
            KeySource::Secret(_) => None,
        },
        _ => None,
    })
}

// === impl JwksCache ===

impl JwksCache {
    fn of(server: Arc<JwksEndpoint>) -> Self {
        Self {
            server,
            keys: ArcSwapOption::empty(),
            asked: AtomicU64::default(),
            has_task: AtomicBool::default(),
            times: Mutex::default(),
            is_fetching: watch::Sender::new(false),
            sought: Notify::new(),
        }
    }

    /// Returns the keys if they are present and a task refreshes them.
    pub(super) fn kept(&self) -> Option<Arc<Fetched>> {
        let now = clock::now();
        self.note_need(now);
        if self.has_task.load(Acquire) { self.usable(now) } else { None }
    }

    /// Requests a fetch because a token names an unknown key, unless that was done recently.
    pub(super) fn seek(&self) {
        if self.times().seek(clock::now()) {
            self.sought.notify_one();
        }
    }

    pub(super) fn usable(&self, now: Duration) -> Option<Arc<Fetched>> {
        self.keys.load_full().filter(|fetched| fetched.is_usable(now))
    }

    /// Records that a request needs keys.
    pub(super) fn note_need(&self, now: Duration) {
        // Reads before writing: every worker reads this at each request, and it is rarely written.
        if self.asked.load(Relaxed) != now.as_secs() {
            self.asked.store(now.as_secs(), Relaxed);
        }
    }

    pub(super) fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for JwksCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwksCache").field("server", &self.server).finish_non_exhaustive()
    }
}

// === impl Fetched ===

impl Fetched {
    fn is_usable(&self, now: Duration) -> bool {
        now.saturating_sub(self.at) < KEPT_MAX
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use tokio::task::LocalSet;

    use super::*;
    use crate::Snapshot;
    use crate::server::worker::Worker;
    use ingress_model::{
        Action, Authentication, HostId, PathMatch, RouteTable, Rule, Satisfy, Token, TokenPlace, Unavailable,
        UpstreamKey,
    };

    fn server(target: &str) -> JwksEndpoint {
        let (host, target) = ("login.test".into(), target.into());
        JwksEndpoint {
            origin: "https://login.test/".into(),
            upstream: UpstreamKey::new("", "login.test", "443"),
            host,
            target,
        }
    }

    /// Returns a table of hosts with one rule each. The tokens of each rule have their keys at the given path of one
    /// server.
    fn table(hosts: &[(&str, &str)]) -> RouteTable {
        let mut table = RouteTable::default();
        for (host, target) in hosts {
            let token = Token {
                keys: KeySource::Server(server(target).into()),
                issuers: [].into(),
                audiences: [].into(),
                place: TokenPlace::Bearer,
                demands: [].into(),
                passed: [].into(),
            };
            let authentication =
                Authentication { basic: None, token: Some(token), ext_authz: None, satisfy: Satisfy::All };
            let rule = Rule {
                path: PathMatch::prefix("/").expect("valid path"),
                owner: "default/web".into(),
                filters: vec![Filter::Authentication(authentication.into())],
                action: Action::Refuse(Unavailable::NoService),
                forwarding: Arc::default(),
                conditions: None,
            };
            let pattern = HostPattern::parse(host).expect("valid host");
            table.hosts.insert(pattern, HostRoutes { rules: vec![rule], ..HostRoutes::default() }.into());
        }
        table
    }

    fn compile(previous: Option<&Snapshot>, hosts: &[(&str, &str)]) -> Snapshot {
        Snapshot::compile(previous, &table(hosts), |_| Some(HostId(1))).0
    }

    fn ring(snapshot: &Snapshot, target: &str) -> Option<Arc<JwksCache>> {
        snapshot.jwks_caches.of(&server(target)).map(Arc::clone)
    }

    #[test]
    fn a_jwks_cache_lives_while_a_rule_names_its_endpoint() {
        let first = compile(None, &[("a.test", "/jwks"), ("b.test", "/jwks")]);
        let known = ring(&first, "/jwks").expect("a JWKS cache");
        // One rule less, another host, and another rule beside it.
        let mut last = first;
        for hosts in [&[("b.test", "/jwks")][..], &[("c.test", "/jwks")], &[("a.test", "/jwks2"), ("c.test", "/jwks")]]
        {
            last = compile(Some(&last), hosts);
            let same = ring(&last, "/jwks").is_some_and(|ring| Arc::ptr_eq(&ring, &known));
            assert!(same, "{hosts:?}");
        }
        last = compile(Some(&last), &[("a.test", "/jwks2")]);
        assert!(ring(&last, "/jwks").is_none() && ring(&last, "/jwks2").is_some());
    }

    #[test]
    fn a_refresh_task_ends_with_the_last_rule_of_its_endpoint() {
        let now = Duration::from_secs(100_000);
        let first = compile(None, &[("a.test", "/jwks")]);
        let old = ring(&first, "/jwks").expect("a JWKS cache");
        old.note_need(now);
        assert!(old.is_needed(&first, now));
        // The host is the same, and so is the upstream.
        let second = compile(Some(&first), &[("a.test", "/jwks2")]);
        let new = ring(&second, "/jwks2").expect("a JWKS cache");
        new.note_need(now);
        assert!(!old.is_needed(&second, now) && new.is_needed(&second, now));
        // An endpoint that is added again gets a new JWKS cache, and the task of the old one does not continue for it.
        let third = compile(Some(&second), &[("a.test", "/jwks")]);
        assert!(!old.is_needed(&third, now) && ring(&third, "/jwks").is_some());
    }

    #[test]
    fn unused_keys_are_kept_for_a_day() {
        let snapshot = compile(None, &[("a.test", "/jwks")]);
        let ring = ring(&snapshot, "/jwks").expect("a JWKS cache");
        ring.note_need(Duration::from_secs(1000));
        for (now, expect) in [(1000, true), (87_399, true), (87_400, false)] {
            assert_eq!(ring.is_needed(&snapshot, Duration::from_secs(now)), expect, "{now}");
        }
    }

    #[test]
    fn keys_are_usable_for_a_day_and_refreshed_before() {
        let fetched = Fetched { keys: Keys(Vec::new()), at: Duration::from_secs(1000) };
        for (now, expect) in [(1000, true), (87_399, true), (87_400, false)] {
            assert_eq!(fetched.is_usable(Duration::from_secs(now)), expect, "{now}");
        }
        let mut times = Times::default();
        times.succeed(Duration::ZERO, KEPT_MAX);
        assert!(times.pause(Duration::ZERO) < KEPT_MAX);
    }

    #[test]
    fn one_task_refreshes_the_keys_for_all_requests() {
        let ring = Arc::new(JwksCache::of(server("/jwks").into()));
        let kept = ring.take_up();
        assert!(kept.is_some() && ring.take_up().is_none());
        assert!(*ring.is_fetching.borrow(), "there is something to wait for");
        drop(kept);
        assert!(!*ring.is_fetching.borrow() && ring.take_up().is_some());
    }

    #[tokio::test]
    async fn a_task_that_never_started_releases_its_cache() {
        let worker = Worker::alone();
        let ring = Arc::new(JwksCache::of(server("/jwks").into()));
        let tasks = LocalSet::new();
        {
            let _entered = tasks.enter();
            let asked = pin!(ring.fetched(Duration::from_secs(60), &worker));
            assert!(asked.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        assert!(ring.take_up().is_none(), "the task is there");
        // Drops the tasks like a worker that shuts down.
        drop(tasks);
        assert!(!*ring.is_fetching.borrow() && ring.take_up().is_some());
    }
}
