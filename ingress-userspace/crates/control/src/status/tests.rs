//! Tests the whole task against an API server in memory: leases with resource versions, statuses, events, nodes and
//! pods.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use http::{Method, Request, Response};
use k8s_openapi::api::networking::v1::Ingress;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::*;
use super::{input::ManagedState, options::MANAGER};
use crate::outcome::{Origin, Outcome, Reason};
use ingress_model::{Action, HostPattern, HostRoutes, PathMatch, Rule, Tree, Unavailable};

const TTL: Duration = Duration::from_secs(30);

/// An API server that keeps the objects of these tests, and a log of the writes: `14s patch n/a {…}`.
struct Server {
    state: Mutex<State>,
    log: watch::Sender<Vec<Entry>>,
    start: Instant,
}

#[derive(Default)]
struct State {
    lease: Option<Value>,
    version: u64,
    events: BTreeMap<String, Value>,
    nodes: Vec<Value>,
    pods: Vec<Value>,
    /// An event that a watch reports once; without one the watch stays open.
    happens: Option<(&'static str, Value)>,
    /// Status codes by the beginning of a request's description; 0 means no response.
    refusals: Vec<(&'static str, u16)>,
}

#[derive(Clone, Debug)]
struct Entry {
    at: Duration,
    request: String,
    client: &'static str,
    body: Value,
    code: u16,
}

// === impl Server ===

impl Server {
    fn new() -> Arc<Self> {
        let state = State { pods: vec![pod("a", "one")], nodes: vec![node("one", "192.0.2.1")], ..State::default() };
        Arc::new(Self { state: Mutex::new(state), log: watch::Sender::default(), start: Instant::now() })
    }

    fn state<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn refuse(&self, request: &'static str, code: u16) {
        self.state(|state| state.refusals.push((request, code)));
    }

    fn admit(&self) {
        self.state(|state| state.refusals.clear());
    }

    fn client(self: &Arc<Self>, name: &'static str) -> Client {
        let server = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&server);
            async move { server.answer(name, request).await }
        });
        Client::new(service, "default")
    }

    async fn answer(&self, client: &'static str, request: Request<Body>) -> Result<Response<Body>, http::Error> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.expect("a body in memory");
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let request = describe(&parts.method, &parts.uri, &body);
        let refusal = self.state(|state| {
            let found = state.refusals.iter().find(|(prefix, _)| request.starts_with(prefix));
            found.map(|(_, code)| *code)
        });
        let (code, answer) = match refusal {
            None => self.state(|state| state.answer(&request, &body)),
            Some(code) => (code, failure(code)),
        };
        let at = self.start.elapsed();
        self.log.send_modify(|log| log.push(Entry { at, request, client, body, code }));
        if code == 0 {
            std::future::pending::<()>().await;
        }
        Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()))
    }

    /// Returns the requests so far that begin with `prefix`.
    fn seen(&self, prefix: &str) -> Vec<Entry> {
        self.log.borrow().iter().filter(|entry| entry.request.starts_with(prefix)).cloned().collect()
    }

    /// Waits for `count` requests that begin with `prefix`.
    async fn until(&self, prefix: &str, count: usize) -> Vec<Entry> {
        let mut log = self.log.subscribe();
        let enough = |log: &Vec<Entry>| log.iter().filter(|entry| entry.request.starts_with(prefix)).count() >= count;
        let waited = timeout(Duration::from_secs(7200), log.wait_for(enough)).await;
        assert!(waited.is_ok(), "no {count} of `{prefix}` in {:?}", self.log.borrow());
        drop(waited);
        self.seen(prefix)
    }
}

// === impl State ===

impl State {
    fn answer(&mut self, request: &str, body: &Value) -> (u16, Value) {
        let (verb, rest) = request.split_once(' ').expect("a verb");
        let (resource, name) = rest.split_once(' ').unwrap_or((rest, ""));
        match (verb, resource) {
            ("get", "leases") => self.lease.clone().map_or((404, failure(404)), |lease| (200, lease)),
            ("create", "leases") if self.lease.is_some() => (409, failure(409)),
            ("create", "leases") => (201, self.store(body)),
            ("update", "leases") => match &self.lease {
                None => (404, failure(404)),
                Some(held) if held["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] => {
                    (409, failure(409))
                }
                Some(_) => (200, self.store(body)),
            },
            ("list", "nodes") => (200, list("Node", &self.nodes)),
            ("list", "pods") => (200, list("Pod", &self.pods)),
            ("watch", _) => match self.happens.take_if(|(watch, _)| *watch == request) {
                Some((_, event)) => (200, event),
                None => (0, Value::Null),
            },
            ("patch", "status") => (200, body.clone()),
            ("create", "events") if self.events.contains_key(name) => (409, failure(409)),
            ("create", "events") => {
                self.events.insert(name.into(), body.clone());
                (201, body.clone())
            }
            ("get" | "patch", "events") => match self.events.get_mut(name) {
                None => (404, failure(404)),
                Some(event) => {
                    if verb == "patch" {
                        event["series"] = body["series"].clone();
                    }
                    (200, event.clone())
                }
            },
            _ => panic!("nobody expects `{request}`"),
        }
    }

    fn store(&mut self, lease: &Value) -> Value {
        self.version += 1;
        let mut lease = lease.clone();
        lease["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.lease = Some(lease.clone());
        lease
    }
}

/// Describes a request, e.g. `update leases l`, `patch status n/a`, `create events a.0123`.
fn describe(method: &Method, uri: &http::Uri, body: &Value) -> String {
    let path: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
    let is_watch = uri.query().unwrap_or_default().contains("watch=true");
    let last = path.last().copied().unwrap_or_default();
    let kinds = ["leases", "events", "nodes", "pods"];
    match (method.as_str(), path.as_slice()) {
        ("GET", [.., kind]) if kinds.contains(kind) => format!("{} {kind}", if is_watch { "watch" } else { "list" }),
        ("POST", [.., kind]) => format!("create {kind} {}", body["metadata"]["name"].as_str().unwrap_or_default()),
        ("GET", [.., kind, _]) => format!("get {kind} {last}"),
        ("PUT", [.., kind, _]) => format!("update {kind} {last}"),
        ("PATCH", [.., namespace, "ingresses", name, "status"]) => format!("patch status {namespace}/{name}"),
        ("PATCH", [.., kind, _]) => format!("patch {kind} {last}"),
        _ => panic!("nobody expects {method} {uri}"),
    }
}

fn failure(code: u16) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "scripted",
        "reason": "Scripted", "code": code})
}

fn list(kind: &str, items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": format!("{kind}List"), "metadata": {"resourceVersion": "1"}, "items": items})
}

fn node(name: &str, address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "resourceVersion": "2"}, "status": {
        "addresses": [{"type": "InternalIP", "address": address}], "conditions": [{"type": "Ready", "status": "True"}]}})
}

fn pod(name: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "xdp-ingress"},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})
}

fn ingress(name: &str, addresses: &[&str]) -> Arc<Ingress> {
    let ports = json!([{"port": 80, "protocol": "TCP"}, {"port": 443, "protocol": "TCP"}]);
    let entries: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip, "ports": ports})).collect();
    let ingress = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}"), "managedFields": [{"manager": MANAGER}]},
        "status": {"loadBalancer": {"ingress": entries}}});
    Arc::new(serde_json::from_value(ingress).expect("an Ingress"))
}

fn input(managed_ingresses: &[(Arc<Ingress>, ManagedState)], problems: &[&str]) -> Arc<StatusInput> {
    let (mut cluster, mut translation) = (Cluster::default(), Translation::default());
    let troubled = (!problems.is_empty()).then(|| (ingress("a", &[]), None));
    for (ingress, managed_state) in managed_ingresses
        .iter()
        .map(|(ingress, managed_state)| (Arc::clone(ingress), Some(*managed_state)))
        .chain(troubled)
    {
        let object = Object::Ingress(ingress);
        if managed_state == Some(ManagedState::InEffect) {
            translation.in_effect.insert(object.id().name, ());
        }
        cluster.apply(Change::Apply { object, origin: Origin::Api });
    }
    let outcome = |message: &&str| Outcome {
        object: ObjectName::new("n", "a").refer(Kind::Ingress, &Origin::Api),
        reason: Reason::ServiceNotFound,
        message: (*message).to_owned(),
    };
    translation.outcomes.extend(problems.iter().map(|problem| (Arc::new(outcome(problem)), ())));
    Arc::new(StatusInput::new(&cluster, &translation, &MANAGER.into()))
}

fn served(name: &str, addresses: &[&str]) -> Arc<StatusInput> {
    input(&[(ingress(name, addresses), ManagedState::InEffect)], &[])
}

/// Starts a replica with this pod name and its initial input.
fn replica(server: &Arc<Server>, name: &'static str, input: Arc<StatusInput>) -> (StatusTask, Arc<StatusHandle>) {
    let options = Options {
        identity: name.into(),
        leadership: Leadership::Elected { lease: "l".into(), ttl: TTL },
        ..Options::default()
    };
    let handle = Arc::clone(&options.handle);
    let task = StatusTask::with_client(server.client(name), options);
    task.input.as_ref().expect("it runs").send_replace(input);
    (task, handle)
}

fn shown(entry: &Entry) -> Vec<&str> {
    let entries = entry.body["status"]["loadBalancer"]["ingress"].as_array();
    entries.into_iter().flatten().filter_map(|entry| entry["ip"].as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_writes_and_only_differences() {
    let server = Server::new();
    let known = input(
        &[
            (ingress("differs", &[]), ManagedState::InEffect),
            (ingress("same", &["192.0.2.1"]), ManagedState::InEffect),
            (ingress("left", &["192.0.2.7"]), ManagedState::Left),
        ],
        &["no such service"],
    );
    let (_a, handle) = replica(&server, "a", Arc::clone(&known));
    server.until("update leases", 2).await;
    let (_b, other) = replica(&server, "b", known);
    server.until("update leases", 6).await;
    assert!(handle.stats().is_leader() && !other.stats().is_leader());
    let patches = server.seen("patch status");
    let written: Vec<_> = patches.iter().map(|entry| (entry.request.as_str(), shown(entry))).collect();
    assert_eq!(written[..2], [("patch status n/differs", vec!["192.0.2.1"]), ("patch status n/left", vec![])]);
    assert!(patches.iter().chain(&server.seen("create events")).all(|entry| entry.client == "a"), "{patches:?}");
    assert_eq!(server.seen("create events").len(), 1);
    assert_eq!(handle.stats().events()[WriteResult::Written as usize], 1);
}

#[tokio::test(start_paused = true)]
async fn another_replica_takes_over_after_the_term_of_a_dead_leader() {
    let server = Server::new();
    let (a, _) = replica(&server, "a", served("x", &[]));
    server.until("patch status", 1).await;
    let (_b, handle) = replica(&server, "b", served("x", &[]));
    server.until("get leases", 3).await;
    let renewed = server.seen("update leases").last().map_or(Duration::ZERO, |entry| entry.at);
    drop(a);
    let mut log = server.log.subscribe();
    let by_b = |entry: &Entry| entry.client == "b" && entry.request.starts_with("patch status");
    let wait = log.wait_for(|log| log.iter().any(by_b));
    drop(timeout(TTL * 3, wait).await.expect("in time").expect("the server runs"));
    let began = server.seen("patch status").into_iter().find(by_b).expect("it wrote").at;
    assert!(began >= renewed + TTL * 2 / 3 && began <= renewed + TTL * 2, "{renewed:?} {began:?}");
    assert!(handle.stats().is_leader());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_stops_before_another_can_begin() {
    for code in [0, 500, 403] {
        let server = Server::new();
        let (_a, handle) = replica(&server, "a", served("x", &[]));
        let renewed = server.until("update leases", 3).await[2].at;
        server.refuse("update leases", code);
        server.refuse("get leases", code);
        let leads = async {
            while handle.stats().is_leader() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(TTL * 2, leads).await.expect("it stops");
        let stopped = server.start.elapsed();
        assert!(stopped < renewed + TTL, "{code}: {renewed:?} {stopped:?}");
        server.admit();
        let again = async {
            while !handle.stats().is_leader() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(TTL * 2, again).await.expect("it is elected again");
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_lost_its_lease_stops_at_once() {
    let server = Server::new();
    let (_a, handle) = replica(&server, "a", served("x", &[]));
    let renewed = server.until("update leases", 1).await[0].at;
    server.state(|state| {
        let mut lease = state.lease.clone().expect("it is held");
        lease["spec"]["holderIdentity"] = "intruder".into();
        state.store(&lease);
    });
    server.until("get leases", 2).await;
    let stops = async {
        while handle.stats().is_leader() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TTL, stops).await.expect("it stops");
    assert!(server.start.elapsed() <= renewed + TTL / 4 + Duration::from_secs(1), "at its next renewal");
}

#[tokio::test(start_paused = true)]
async fn failed_requests_are_retried_with_pauses() {
    for (code, request) in [(403, "patch status"), (500, "patch status"), (0, "patch status"), (403, "create events")] {
        let server = Server::new();
        server.refuse(request, code);
        let known = input(&[(ingress("x", &[]), ManagedState::InEffect)], &["no such service"]);
        let (_a, handle) = replica(&server, "a", known);
        server.until(request, 5).await;
        let elapsed = server.start.elapsed();
        assert!(elapsed >= Duration::from_secs(15), "{code}: five attempts in {elapsed:?}");
        server.admit();
        let tried = server.until(request, 6).await;
        assert_eq!(tried[5].code / 100, 2, "{code}");
        let stats = handle.stats();
        assert!(stats.status_writes()[WriteResult::Written as usize] > 0 || code == 403, "{code}");
        let failed: u64 = stats.status_writes()[1..].iter().chain(&stats.events()[1..]).sum();
        assert!(failed >= 4, "{code}: {failed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_object_does_not_delay_others() {
    for code in [404, 409, 422] {
        let server = Server::new();
        server.refuse("patch status n/a", code);
        let known =
            input(&[(ingress("a", &[]), ManagedState::InEffect), (ingress("b", &[]), ManagedState::InEffect)], &[]);
        let (_a, _) = replica(&server, "a", known);
        let b = server.until("patch status n/b", 1).await[0].at;
        assert!(b < Duration::from_secs(1), "{code}: {b:?}");
        let attempts = server.until("patch status n/a", 2).await;
        assert!(attempts[1].at - attempts[0].at >= Duration::from_secs(60), "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_forbidding_role_is_distinguished_from_an_object_policy() {
    let known = |refused: usize| {
        let names = (0..refused).map(|number| format!("a{number:02}")).chain(["b".to_owned()]);
        let managed_ingresses: Vec<_> = names.map(|name| (ingress(&name, &[]), ManagedState::InEffect)).collect();
        input(&managed_ingresses, &[])
    };
    // Exactly as many as may be refused before the rest of a round is given up …
    let server = Server::new();
    server.refuse("patch status n/a", 403);
    let (_a, _) = replica(&server, "a", known(writer::REFUSED_MAX));
    let b = server.until("patch status n/b", 1).await[0].at;
    assert!(b < Duration::from_secs(1), "{b:?}");
    assert_eq!(server.seen("patch status n/a").len(), writer::REFUSED_MAX);
    // … and more.
    let server = Server::new();
    server.refuse("patch status n/a", 403);
    let (_a, _) = replica(&server, "a", known(60));
    let attempts = server.until("patch status", 3 * writer::REFUSED_MAX).await;
    let mut rounds: BTreeMap<Duration, usize> = BTreeMap::new();
    attempts.iter().for_each(|entry| *rounds.entry(entry.at).or_default() += 1);
    assert!(rounds.len() >= 3 && rounds.values().all(|writes| *writes <= writer::REFUSED_MAX + 1), "{rounds:?}");
}

#[tokio::test(start_paused = true)]
async fn only_the_last_replica_clears_addresses_on_shutdown() {
    let deleted = |mut pod: Value| {
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        pod
    };
    for (pods, forbidden, clears) in [
        (vec![pod("a", "one")], false, true),
        (vec![deleted(pod("a", "one")), deleted(pod("b", "one"))], false, true),
        (vec![pod("a", "one"), pod("b", "two")], false, false),
        (vec![pod("a", "one")], true, false),
    ] {
        let server = Server::new();
        let (task, handle) = replica(&server, "a", served("x", &["192.0.2.1"]));
        server.until("update leases", 1).await;
        server.state(|state| state.pods = pods.clone());
        if forbidden {
            server.refuse("list pods", 403);
        }
        handle.leave();
        task.end().await;
        let patches = server.seen("patch status");
        assert_eq!(patches.len(), usize::from(clears), "{pods:?} {patches:?}");
        assert!(patches.iter().all(|entry| shown(entry).is_empty()));
        let lease = server.state(|state| state.lease.clone()).expect("a lease");
        assert_eq!(lease["spec"]["holderIdentity"], Value::Null, "given back");
        assert!(!handle.stats().is_leader());
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_takes_bounded_time() {
    let server = Server::new();
    let (task, _) = replica(&server, "a", served("x", &["192.0.2.1"]));
    server.until("update leases", 1).await;
    server.refuse("", 0);
    let began = Instant::now();
    task.end().await;
    assert!(began.elapsed() <= FAREWELL + Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn events_on_the_server_continue_their_series() {
    let server = Server::new();
    let known = input(&[], &["no such service"]);
    let (a, _) = replica(&server, "a", Arc::clone(&known));
    server.until("create events", 1).await;
    a.end().await;
    let series = |event: &Value| event["series"]["count"].as_i64();
    let (_b, _) = replica(&server, "b", known);
    server.until("patch events", 1).await;
    let counts = |server: &Server| server.state(|state| state.events.values().map(series).collect::<Vec<_>>());
    assert_eq!(counts(&server), [Some(2)], "by another leader, once");
    let patches = server.until("patch events", 2).await;
    assert!(patches[1].at - patches[0].at >= events::REPEAT, "and then while it stands");
    assert_eq!(counts(&server), [Some(3)]);
    server.state(|state| state.events.clear());
    server.until("create events", 3).await;
    assert_eq!(counts(&server), [None], "forgotten by the server, told anew");
}

#[tokio::test(start_paused = true)]
async fn ingresses_of_hosts_without_counters_are_reported_until_they_have_some() {
    let server = Server::new();
    let (mut cluster, mut translation) = (Cluster::default(), Translation::default());
    cluster.apply(Change::Apply { object: Object::Ingress(ingress("a", &[])), origin: Origin::Api });
    let host = HostPattern::parse("a.test").expect("a host");
    let rule = Rule {
        path: PathMatch::prefix("/").expect("a path"),
        owner: "n/a".into(),
        filters: Vec::new(),
        action: Action::Refuse(Unavailable::Policy),
        forwarding: Arc::default(),
    };
    let routes = HostRoutes { rules: vec![rule], ..HostRoutes::default() };
    translation.table.hosts.insert(host.clone(), Arc::new(routes));
    let known = StatusInput::new(&cluster, &translation, &MANAGER.into());
    let (_a, handle) = replica(&server, "a", Arc::new(known));
    server.until("update leases", 3).await;
    assert_eq!(server.seen("create events").len(), 0);
    let gone = HostPattern::parse("gone.test").expect("a host");
    handle.set_uncounted(&[(gone, ()), (host, ())].into_iter().collect(), 16_384);
    let events = server.until("create events", 1).await;
    let event = &events[0].body;
    assert_eq!((event["reason"].as_str(), event["regarding"]["name"].as_str()), (Some("HostCapacity"), Some("a")));
    let note = event["note"].as_str().unwrap_or_default();
    assert!(["`a.test`", "16384 hosts", "`--host-capacity`"].iter().all(|part| note.contains(part)), "{note}");
    handle.set_uncounted(&Tree::new(), 16_384);
    tokio::time::sleep(2 * events::REPEAT).await;
    assert_eq!((server.seen("create events").len(), server.seen("patch events").len()), (1, 0), "resolved");
}

#[tokio::test(start_paused = true)]
async fn a_removed_node_is_no_longer_shown() {
    let server = Server::new();
    server.state(|state| {
        state.pods.push(pod("b", "two"));
        state.nodes.push(node("two", "192.0.2.2"));
        state.happens = Some(("watch nodes", json!({"type": "DELETED", "object": node("two", "192.0.2.2")})));
    });
    let (_a, _) = replica(&server, "a", served("x", &[]));
    let patches = server.until("patch status", 2).await;
    assert_eq!([shown(&patches[0]), shown(&patches[1])], [vec!["192.0.2.1", "192.0.2.2"], vec!["192.0.2.1"]]);
}

#[test]
fn each_controller_has_its_own_field_manager() {
    assert_eq!(manager("xdp-ingress.io/controller"), "xdp-ingress");
    assert_eq!(manager("acme.io/internal"), "xdp-ingress:acme.io/internal");
    let long = |end: &str| manager(&format!("{}.io/{end}", "a".repeat(240)));
    assert!(long("a").len() <= 128 && long("a") != long("b"), "{}", long("a"));
}
