//! Merges the claims of all Ingresses into hosts: the first to claim a host and path has it. It does not know what an Ingress
//! looks like.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
};

use super::{Claims, Context, HostClaim, annotations::Redirect, secret};
use crate::{
    control::outcome::{ObjectRef, Reason},
    model::{
        Action, Certificate, Filter, HostPattern, HostRoutes, PathMatch, RouteTable, Rule, Upstream, UpstreamKey, path,
    },
};

/// 308 keeps the method, unlike 301 and 302.
const REDIRECT_STATUS: u16 = 308;

/// The claims of all Ingresses so far.
#[derive(Default)]
pub(super) struct Merged {
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

// === impl Merged ===

impl Merged {
    pub(super) fn add(&mut self, claims: Claims, object: &ObjectRef, context: &mut Context<'_>) {
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
    pub(super) fn into_table(self, mut upstreams: BTreeMap<UpstreamKey, Upstream>) -> RouteTable {
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
