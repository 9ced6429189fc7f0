//! The source against a scripted API server.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, PoisonError},
};

use http::{Request, Response};
use kube::client::Body;
use tokio::time::timeout;

use super::*;
use crate::control::change::{Change, Kind};

/// Answers by path and kind of request, in order; a request without an answer waits forever, as a watch without events.
#[derive(Default)]
struct Server {
    script: Mutex<HashMap<String, VecDeque<(u16, String)>>>,
}

impl Server {
    fn answer(&self, request: &str, status: u16, body: impl Into<String>) -> &Self {
        let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        script.entry(request.into()).or_default().push_back((status, body.into()));
        self
    }

    fn next(&self, request: &Request<Body>) -> Option<(u16, String)> {
        let query = request.uri().query().unwrap_or_default();
        let verb = match (query.contains("watch=true"), query.contains("sendInitialEvents=true")) {
            (true, true) => "stream",
            (true, false) => "watch",
            (false, _) => "list",
        };
        let kind = request.uri().path().rsplit('/').next().unwrap_or_default();
        let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        script.get_mut(&format!("{verb} {kind}"))?.pop_front()
    }

    fn client(self: &Arc<Self>) -> Client {
        let server = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let answer = server.next(&request);
            async move {
                let Some((status, body)) = answer else { return std::future::pending().await };
                Response::builder().status(status).body(Body::from(body.into_bytes()))
            }
        });
        Client::new(service, "default")
    }
}

fn status(code: u16) -> String {
    format!(
        r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"scripted","reason":"Scripted","code":{code}}}"#
    )
}

fn object(kind: &str, name: &str, spec: &str) -> String {
    let version = if kind == "Secret" { "v1" } else { "networking.k8s.io/v1" };
    format!(
        r#"{{"apiVersion":"{version}","kind":"{kind}","metadata":{{"name":"{name}","namespace":"n","resourceVersion":"7"}}{spec}}}"#
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

/// A server whose other kinds are empty.
fn server() -> Arc<Server> {
    let server = Server::default();
    server
        .answer("stream ingressclasses", 200, bookmark("IngressClass", "networking.k8s.io/v1"))
        .answer("stream services", 200, bookmark("Service", "v1"))
        .answer("stream endpointslices", 200, bookmark("EndpointSlice", "discovery.k8s.io/v1"));
    Arc::new(server)
}

fn describe(change: Change) -> String {
    match change {
        Change::Apply { object, origin: _ } => format!("+{} {}", object.kind().as_str(), object.id().name),
        Change::Remove(id) => format!("-{} {}", id.kind.as_str(), id.name),
    }
}

/// Follows the server until it has told as many changes as expected, and compares. How changes fall into batches is a matter of
/// time, except that `first` come at once.
async fn check(server: &Arc<Server>, first: usize, expect: &[&str]) {
    let (sender, mut batches) = crate::control::source::queue();
    let follow = follow_client(server.client(), None, sender);
    let compare = async {
        let mut told: Option<Vec<String>> = None;
        while told.as_ref().is_none_or(|told| told.len() < expect.len()) {
            let batch = timeout(Duration::from_secs(20), batches.recv()).await.expect("a batch in time");
            let changes = batch.expect("the source goes on").changes.into_iter().map(describe);
            match &mut told {
                Some(told) => told.extend(changes),
                None => {
                    let changes: Vec<_> = changes.collect();
                    assert!(changes.len() >= first, "the first batch holds only {changes:?}");
                    told = Some(changes);
                }
            }
        }
        assert_eq!(told.unwrap_or_default(), expect);
    };
    tokio::select! {
        () = follow => panic!("the source ended"),
        () = compare => {}
    }
}

#[tokio::test]
async fn objects_go_only_when_a_complete_list_is_without_them() {
    let server = server();
    let (a, b) = (object("Ingress", "a", ""), object("Ingress", "b", ""));
    server
        .answer("stream ingresses", 422, status(422))
        .answer("list ingresses", 200, list("Ingress", &[a.clone(), b.clone()]))
        // Gone: the watch cannot be resumed, so everything is listed again.
        .answer("watch ingresses", 200, event("ERROR", &status(410)))
        .answer("list ingresses", 500, status(500))
        .answer("list ingresses", 200, list("Ingress", &[b]))
        .answer("watch ingresses", 200, event("MODIFIED", &a));
    let expect = ["+Ingress n/a", "+Ingress n/b", "+Ingress n/b", "-Ingress n/a", "+Ingress n/a"];
    check(&server, 2, &expect).await;
}

#[tokio::test]
async fn secrets_are_watched_while_an_ingress_names_them() {
    let server = server();
    let with = object("Ingress", "a", r#","spec":{"tls":[{"secretName":"s"}]}"#);
    server
        .answer("stream ingresses", 200, bookmark("Ingress", "networking.k8s.io/v1"))
        .answer("watch ingresses", 200, event("ADDED", &with))
        .answer("stream secrets", 200, event("ADDED", &object("Secret", "s", "")) + &bookmark("Secret", "v1"));
    check(&server, 0, &["+Ingress n/a", "+Secret n/s"]).await;
}

#[tokio::test]
async fn a_secret_that_may_not_be_read_holds_nothing_up() {
    let server = server();
    let ingress = object("Ingress", "a", r#","spec":{"tls":[{"secretName":"s"}]}"#);
    server
        .answer("stream ingresses", 422, status(422))
        .answer("list ingresses", 200, list("Ingress", &[ingress]))
        .answer("stream secrets", 403, status(403));
    check(&server, 1, &["+Ingress n/a"]).await;
}

#[test]
fn a_secret_goes_with_the_last_ingress_that_names_it() {
    let without = object("Ingress", "a", "");
    let mut tracker = Tracker::default();
    let (ingresses, secrets) = (tracker.open(Need::Required), tracker.open(Need::Optional));
    let parse = |text: &str| Object::Ingress(Arc::new(serde_json::from_str(text).expect("an Ingress")));
    let secret = Object::Secret(Arc::new(serde_json::from_str(&object("Secret", "s", "")).expect("a Secret")));
    tracker.on(secrets, Event::Listed(secret));
    let with = object("Ingress", "a", r#","spec":{"tls":[{"secretName":"s"}]}"#);
    tracker.on(ingresses, Event::Applied(parse(&with)));
    assert!(tracker.take_references_changed() && tracker.referenced_secrets().contains(&ObjectName::new("n", "s")));
    tracker.on(ingresses, Event::Applied(parse(&without)));
    assert!(tracker.take_references_changed() && tracker.referenced_secrets().is_empty());
    let gone = tracker.close(secrets);
    assert!(matches!(gone.as_slice(), [Change::Remove(id)] if id.kind == Kind::Secret), "{gone:?}");
    assert!(tracker.on(secrets, Event::ListEnds).is_empty(), "events of a closed watch are dropped");
}

#[test]
fn nothing_is_told_while_a_required_list_is_refused() {
    let mut tracker = Tracker::default();
    let (services, secret) = (tracker.open(Need::Required), tracker.open(Need::Optional));
    tracker.on(secret, Event::Refused);
    tracker.on(services, Event::Refused);
    assert!(!tracker.is_settled());
    tracker.on(services, Event::ListBegins);
    tracker.on(services, Event::ListEnds);
    assert!(tracker.is_settled());
}

#[test]
fn what_is_never_looked_at_is_not_kept() {
    let text = r#"{"metadata":{"name":"s","managedFields":[{}],"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"hunter2"}},"data":{"tls.key":"YQ==","password":"aHVudGVyMg=="}}"#;
    let secret: Secret =
        serde_json::from_str(&text.replacen('{', r#"{"apiVersion":"v1","kind":"Secret","#, 1)).expect("valid");
    let secret = strip_secret(secret);
    assert_eq!(secret.data.as_ref().map(|data| data.len()), Some(1));
    assert!(
        secret.metadata.managed_fields.is_none() && secret.metadata.annotations.as_ref().is_some_and(|a| a.is_empty())
    );
}
