//! Translates a cluster into a route table. Pure and total: no IO, no clock, no async; it never fails, it reports.
//!
//! ```text
//! Ingress ──class──> ours? ──ingress──> Claims ──merge──> hosts ─┐
//!            annotations ──> Policy ──┘  │                       ├─> RouteTable
//! Service + EndpointSlice ──destination/endpoints──> upstreams ──┤
//! Service + resolved names ──destination/external──> upstreams ──┤
//! Secret ──secret──> certificates ───────────────────────────────┤
//! ConfigMap ──settings──> Globals ───────────────────────────────┤
//! ConfigMap ──streams──> ports of TCP and UDP ───────────────────┘
//! ```
//!
//! Each Ingress becomes its claims by itself; claims are merged host by host, oldest Ingress first, so the first to
//! claim a path has it. What concerns a host as a whole, as the redirect to HTTPS, is settled when all claims on it are
//! there. One bad object never blocks another, and a rule that cannot be honoured answers an error.
//!
//! A change costs what it touches: [`Translator`] keeps each part with what it was made from (`records`), and makes
//! anew those that were made from what has changed.

use std::sync::Arc;

use k8s_openapi::{
    api::networking::v1::Ingress,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};

use super::{
    change::ObjectName,
    cluster::Cluster,
    outcome::{ObjectRef, Outcome},
};
use crate::model::{CanaryRule, HostPattern, RouteTable, Rule, Tree};

mod address;
mod alias;
mod annotations;
mod asked;
mod believed;
mod class;
mod context;
mod destination;
mod endpoints;
mod expressions;
mod external;
mod grant;
mod ingress;
mod merge;
mod named;
mod options;
mod ownership;
mod protocol;
mod records;
mod secret;
mod service;
mod settings;
mod solver;
mod staple;
mod streams;
mod tickets;
mod topology;
mod translator;
mod values;

use annotations::{Clients, Redirect};
pub(in crate::control) use annotations::{references as annotation_references, service_of_url, services_of};
pub use class::Classes;
use context::Context;
pub(in crate::control) use named::Namer;
pub use options::{CatchAll, ExternalNames, Options, ServicePattern};
pub use ownership::HostSharing;
pub(in crate::control) use settings::references as settings_references;
use solver::Standing;
pub(in crate::control) use streams::references as stream_references;
pub use translator::Translator;

/// A route table and what there is to say about the objects it came from. A copy costs nothing, and to compare two
/// costs what differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    pub table: RouteTable,
    pub outcomes: Tree<Arc<Outcome>, ()>,
    /// The Ingresses that are ours, whatever is wrong with them.
    pub served: Tree<ObjectName, ()>,
    /// DNS names whose addresses matter, for [`Cluster::resolved`].
    pub external_names: Tree<Arc<str>, ()>,
}

/// What the API server allows all annotations of an object to hold together (apimachinery,
/// `TotalAnnotationSizeLimitB`); asked of every source.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

/// Rules and paths of one Ingress, together. The API server has no such limit but its 1.5 MiB for an object, into which
/// about this many fit; a file of a manifests directory has none.
const MAX_PATHS: usize = 10_000;

/// Rules of one Ingress whose requests are counted for themselves; each has some series of metrics.
const MAX_METERED: usize = 500;

/// Rules that hosts of solvers borrow, all together.
const MAX_LENT: usize = 100_000;

/// Translates everything that is ours according to `options`: what a [`Translator`] says that has seen nothing before.
#[must_use]
pub fn translate(cluster: &Cluster, options: &Options) -> Translation {
    Translator::new(options.clone()).translate(cluster)
}

/// What one Ingress asks for.
#[derive(PartialEq, Eq)]
struct Claims {
    object: ObjectRef,
    precedence: Precedence,
    /// What its rules make of plain HTTP.
    redirect: Redirect,
    /// What clients of its hosts must show.
    clients: Clients,
    /// Whether connections over TLS for its hosts are passed on to pods.
    passes: bool,
    /// Namespaces that may add paths to its hosts, where that is granted.
    shares_with: Arc<[Arc<str>]>,
    /// Which requests its rules take from those of others, if they are no rules of their own.
    canary: Option<Box<CanaryRule>>,
    /// Memory of the regular expressions of its paths, in bytes.
    expressions: usize,
    /// Sorted by host, each once.
    hosts: Vec<(HostPattern, HostClaim)>,
}

/// Who has what several claim: solvers of challenges first, as each is there for one path and for a short time; then
/// the oldest, then by namespace and name. Objects without a timestamp, as files have them, come after those with one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Precedence {
    standing: Standing,
    age: (bool, Option<Time>),
    name: ObjectName,
}

/// What one Ingress asks for one host.
#[derive(Default, PartialEq, Eq)]
struct HostClaim {
    /// `None` if it has no rules for it.
    rules: Option<RulesClaim>,
    /// Whether it gives the host TLS: its `tls` names the host, or covers it and it has rules for it.
    has_tls: bool,
    /// The Secret, of the same namespace, for this name.
    certificate: Option<ObjectName>,
    /// What it asks for if no rule of any Ingress names the host.
    alias: Option<Box<AliasClaim>>,
}

/// What one Ingress asks for a further name of a host of its own.
#[derive(PartialEq, Eq)]
struct AliasClaim {
    kind: AliasKind,
    rules: RulesClaim,
    /// As that host has it.
    has_tls: bool,
    certificate: Option<ObjectName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AliasKind {
    /// It is served by the same rules.
    Same,
    /// It has, or lacks, `www.` before it, and is redirected.
    Www,
}

#[derive(Clone, Default, PartialEq, Eq)]
struct RulesClaim {
    /// Without filters, which follow from the claims of all.
    rules: Vec<Rule>,
    fallback: Option<Box<Rule>>,
}

/// Orders objects, oldest first.
fn age(metadata: &ObjectMeta) -> (bool, Option<Time>) {
    let created = metadata.creation_timestamp.clone();
    (created.is_none(), created)
}

// === impl Claims ===

impl Claims {
    fn of(&self, pattern: &HostPattern) -> Option<&HostClaim> {
        let at = self.hosts.binary_search_by(|(host, _)| host.cmp(pattern)).ok()?;
        self.hosts.get(at).map(|(_, claim)| claim)
    }
}

// === impl Precedence ===

impl Precedence {
    fn of(name: &ObjectName, ingress: &Ingress) -> Self {
        Self { standing: Standing::of(ingress), age: age(&ingress.metadata), name: name.clone() }
    }

    /// What is older is less, whatever its standing.
    fn seniority(&self) -> impl Ord + use<'_> {
        (&self.age, &self.name)
    }
}
