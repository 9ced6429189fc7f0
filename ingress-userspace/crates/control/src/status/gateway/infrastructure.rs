//! Keeps one Service for each Gateway, which carries the labels and annotations of `spec.infrastructure`. It has no
//! selector and no ports, and leads no traffic. The API server removes it with its Gateway.
//!
//! A Service of the same name that does not belong to the Gateway stays as it is.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::{
    change::{Kind, ObjectId, ObjectName},
    clock::expiry,
    gateway::{GROUP, Gateway},
    hash::fnv,
    outcome::Origin,
    status::{
        Options,
        access::{Permission, RequestFailure, RetryLog, ask},
        batch::send_all,
        budget::{WriteBudget, in_turn},
        input::StatusInput,
        options::{manager, request_timeout},
    },
};

/// The label by which objects of a Gateway are found.
const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";

/// Longest name of a Service, and longest value of a label.
const LONGEST: usize = 63;

const PREFIX: &str = "gateway-";

const PATCH: Permission = Permission {
    verb: "patch",
    resource: "services",
    lost: "Gateways have no Services (without `--gateway-services` there are no attempts)",
};

/// The Service that a Gateway is to have.
#[derive(Clone, Debug, PartialEq)]
struct Wanted {
    gateway: ObjectName,
    /// UID of the Gateway.
    owner: Arc<str>,
    name: ObjectName,
    /// The object to apply.
    body: Value,
}

/// The last write of a Service.
#[derive(Debug)]
struct Written {
    wanted: Wanted,
    at: Instant,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Written,
    /// The server refused it, or another object has the name.
    Failed,
}

#[derive(Debug, Default)]
struct Ledger(BTreeMap<ObjectName, Written>);

#[derive(Debug, Default)]
struct Plan {
    writes: Vec<Wanted>,
    /// When there may be more without any change.
    next: Option<Instant>,
}

/// Keeps the Services, until the future is dropped.
pub(in crate::status) async fn keep(
    client: &Client,
    options: &Options,
    budget: &WriteBudget,
    mut input: watch::Receiver<Arc<StatusInput>>,
) {
    if !options.gateway_services {
        std::future::pending::<()>().await;
    }
    let mut ledger = Ledger::default();
    let mut retry_log = RetryLog::new(PATCH);
    let mut before: Arc<StatusInput> = Arc::default();
    let (mut all, mut latest) = (Vec::new(), None);
    loop {
        let known = Arc::clone(&input.borrow_and_update());
        if may_differ(&known, &before) {
            all = wanted(&known);
        }
        let exists = |name: &ObjectName| known.cluster().services.get(name).is_some();
        let Plan { writes, next } = ledger.plan(&all, exists, options.interval, Instant::now());
        before = known;
        if writes.is_empty() {
            tokio::select! {
                changed = input.changed() => if changed.is_err() { return },
                () = expiry(next) => {}
            }
            continue;
        }
        let writes = in_turn(writes, |write| &write.gateway, latest.as_ref(), budget.round());
        latest = writes.last().map(|write| write.gateway.clone());
        if let Some(pause) = write_all(client, options, budget, writes, &mut ledger, &mut retry_log).await {
            sleep(pause).await;
        }
    }
}

/// Returns `true` if [`wanted`] may differ. The cost of `wanted` grows with the Gateways.
fn may_differ(now: &StatusInput, before: &StatusInput) -> bool {
    let (gateways, gateways_before) = (&now.cluster().gateway_api.gateways, &before.cluster().gateway_api.gateways);
    // A Gateway belongs to this controller if the translation has a status for it.
    gateways != gateways_before || now.translation().statuses != before.translation().statuses
}

/// Returns the Services of all Gateways of this controller.
fn wanted(input: &StatusInput) -> Vec<Wanted> {
    let gateways = input.cluster().gateway_api.gateways.iter();
    let ours = gateways.filter(|(name, stored)| {
        let id = ObjectId { kind: Kind::Gateway, name: (*name).clone() };
        stored.origin == Origin::Api && input.translation().statuses.contains_key(&id)
    });
    ours.filter_map(|(name, stored)| Wanted::of(name, &stored.object)).collect()
}

/// Returns the name of a Gateway's Service, which is also a valid value of a label.
fn service_name(gateway: &str) -> String {
    // Names of Services begin with a letter and have no dots.
    let name = format!("{PREFIX}{gateway}");
    if name.len() <= LONGEST && !gateway.contains('.') {
        return name;
    }
    let hash = format!("-{:016x}", fnv(gateway.as_bytes()));
    let start = name.floor_char_boundary(LONGEST - hash.len());
    format!("{}{hash}", name[..start].replace('.', "-"))
}

/// Sends all writes. Returns how long to pause if the server refuses them in general.
async fn write_all(
    client: &Client,
    options: &Options,
    budget: &WriteBudget,
    writes: Vec<Wanted>,
    ledger: &mut Ledger,
    retry_log: &mut RetryLog,
) -> Option<Duration> {
    let manager = &manager(&options.controller);
    let limit = request_timeout(options);
    let attempt = |wanted: Wanted| {
        let attempt = async move {
            let result = send(client, manager, &wanted, limit).await;
            (wanted, result)
        };
        attempt.boxed()
    };
    let attempts = writes.into_iter().map(attempt).collect();
    let note = |wanted: Wanted, result: Result<(), RequestFailure>| {
        let Wanted { gateway, name, .. } = &wanted;
        match &result {
            Ok(()) => tracing::debug!(%gateway, service = %name, "Service of a Gateway written"),
            Err(failure) if ledger.has_failed(&wanted) => {
                tracing::debug!(%gateway, service = %name, %failure, "Service of a Gateway not written");
            }
            Err(failure) => {
                tracing::warn!(%gateway, service = %name, %failure, "a Gateway does not get its Service; attempts go on");
            }
        }
        ledger.note(wanted, result.is_ok(), Instant::now());
    };
    let failure = send_all(attempts, budget, options.handle.stats(), retry_log, note).await;
    failure.map(|failure| retry_log.failed(&failure))
}

/// Applies the Service, unless another object has its name.
async fn send(client: &Client, manager: &str, wanted: &Wanted, limit: Duration) -> Result<(), RequestFailure> {
    let Wanted { gateway: _, owner, name, body } = wanted;
    let api: Api<Service> = Api::namespaced(client.clone(), &name.namespace);
    let (mut body, mut params) = (body.clone(), PatchParams::apply(manager));
    match ask(limit, api.get_metadata(&name.name)).await {
        Ok(present) => {
            let owners = present.metadata.owner_references.unwrap_or_default();
            if owners.iter().all(|reference| *reference.uid != **owner) {
                let message = "a Service of this name exists; rename it or the Gateway";
                return Err(RequestFailure::Refused(message.to_owned()));
            }
            // Should another object get the name meanwhile, the server answers 409.
            body["metadata"]["uid"] = present.metadata.uid.into();
            // Forced: it belongs to the Gateway, so former writers of these fields do not keep them.
            params = params.force();
        }
        // Not forced: fields of a Service that another client creates meanwhile stay as they are.
        Err(RequestFailure::Gone(_)) => {}
        Err(failure) => return Err(failure),
    }
    ask(limit, api.patch_metadata(&name.name, &params, &Patch::Apply(body))).await.map(drop)
}

// === impl Wanted ===

impl Wanted {
    /// Returns `None` for a Gateway without a UID, and for one that is being deleted.
    fn of(gateway: &ObjectName, object: &Gateway) -> Option<Self> {
        if object.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let owner = object.metadata.uid.as_deref()?;
        let name = service_name(&gateway.name);
        let infrastructure = object.spec.infrastructure.clone().unwrap_or_default();
        let mut labels: BTreeMap<&str, &str> =
            infrastructure.labels.iter().map(|(key, value)| (&**key, &**value)).collect();
        labels.insert(GATEWAY_NAME, if gateway.name.len() <= LONGEST { &gateway.name } else { &name });
        let body = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "namespace": &*gateway.namespace,
                "name": name,
                "labels": labels,
                "annotations": infrastructure.annotations,
                "ownerReferences": [{
                    "apiVersion": format!("{GROUP}/v1"),
                    "kind": "Gateway",
                    "name": &*gateway.name,
                    "uid": owner,
                    "controller": true,
                }],
            },
            "spec": { "type": "ClusterIP", "clusterIP": "None" },
        });
        let name = ObjectName::new(&gateway.namespace, &name);
        Some(Self { gateway: gateway.clone(), owner: owner.into(), name, body })
    }
}

// === impl Ledger ===

impl Ledger {
    /// Returns the Services to write: those that differ from the last write, and those that are gone. One that is gone or
    /// could not be written is tried again no sooner than `interval` after the last attempt: a policy may delete it each
    /// time.
    fn plan(&mut self, all: &[Wanted], exists: impl Fn(&ObjectName) -> bool, interval: Duration, now: Instant) -> Plan {
        let mut plan = Plan::default();
        let mut known = std::mem::take(&mut self.0);
        for wanted in all {
            let Some(written) = known.remove(&wanted.gateway) else {
                plan.writes.push(wanted.clone());
                continue;
            };
            let exists = exists(&wanted.name);
            let due = match written.state {
                _ if written.wanted != *wanted => now,
                State::Written if exists => {
                    self.0.insert(wanted.gateway.clone(), written);
                    continue;
                }
                State::Written | State::Failed => written.at + interval,
            };
            if due <= now {
                plan.writes.push(wanted.clone());
            } else {
                plan.next = Some(plan.next.map_or(due, |next| next.min(due)));
            }
            self.0.insert(wanted.gateway.clone(), written);
        }
        plan
    }

    fn has_failed(&self, wanted: &Wanted) -> bool {
        self.0.get(&wanted.gateway).is_some_and(|last| last.state == State::Failed && last.wanted == *wanted)
    }

    fn note(&mut self, wanted: Wanted, succeeded: bool, at: Instant) {
        let state = if succeeded { State::Written } else { State::Failed };
        let gateway = wanted.gateway.clone();
        self.0.insert(gateway, Written { wanted, at, state });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use crate::gateway::Infrastructure;

    const INTERVAL: Duration = Duration::from_secs(60);

    fn gateway(name: &str, key: &str) -> Wanted {
        let mut object: Gateway = Gateway::default();
        object.metadata.uid = Some(format!("uid-{name}").into());
        object.spec.infrastructure = Some(Infrastructure {
            labels: BTreeMap::from([(key.into(), "a".into()), (GATEWAY_NAME.into(), "another".into())]),
            annotations: BTreeMap::from([("b.test/c".into(), "d".into())]),
            parameters_ref: None,
        });
        Wanted::of(&ObjectName::new("n", name), &object).expect("it has a UID")
    }

    #[test]
    fn names_are_labels_of_dns_and_differ() {
        assert_eq!(service_name("web"), "gateway-web");
        assert_eq!(service_name(&"a".repeat(55)), format!("gateway-{}", "a".repeat(55)));
        let names = ["a.b", "a-b", &"a".repeat(56), &"a".repeat(57), &"é".repeat(60), &"a.".repeat(126)];
        let services: Vec<_> = names.iter().map(|name| service_name(name)).collect();
        for (at, service) in services.iter().enumerate() {
            assert!(service.len() <= LONGEST && !service.contains('.'), "{service}");
            assert!(!services[at + 1..].contains(service), "{service}");
        }
    }

    #[test]
    fn a_service_carries_the_metadata_of_the_infrastructure() {
        let Wanted { name, body, .. } = gateway("web", "team");
        assert_eq!(name, ObjectName::new("n", "gateway-web"));
        let metadata = &body["metadata"];
        assert_eq!(metadata["labels"], json!({"team": "a", GATEWAY_NAME: "web"}), "the Gateway's name wins");
        assert_eq!(metadata["annotations"], json!({"b.test/c": "d"}));
        let owner = json!([{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": "web",
            "uid": "uid-web", "controller": true}]);
        assert_eq!(metadata["ownerReferences"], owner);
        let long = "a".repeat(64);
        assert_eq!(gateway(&long, "team").body["metadata"]["labels"][GATEWAY_NAME], *service_name(&long));
    }

    #[test]
    fn gateways_that_are_deleted_or_unknown_get_none() {
        let name = ObjectName::new("n", "web");
        let mut object: Gateway = Gateway::default();
        assert_eq!(Wanted::of(&name, &object), None, "without a UID");
        object.metadata.uid = Some("u".into());
        assert!(Wanted::of(&name, &object).is_some());
        object.metadata.deletion_timestamp = Some(Box::new("2026-01-01T00:00:00Z".parse().map(Time).expect("a time")));
        assert_eq!(Wanted::of(&name, &object), None, "being deleted");
    }

    #[test]
    fn a_service_is_written_again_if_it_differs_is_gone_or_failed() {
        let (mut ledger, begin) = (Ledger::default(), Instant::now());
        let (old, new) = ([gateway("web", "team")], [gateway("web", "group")]);
        let writes = |ledger: &mut Ledger, all: &[Wanted], exists: bool, at: Duration| {
            let Plan { writes, next } = ledger.plan(all, |_| exists, INTERVAL, begin + at);
            assert!(writes.is_empty() || writes == all);
            (writes.len(), next.map(|next| next - begin))
        };
        assert_eq!(writes(&mut ledger, &old, false, Duration::ZERO), (1, None), "new");
        ledger.note(old[0].clone(), true, begin);
        assert_eq!(writes(&mut ledger, &old, false, Duration::ZERO), (0, Some(INTERVAL)), "its event is on the way");
        assert_eq!(writes(&mut ledger, &old, true, INTERVAL), (0, None), "it is there");
        assert_eq!(writes(&mut ledger, &old, false, INTERVAL / 2), (0, Some(INTERVAL)), "deleted soon");
        assert_eq!(writes(&mut ledger, &old, false, INTERVAL), (1, None), "gone");
        assert_eq!(writes(&mut ledger, &new, true, INTERVAL), (1, None), "changed");
        ledger.note(new[0].clone(), false, begin);
        assert!(ledger.has_failed(&new[0]) && !ledger.has_failed(&old[0]));
        assert_eq!(writes(&mut ledger, &new, true, Duration::ZERO), (0, Some(INTERVAL)), "failed");
        assert_eq!(writes(&mut ledger, &new, true, INTERVAL), (1, None), "tried again");
        assert_eq!(writes(&mut ledger, &[], true, INTERVAL), (0, None));
        assert!(ledger.0.is_empty(), "the Gateway is gone");
    }
}
