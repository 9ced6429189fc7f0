//! Tests the plan and the patches, without a server.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    attempts::{COUNTS, Effect},
    bearer::Bearer,
    nodes::{BOUND, Inquiry, Knowledge},
    patch::{Present, StatusPatch},
    plan::{Circumstances, Ledger, Plan, Write, plan},
};
use crate::{
    change::{Kind, ObjectId, ObjectName},
    gateway::{self, CONTROLLER_NAME},
    object_status::{
        Condition, GatewayAddress, ListenerStatus, ObjectStatus, ParentReference, ParentStatus, StatusBody,
    },
    status::plan::LEFT_FOR,
};

mod nodes;
mod patches;
mod plans;

const INTERVAL: Duration = Duration::from_secs(60);
const THEN: &str = "2026-01-01T00:00:00Z";
const NOW: &str = "2026-02-02T00:00:00Z";

fn time(text: &str) -> Time {
    Time(text.parse::<Timestamp>().expect("a time"))
}

fn id(kind: Kind) -> ObjectId {
    ObjectId { kind, name: ObjectName::new("n", "a") }
}

/// Returns a condition as it is shown: with generation 3, and since [`THEN`].
fn shown(kind: &str, status: &str, reason: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": "", "observedGeneration": 3,
        "lastTransitionTime": THEN})
}

fn seeded() -> Value {
    shown("example.test/Seeded", "True", "Seeded")
}

fn listener(routes: u32) -> ListenerStatus {
    ListenerStatus {
        name: "http".into(),
        supported_kinds: vec!["HTTPRoute", "GRPCRoute"],
        attached_routes: routes,
        conditions: vec![Condition::met("Accepted", "Accepted")],
    }
}

fn shown_listener(name: &str, routes: u32) -> Value {
    let kind = |kind: &str| json!({"group": "gateway.networking.k8s.io", "kind": kind});
    json!({"name": name, "attachedRoutes": routes, "supportedKinds": [kind("HTTPRoute"), kind("GRPCRoute")],
        "conditions": [shown("Accepted", "True", "Accepted")]})
}

/// Returns the status of a Gateway with an address of its own.
fn gateway(routes: u32) -> Arc<ObjectStatus> {
    let body = StatusBody::Gateway {
        conditions: vec![Condition::met("Accepted", "Accepted"), Condition::met("Programmed", "Programmed")],
        listeners: vec![listener(routes)],
        addresses: vec![GatewayAddress::Ip([192, 0, 2, 1].into())],
        attached_listener_sets: None,
    };
    Arc::new(ObjectStatus { generation: 3, body })
}

fn shown_gateway(routes: u32) -> Value {
    json!({"addresses": [{"type": "IPAddress", "value": "192.0.2.1"}],
        "conditions": [shown("Accepted", "True", "Accepted"), shown("Programmed", "True", "Programmed")],
        "listeners": [shown_listener("http", routes)]})
}

fn parent(name: &str) -> ParentStatus {
    let parent = ParentReference {
        group: "gateway.networking.k8s.io".into(),
        kind: "Gateway".into(),
        namespace: None,
        name: name.into(),
        section_name: None,
        port: None,
    };
    ParentStatus { parent, conditions: vec![Condition::met("Accepted", "Accepted")] }
}

fn route(parents: &[&str]) -> Arc<ObjectStatus> {
    let parents = parents.iter().map(|name| parent(name)).collect();
    Arc::new(ObjectStatus { generation: 3, body: StatusBody::Route { parents } })
}

fn entry(controller: &str, name: &str) -> Value {
    json!({"parentRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": name},
        "controllerName": controller, "conditions": [shown("Accepted", "True", "Accepted")]})
}

fn ours(name: &str) -> Value {
    entry(CONTROLLER_NAME, name)
}

/// The entry of another controller, with a field that this release does not know.
fn theirs(controller: &str, name: &str) -> Value {
    let mut entry = entry(controller, name);
    entry["parentRef"]["shard"] = json!({"of": 2});
    entry
}

/// A status as the object shows it, by kind.
enum Status {
    Class(gateway::GatewayClassStatus),
    Gateway(gateway::GatewayStatus),
    Set(gateway::ListenerSetStatus),
    Route(gateway::RouteStatus),
    Policy(gateway::PolicyStatus),
}

impl Status {
    fn read(kind: Kind, status: &Value) -> Self {
        let status = status.clone();
        match kind {
            Kind::GatewayClass => serde_json::from_value(status).map(Self::Class),
            Kind::Gateway => serde_json::from_value(status).map(Self::Gateway),
            Kind::ListenerSet => serde_json::from_value(status).map(Self::Set),
            Kind::BackendTlsPolicy => serde_json::from_value(status).map(Self::Policy),
            _ => serde_json::from_value(status).map(Self::Route),
        }
        .expect("a status")
    }

    fn present(&self) -> Present<'_> {
        match self {
            Self::Class(status) => Present::GatewayClass(status),
            Self::Gateway(status) => Present::Gateway(status),
            Self::Set(status) => Present::ListenerSet(status),
            Self::Route(status) => Present::Route(status),
            Self::Policy(status) => Present::Policy(status),
        }
    }
}

/// A leader that plans for one object.
struct Leader {
    kind: Kind,
    ledger: Ledger,
    now: Instant,
    addresses: Option<Vec<GatewayAddress>>,
    /// Its questions to other nodes, if it asks them.
    inquiry: Option<Inquiry>,
}

impl Leader {
    fn new(kind: Kind) -> Self {
        Self { kind, ledger: Ledger::default(), now: Instant::now(), addresses: None, inquiry: None }
    }

    fn plan(&mut self, version: &str, present: &Value, wanted: Option<&Arc<ObjectStatus>>) -> Plan {
        let status = Status::read(self.kind, present);
        let circumstances = Circumstances {
            addresses: self.addresses.as_deref(),
            paused: &BTreeMap::new(),
            interval: INTERVAL,
            round: 64,
            received: Some(self.now),
            now: self.now,
            time: time(NOW),
        };
        let find = |_: &ObjectId| Some(Bearer { uid: "u", version, present: status.present(), wanted });
        let mut knowledge = match &mut self.inquiry {
            None => Knowledge::Nothing,
            Some(inquiry) => Knowledge::Asked(inquiry),
        };
        plan([id(self.kind)].into(), find, &mut self.ledger, &mut knowledge, &circumstances)
    }

    /// Returns the status of the only write, or `None` if there is none. The write has `effect`.
    fn write(
        &mut self,
        version: &str,
        present: &Value,
        wanted: Option<&Arc<ObjectStatus>>,
        effect: Effect,
    ) -> Option<Value> {
        let mut writes = self.plan(version, present, wanted).writes;
        assert!(writes.len() < 2, "{writes:?}");
        let write = writes.pop()?;
        let status = match &write.patch {
            StatusPatch::Apply(status) => status.clone().unwrap_or(Value::Null),
            StatusPatch::Replace(status) => status.clone(),
        };
        self.ledger.attempts.note(write, effect, self.now);
        Some(status)
    }

    fn written(&mut self, version: &str, present: &Value, wanted: &Arc<ObjectStatus>) -> Option<Value> {
        self.write(version, present, Some(wanted), Effect::Written("later".into()))
    }
}

/// Returns the circumstances in which everything is known and allowed.
fn circumstances<'a>(paused: &'a BTreeMap<Kind, Instant>, now: Instant) -> Circumstances<'a> {
    Circumstances { addresses: None, paused, interval: INTERVAL, round: 4, received: None, now, time: time(NOW) }
}

/// Returns the status that a new leader writes.
fn first(kind: Kind, present: &Value, wanted: &Arc<ObjectStatus>) -> Option<Value> {
    Leader::new(kind).written("1", present, wanted)
}
