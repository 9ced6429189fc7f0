//! An API server in memory, for the tests of the whole task.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

/// An API server that keeps the objects of these tests, and a log of the writes: `14s patch n/a {…}`.
pub(super) struct Server {
    pub(super) state: Mutex<State>,
    pub(super) log: watch::Sender<Vec<Entry>>,
    pub(super) start: Instant,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) lease: Option<Value>,
    pub(super) version: u64,
    pub(super) events: BTreeMap<String, Value>,
    pub(super) nodes: Vec<Value>,
    pub(super) pods: Vec<Value>,
    /// Objects of the Gateway API by plural and name, e.g. `httproutes n/a`.
    pub(super) objects: BTreeMap<String, Value>,
    /// Services by namespace and name.
    pub(super) services: BTreeMap<String, Value>,
    /// An event that a watch reports once; without one the watch stays open.
    pub(super) happens: Option<(&'static str, Value)>,
    /// Status codes by the beginning of a request's description; 0 means no response.
    pub(super) refusals: Vec<(&'static str, u16)>,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) at: Duration,
    pub(super) request: String,
    pub(super) client: &'static str,
    pub(super) body: Value,
    /// Whether it takes over the fields of other managers.
    pub(super) is_forced: bool,
    pub(super) code: u16,
}

// === impl Server ===

impl Server {
    pub(super) fn new() -> Arc<Self> {
        let state = State { pods: vec![pod("a", "one")], nodes: vec![node("one", "192.0.2.1")], ..State::default() };
        Arc::new(Self { state: Mutex::new(state), log: watch::Sender::default(), start: Instant::now() })
    }

    pub(super) fn state<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn refuse(&self, request: &'static str, code: u16) {
        self.state(|state| state.refusals.push((request, code)));
    }

    pub(super) fn admit(&self) {
        self.state(|state| state.refusals.clear());
    }

    pub(super) fn client(self: &Arc<Self>, name: &'static str) -> Client {
        let server = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&server);
            async move { server.answer(name, request).await }
        });
        Client::new(service, "default")
    }

    pub(super) async fn answer(
        &self,
        client: &'static str,
        request: Request<Body>,
    ) -> Result<Response<Body>, http::Error> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.expect("a body in memory");
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let is_forced = parts.uri.query().is_some_and(|query| query.contains("force=true"));
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
        // Events have their type first, as those of API servers have.
        let text = match (&answer["type"], &answer["object"]) {
            (Value::String(kind), object @ Value::Object(_)) if request.starts_with("watch") => {
                format!(r#"{{"type": "{kind}", "object": {object}}}"#)
            }
            _ => answer.to_string(),
        };
        self.log.send_modify(|log| log.push(Entry { at, request, client, body, is_forced, code }));
        if code == 0 {
            std::future::pending::<()>().await;
        }
        Response::builder().status(code).body(Body::from(text.into_bytes()))
    }

    /// Returns the requests so far that begin with `prefix`.
    pub(super) fn seen(&self, prefix: &str) -> Vec<Entry> {
        self.log.borrow().iter().filter(|entry| entry.request.starts_with(prefix)).cloned().collect()
    }

    /// Waits for `count` requests that begin with `prefix`.
    pub(super) async fn until(&self, prefix: &str, count: usize) -> Vec<Entry> {
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
    pub(super) fn answer(&mut self, request: &str, body: &Value) -> (u16, Value) {
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
            ("list", "services") => (200, list("Service", &self.services.values().cloned().collect::<Vec<_>>())),
            ("watch", _) => match self.happens.take_if(|(watch, _)| *watch == request) {
                Some((_, event)) => (200, event),
                None => (0, Value::Null),
            },
            ("patch", "status") => (200, body.clone()),
            ("patch", _) if is_of_gateway_api(resource) => self.patch(rest, body),
            ("get", "services") => {
                self.services.get(name).cloned().map_or((404, failure(404)), |service| (200, service))
            }
            ("patch", "services") => {
                self.services.insert(name.into(), body.clone());
                (200, body.clone())
            }
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

    /// Changes the status of an object of the Gateway API: by server-side apply, which here keeps only the conditions of
    /// other writers, or by a merge patch.
    fn patch(&mut self, name: &str, body: &Value) -> (u16, Value) {
        let Some(object) = self.objects.get_mut(name) else { return (404, failure(404)) };
        let version = &body["metadata"]["resourceVersion"];
        if !version.is_null() && *version != object["metadata"]["resourceVersion"] {
            return (409, failure(409));
        }
        let mut status = body["status"].clone();
        let shown = object["status"]["conditions"].as_array().into_iter().flatten();
        if let Some(applied) = status["conditions"].as_array_mut() {
            let is_kept = |shown: &&Value| applied.iter().all(|condition| condition["type"] != shown["type"]);
            let kept: Vec<Value> = shown.filter(is_kept).cloned().collect();
            applied.extend(kept);
        }
        if object["status"] != status {
            self.version += 1;
            object["metadata"]["resourceVersion"] = self.version.to_string().into();
            object["status"] = status;
        }
        (200, object.clone())
    }

    pub(super) fn store(&mut self, lease: &Value) -> Value {
        self.version += 1;
        let mut lease = lease.clone();
        lease["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.lease = Some(lease.clone());
        lease
    }
}

/// Returns `true` for the plural of a kind of the Gateway API in these tests.
fn is_of_gateway_api(plural: &str) -> bool {
    matches!(plural, "gatewayclasses" | "gateways" | "httproutes" | "tcproutes")
}

/// Describes a request, e.g. `update leases l`, `patch status n/a`, `patch httproutes n/a`, `create events a.0123`.
pub(super) fn describe(method: &Method, uri: &http::Uri, body: &Value) -> String {
    let path: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
    let is_watch = uri.query().unwrap_or_default().contains("watch=true");
    let last = path.last().copied().unwrap_or_default();
    let kinds = ["leases", "events", "nodes", "pods", "services"];
    match (method.as_str(), path.as_slice()) {
        ("GET", [.., kind]) if kinds.contains(kind) => format!("{} {kind}", if is_watch { "watch" } else { "list" }),
        ("POST", [.., kind]) => format!("create {kind} {}", body["metadata"]["name"].as_str().unwrap_or_default()),
        ("GET", [.., namespace, "services", name]) => format!("get services {namespace}/{name}"),
        ("PATCH", [.., namespace, "services", name]) => format!("patch services {namespace}/{name}"),
        ("GET", [.., kind, _]) => format!("get {kind} {last}"),
        ("PUT", [.., kind, _]) => format!("update {kind} {last}"),
        ("PATCH", [.., namespace, "ingresses", name, "status"]) => format!("patch status {namespace}/{name}"),
        ("PATCH", [.., namespace, kind, name, "status"]) if is_of_gateway_api(kind) => {
            let is_namespaced = *kind != "gatewayclasses";
            format!("patch {kind} {}{name}", if is_namespaced { format!("{namespace}/") } else { String::new() })
        }
        ("PATCH", [.., kind, _]) => format!("patch {kind} {last}"),
        _ => panic!("nobody expects {method} {uri}"),
    }
}

pub(super) fn failure(code: u16) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "scripted",
        "reason": "Scripted", "code": code})
}

pub(super) fn list(kind: &str, items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": format!("{kind}List"), "metadata": {"resourceVersion": "1"}, "items": items})
}

pub(super) fn node(name: &str, address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "resourceVersion": "2"}, "status": {
        "addresses": [{"type": "InternalIP", "address": address}], "conditions": [{"type": "Ready", "status": "True"}]}})
}

/// Returns a pod whose status is no mapping.
pub(super) fn unreadable_pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "xdp-ingress", "resourceVersion": "3"}, "status": 7})
}

pub(super) fn pod(name: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "xdp-ingress"},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})
}
