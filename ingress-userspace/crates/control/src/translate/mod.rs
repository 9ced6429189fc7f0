//! Translates a cluster into a route table. The translation is pure and total: no IO, no clock, no async; it never
//! fails, it reports.
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
//! Each Ingress is converted into its claims separately. Claims are merged host by host, oldest Ingress first, so the
//! first to claim a path has it. Properties of a host as a whole, such as the redirect to HTTPS, are settled when all
//! claims on it are known. One bad object never blocks another, and a rule that cannot be honoured answers an error.
//!
//! The cost of a change depends on the parts it affects: [`Translator`] keeps each part with its dependencies
//! (`records`), and makes only those parts anew that have changed dependencies.

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
use ingress_model::{CanaryRule, HostPattern, RouteTable, Rule, Tree};

mod address;
mod alias;
mod annotations;
mod budget;
mod class;
mod context;
mod destination;
mod effects;
mod endpoints;
mod expressions;
mod external_name;
mod grant;
mod ingress;
mod ingress_role;
mod merge;
mod meters;
mod named;
mod options;
mod ownership;
mod parsed_annotations;
mod protocol;
mod records;
mod secret;
mod service;
mod settings;
mod shares;
mod staple;
mod streams;
mod text;
mod tickets;
mod topology;
mod translator;
mod trust_anchors;
mod values;

pub(crate) use address::{is_always_refused, reached};
use annotations::{Clients, Redirect};
pub(crate) use annotations::{references as annotation_references, service_of_url, services_of};
pub use class::Classes;
use context::Context;
use ingress_role::IngressRole;
pub(crate) use named::{Affected, Namer};
pub use options::{CatchAll, ExternalNames, Options, ServicePattern};
pub use ownership::HostSharing;
pub(crate) use settings::references as settings_references;
pub(crate) use streams::references as stream_references;
pub use translator::Translator;

/// A route table and the outcomes of its objects. A copy is cheap, and the cost of a comparison grows with the
/// differences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    pub table: RouteTable,
    pub outcomes: Tree<Arc<Outcome>, ()>,
    /// The Ingresses of this controller, regardless of their problems.
    pub served: Tree<ObjectName, ()>,
    /// The served Ingresses in effect: the table has at least one of their claims.
    pub in_effect: Tree<ObjectName, ()>,
    /// DNS names with addresses in use, for [`Cluster::resolved`].
    pub external_names: Tree<Arc<str>, ()>,
}

/// Maximum total size of the annotations of an object in the API server (apimachinery, `TotalAnnotationSizeLimitB`);
/// applied to every source.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

/// Maximum number of rules and paths of one Ingress, together. The API server only limits an object to 1.5 MiB, into
/// which about this many fit; a file of a manifests directory has no such limit.
const MAX_PATHS: usize = 10_000;

/// Maximum number of rules of one Ingress with separate counts; each has several series of metrics.
const MAX_METERED: usize = 500;

/// Maximum number of rules that hosts of solvers inherit, all together.
const MAX_LENT: usize = 100_000;

/// Translates all Ingresses of this controller according to `options`, like a new [`Translator`].
#[must_use]
pub fn translate(cluster: &Cluster, options: &Options) -> Translation {
    Translator::new(options.clone()).translate(cluster)
}

/// The claims of one Ingress.
#[derive(PartialEq, Eq)]
struct Claims {
    object: ObjectRef,
    precedence: Precedence,
    /// Its IngressClass, if it names one.
    class: Option<Arc<str>>,
    /// The treatment of plain HTTP by its rules.
    redirect: Redirect,
    /// Demands on the clients of its hosts.
    clients: Clients,
    /// Whether TLS connections for its hosts are passed through to pods.
    passes: bool,
    /// Namespaces that may add paths to its hosts, if the host-sharing mode grants that.
    shares_with: Arc<[Arc<str>]>,
    /// The requests that its rules take from those of other Ingresses, if it is a canary.
    canary: Option<Box<CanaryRule>>,
    /// Memory of the regular expressions of its paths, in bytes.
    expressions: usize,
    /// Number of rules to count separately.
    metered: usize,
    /// Sorted by host, each once.
    hosts: Vec<(HostPattern, HostClaim)>,
}

/// Order of precedence for competing claims. Solvers of challenges come first, because each is there for one path and
/// for a short time. Then the oldest comes first, then namespace and name decide. Objects without a timestamp, such as
/// those from files, come after those with one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Precedence {
    role: IngressRole,
    age: (bool, Option<Time>),
    name: ObjectName,
}

/// The claims of one Ingress on one host.
#[derive(Default, PartialEq, Eq)]
struct HostClaim {
    /// `None` if it has no rules for it.
    rules: Option<RulesClaim>,
    /// Whether it gives the host TLS: its `tls` names the host, or covers it and it has rules for it.
    has_tls: bool,
    /// The Secret, of the same namespace, for this name.
    certificate: Option<ObjectName>,
    /// Claims that apply if no rule of any Ingress names the host.
    alias: Option<Box<AliasClaim>>,
}

/// The claims of one Ingress on a further name of one of its hosts.
#[derive(PartialEq, Eq)]
struct AliasClaim {
    kind: AliasKind,
    rules: RulesClaim,
    /// Copied from that host.
    has_tls: bool,
    certificate: Option<ObjectName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AliasKind {
    /// The alias is served by the same rules.
    Same,
    /// The alias has, or lacks, `www.` before it, and is redirected.
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

    /// Returns the hosts with claims that also affect more specific hosts: their owner, and their certificate.
    /// `is_any_certified` if an Ingress claims a certificate for all hosts. Then every claim on all hosts may change
    /// which Ingress owns them, and with it the right to that certificate.
    fn reaching_below(&self, is_any_certified: bool) -> impl Iterator<Item = &HostPattern> {
        let reaches = move |(pattern, claim): &&(HostPattern, HostClaim)| match pattern {
            HostPattern::Exact(_) => false,
            HostPattern::Wildcard(_) => true,
            HostPattern::Any => is_any_certified || claim.certificate.is_some(),
        };
        self.hosts.iter().filter(reaches).map(|(pattern, _)| pattern)
    }
}

// === impl Precedence ===

impl Precedence {
    fn of(name: &ObjectName, ingress: &Ingress) -> Self {
        Self { role: IngressRole::of(ingress), age: age(&ingress.metadata), name: name.clone() }
    }

    /// Orders claims by age, regardless of their role; older is less.
    fn seniority(&self) -> impl Ord + use<'_> {
        (&self.age, &self.name)
    }
}
