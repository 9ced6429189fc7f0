//! Translates a cluster into a route table. Pure and total: no IO, no clock, no async; it never fails, it reports.
//!
//! ```text
//! Ingress ──class──> ours? ──ingress──> Claims ──merge──> hosts ─┐
//!            annotations ──> Policy ──┘  │                       ├─> RouteTable
//! Service + EndpointSlice ──service/endpoints──> upstreams ──────┤
//! Service + resolved names ──external/address──> upstreams ──────┤
//! Secret ──secret──> certificates ───────────────────────────────┤
//! ConfigMap ──settings──> Globals ───────────────────────────────┘
//! ```
//!
//! Each Ingress becomes its claims by itself; claims are merged oldest Ingress first, so the first to claim a host and
//! path has it. What concerns a host as a whole, as the redirect to HTTPS, is settled when all claims are there. One bad object never blocks another, and a rule that cannot be honoured answers an error.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::{
    api::networking::v1::Ingress,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};

use super::{
    change::{Kind, ObjectName},
    cluster::{Cluster, Stored},
    outcome::Outcome,
};
use crate::model::{HostPattern, RouteTable, Rule};

mod address;
mod annotations;
mod class;
mod context;
mod endpoints;
mod external;
mod ingress;
mod merge;
mod options;
mod protocol;
mod secret;
mod service;
mod settings;
mod solver;
mod topology;
mod values;

use annotations::Redirect;
pub(in crate::control) use annotations::references as annotation_references;
pub use class::Classes;
use context::{Context, Dependency, Trace};
use merge::Merged;
pub use options::{CatchAll, ExternalNames, Options};
pub(in crate::control) use settings::references as settings_references;
use solver::Standing;

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

/// Rules that hosts of solvers borrow, all together.
const MAX_LENT: usize = 100_000;

/// Translates everything that is ours according to `options`.
#[must_use]
pub fn translate(cluster: &Cluster, options: &Options) -> Translation {
    let mut context = Context::new(cluster, options);
    let ((table, served), trace) = context.traced(|context| table(cluster, context));
    let Trace { reads, mut outcomes } = trace;
    outcomes.sort();
    outcomes.dedup();
    let external_names = reads.into_iter().filter_map(|read| match read {
        Dependency::Addresses(name) => Some(name),
        _ => None,
    });
    Translation { table, outcomes, served, external_names: external_names.collect() }
}

/// The table, and the Ingresses that are ours.
fn table(cluster: &Cluster, context: &mut Context<'_>) -> (RouteTable, BTreeSet<ObjectName>) {
    context.globals = settings::globals(context);
    let options = context.options;
    let mut merged = Merged::default();
    let mut served = BTreeSet::new();
    for (name, stored) in by_precedence(cluster) {
        let object = stored.refer(Kind::Ingress, name);
        if class::is_ours(&stored.object, &object, context) {
            served.insert(name.clone());
            let claims = ingress::claims(name, &stored.object, &object, context);
            merged.add(claims, &object, context);
        }
    }
    merged.lend_to_solvers(context);
    let default = options.default_backend.as_ref().and_then(|name| service::default(name, context));
    let fallback_certificate = options.default_certificate.as_ref().and_then(|name| secret::fallback(name, context));
    let (upstreams, globals) = (std::mem::take(&mut context.upstreams), context.globals.clone());
    (RouteTable { fallback_certificate, ..merged.into_table(default, upstreams, globals) }, served)
}

/// Solvers of challenges first, as each is there for one path and for a short time; then the oldest first, then by namespace
/// and name. Objects without a timestamp, as files have them, come after those with one.
fn by_precedence(cluster: &Cluster) -> Vec<(&ObjectName, &Stored<Ingress>)> {
    let mut ingresses: Vec<_> = cluster.ingresses.iter().collect();
    ingresses.sort_by_cached_key(|(name, stored)| (Standing::of(&stored.object), age(&stored.object.metadata), *name));
    ingresses
}

/// Orders objects, oldest first.
fn age(metadata: &ObjectMeta) -> (bool, Option<Time>) {
    let created = metadata.creation_timestamp.clone();
    (created.is_none(), created)
}

/// What one Ingress asks for.
#[derive(Default)]
struct Claims {
    standing: Standing,
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
