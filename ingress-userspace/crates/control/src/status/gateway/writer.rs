//! Writes statuses of the Gateway API as planned. It does not decide which.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures_util::FutureExt;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
    core::PartialObjectMeta,
};
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use super::{
    addresses::shown,
    attempts::Effect,
    nodes::{Knowledge, SharedInquiry, ask_nodes},
    patch::StatusPatch,
    plan::{Circumstances, Ledger, Plan, Write, plan},
};
use crate::{
    change::{Kind, ObjectId, ObjectName},
    clock::expiry,
    gateway::{
        self, GatewayObject,
        route::{GrpcRoute, HttpRoute, TcpRoute, TlsRoute, UdpRoute},
    },
    status::{
        Options,
        access::{Permission, RequestFailure, RetryLog, ask},
        addresses::Address,
        batch::send_all,
        budget::WriteBudget,
        input::StatusInput,
        options::{asked_at, manager, request_timeout},
    },
};

/// Failures of each kind, and when it is tried again. A role may lack the permission for some kinds only.
#[derive(Default)]
struct Access {
    logs: BTreeMap<Kind, RetryLog>,
    paused: BTreeMap<Kind, Instant>,
}

/// Returns `true` for the kinds whose statuses this module writes.
pub(in crate::status) fn bears_status(kind: Kind) -> bool {
    resource(kind).is_some()
}

/// Keeps statuses as planned, and asks other nodes whether they serve them, until the future is dropped.
pub(in crate::status) async fn keep(
    client: &Client,
    options: &Options,
    budget: &WriteBudget,
    input: watch::Receiver<Arc<StatusInput>>,
    addresses: watch::Receiver<Option<Vec<Address>>>,
) {
    let Some(own) = asked_at(options) else {
        return keep_as_planned(client, options, budget, input, addresses, None).await;
    };
    let shared = SharedInquiry::default();
    tokio::select! {
        () = keep_as_planned(client, options, budget, input, addresses, Some(&shared)) => {}
        () = ask_nodes(client, options, own, &shared) => {}
    }
}

async fn keep_as_planned(
    client: &Client,
    options: &Options,
    budget: &WriteBudget,
    mut input: watch::Receiver<Arc<StatusInput>>,
    mut addresses: watch::Receiver<Option<Vec<Address>>>,
    shared: Option<&SharedInquiry>,
) {
    let mut access = Access::default();
    let mut ledger = Ledger::default();
    let mut before: Arc<StatusInput> = Arc::default();
    let (mut published, mut of_gateways) = (None, None);
    let mut due = BTreeSet::new();
    let mut is_first = true;
    loop {
        let known = Arc::clone(&input.borrow_and_update());
        due.append(&mut known.bearers_changed_since(&before));
        let received = received(&known, &before, std::mem::take(&mut is_first));
        let latest = addresses.borrow_and_update().clone();
        if latest != published {
            of_gateways = latest.as_deref().map(shown);
            published = latest;
            due.extend(known.gateways());
        }
        let circumstances = Circumstances {
            addresses: of_gateways.as_deref(),
            paused: &access.paused,
            interval: options.interval,
            round: budget.round(),
            received,
            now: Instant::now(),
            time: wall_clock(),
        };
        let find = |id: &ObjectId| known.bearer(id);
        let Plan { writes, next, again } = match shared {
            None => plan(due, find, &mut ledger, &mut Knowledge::Nothing, &circumstances),
            Some(shared) => shared.ask(|inquiry| {
                due.append(&mut inquiry.take_decided());
                plan(due, find, &mut ledger, &mut Knowledge::Asked(inquiry), &circumstances)
            }),
        };
        (before, due) = (known, again);
        if writes.is_empty() {
            ledger.attempts.prune(options.interval, Instant::now());
            tokio::select! {
                changed = input.changed() => if changed.is_err() { return },
                changed = addresses.changed() => if changed.is_err() { return },
                () = expiry(next) => {}
                () = decided(shared) => {}
            }
            continue;
        }
        access.write_all(client, options, budget, writes, &mut ledger).await;
    }
}

/// Returns the time at which the changes since `before` were received. Objects that were there before this term may have
/// changed long ago, and so may those that are looked at again without a change.
fn received(known: &Arc<StatusInput>, before: &Arc<StatusInput>, is_first: bool) -> Option<Instant> {
    known.received().filter(|_| !is_first && !Arc::ptr_eq(known, before))
}

/// Waits until there is a verdict about other nodes.
async fn decided(shared: Option<&SharedInquiry>) {
    match shared {
        Some(shared) => shared.decided().await,
        None => std::future::pending().await,
    }
}

/// Removes the addresses of Gateways that have none of their own, when no replica remains to serve them.
pub(in crate::status) async fn clear(client: &Client, options: &Options, budget: &WriteBudget, known: &StatusInput) {
    let circumstances = Circumstances {
        addresses: Some(&[]),
        paused: &BTreeMap::new(),
        interval: options.interval,
        round: usize::MAX,
        received: None,
        now: Instant::now(),
        time: wall_clock(),
    };
    let mut ledger = Ledger::default();
    let mut knowledge = if asked_at(options).is_some() { Knowledge::AsShown } else { Knowledge::Nothing };
    let gateways = known.gateways().collect();
    let Plan { writes, .. } = plan(gateways, |id| known.bearer(id), &mut ledger, &mut knowledge, &circumstances);
    let number = writes.len();
    let mut access = Access::default();
    access.write_all(client, options, budget, writes, &mut ledger).await;
    if number > 0 && access.paused.is_empty() {
        tracing::info!(number, "cleared the addresses of Gateways, as the last replica stops");
    }
}

/// Returns the time in the precision of the API.
fn wall_clock() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// Returns how requests name a kind, as the API server sends its objects.
fn erase<K: GatewayObject<Sent: kube::Resource<DynamicType = ()>>>() -> ApiResource {
    ApiResource::erase::<K::Sent>(&())
}

/// Returns how requests name this kind, in URLs and for RBAC.
fn resource(kind: Kind) -> Option<(ApiResource, &'static str)> {
    Some(match kind {
        Kind::GatewayClass => (erase::<gateway::GatewayClass>(), "gatewayclasses.gateway.networking.k8s.io/status"),
        Kind::Gateway => (erase::<gateway::Gateway>(), "gateways.gateway.networking.k8s.io/status"),
        Kind::ListenerSet => (erase::<gateway::ListenerSet>(), "listenersets.gateway.networking.k8s.io/status"),
        Kind::HttpRoute => (erase::<HttpRoute>(), "httproutes.gateway.networking.k8s.io/status"),
        Kind::GrpcRoute => (erase::<GrpcRoute>(), "grpcroutes.gateway.networking.k8s.io/status"),
        Kind::TlsRoute => (erase::<TlsRoute>(), "tlsroutes.gateway.networking.k8s.io/status"),
        Kind::TcpRoute => (erase::<TcpRoute>(), "tcproutes.gateway.networking.k8s.io/status"),
        Kind::UdpRoute => (erase::<UdpRoute>(), "udproutes.gateway.networking.k8s.io/status"),
        Kind::BackendTlsPolicy => {
            let resource = "backendtlspolicies.gateway.networking.k8s.io/status";
            (erase::<gateway::BackendTlsPolicy>(), resource)
        }
        _ => return None,
    })
}

async fn send(
    client: &Client,
    options: &Options,
    manager: &str,
    resource: &ApiResource,
    write: &Write,
) -> Result<Arc<str>, RequestFailure> {
    let ObjectName { namespace, name } = &write.id.name;
    let api: Api<PartialObjectMeta<DynamicObject>> = if write.id.kind.is_namespaced() {
        Api::namespaced_with(client.clone(), namespace, resource)
    } else {
        Api::all_with(client.clone(), resource)
    };
    let body = write.body(resource);
    let (params, patch) = match &write.patch {
        // Forced: the object is of this controller's class, so a former writer does not keep ownership.
        StatusPatch::Apply(_) => (PatchParams::apply(manager).force(), Patch::Apply(body)),
        StatusPatch::Replace(_) => {
            (PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() }, Patch::Merge(body))
        }
    };
    let object = ask(request_timeout(options), api.patch_status(name, &params, &patch)).await?;
    Ok(object.metadata.resource_version.unwrap_or_default().into())
}

// === impl Access ===

impl Access {
    /// Sends all writes, kind by kind. A kind that the server refuses in general is paused.
    async fn write_all(
        &mut self,
        client: &Client,
        options: &Options,
        budget: &WriteBudget,
        writes: Vec<Write>,
        ledger: &mut Ledger,
    ) {
        let manager = &manager(&options.controller);
        let mut by_kind: BTreeMap<Kind, Vec<Write>> = BTreeMap::new();
        writes.into_iter().for_each(|write| by_kind.entry(write.id.kind).or_default().push(write));
        for (kind, writes) in by_kind {
            let Some((resource, name)) = &resource(kind) else { continue };
            let retry_log = self.logs.entry(kind).or_insert_with(|| {
                let lost = "statuses do not show what is served (`--update-status=false` ends the attempts)";
                RetryLog::new(Permission { verb: "patch", resource: name, lost })
            });
            let attempt = |write: Write| {
                let attempt = async move {
                    let result = send(client, options, manager, resource, &write).await;
                    (write, result)
                };
                attempt.boxed()
            };
            let attempts = writes.into_iter().map(attempt).collect();
            let note = |write: Write, result: Result<Arc<str>, RequestFailure>| {
                let (kind, name) = (write.id.kind.as_str(), &write.id.name);
                let effect = match result {
                    Ok(version) => {
                        tracing::debug!(kind, %name, "status written");
                        Effect::Written(version)
                    }
                    Err(failure) => {
                        tracing::debug!(kind, %name, %failure, "status not written");
                        match failure {
                            RequestFailure::Conflict => Effect::Conflict,
                            RequestFailure::Forbidden(_) => Effect::Forbidden,
                            _ => Effect::Refused,
                        }
                    }
                };
                ledger.attempts.note(write, effect, Instant::now());
            };
            match send_all(attempts, budget, options.handle.stats(), retry_log, note).await {
                Some(failure) => {
                    let pause = retry_log.failed(&failure);
                    self.paused.insert(kind, Instant::now() + pause);
                }
                None => drop(self.paused.remove(&kind)),
            }
        }
    }
}

// === impl Write ===

impl Write {
    /// Returns the body of the patch. A replaced list is bound to the version from which it was made. An applied status
    /// is not: should it meet a later object of the same name, it is corrected when the watch shows that object.
    pub(super) fn body(&self, resource: &ApiResource) -> Value {
        let ObjectName { namespace, name } = &self.id.name;
        match &self.patch {
            StatusPatch::Apply(status) => {
                let mut body = json!({
                    "apiVersion": resource.api_version,
                    "kind": resource.kind,
                    "metadata": { "name": &**name },
                });
                if self.id.kind.is_namespaced() {
                    body["metadata"]["namespace"] = (&**namespace).into();
                }
                if let Some(status) = status {
                    body["status"] = status.clone();
                }
                body
            }
            StatusPatch::Replace(status) => {
                json!({ "metadata": { "resourceVersion": &*self.version }, "status": status })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_change_counts_for_that_change_alone() {
        let at = |received| Arc::new(StatusInput::default().received_at(received));
        let (before, now) = (at(None), Instant::now());
        let known = at(Some(now));
        assert_eq!(received(&known, &before, true), None, "it may be old");
        assert_eq!(received(&known, &before, false), Some(now));
        assert_eq!(received(&known, &known, false), None, "nothing has changed");
        assert_eq!(received(&before, &known, false), None);
    }

    #[test]
    fn rights_are_named_in_the_words_of_rbac() {
        let kinds = [
            Kind::GatewayClass,
            Kind::Gateway,
            Kind::ListenerSet,
            Kind::HttpRoute,
            Kind::GrpcRoute,
            Kind::TlsRoute,
            Kind::TcpRoute,
            Kind::UdpRoute,
            Kind::BackendTlsPolicy,
        ];
        for kind in kinds {
            let (ApiResource { group, version, kind: name, plural, .. }, right) = resource(kind).expect("a resource");
            assert_eq!(Kind::parse(&format!("{group}/{version}"), &name), Some(kind));
            assert_eq!(right, format!("{plural}.{group}/status"));
        }
        assert!([Kind::Ingress, Kind::ReferenceGrant, Kind::Secret].iter().all(|kind| !bears_status(*kind)));
    }
}
