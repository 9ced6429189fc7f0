//! A route as it is made: where it is attached, and its rules as candidates for the hosts of listeners. Other routes are
//! not known here.

use std::{
    cmp::{Ordering, Reverse},
    fmt,
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    attach::{AttachedListeners, Attachment, conclude, count_hostnames},
    backend,
    hostname_conflicts::accepted,
    report::{ACCEPTED, Flaw, RESOLVED_REFS, unless},
    route_conflicts::MatchIndex,
};
use crate::{
    change::{ObjectId, ObjectName},
    cluster::Stored,
    gateway::{HeldMetadata, route::Route},
    object_status::{ObjectStatus, ParentReference, ParentStatus, StatusBody},
    outcome::Origin,
    translate::{claims::age, lookup::Lookup},
};
use ingress_model::{ListenerName, PathMatch, Rule, WeightedBackends};

/// A route of this controller.
#[derive(PartialEq)]
pub(crate) struct MadeRoute {
    pub(crate) precedence: RoutePrecedence,
    pub(super) origin: Origin,
    /// Listeners to which the route is attached, unless it yields to another there.
    pub(crate) attachments: AttachedListeners,
    parents: Box<[RouteParent]>,
    /// The flaw of a backend.
    unresolved: Option<Box<Flaw>>,
    generation: i64,
    pub(super) rules: RouteRules,
    /// Services that its backends name.
    pub(crate) services: Box<[ObjectName]>,
}

/// A reference to a Gateway or ListenerSet of this controller, with the listeners to which the route attaches by it.
#[derive(PartialEq)]
pub(super) struct RouteParent {
    pub(super) reference: ParentReference,
    pub(super) listeners: Result<Box<[ListenerName]>, Flaw>,
}

/// The effect of a route.
#[derive(PartialEq)]
pub(super) enum RouteRules {
    /// Requests of HTTP and gRPC.
    Requests(ByListener<Box<[Candidate]>>),
    /// Connections and sessions; `None` refuses them.
    Bytes(ByListener<Option<Arc<WeightedBackends>>>),
}

/// Rules of a route, once for each certificate that its Gateways present to backends, with the listeners of these
/// Gateways.
#[derive(Default, PartialEq)]
pub(super) struct ByListener<T>(pub(super) Box<[(Box<[ListenerName]>, T)]>);

/// Order of routes: the oldest first, then by namespace and name. Routes without a time, such as those from files, come
/// last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoutePrecedence {
    age: (bool, Option<Time>),
    pub(crate) id: ObjectId,
}

/// A rule for one match of a route.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) rule: Rule,
    pub(super) index: MatchIndex,
}

/// Maximum number of a route's rules: one for each match, for each hostname of each listener.
const MAX_RULES: usize = 10_000;

// === impl MadeRoute ===

impl MadeRoute {
    /// Makes a route of its parts. With `flaw`, it is attached nowhere. `unresolved` is the flaw of a backend.
    pub(super) fn new<R: Route>(
        id: &ObjectId,
        stored: &Stored<R>,
        found: Vec<Attachment<'_>>,
        flaw: Option<Flaw>,
        unresolved: Option<Flaw>,
        rules: RouteRules,
        lookup: &Lookup<'_>,
    ) -> Self {
        let Stored { object: route, origin } = stored;
        let metadata = route.metadata();
        let flaw = flaw.or_else(|| too_many(&rules, count_hostnames(&found)));
        let (attachments, parents) = conclude(found, flaw.as_ref());
        Self {
            precedence: RoutePrecedence::of(id, metadata),
            origin: origin.clone(),
            attachments,
            parents,
            unresolved: unresolved.map(Box::new),
            generation: metadata.generation.unwrap_or_default(),
            rules,
            services: backend::services(id, route.backends(), lookup),
        }
    }

    /// Returns the status. `yields_to` returns the older route to which this one yields at a listener.
    pub(crate) fn status<'r>(&self, yields_to: impl Fn(&ListenerName) -> Option<&'r ObjectId>) -> ObjectStatus {
        let parent = |RouteParent { reference, listeners }: &RouteParent| {
            let accepted = match listeners {
                Ok(listeners) => accepted(listeners, &yields_to),
                Err(flaw) => flaw.unmet(ACCEPTED),
            };
            let conditions = vec![accepted, unless(RESOLVED_REFS, self.unresolved.as_deref())];
            ParentStatus { parent: reference.clone(), conditions }
        };
        let parents = self.parents.iter().map(parent).collect();
        ObjectStatus { generation: self.generation, body: StatusBody::Route { parents } }
    }
}

/// Returns the flaw of a route whose rules, for this number of hostnames, are too many.
fn too_many(rules: &RouteRules, hostnames: usize) -> Option<Flaw> {
    let count = hostnames.saturating_mul(rules.count());
    let message = || {
        format!(
            "there are {count} rules, one for each match and each hostname of each listener, which exceed the {MAX_RULES} \
             allowed; name fewer hostnames or listeners, or divide the route"
        )
    };
    (count > MAX_RULES).then(|| Flaw::unsupported(message()))
}

// === impl RouteRules ===

impl RouteRules {
    /// Returns the number of rules for a hostname of a listener.
    fn count(&self) -> usize {
        match self {
            Self::Requests(ByListener(rules)) => {
                rules.iter().map(|(_, candidates)| candidates.len()).max().unwrap_or(0)
            }
            Self::Bytes(_) => 1,
        }
    }
}

// === impl ByListener ===

impl<T> ByListener<T> {
    /// Returns the rules at a listener, if the route reaches it.
    pub(super) fn at(&self, listener: &ListenerName) -> Option<&T> {
        self.0.iter().find(|(listeners, _)| listeners.contains(listener)).map(|(_, rules)| rules)
    }
}

// === impl RoutePrecedence ===

impl RoutePrecedence {
    pub(super) fn of(id: &ObjectId, metadata: &HeldMetadata) -> Self {
        Self { age: age(metadata.creation_timestamp.as_ref()), id: id.clone() }
    }
}

impl Ord for RoutePrecedence {
    fn cmp(&self, other: &Self) -> Ordering {
        let Self { age, id: ObjectId { kind, name } } = self;
        (age, name, kind).cmp(&(&other.age, &other.id.name, &other.id.kind))
    }
}

impl PartialOrd for RoutePrecedence {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
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

/// Example: `= /checkout if(POST)`.
impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rule { path, conditions, .. } = &self.rule;
        write!(f, "{path}")?;
        conditions.as_ref().map_or(Ok(()), |conditions| write!(f, " if({conditions})"))
    }
}
