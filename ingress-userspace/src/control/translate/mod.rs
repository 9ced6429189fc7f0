//! Translates a cluster into a route table. Pure and total: no IO, no clock, no async; it never fails, it reports.
//!
//! ```text
//! Ingress ──class──> ours? ──ingress──> Claims ──merge──> hosts ─┐
//!            annotations ──> Policy ──┘  │                       ├─> RouteTable
//! Service + EndpointSlice ──service/endpoints──> upstreams ──────┤
//! Secret ──secret──> certificates ───────────────────────────────┘
//! ```
//!
//! Each Ingress becomes its claims by itself; claims are merged oldest Ingress first, so the first to claim a host and
//! path has it. What concerns a host as a whole, as the redirect to HTTPS, is settled when all claims are there. One bad object never blocks another, and a rule that cannot be honoured answers an error.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::networking::v1::Ingress;

use super::{
    change::{Kind, ObjectName},
    cluster::{Cluster, Stored},
    outcome::{ObjectRef, Outcome, Reason},
};
use crate::model::{HostPattern, RouteTable, Rule, Upstream, UpstreamKey};

mod annotations;
mod class;
mod endpoints;
mod ingress;
mod merge;
mod options;
mod secret;
mod service;

use annotations::Redirect;
pub use class::Classes;
use merge::Merged;
pub use options::{CatchAll, ExternalNames, Options};

/// A route table and what there is to say about the objects it came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    pub table: RouteTable,
    /// Sorted, without duplicates.
    pub outcomes: Vec<Outcome>,
    /// The Ingresses that are ours, whatever is wrong with them.
    pub served: BTreeSet<ObjectName>,
    /// DNS names whose addresses matter, for [`Cluster::resolved`].
    pub external_names: BTreeSet<Arc<str>>,
}

/// What the API server allows all annotations of an object to hold together (apimachinery, `TotalAnnotationSizeLimitB`);
/// asked of every source.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

/// Rules and paths of one Ingress, together. The API server has no such limit but its 1.5 MiB for an object, into which
/// about this many fit; a file of a manifests directory has none.
const MAX_PATHS: usize = 10_000;

/// Translates everything that is ours according to `options`.
#[must_use]
pub fn translate(cluster: &Cluster, options: &Options) -> Translation {
    let mut context = Context { cluster, upstreams: BTreeMap::new(), outcomes: Vec::new() };
    let mut merged = Merged::default();
    let mut served = BTreeSet::new();
    for (name, stored) in by_age(cluster) {
        let object = stored.refer(Kind::Ingress, name);
        if class::is_ours(&stored.object, &object, cluster, &options.classes, &mut context.outcomes) {
            served.insert(name.clone());
            let claims = ingress::claims(name, &stored.object, &object, &mut context);
            merged.add(claims, &object, &mut context);
        }
    }
    let Context { cluster: _, upstreams, mut outcomes } = context;
    outcomes.sort();
    outcomes.dedup();
    Translation { table: merged.into_table(upstreams), outcomes, served, external_names: BTreeSet::new() }
}

/// Oldest first, then by namespace and name. Objects without a timestamp, as files have them, come after those with one.
fn by_age(cluster: &Cluster) -> Vec<(&ObjectName, &Stored<Ingress>)> {
    let mut ingresses: Vec<_> = cluster.ingresses.iter().collect();
    ingresses.sort_by_key(|(name, stored)| {
        let created = stored.object.metadata.creation_timestamp.as_ref();
        (created.is_none(), created, *name)
    });
    ingresses
}

/// What the translation of one Ingress looks up and adds to.
struct Context<'c> {
    cluster: &'c Cluster,
    upstreams: BTreeMap<UpstreamKey, Upstream>,
    outcomes: Vec<Outcome>,
}

/// What one Ingress asks for.
#[derive(Default)]
struct Claims {
    hosts: Vec<HostClaim>,
    /// Hosts to which it gives TLS: those that its `tls` names, and those of its rules that these cover.
    tls: BTreeSet<HostPattern>,
    /// What its rules make of plain HTTP.
    redirect: Redirect,
    /// Secrets, of the same namespace, by the name that selects them.
    certificates: Vec<(HostPattern, ObjectName)>,
}

struct HostClaim {
    pattern: HostPattern,
    /// Without filters, which follow from the claims of all.
    rules: Vec<Rule>,
    fallback: Option<Rule>,
}

// === impl Context ===

impl Context<'_> {
    fn report(&mut self, object: &ObjectRef, reason: Reason, message: String) {
        self.outcomes.push(Outcome { object: object.clone(), reason, message });
    }
}
