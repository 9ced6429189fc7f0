//! A route as it is made: where it is attached, and its rules as candidates for the hosts of listeners.

use std::{cmp::Reverse, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::attach::Attachments;
use crate::{change::ObjectId, object_status::ObjectStatus, translate::claims::age};
use ingress_model::{PathMatch, Rule};

/// A route of this controller.
#[derive(PartialEq)]
pub(crate) struct MadeRoute {
    pub(crate) precedence: RoutePrecedence,
    /// Listeners to which the route is attached.
    pub(crate) attachments: Attachments,
    pub(super) candidates: Vec<Candidate>,
    pub(crate) status: Arc<ObjectStatus>,
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
