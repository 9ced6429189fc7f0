//! A route as it is made: where it is attached, and its rules as candidates for the hosts of listeners.

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::{
    attach::{Attachment, Attachments, conclude},
    report::Flaw,
};
use crate::{
    change::{ObjectId, ObjectName},
    object_status::{ObjectStatus, StatusBody},
    translate::claims::age,
};
use ingress_model::{PathMatch, Rule, WeightedBackends};

/// A route of this controller.
#[derive(PartialEq)]
pub(crate) struct MadeRoute {
    pub(crate) precedence: RoutePrecedence,
    /// Listeners to which the route is attached.
    pub(crate) attachments: Attachments,
    pub(super) rules: RouteRules,
    /// Services that its backends name.
    pub(crate) services: BTreeSet<ObjectName>,
    pub(crate) status: Arc<ObjectStatus>,
}

/// The effect of a route.
#[derive(PartialEq)]
pub(super) enum RouteRules {
    /// Requests of HTTP and gRPC.
    Requests(Vec<Candidate>),
    /// Connections and sessions; `None` refuses them.
    Bytes(Option<Arc<WeightedBackends>>),
}

/// Order of routes: the oldest first, then by namespace and name. Routes without a time, such as those from files, come
/// last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RoutePrecedence {
    age: (bool, Option<Time>),
    namespace: Arc<str>,
    name: Arc<str>,
    pub(crate) id: ObjectId,
}

/// A rule for one match of a route.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) rule: Rule,
    /// Index of the rule in the route, and of the match in the rule.
    pub(super) index: (usize, usize),
}

// === impl MadeRoute ===

impl MadeRoute {
    /// Makes a route of its parts. With `flaw`, it is attached nowhere. `unresolved` is the flaw of a backend.
    pub(super) fn new(
        id: &ObjectId,
        metadata: &ObjectMeta,
        found: Vec<Attachment<'_>>,
        flaw: Option<Flaw>,
        unresolved: Option<Flaw>,
        rules: RouteRules,
        services: BTreeSet<ObjectName>,
    ) -> Self {
        let (attachments, parents) = conclude(found, flaw.as_ref(), unresolved.as_ref());
        let generation = metadata.generation.unwrap_or_default();
        Self {
            precedence: RoutePrecedence::of(id, metadata),
            attachments,
            rules,
            services,
            status: ObjectStatus { generation, body: StatusBody::Route { parents } }.into(),
        }
    }
}

// === impl RoutePrecedence ===

impl RoutePrecedence {
    pub(super) fn of(id: &ObjectId, metadata: &ObjectMeta) -> Self {
        Self {
            age: age(metadata),
            namespace: Arc::clone(&id.name.namespace),
            name: Arc::clone(&id.name.name),
            id: id.clone(),
        }
    }
}

// === impl Candidate ===

impl Candidate {
    /// Returns the place of the candidate among others of a host: less goes first.
    pub(super) fn rank(&self) -> (&PathMatch, bool, Reverse<usize>, Reverse<usize>) {
        let (mut has_no_method, mut headers, mut parameters) = (true, 0, 0);
        if let Some(conditions) = &self.rule.conditions {
            has_no_method = conditions.method.is_none();
            (headers, parameters) = (conditions.headers.len(), conditions.parameters.len());
        }
        (&self.rule.path, has_no_method, Reverse(headers), Reverse(parameters))
    }
}
