//! Tests the whole task against an API server in memory: leases with resource versions, statuses, events, nodes and
//! pods.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::Ingress;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{input::ManagedState, *};
use crate::{
    controller_names::MANAGER,
    outcome::{Origin, Outcome, Reason},
};
use api_server::{Entry, Server, node, pod, unreadable_pod};
use ingress_model::{Action, HostPattern, HostRoutes, PathMatch, Rule, Tree, Unavailable};

mod api_server;
mod gateway;

const TTL: Duration = Duration::from_secs(30);

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
    let object = ObjectName::new("n", "a").refer(Kind::Ingress, &Origin::Api);
    let outcome = |message: &&str| Outcome::new(object.clone(), Reason::ServiceNotFound, (*message).to_owned());
    translation.outcomes.extend(problems.iter().map(|problem| (Arc::new(outcome(problem)), ())));
    Arc::new(StatusInput::new(&cluster, &translation, &MANAGER.into()))
}

fn served(name: &str, addresses: &[&str]) -> Arc<StatusInput> {
    input(&[(ingress(name, addresses), ManagedState::InEffect)], &[])
}

/// Starts a replica with this pod name and its initial input.
fn replica(server: &Arc<Server>, name: &'static str, input: Arc<StatusInput>) -> (StatusTask, Arc<StatusHandle>) {
    replica_with(server, name, input, Options::default())
}

fn replica_with(
    server: &Arc<Server>,
    name: &'static str,
    input: Arc<StatusInput>,
    options: Options,
) -> (StatusTask, Arc<StatusHandle>) {
    let leadership = Leadership::Elected { lease: "l".into(), ttl: TTL };
    let options = Options { identity: name.into(), leadership, ..options };
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
    let (_a, _) = replica(&server, "a", known(batch::REFUSED_MAX));
    let b = server.until("patch status n/b", 1).await[0].at;
    assert!(b < Duration::from_secs(1), "{b:?}");
    assert_eq!(server.seen("patch status n/a").len(), batch::REFUSED_MAX);
    // … and more.
    let server = Server::new();
    server.refuse("patch status n/a", 403);
    let (_a, _) = replica(&server, "a", known(60));
    let attempts = server.until("patch status", 3 * batch::REFUSED_MAX).await;
    let mut rounds: BTreeMap<Duration, usize> = BTreeMap::new();
    attempts.iter().for_each(|entry| *rounds.entry(entry.at).or_default() += 1);
    assert!(rounds.len() >= 3 && rounds.values().all(|writes| *writes <= batch::REFUSED_MAX + 1), "{rounds:?}");
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
        (vec![pod("a", "one"), unreadable_pod("b")], false, false),
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
        conditions: None,
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

#[tokio::test(start_paused = true)]
async fn an_unreadable_pod_keeps_its_address() {
    let server = Server::new();
    server.state(|state| {
        state.pods.push(pod("c", "two"));
        state.nodes.push(node("two", "192.0.2.2"));
        state.happens = Some(("watch pods", json!({"type": "MODIFIED", "object": unreadable_pod("c")})));
    });
    let (_a, _) = replica(&server, "a", served("x", &[]));
    let patches = server.until("patch status", 1).await;
    assert_eq!(shown(&patches[0]), ["192.0.2.1", "192.0.2.2"]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    // The watch goes on after the event, without another list.
    assert_eq!((server.seen("list pods").len(), server.seen("watch pods").len()), (1, 2));
    assert_eq!(server.seen("patch status").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn addresses_are_not_known_while_a_pod_was_never_readable() {
    let server = Server::new();
    server.state(|state| {
        state.pods.push(unreadable_pod("b"));
        state.happens = Some(("watch pods", json!({"type": "DELETED", "object": unreadable_pod("b")})));
        state.refusals.push(("watch pods", 500));
    });
    let (_a, _) = replica(&server, "a", served("x", &[]));
    server.until("watch pods", 1).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(server.seen("patch status").is_empty());
    server.admit();
    let patches = server.until("patch status", 1).await;
    assert_eq!(shown(&patches[0]), ["192.0.2.1"]);
}

#[tokio::test(start_paused = true)]
async fn the_address_of_a_service_is_shown_once_it_has_one() {
    let server = Server::new();
    let service = |addresses: Value| {
        json!({"metadata": {"name": "s", "namespace": "n", "resourceVersion": "4"}, "spec": {"type": "LoadBalancer"},
            "status": {"loadBalancer": {"ingress": addresses}}})
    };
    server.state(|state| {
        state.services.insert("n/s".into(), service(Value::Null));
        let object = service(json!([{"ip": "198.51.100.7"}]));
        state.happens = Some(("watch services", json!({"type": "MODIFIED", "object": object})));
        state.refusals.push(("watch services", 500));
    });
    let publish = Publish::Service(ObjectName::new("n", "s"));
    let (_a, _) = replica_with(&server, "a", served("x", &[]), Options { publish, ..Options::default() });
    server.until("watch services", 1).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(server.seen("patch status").is_empty());
    server.admit();
    let patches = server.until("patch status", 1).await;
    assert_eq!(shown(&patches[0]), ["198.51.100.7"]);
}

#[test]
fn each_controller_has_its_own_field_manager() {
    assert_eq!(manager("xdp-ingress.io/controller"), "xdp-ingress");
    assert_eq!(manager("acme.io/internal"), "xdp-ingress:acme.io/internal");
    let long = |end: &str| manager(&format!("{}.io/{end}", "a".repeat(240)));
    assert!(long("a").len() <= 128 && long("a") != long("b"), "{}", long("a"));
}
