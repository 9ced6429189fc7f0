//! Tests of statuses of the Gateway API, with the watch played by hand.

use super::*;
use crate::{
    gateway::{CONTROLLER_NAME, GatewayApiObject},
    object_status::{Condition, ObjectStatus, ParentReference, ParentStatus, StatusBody},
};

const IDLE: Duration = Duration::from_secs(600);

fn kind(plural: &str) -> Kind {
    match plural {
        "gatewayclasses" => Kind::GatewayClass,
        "gateways" => Kind::Gateway,
        "httproutes" => Kind::HttpRoute,
        _ => Kind::TcpRoute,
    }
}

/// Adds an object, as its owner creates it.
fn create(server: &Server, name: &str, status: &Value) {
    let (plural, path) = name.split_once(' ').expect("a plural and a name");
    let (namespace, short) = path.split_once('/').unwrap_or(("", path));
    server.state(|state| {
        state.version += 1;
        let object = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind(plural).as_str(),
            "metadata": {"name": short, "namespace": namespace, "uid": format!("uid-{short}"), "generation": 1,
                "resourceVersion": state.version.to_string()},
            "status": status});
        state.objects.insert(name.to_owned(), object);
    });
}

/// Returns the status that this controller wants for any object of the kind.
fn wanted(kind: Kind, generation: i64) -> ObjectStatus {
    let conditions = vec![Condition::met("Accepted", "Accepted"), Condition::met("Programmed", "Programmed")];
    let body = match kind {
        Kind::GatewayClass => StatusBody::GatewayClass { conditions, supported_features: vec!["Gateway"] },
        Kind::Gateway => StatusBody::Gateway {
            conditions,
            listeners: Vec::new(),
            addresses: Vec::new(),
            attached_listener_sets: None,
        },
        _ => {
            let parent = ParentReference {
                group: "gateway.networking.k8s.io".into(),
                kind: "Gateway".into(),
                namespace: None,
                name: "g".into(),
                section_name: None,
                port: None,
            };
            StatusBody::Route { parents: vec![ParentStatus { parent, conditions }] }
        }
    };
    ObjectStatus { generation, body }
}

/// Returns the state of the server as its watches show it now, with wanted statuses for generation 1.
fn watched(server: &Server) -> Arc<StatusInput> {
    watched_at(server, 1)
}

fn watched_at(server: &Server, generation: i64) -> Arc<StatusInput> {
    let (mut cluster, mut translation) = (Cluster::default(), Translation::default());
    for (name, object) in server.state(|state| state.objects.clone()) {
        let kind = kind(name.split_once(' ').expect("a plural").0);
        let object = GatewayApiObject::read(kind, object).expect("of the Gateway API").expect("an object");
        let object = Object::GatewayApi(object);
        translation.statuses.insert(object.id(), Arc::new(wanted(kind, generation)));
        cluster.apply(Change::Apply { object, origin: Origin::Api });
    }
    Arc::new(StatusInput::new(&cluster, &translation, &MANAGER.into()))
}

/// Shows the state of the server to a replica.
fn show(task: &StatusTask, input: Arc<StatusInput>) {
    task.input.as_ref().expect("it runs").send_replace(input);
}

/// Returns the writes of statuses so far.
fn writes(server: &Server) -> Vec<String> {
    server.seen("patch ").into_iter().map(|entry| entry.request).collect()
}

fn foreign(controller: &str) -> Value {
    json!({"parentRef": {"name": "g"}, "controllerName": controller, "conditions": []})
}

fn controllers(server: &Server, route: &str) -> Vec<String> {
    let parents = server.state(|state| state.objects[route]["status"]["parents"].clone());
    let parents = parents.as_array().into_iter().flatten();
    parents.filter_map(|entry| entry["controllerName"].as_str().map(str::to_owned)).collect()
}

#[tokio::test(start_paused = true)]
async fn each_status_is_written_once_and_not_by_the_next_leader() {
    let server = Server::new();
    for name in ["gatewayclasses c", "gateways n/g", "httproutes n/r", "tcproutes n/r"] {
        create(&server, name, &json!({}));
    }
    let (a, handle) = replica(&server, "a", watched(&server));
    server.until("patch tcproutes", 1).await;
    // The addresses may be known a little later.
    server.until("watch nodes", 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let written = writes(&server);
    let count = |name: &str| written.iter().filter(|request| **request == format!("patch {name}")).count();
    for name in ["gatewayclasses c", "httproutes n/r", "tcproutes n/r"] {
        assert_eq!(count(name), 1, "{written:?}");
    }
    assert!((1..=2).contains(&count("gateways n/g")), "{written:?}");
    assert_eq!(handle.stats().status_writes()[WriteResult::Written as usize], written.len() as u64);
    let gateway = server.state(|state| state.objects["gateways n/g"]["status"].clone());
    assert_eq!(gateway["addresses"], json!([{"type": "IPAddress", "value": "192.0.2.1"}]));
    assert_eq!(gateway["conditions"][1]["status"], "True");
    show(&a, watched(&server));
    tokio::time::sleep(IDLE).await;
    assert_eq!(writes(&server), written, "idle");
    a.end().await;
    let cleared = writes(&server);
    assert_eq!(cleared[written.len()..], ["patch gateways n/g"], "the last replica clears the address");
    let gateway = server.state(|state| state.objects["gateways n/g"]["status"].clone());
    assert_eq!(
        (&gateway["addresses"], &gateway["conditions"][1]["reason"]),
        (&Value::Null, &json!("AddressNotAssigned"))
    );
}

#[tokio::test(start_paused = true)]
async fn the_next_leader_writes_nothing_that_is_there() {
    let server = Server::new();
    server.state(|state| state.pods.push(pod("b", "one")));
    ["gateways n/g", "httproutes n/r"].iter().for_each(|name| create(&server, name, &json!({})));
    let (a, _) = replica(&server, "a", watched(&server));
    server.until("patch httproutes", 1).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    show(&a, watched(&server));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let written = writes(&server);
    a.end().await;
    let (_b, handle) = replica(&server, "b", watched(&server));
    tokio::time::sleep(IDLE).await;
    assert!(handle.stats().is_leader());
    assert_eq!(writes(&server), written);
}

#[tokio::test(start_paused = true)]
async fn a_route_that_changed_meanwhile_is_written_after_its_event() {
    let server = Server::new();
    create(&server, "httproutes n/r", &json!({"parents": [foreign("a.test/c")]}));
    let old = watched(&server);
    create(&server, "httproutes n/r", &json!({"parents": [foreign("a.test/c"), foreign("b.test/c")]}));
    let (a, handle) = replica(&server, "a", old);
    assert_eq!(server.until("patch httproutes", 1).await[0].code, 409);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(writes(&server).len(), 1, "it waits for the event");
    assert_eq!(handle.stats().status_writes()[WriteResult::Conflict as usize], 1);
    show(&a, watched(&server));
    assert_eq!(server.until("patch httproutes", 2).await[1].code, 200);
    assert_eq!(controllers(&server, "httproutes n/r"), ["a.test/c", "b.test/c", CONTROLLER_NAME]);
}

#[tokio::test(start_paused = true)]
async fn entries_of_two_other_controllers_survive_all_writes() {
    let server = Server::new();
    create(&server, "httproutes n/r", &json!({"parents": [foreign("a.test/c")]}));
    let (task, _) = replica(&server, "a", watched(&server));
    server.until("patch httproutes", 1).await;
    for round in 2..20 {
        server.state(|state| {
            state.version += 1;
            let version = state.version.to_string();
            let object = state.objects.get_mut("httproutes n/r").expect("the route");
            object["metadata"]["resourceVersion"] = version.into();
            let parents = object["status"]["parents"].as_array_mut().expect("a list");
            parents.insert(usize::try_from(round % 3).expect("small"), foreign(&format!("b.test/{round}")));
        });
        let before = controllers(&server, "httproutes n/r");
        show(&task, watched_at(&server, round));
        server.until("patch httproutes", usize::try_from(round).expect("small")).await;
        assert_eq!(controllers(&server, "httproutes n/r"), before, "content and place");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_without_permission_does_not_delay_others() {
    let server = Server::new();
    ["gateways n/g", "httproutes n/r", "tcproutes n/r"].iter().for_each(|name| create(&server, name, &json!({})));
    server.refuse("patch httproutes", 403);
    let (_a, handle) = replica(&server, "a", watched(&server));
    let at = server.until("patch tcproutes", 1).await[0].at;
    assert!(at < Duration::from_secs(1), "{at:?}");
    tokio::time::sleep(IDLE).await;
    let refused = server.seen("patch httproutes").len();
    assert!((5..=11).contains(&refused), "once a minute: {refused}");
    assert!(handle.stats().status_writes()[WriteResult::Forbidden as usize] >= 5);
    server.admit();
    let tried = server.until("patch httproutes", refused + 1).await;
    assert_eq!(tried[refused].code, 200);
}

#[tokio::test(start_paused = true)]
async fn a_removed_definition_stops_no_other_write() {
    let server = Server::new();
    ["httproutes n/r", "tcproutes n/r"].iter().for_each(|name| create(&server, name, &json!({})));
    server.refuse("patch httproutes", 404);
    let (task, handle) = replica(&server, "a", watched(&server));
    server.until("patch tcproutes", 1).await;
    // The watch tells that the objects are gone.
    server.state(|state| state.objects.remove("httproutes n/r"));
    show(&task, watched(&server));
    tokio::time::sleep(IDLE).await;
    assert_eq!(server.seen("patch httproutes").len(), 1);
    assert_eq!(handle.stats().status_writes()[WriteResult::Conflict as usize], 1);
}

#[tokio::test(start_paused = true)]
async fn writes_of_all_kinds_share_a_budget() {
    let server = Server::new();
    for number in 0..40 {
        create(&server, &format!("httproutes n/r{number:02}"), &json!({}));
    }
    // A server that answers nothing sees the requests that are in progress.
    server.refuse("patch ", 0);
    let input = watched(&server);
    let ingresses: Vec<_> =
        (0..40).map(|number| (ingress(&format!("i{number:02}"), &[]), ManagedState::InEffect)).collect();
    let (mut cluster, mut translation) = (input.cluster().clone(), input.translation().clone());
    for (ingress, _) in ingresses {
        let object = Object::Ingress(ingress);
        translation.in_effect.insert(object.id().name, ());
        cluster.apply(Change::Apply { object, origin: Origin::Api });
    }
    let (_a, _) = replica(&server, "a", Arc::new(StatusInput::new(&cluster, &translation, &MANAGER.into())));
    server.until("patch ", budget::CONCURRENT).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(writes(&server).len(), budget::CONCURRENT, "before the first time limit");
}

#[tokio::test(start_paused = true)]
async fn gateways_get_services_only_if_asked_for_and_keep_foreign_ones() {
    let server = Server::new();
    ["gateways n/g", "gateways n/foreign"].iter().for_each(|name| create(&server, name, &json!({})));
    let foreign = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "gateway-foreign", "namespace": "n",
        "uid": "f", "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "uid-a"}]}});
    server.state(|state| state.services.insert("n/gateway-foreign".into(), foreign.clone()));
    let (without, _) = replica(&server, "a", watched(&server));
    tokio::time::sleep(Duration::from_secs(5)).await;
    without.end().await;
    assert_eq!(server.seen("patch services").len() + server.seen("get services").len(), 0);

    let options = || Options { gateway_services: true, ..Options::default() };
    let (a, _) = replica_with(&server, "a", watched(&server), options());
    let Entry { body, is_forced, .. } = server.until("patch services", 1).await.remove(0);
    assert!(!is_forced, "another client may create it meanwhile");
    assert_eq!(body["metadata"]["labels"], json!({"gateway.networking.k8s.io/gateway-name": "g"}));
    assert_eq!((&body["metadata"]["uid"], &body["spec"]["clusterIP"]), (&Value::Null, &json!("None")));
    server.until("get services n/gateway-foreign", 3).await;
    assert_eq!(server.seen("patch services n/gateway-foreign").len(), 0);
    assert_eq!(server.state(|state| state.services["n/gateway-foreign"].clone()), foreign);
    a.end().await;

    server.state(|state| state.services.get_mut("n/gateway-g").expect("it")["metadata"]["uid"] = "s".into());
    let count = server.seen("patch services").len();
    let (_b, _) = replica_with(&server, "b", watched(&server), options());
    let Entry { body, is_forced, .. } = server.until("patch services", count + 1).await.remove(count);
    assert!(is_forced, "it belongs to the Gateway");
    assert_eq!(body["metadata"]["uid"], "s", "bound to the Service whose owner was seen");
}

/// Addresses of loopback that no other process of these tests uses.
fn addresses() -> [std::net::IpAddr; 2] {
    let [.., high, low] = std::process::id().to_be_bytes();
    [[127, 101, high, low].into(), [127, 102, high, low].into()]
}

#[tokio::test]
async fn a_gateway_is_programmed_once_the_other_replica_serves_it() {
    const SERVED: &str = "xdp-ingress.io/Served";
    let (server, [of_a, of_b]) = (Server::new(), addresses());
    let at = |name: &str, node: &str, address: std::net::IpAddr| {
        let mut pod = pod(name, node);
        pod["status"]["podIP"] = address.to_string().into();
        pod
    };
    server.state(|state| state.pods = vec![at("a", "one", of_a), at("b", "two", of_b)]);
    create(&server, "httproutes n/r", &json!({}));
    let before = watched(&server);
    create(&server, "gateways n/g", &json!({}));
    let options = |address| Options { address: Some(address), ..Options::default() };
    let (_a, _) = replica_with(&server, "a", watched(&server), options(of_a));
    server.until("create leases", 1).await;
    // It serves an object already, but not yet the Gateway.
    let (b, handle) = replica_with(&server, "b", before, options(of_b));
    let told = |name: &str, kind: &str| {
        let status = server.state(|state| state.objects[name]["status"].clone());
        let conditions = status["parents"][0]["conditions"].as_array().or(status["conditions"].as_array()).cloned();
        let found = conditions.into_iter().flatten().find(|condition| condition["type"] == kind);
        found.map(|condition| (condition["status"].clone(), condition["message"].clone()))
    };
    let until_served = async |name: &str| {
        while told(name, SERVED).is_none_or(|(status, _)| status != "True") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let limit = Duration::from_secs(60);
    timeout(limit, until_served("httproutes n/r")).await.expect("the route is served by both");
    assert!(told("gateways n/g", "Programmed").is_none_or(|(status, _)| status == "False"), "it waits for b");
    show(&b, watched(&server));
    timeout(limit, until_served("gateways n/g")).await.expect("the Gateway is served by both");
    assert_eq!(told("gateways n/g", "Programmed").expect("it tells"), ("True".into(), "".into()));
    assert_eq!(told("gateways n/g", SERVED).expect("it tells").1, "2 of 2 nodes");
    assert!(!handle.stats().is_leader());
}
