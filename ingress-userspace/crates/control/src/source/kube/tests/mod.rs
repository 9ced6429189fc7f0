//! Tests of the source against a scripted API server.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{Request, Response};
use kube::client::Body;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use super::{
    held_changes::{MAX_ANSWER, MAX_HOLD},
    tracker::Version,
    *,
};
use crate::change::{Change, Kind};

/// Responses by kind of request, path and name, in order. A request without a response waits for one, like a watch
/// without events.
#[derive(Default)]
struct Server {
    script: Mutex<HashMap<String, VecDeque<(u16, String)>>>,
    extended: Notify,
}

impl Server {
    fn answer(&self, request: &str, status: u16, body: impl Into<String>) -> &Self {
        let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        script.entry(request.into()).or_default().push_back((status, body.into()));
        self.extended.notify_waiters();
        self
    }

    async fn next(&self, request: String) -> (u16, String) {
        loop {
            let extended = self.extended.notified();
            let mut extended = std::pin::pin!(extended);
            extended.as_mut().enable();
            let answer = {
                let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
                script.get_mut(&request).and_then(VecDeque::pop_front)
            };
            match answer {
                Some(answer) => return answer,
                None => extended.await,
            }
        }
    }

    /// Describes a request as the script names it: `watch ingresses`, or `list secrets/s` for the one with that name.
    fn describe(request: &Request<Body>) -> String {
        let query = request.uri().query().unwrap_or_default();
        let verb = match (query.contains("watch=true"), query.contains("sendInitialEvents=true")) {
            (true, true) => "stream",
            (true, false) => "watch",
            (false, _) => "list",
        };
        let path = request.uri().path();
        let kind = path.rsplit('/').next().unwrap_or_default();
        let elsewhere = if path.contains("/namespaces/default/") { "default:" } else { "" };
        let elsewhere = if path.contains("/v1beta1/") { "beta:" } else { elsewhere };
        let field = |prefix: &str| query.split('&').find_map(|field| field.strip_prefix(prefix).map(str::to_owned));
        let name = field("fieldSelector=metadata.name%3D").map(|name| format!("/{name}"));
        let label = field("labelSelector=kubernetes.io%2Fservice-name%3D").map(|name| format!("?{name}"));
        let selector = field("labelSelector=").map(|selector| format!("?{selector}"));
        format!("{verb} {elsewhere}{kind}{}", name.or(label).or(selector).unwrap_or_default())
    }

    fn client(self: &Arc<Self>) -> Client {
        let server = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&server);
            async move {
                let (status, body) = server.next(Self::describe(&request)).await;
                Response::builder().status(status).body(Body::from(body.into_bytes()))
            }
        });
        Client::new(service, "default")
    }
}

mod faults;
mod gateway;
mod grants;
mod namespaces;
mod remote;
mod tracking;

fn status(code: u16) -> String {
    format!(
        r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"scripted","reason":"Scripted","code":{code}}}"#
    )
}

/// Returns an object newer than all before it.
fn object(kind: &str, name: &str, spec: &str) -> String {
    static NEWEST: AtomicU64 = AtomicU64::new(1000);
    object_at(NEWEST.fetch_add(1, Relaxed), kind, name, spec)
}

fn object_at(version: u64, kind: &str, name: &str, spec: &str) -> String {
    let api = match kind {
        "Secret" | "ConfigMap" | "Service" => "v1",
        "ReferenceGrant" | "GatewayClass" | "Gateway" | "ListenerSet" | "HTTPRoute" => "gateway.networking.k8s.io/v1",
        _ => "networking.k8s.io/v1",
    };
    format!(
        r#"{{"apiVersion":"{api}","kind":"{kind}","metadata":{{"name":"{name}","namespace":"n","resourceVersion":"{version}"}}{spec}}}"#
    )
}

fn list(kind: &str, items: &[String]) -> String {
    let version = if kind == "Secret" { "v1" } else { "networking.k8s.io/v1" };
    let items = items.join(",");
    format!(
        r#"{{"apiVersion":"{version}","kind":"{kind}List","metadata":{{"resourceVersion":"9"}},"items":[{items}]}}"#
    )
}

fn event(kind: &str, object: &str) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

fn bookmark(kind: &str, version: &str) -> String {
    event(
        "BOOKMARK",
        &format!(
            r#"{{"apiVersion":"{version}","kind":"{kind}","metadata":{{"resourceVersion":"9","annotations":{{"k8s.io/initial-events-end":"true"}}}}}}"#
        ),
    )
}

fn parse(text: &str) -> Object {
    strip::ingress(serde_json::from_str(text).expect("an Ingress"))
}

/// Returns options under which Ingresses without a class belong to this controller.
fn options() -> translate::Options {
    let classes = translate::Classes { watch_without_class: true, ..translate::Classes::default() };
    translate::Options { classes, ..translate::Options::default() }
}

/// Returns a server with Ingresses left to the script and no objects of other kinds.
fn server() -> Arc<Server> {
    let server = Server::default();
    server
        .answer("stream ingressclasses", 200, bookmark("IngressClass", "networking.k8s.io/v1"))
        .answer("stream services", 200, bookmark("Service", "v1"))
        .answer("stream nodes", 200, bookmark("Node", "v1"))
        .answer("stream namespaces", 200, bookmark("Namespace", "v1"))
        .answer("stream gatewayclasses", 404, status(404))
        .answer("stream referencegrants", 200, bookmark("ReferenceGrant", "gateway.networking.k8s.io/v1"))
        .answer("stream endpointslices", 200, bookmark("EndpointSlice", "discovery.k8s.io/v1"));
    Arc::new(server)
}

fn describe(change: Change) -> String {
    match change {
        Change::Apply { object, origin: _ } => format!("+{} {}", object.kind().as_str(), object.id().name),
        Change::Remove(id) => format!("-{} {}", id.kind.as_str(), id.name),
        Change::Resolve { .. } | Change::Forget { .. } => panic!("the API server resolves no names"),
    }
}

/// Follows the server until it has reported as many changes as expected, and compares. The division into batches
/// depends on timing, except that the changes `first` come at once.
async fn check(server: &Arc<Server>, first: usize, expect: &[&str]) {
    let (sender, mut batches) = crate::source::queue();
    let options = options();
    let source = watch_with_client(server.client(), Scope::default(), &options, sender);
    let compare = async {
        let mut received: Option<Vec<String>> = None;
        while received.as_ref().is_none_or(|received| received.len() < expect.len()) {
            let batch = timeout(Duration::from_secs(20), batches.recv()).await.expect("a batch in time");
            let changes = batch.expect("the source goes on").changes.into_iter().map(describe);
            match &mut received {
                Some(received) => received.extend(changes),
                None => {
                    let changes: Vec<_> = changes.collect();
                    assert!(changes.len() >= first, "the first batch holds only {changes:?}");
                    received = Some(changes);
                }
            }
        }
        assert_eq!(received.unwrap_or_default(), expect);
    };
    tokio::select! {
        () = source => panic!("the source ended"),
        () = compare => {}
    }
}

#[tokio::test]
async fn secrets_are_watched_while_an_ingress_names_them() {
    let server = server();
    let with = object("Ingress", "a", r#","spec":{"tls":[{"secretName":"s"}]}"#);
    server
        .answer("stream ingresses", 200, bookmark("Ingress", "networking.k8s.io/v1"))
        .answer("watch ingresses", 200, event("ADDED", &with))
        .answer("stream secrets/s", 200, event("ADDED", &object("Secret", "s", "")) + &bookmark("Secret", "v1"));
    check(&server, 0, &["+Ingress n/a", "+Secret n/s"]).await;
}

#[tokio::test]
async fn a_forbidden_secret_delays_nothing() {
    let server = server();
    let ingress = object("Ingress", "a", r#","spec":{"tls":[{"secretName":"s"}]}"#);
    server
        .answer("stream ingresses", 422, status(422))
        .answer("list ingresses", 200, list("Ingress", &[ingress]))
        .answer("stream secrets/s", 403, status(403));
    check(&server, 1, &["+Ingress n/a"]).await;
}

/// Compares the changes of each batch; `act` is called with the number of batches so far.
async fn check_batches(server: &Arc<Server>, expect: &[&[&str]], act: impl AsyncFn(usize)) {
    let (sender, mut batches) = crate::source::queue();
    let options = options();
    let source = watch_with_client(server.client(), Scope::default(), &options, sender);
    let compare = async {
        for (number, expect) in expect.iter().enumerate() {
            act(number).await;
            let batch = timeout(Duration::from_secs(600), batches.recv()).await.expect("a batch in time");
            let changes: Vec<_> = batch.expect("the source goes on").changes.into_iter().map(describe).collect();
            assert_eq!(changes, *expect, "batch {number}");
        }
    };
    tokio::select! {
        () = source => panic!("the source ended"),
        () = compare => {}
    }
}

#[tokio::test(start_paused = true)]
async fn received_events_are_passed_on_at_once() {
    let server = server();
    server.answer("stream ingresses", 200, bookmark("Ingress", "networking.k8s.io/v1"));
    let began = Mutex::new(None);
    let act = async |number| {
        if number == 1 {
            *began.lock().expect("no panic") = Some(Instant::now());
            let both = ["a", "b"].map(|name| event("ADDED", &object("Ingress", name, ""))).concat();
            server.answer("watch ingresses", 200, both);
        }
    };
    check_batches(&server, &[&[], &["+Ingress n/a", "+Ingress n/b"]], act).await;
    let waited = began.lock().expect("no panic").expect("it began").elapsed();
    assert!(waited.is_zero(), "{waited:?}");
}

fn naming(secret: &str) -> String {
    object("Ingress", "a", &format!(r#","spec":{{"tls":[{{"secretName":"{secret}"}}]}}"#))
}

/// Returns a server with Ingress `a`, which names the existing Secret `s`.
fn server_with_secret() -> Arc<Server> {
    let server = server();
    let secret = event("ADDED", &object("Secret", "s", ""));
    server
        .answer("stream ingresses", 200, event("ADDED", &naming("s")) + &bookmark("Ingress", "networking.k8s.io/v1"))
        .answer("stream secrets/s", 200, secret + &bookmark("Secret", "v1"));
    server
}

#[tokio::test(start_paused = true)]
async fn a_secret_arrives_with_the_ingress_that_names_it() {
    let found = (200, event("ADDED", &object("Secret", "t", "")) + &bookmark("Secret", "v1"));
    let absent = (200, bookmark("Secret", "v1"));
    let forbidden = (403, status(403));
    for ((code, body), expect) in [
        (found, &["+Ingress n/a", "+Secret n/t", "-Secret n/s"][..]),
        (absent, &["+Ingress n/a", "-Secret n/s"]),
        (forbidden, &["+Ingress n/a", "-Secret n/s"]),
    ] {
        let server = server_with_secret();
        let act = async |number| {
            if number == 1 {
                server.answer("watch ingresses", 200, event("MODIFIED", &naming("t")));
                // The server takes time to answer, but less than the limit.
                sleep(MAX_HOLD / 2).await;
                server.answer("stream secrets/t", code, body.clone());
            }
        };
        check_batches(&server, &[&["+Ingress n/a", "+Secret n/s"], expect], act).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_secret_delays_changes_once_and_briefly() {
    let server = server_with_secret();
    let started = Mutex::new(None);
    let act = async |number| match number {
        1 => {
            *started.lock().expect("no panic") = Some(Instant::now());
            server.answer("watch ingresses", 200, event("MODIFIED", &naming("t")));
        }
        2 => {
            let waited = started.lock().expect("no panic").expect("it began").elapsed();
            assert!(waited >= MAX_HOLD && waited < MAX_HOLD * 2, "{waited:?}");
            *started.lock().expect("no panic") = Some(Instant::now());
            server.answer("watch ingresses", 200, event("MODIFIED", &naming("t")));
        }
        3 => {
            let waited = started.lock().expect("no panic").expect("it began").elapsed();
            assert!(waited < MAX_HOLD, "{waited:?}");
            let late = event("ADDED", &object("Secret", "t", "")) + &bookmark("Secret", "v1");
            server.answer("stream secrets/t", 200, late);
        }
        _ => {}
    };
    let expect: [&[&str]; 4] =
        [&["+Ingress n/a", "+Secret n/s"], &["+Ingress n/a", "-Secret n/s"], &["+Ingress n/a"], &["+Secret n/t"]];
    check_batches(&server, &expect, act).await;
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_secret_does_not_block_the_first_batch() {
    let server = server();
    let ingress = event("ADDED", &naming("silent")) + &bookmark("Ingress", "networking.k8s.io/v1");
    server.answer("stream ingresses", 200, ingress);
    let (sender, mut batches) = crate::source::queue();
    let (started, options) = (Instant::now(), options());
    let compare = async {
        let Batch { changes, remarks: _, unread, received: _ } = batches.recv().await.expect("a batch");
        let waited = started.elapsed();
        assert!(waited >= MAX_HOLD && waited < MAX_HOLD * 2, "{waited:?}");
        assert_eq!(changes.into_iter().map(describe).collect::<Vec<_>>(), ["+Ingress n/a"]);
        let silent = ObjectId { kind: Kind::Secret, name: ObjectName::new("n", "silent") };
        assert_eq!(unread, [silent]);
        // A receiver that has the object from earlier learns that it does not exist.
        server.answer("stream secrets/silent", 200, bookmark("Secret", "v1"));
        let Batch { changes, remarks: _, unread, received: _ } = batches.recv().await.expect("a batch");
        assert_eq!(changes.into_iter().map(describe).collect::<Vec<_>>(), ["-Secret n/silent"]);
        assert_eq!(unread, []);
    };
    tokio::select! {
        () = watch_with_client(server.client(), Scope::default(), &options, sender) => panic!("the source ended"),
        result = timeout(Duration::from_secs(20), compare) => result.expect("in time"),
    }
}

#[tokio::test(start_paused = true)]
async fn parameters_of_own_classes_are_watched_and_nodes_are_optional() {
    let server = Server::default();
    let class = |controller: &str, name: &str| {
        let spec = format!(
            r#","spec":{{"controller":"{controller}","parameters":{{"kind":"ConfigMap","name":"{name}","namespace":"n","scope":"Namespace"}}}}"#
        );
        event("ADDED", &object("IngressClass", name, &spec).replace(r#""namespace":"n","resource"#, r#""resource"#))
    };
    let classes = class("xdp-ingress.io/controller", "ours") + &class("another", "theirs");
    server
        .answer("stream ingresses", 200, bookmark("Ingress", "networking.k8s.io/v1"))
        .answer("stream ingressclasses", 200, classes + &bookmark("IngressClass", "networking.k8s.io/v1"))
        .answer("stream services", 200, bookmark("Service", "v1"))
        .answer("stream nodes", 403, status(403))
        .answer("stream gatewayclasses", 404, status(404))
        .answer("stream referencegrants", 403, status(403))
        .answer("stream endpointslices", 200, bookmark("EndpointSlice", "discovery.k8s.io/v1"))
        .answer("stream configmaps/theirs", 200, event("ADDED", &object("ConfigMap", "theirs", "")))
        .answer(
            "stream configmaps/ours",
            200,
            event("ADDED", &object("ConfigMap", "ours", "")) + &bookmark("ConfigMap", "v1"),
        );
    let expect: [&[&str]; 1] = [&["+IngressClass ours", "+IngressClass theirs", "+ConfigMap n/ours"]];
    check_batches(&Arc::new(server), &expect, async |_| {}).await;
}

#[tokio::test(start_paused = true)]
async fn objects_named_by_the_operator_are_watched_in_any_namespace() {
    let server = server();
    let found = |kind: &str, name: &str| event("ADDED", &object(kind, name, "")) + &bookmark(kind, "v1");
    server
        .answer("stream ingresses", 200, bookmark("Ingress", "networking.k8s.io/v1"))
        .answer("stream namespaces/n", 200, bookmark("Namespace", "v1"))
        .answer("stream default:services/kubernetes", 200, found("Service", "kubernetes"))
        .answer("stream default:endpointslices?kubernetes", 200, bookmark("EndpointSlice", "discovery.k8s.io/v1"))
        .answer("stream default:services/web", 200, found("Service", "web"))
        .answer("stream default:endpointslices?web", 200, bookmark("EndpointSlice", "discovery.k8s.io/v1"))
        .answer("stream configmaps/settings", 200, found("ConfigMap", "settings"))
        .answer("stream configmaps/tcp", 200, found("ConfigMap", "tcp"))
        .answer("stream configmaps/udp", 200, found("ConfigMap", "udp"))
        .answer("stream default:secrets/fallback", 200, found("Secret", "fallback"))
        .answer("stream default:secrets/tickets", 200, found("Secret", "tickets"));
    let options = translate::Options {
        config_map: Some(ObjectName::new("n", "settings")),
        tcp_services: Some(ObjectName::new("n", "tcp")),
        udp_services: Some(ObjectName::new("n", "udp")),
        default_backend: Some(ObjectName::new("default", "web")),
        default_certificate: Some(ObjectName::new("default", "fallback")),
        ticket_secret: Some(ObjectName::new("default", "tickets")),
        ..translate::Options::default()
    };
    let (sender, mut batches) = crate::source::queue();
    let compare = async {
        let batch = timeout(MAX_HOLD / 2, batches.recv()).await.expect("in time").expect("a batch");
        let mut received: Vec<_> = batch.changes.into_iter().map(describe).collect();
        received.sort();
        let expect = [
            "+ConfigMap n/settings",
            "+ConfigMap n/tcp",
            "+ConfigMap n/udp",
            "+Secret n/fallback",
            "+Secret n/tickets",
            "+Service n/kubernetes",
            "+Service n/web",
        ];
        assert_eq!(received, expect);
    };
    tokio::select! {
        () = watch_with_client(server.client(), Scope { namespace: Some("n"), selector: None }, &options, sender) => panic!("the source ended"),
        () = compare => {}
    }
}

#[tokio::test(start_paused = true)]
async fn objects_named_by_class_settings_are_removed_with_them() {
    let server = Arc::new(Server::default());
    let class = |parameters: &str| {
        let spec = format!(r#","spec":{{"controller":"xdp-ingress.io/controller"{parameters}}}"#);
        object("IngressClass", "c", &spec).replace(r#""namespace":"n","resource"#, r#""resource"#)
    };
    let with = class(r#","parameters":{"kind":"ConfigMap","name":"settings","namespace":"n","scope":"Namespace"}"#);
    let found =
        |name: &str, data: &str| event("ADDED", &object("ConfigMap", name, data)) + &bookmark("ConfigMap", "v1");
    server
        .answer("stream ingresses", 200, bookmark("Ingress", "networking.k8s.io/v1"))
        .answer("stream ingressclasses", 200, event("ADDED", &with) + &bookmark("IngressClass", "networking.k8s.io/v1"))
        .answer("stream services", 200, bookmark("Service", "v1"))
        .answer("stream nodes", 200, bookmark("Node", "v1"))
        .answer("stream namespaces", 200, bookmark("Namespace", "v1"))
        .answer("stream gatewayclasses", 404, status(404))
        .answer("stream referencegrants", 200, bookmark("ReferenceGrant", "gateway.networking.k8s.io/v1"))
        .answer("stream endpointslices", 200, bookmark("EndpointSlice", "discovery.k8s.io/v1"))
        .answer("stream configmaps/settings", 200, found("settings", r#","data":{"add-headers":"n/fields"}"#))
        .answer("stream configmaps/fields", 200, found("fields", ""));
    let act = async |number| {
        if number == 1 {
            server.answer("watch ingressclasses", 200, event("MODIFIED", &class("")));
        }
    };
    let expect: [&[&str]; 2] = [
        &["+IngressClass c", "+ConfigMap n/settings", "+ConfigMap n/fields"],
        &["+IngressClass c", "-ConfigMap n/settings", "-ConfigMap n/fields"],
    ];
    check_batches(&server, &expect, act).await;
}

fn naming_secrets(ingress: &str, class: &str, count: usize) -> String {
    let tls: Vec<_> = (0..count).map(|number| format!(r#"{{"secretName":"{ingress}{number}"}}"#)).collect();
    object("Ingress", ingress, &format!(r#","spec":{{"ingressClassName":"{class}","tls":[{}]}}"#, tls.join(",")))
}

fn class(name: &str, controller: &str) -> String {
    let text = object("IngressClass", name, &format!(r#","spec":{{"controller":"{controller}"}}"#));
    text.replace(r#""namespace":"n","resource"#, r#""resource"#)
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_reference_delays_no_other_object() {
    let server = server_with_secret();
    let began = Mutex::new(None);
    let act = async |number| {
        if number == 1 {
            server.answer("watch ingresses", 200, event("MODIFIED", &naming("silent")));
            sleep(MAX_HOLD / 4).await;
            *began.lock().expect("no panic") = Some(Instant::now());
            server.answer("watch services", 200, event("ADDED", &object("Service", "web", "")));
        }
        if number == 2 {
            let waited = began.lock().expect("no panic").expect("it began").elapsed();
            assert!(waited < Duration::from_millis(1), "{waited:?}");
        }
    };
    let expect: [&[&str]; 3] =
        [&["+Ingress n/a", "+Secret n/s"], &["+Service n/web"], &["+Ingress n/a", "-Secret n/s"]];
    check_batches(&server, &expect, act).await;
}
