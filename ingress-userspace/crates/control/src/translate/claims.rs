//! The claims of one Ingress on hosts and paths, their order of precedence, and the maximum sizes of an Ingress. Claims
//! are made by `ingress` and merged by `merge`.

use std::sync::Arc;

use k8s_openapi::{api::networking::v1::Ingress, apimachinery::pkg::apis::meta::v1::Time};

use super::{
    compiled_expressions::Cost,
    features::{client_certificates::Clients, https_redirect::Redirect},
    ingress_role::IngressRole,
};
use crate::{change::ObjectName, outcome::ObjectRef};
use ingress_model::{CanaryRule, HostPattern, Rule};

/// Maximum total size of the annotations of an object in the API server (apimachinery, `TotalAnnotationSizeLimitB`);
/// applied to every source.
pub(crate) const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

/// Maximum number of rules and paths of one Ingress, together. The API server only limits an object to 1.5 MiB, into
/// which about this many fit; a file of a manifests directory has no such limit.
pub(crate) const MAX_PATHS: usize = 10_000;

/// Maximum number of rules of one Ingress with separate counts; each has several series of metrics.
pub(crate) const MAX_METERED: usize = 500;

/// Maximum number of rules that hosts of solvers inherit, all together.
pub(crate) const MAX_INHERITED: usize = 100_000;

/// The claims of one Ingress.
#[derive(PartialEq, Eq)]
pub(crate) struct Claims {
    pub(crate) object: ObjectRef,
    pub(crate) precedence: Precedence,
    /// Its IngressClass, if it names one.
    pub(crate) class: Option<Arc<str>>,
    /// The treatment of plain HTTP by its rules.
    pub(crate) redirect: Redirect,
    /// Demands on the clients of its hosts.
    pub(crate) clients: Clients,
    /// Whether TLS connections for its hosts are passed through to pods.
    pub(crate) passes: bool,
    /// Whether HTTP/3 does not serve its hosts.
    pub(crate) refuses_http3: bool,
    /// Namespaces that may add paths to its hosts, if the host-sharing mode grants that.
    pub(crate) shares_with: Arc<[Arc<str>]>,
    /// The requests that its rules take from those of other Ingresses, if it is a canary.
    pub(crate) canary: Option<Box<CanaryRule>>,
    /// Number and memory of the regular expressions of its paths.
    pub(crate) expressions: Cost,
    /// Number of rules to count separately.
    pub(crate) metered: usize,
    /// Sorted by host, each once.
    pub(crate) hosts: Vec<(HostPattern, HostClaim)>,
}

/// Order of precedence for competing claims. Solvers of challenges come first, because each is there for one path and
/// for a short time. Then the oldest comes first, then namespace and name decide. Objects without a timestamp, such as
/// those from files, come after those with one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Precedence {
    pub(crate) role: IngressRole,
    pub(crate) age: (bool, Option<Time>),
    pub(crate) name: ObjectName,
}

/// The claims of one Ingress on one host.
#[derive(Default, PartialEq, Eq)]
pub(crate) struct HostClaim {
    /// `None` if it has no rules for it.
    pub(crate) rules: Option<RulesClaim>,
    /// Whether it gives the host TLS: its `tls` names the host, or covers it and it has rules for it.
    pub(crate) has_tls: bool,
    /// The Secret, of the same namespace, for this name.
    pub(crate) certificate: Option<ObjectName>,
    /// Claims that apply if no rule of any Ingress names the host.
    pub(crate) alias: Option<Box<AliasClaim>>,
}

/// The claims of one Ingress on a further name of one of its hosts.
#[derive(PartialEq, Eq)]
pub(crate) struct AliasClaim {
    pub(crate) kind: AliasKind,
    pub(crate) rules: RulesClaim,
    /// Copied from that host.
    pub(crate) has_tls: bool,
    pub(crate) certificate: Option<ObjectName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AliasKind {
    /// The alias is served by the same rules.
    Same,
    /// The alias has, or lacks, `www.` before it, and is redirected.
    Www,
}

#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct RulesClaim {
    /// Without filters, which follow from the claims of all.
    pub(crate) rules: Vec<Rule>,
    pub(crate) fallback: Option<Box<Rule>>,
    /// Whether ingress-nginx would match all paths of the host as regular expressions because of this Ingress.
    pub(crate) has_expressions: bool,
}

/// Orders objects by the time of their creation, the oldest first.
pub(crate) fn age(created: Option<&Time>) -> (bool, Option<Time>) {
    (created.is_none(), created.cloned())
}

// === impl Claims ===

impl Claims {
    /// Returns claims of `ingress` on no host.
    pub(crate) fn without_hosts(
        name: &ObjectName,
        ingress: &Ingress,
        class: Option<Arc<str>>,
        object: ObjectRef,
    ) -> Self {
        Self {
            precedence: Precedence::of(name, ingress),
            class,
            redirect: Redirect::Never,
            canary: None,
            shares_with: Arc::default(),
            clients: Clients::Any,
            passes: false,
            refuses_http3: false,
            expressions: Cost::default(),
            metered: 0,
            hosts: Vec::new(),
            object,
        }
    }

    pub(crate) fn of(&self, pattern: &HostPattern) -> Option<&HostClaim> {
        let at = self.hosts.binary_search_by(|(host, _)| host.cmp(pattern)).ok()?;
        self.hosts.get(at).map(|(_, claim)| claim)
    }

    /// Returns the hosts with claims that also affect more specific hosts: their owner, and their certificate.
    /// `is_any_certified` if an Ingress claims a certificate for all hosts. Then every claim on all hosts may change
    /// which Ingress owns them, and with it the right to that certificate.
    pub(crate) fn reaching_below(&self, is_any_certified: bool) -> impl Iterator<Item = &HostPattern> {
        let reaches = move |(pattern, claim): &&(HostPattern, HostClaim)| match pattern {
            HostPattern::Exact(_) => false,
            HostPattern::Wildcard(_) | HostPattern::Suffix(_) => true,
            HostPattern::Any => is_any_certified || claim.may_certify(),
        };
        self.hosts.iter().filter(reaches).map(|(pattern, _)| pattern)
    }
}

// === impl HostClaim ===

impl HostClaim {
    /// Returns `true` if it names a certificate, by `tls` or as an alias.
    pub(crate) fn may_certify(&self) -> bool {
        self.certificate.is_some() || self.alias.as_ref().is_some_and(|alias| alias.certificate.is_some())
    }
}

// === impl Precedence ===

impl Precedence {
    pub(crate) fn of(name: &ObjectName, ingress: &Ingress) -> Self {
        Self {
            role: IngressRole::of(ingress),
            age: age(ingress.metadata.creation_timestamp.as_ref()),
            name: name.clone(),
        }
    }

    /// Orders claims by age, regardless of their role; older is less.
    pub(crate) fn seniority(&self) -> impl Ord + use<'_> {
        (&self.age, &self.name)
    }
}
