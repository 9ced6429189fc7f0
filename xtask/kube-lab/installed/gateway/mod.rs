//! Gateway API in a real Kubernetes: many routes, statuses, changes and updates under load, and faults. The lane `gateway` runs
//! tests beside the conformance tests, since it installs the custom resources.

mod changes;
mod earlier;
mod faults;
mod other_controllers;
mod product;
mod scale;
mod statuses;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::Context as _;
use futures_util::{StreamExt as _, TryStreamExt as _, future::ready, stream};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    objects::pods,
    stage::{Scope, Stage, until, until_within},
};

const GROUP: &str = "gateway.networking.k8s.io";
/// The GatewayClass of `deploy/gateway-api`.
const CLASS: &str = "xdp-ingress";
/// Concurrent writes to the API server.
const TOGETHER: usize = 32;
/// Time without a status write after which no further one is expected.
const QUIET: Duration = Duration::from_secs(4);
/// A field of the answer that tells which change of its route answers.
const STEP: &str = "x-step";

/// Returns the API of one kind in a scope's namespace. To be used inside of the control plane's namespace.
async fn api(scope: &Scope<'_>, kind: &str) -> anyhow::Result<Api<DynamicObject>> {
    api_in(scope.stage, &scope.name, kind).await
}

async fn api_in(stage: &Stage, namespace: &str, kind: &str) -> anyhow::Result<Api<DynamicObject>> {
    let resource = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk(GROUP, "v1", kind),
        &format!("{}s", kind.to_lowercase()),
    );
    Ok(Api::namespaced_with(stage.connect().await?, namespace, &resource))
}

/// Returns an object of this kind.
fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// Returns the `spec` of a Gateway with one listener for HTTP on this port, open to ListenerSets of its namespace.
fn gateway(port: u16) -> Value {
    json!({
        "gatewayClassName": CLASS,
        "allowedListeners": {"namespaces": {"from": "Same"}},
        "listeners": [{"name": "http", "port": port, "protocol": "HTTP"}],
    })
}

/// Returns the `spec` of an HTTPRoute of a whole host.
fn route(parent: &Value, host: &str, service: &str) -> Value {
    json!({
        "parentRefs": [parent],
        "hostnames": [host],
        "rules": [{"backendRefs": [{"name": service, "port": 80}]}],
    })
}

/// Returns the filter of a rule that sets [`STEP`] in its answers to this number.
fn step_filter(number: u64) -> Value {
    let set = json!({"set": [{"name": STEP, "value": number.to_string()}]});
    json!({"type": "ResponseHeaderModifier", "responseHeaderModifier": set})
}

/// Writes an object by server-side apply.
async fn put(api: &Api<DynamicObject>, object: &Value) -> anyhow::Result<()> {
    let name = object["metadata"]["name"].as_str().context("an object without a name")?;
    api.patch(name, &PatchParams::apply("tests").force(), &Patch::Apply(object))
        .await
        .with_context(|| name.to_owned())?;
    Ok(())
}

/// Writes many objects.
async fn put_all(api: &Api<DynamicObject>, objects: impl Iterator<Item = Value>) -> anyhow::Result<()> {
    let writes = stream::iter(objects).map(|object| async move { put(api, &object).await });
    writes.buffer_unordered(TOGETHER).try_for_each(|()| ready(Ok(()))).await
}

/// Creates the Gateway `g`, and returns where its listener for HTTP is served once it is programmed.
fn programmed(scope: &Scope<'_>) -> SocketAddr {
    apply(scope, &object("Gateway", "g", &gateway(80)));
    let address = until("the Gateway is programmed", || {
        let status = scope.json(&["get", "gateway", "g"])["status"].clone();
        let is_programmed = condition(&status["conditions"], "Programmed") == Some(true);
        let address = status["addresses"][0]["value"].as_str().and_then(|address| address.parse::<IpAddr>().ok());
        address.filter(|_| is_programmed).ok_or_else(|| status.to_string())
    });
    (address, 80).into()
}

/// Runs one test pod behind a Service of each name. They have no probe: on a busy machine it would fail now and then, and a
/// Service without ready pods answers 503.
fn run(scope: &Scope<'_>, services: &[&str]) {
    for name in services {
        let pods = pods(name, 1);
        let lines = pods.lines().filter(|line| !line.contains("readinessProbe"));
        scope.apply(&lines.map(|line| format!("{line}\n")).collect::<String>());
    }
    scope.await_pods(services);
}

/// Writes objects of a scope.
fn apply_all(scope: &Scope<'_>, objects: impl Iterator<Item = Value>) {
    let placed = objects.map(|mut object| {
        object["metadata"]["namespace"] = scope.name.as_str().into();
        object
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": placed.collect::<Vec<_>>()});
    scope.stage.apply(&list.to_string());
}

/// Writes one object of a scope.
fn apply(scope: &Scope<'_>, object: &Value) {
    apply_all(scope, std::iter::once(object.clone()));
}

/// Returns whether a condition is true; `None` if it is absent.
fn condition(conditions: &Value, kind: &str) -> Option<bool> {
    let found = conditions.as_array()?.iter().find(|condition| condition["type"] == kind)?;
    Some(found["status"] == "True")
}

/// Returns the name of the pod that leads; empty if none does.
fn leader(stage: &Stage) -> String {
    let lease = stage.json(&["--namespace=xdp-ingress", "get", "lease", "xdp-ingress-leader"]);
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

/// Returns the number of status writes that the API server accepted, for each resource of Gateway API.
fn writes(stage: &Stage) -> BTreeMap<String, u64> {
    const VERBS: [&str; 4] = ["APPLY", "PATCH", "PUT", "UPDATE"];
    let metrics = stage.kubectl(&["get", "--raw", "/metrics"]);
    let mut writes = BTreeMap::new();
    for line in metrics.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
        let label = |name: &str| line.split_once(&format!("{name}=\""))?.1.split('"').next();
        let is_write = VERBS.iter().any(|verb| label(",verb") == Some(verb));
        if !is_write
            || label("group") != Some(GROUP)
            || label("subresource") != Some("status")
            || label("code") != Some("200")
        {
            continue;
        }
        let count = line.rsplit(' ').next().and_then(|count| count.parse::<f64>().ok()).expect("a number");
        #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "a number of requests")]
        let count = count as u64;
        *writes.entry(label("resource").unwrap_or_default().to_owned()).or_default() += count;
    }
    writes
}

/// Returns the same numbers once they stay as they are.
fn settled(stage: &Stage) -> BTreeMap<String, u64> {
    settled_within(stage, Duration::from_secs(120))
}

/// The same, for as many objects as need more time.
fn settled_within(stage: &Stage, limit: Duration) -> BTreeMap<String, u64> {
    until_within(limit, "no status is written", || {
        let before = writes(stage);
        std::thread::sleep(QUIET);
        let now = writes(stage);
        if now == before { Ok(now) } else { Err(format!("{before:?}, then {now:?}")) }
    })
}

/// Returns the writes of one resource between two readings.
fn between(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>, resource: &str) -> u64 {
    let of = |writes: &BTreeMap<String, u64>| writes.get(resource).copied().unwrap_or_default();
    of(after) - of(before)
}
