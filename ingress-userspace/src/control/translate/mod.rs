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
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
};

use k8s_openapi::api::networking::v1::Ingress;

use super::{
    change::{Kind, ObjectName},
    cluster::{Cluster, Stored},
    outcome::{ObjectRef, Outcome, Reason},
};
use crate::model::{
    Action, Certificate, Filter, HostPattern, HostRoutes, PathMatch, RouteTable, Rule, Upstream, UpstreamKey, path,
};

mod annotations;
mod class;
mod endpoints;
mod ingress;
mod options;
mod secret;
mod service;

use annotations::Redirect;
pub use class::Classes;
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

/// 308 keeps the method, unlike 301 and 302.
const REDIRECT_STATUS: u16 = 308;

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

/// The claims of all Ingresses so far.
#[derive(Default)]
struct Merged {
    hosts: BTreeMap<HostPattern, MergedHost>,
    /// Hosts to which any Ingress gives TLS.
    tls: BTreeSet<HostPattern>,
    /// The Ingress that has the host, and its certificate if it is usable.
    certificates: BTreeMap<HostPattern, (ObjectRef, Option<Arc<Certificate>>)>,
}

#[derive(Default)]
struct MergedHost {
    rules: BTreeMap<PathMatch, MergedRule>,
    fallback: Option<MergedRule>,
}

struct MergedRule {
    rule: Rule,
    owner: ObjectRef,
    redirect: Redirect,
}

// === impl Context ===

impl Context<'_> {
    fn report(&mut self, object: &ObjectRef, reason: Reason, message: String) {
        self.outcomes.push(Outcome { object: object.clone(), reason, message });
    }
}

// === impl Merged ===

impl Merged {
    fn add(&mut self, claims: Claims, object: &ObjectRef, context: &mut Context<'_>) {
        let Claims { hosts, tls, redirect, certificates } = claims;
        self.tls.extend(tls);
        for HostClaim { pattern, rules, fallback } in hosts {
            let host = self.hosts.entry(pattern.clone()).or_default();
            for rule in rules {
                if let Some(winner) = host.winner(&rule.path, object) {
                    let what = format!("path `{}` of host `{pattern}`", rule.path);
                    report_conflict(context, object, winner, &what);
                } else {
                    host.rules.insert(rule.path.clone(), MergedRule { rule, owner: object.clone(), redirect });
                }
            }
            let Some(rule) = fallback else { continue };
            match &host.fallback {
                None => host.fallback = Some(MergedRule { rule, owner: object.clone(), redirect }),
                // Two rules of one Ingress for the same host share its one default backend.
                Some(winner) if winner.owner == *object => {}
                Some(winner) => {
                    let what = format!("the default backend of host `{pattern}`");
                    report_conflict(context, object, &winner.owner, &what);
                }
            }
        }
        for (pattern, name) in certificates {
            match self.certificates.entry(pattern) {
                Entry::Vacant(entry) => {
                    let certificate = secret::certificate(&name, entry.key(), object, context);
                    entry.insert((object.clone(), certificate));
                }
                Entry::Occupied(entry) if entry.get().0 == *object => {}
                Entry::Occupied(entry) => {
                    // The same Secret asked for twice is how several Ingresses of one host are usually written.
                    let (winner, certificate) = entry.get();
                    if certificate.as_ref().is_none_or(|certificate| *certificate.origin != *name.to_string()) {
                        let what = format!("the certificate of host `{}`", entry.key());
                        report_conflict(context, object, winner, &what);
                    }
                }
            }
        }
    }

    /// The table of these claims, with those of `upstreams` that they lead to.
    fn into_table(self, mut upstreams: BTreeMap<UpstreamKey, Upstream>) -> RouteTable {
        let Self { hosts, tls, certificates } = self;
        let hosts: BTreeMap<_, _> = hosts
            .into_iter()
            .map(|(pattern, MergedHost { rules, fallback })| {
                let has_tls = tls.contains(&pattern);
                let rules = rules.into_values().map(|rule| rule.settle(has_tls)).collect();
                (pattern, HostRoutes { rules, fallback: fallback.map(|rule| rule.settle(has_tls)) })
            })
            .collect();
        // A rule that lost to an older one may have been the only one with its upstream.
        let used: BTreeSet<&UpstreamKey> = hosts
            .values()
            .flat_map(|HostRoutes { rules, fallback }| rules.iter().chain(fallback))
            .filter_map(|rule| match &rule.action {
                Action::Forward(key) => Some(key),
                Action::Refuse(_) => None,
            })
            .collect();
        upstreams.retain(|key, _| used.contains(key));
        let certificates = certificates.into_iter().map(|(pattern, (_, certificate))| (pattern, certificate)).collect();
        RouteTable { hosts, upstreams, certificates, ..RouteTable::default() }
    }
}

// === impl MergedHost ===

impl MergedHost {
    /// Who has `path` already, so that `object` cannot have it.
    ///
    /// `/a/` and `/a` are the same set of paths as prefixes, so one Ingress has both or neither.
    fn winner(&self, path: &PathMatch, object: &ObjectRef) -> Option<&ObjectRef> {
        let owner = |path: &PathMatch| self.rules.get(path).map(|rule| &rule.owner);
        let other_spelling = match path {
            PathMatch::Exact(_) => None,
            PathMatch::Prefix(prefix) => {
                let elements = path::elements(prefix);
                let is_short = elements.len() == prefix.len();
                Some(PathMatch::Prefix(if is_short { format!("{elements}/") } else { elements.to_owned() }))
            }
        };
        owner(path).or_else(|| owner(&other_spelling?).filter(|owner| *owner != object))
    }
}

// === impl MergedRule ===

impl MergedRule {
    /// The rule as it stands when it is known whether any Ingress gives its host TLS.
    fn settle(self, has_tls: bool) -> Rule {
        let Self { mut rule, owner: _, redirect } = self;
        let redirects = match redirect {
            Redirect::Never => false,
            Redirect::WithTls => has_tls,
            Redirect::Always => true,
        };
        if redirects {
            rule.filters.push(Filter::RedirectHttps { status: REDIRECT_STATUS });
        }
        rule
    }
}

fn report_conflict(context: &mut Context<'_>, loser: &ObjectRef, winner: &ObjectRef, what: &str) {
    let message = if loser == winner {
        format!("{what} is claimed twice by this Ingress; the first stands, remove the other")
    } else {
        let ObjectRef { kind, namespace, name, origin: _ } = winner;
        format!("{what} belongs to the older {kind} `{namespace}/{name}`; remove one of the two")
    };
    context.report(loser, Reason::HostPathConflict, message);
}
