//! Merges the claims of all Ingresses into hosts: the first to claim a host and path has it. It does not know what an Ingress
//! looks like.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
};

use super::{Claims, Context, HostClaim, MAX_LENT, annotations::Redirect, secret, settings::Globals, solver::Standing};
use crate::{
    control::outcome::{ObjectRef, Reason},
    model::{
        Action, Certificate, Filter, Host, HostPattern, HostRoutes, PathMatch, RouteTable, Rule, Upstream, UpstreamKey,
        path,
    },
};

/// The claims of all Ingresses so far.
#[derive(Default)]
pub(super) struct Merged {
    hosts: BTreeMap<HostPattern, MergedHost>,
    /// Hosts to which any Ingress gives TLS.
    tls: BTreeSet<HostPattern>,
    /// The Ingress that has the host, and its certificate if it is usable.
    certificates: BTreeMap<HostPattern, (ObjectRef, Option<Arc<Certificate>>)>,
}

#[derive(Clone, Default)]
struct MergedHost {
    rules: BTreeMap<PathMatch, MergedRule>,
    fallback: Option<MergedRule>,
    /// The less specific host whose rules it has beside those of solvers.
    lender: Option<HostPattern>,
}

#[derive(Clone)]
struct MergedRule {
    rule: Rule,
    owner: ObjectRef,
    standing: Standing,
    redirect: Redirect,
}

// === impl Merged ===

impl Merged {
    pub(super) fn add(&mut self, claims: Claims, object: &ObjectRef, context: &mut Context<'_>) {
        let Claims { standing, hosts, tls, redirect, certificates } = claims;
        self.tls.extend(tls);
        for HostClaim { pattern, rules, fallback } in hosts {
            let host = self.hosts.entry(pattern.clone()).or_default();
            for rule in rules {
                if let Some(winner) = host.winner(&rule.path, object) {
                    let what = format!("path `{}` of host `{pattern}`", rule.path);
                    report_conflict(context, object, (&winner.owner, winner.standing), &what);
                } else {
                    host.rules
                        .insert(rule.path.clone(), MergedRule { rule, owner: object.clone(), standing, redirect });
                }
            }
            let Some(rule) = fallback else { continue };
            match &host.fallback {
                None => host.fallback = Some(MergedRule { rule, owner: object.clone(), standing, redirect }),
                // Two rules of one Ingress for the same host share its one default backend.
                Some(winner) if winner.owner == *object => {}
                Some(winner) => {
                    let what = format!("the default backend of host `{pattern}`");
                    report_conflict(context, object, (&winner.owner, winner.standing), &what);
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
                        report_conflict(context, object, (winner, Standing::Ordinary), &what);
                    }
                }
            }
        }
    }

    /// The table of these claims, with those of `upstreams` that they and `default` lead to.
    pub(super) fn into_table(
        self,
        default: Option<Action>,
        mut upstreams: BTreeMap<UpstreamKey, Upstream>,
        globals: Globals,
    ) -> RouteTable {
        let Self { hosts, tls, certificates } = self;
        let hosts: BTreeMap<_, _> = hosts
            .into_iter()
            .map(|(pattern, MergedHost { rules, fallback, lender })| {
                let has_tls = tls.contains(&pattern) || lender.is_some_and(|lender| tls.contains(&lender));
                let rules = rules.into_values().map(|rule| rule.settle(has_tls, &globals)).collect();
                let fallback = fallback.map(|rule| rule.settle(has_tls, &globals));
                (pattern, Arc::new(HostRoutes { rules, fallback }))
            })
            .collect();
        // A rule that lost to an older one may have been the only one with its upstream.
        let used: BTreeSet<&UpstreamKey> = hosts
            .values()
            .flat_map(|routes| routes.rules.iter().chain(&routes.fallback))
            .map(|rule| &rule.action)
            .chain(&default)
            .filter_map(|action| match action {
                Action::Forward(key) => Some(key),
                Action::Refuse(_) | Action::Redirect(_) => None,
            })
            .collect();
        upstreams.retain(|key, _| used.contains(key));
        let certificates = certificates.into_iter().map(|(pattern, (_, certificate))| (pattern, certificate)).collect();
        let Globals { settings, asked, .. } = globals;
        let forwarding = Arc::new(asked.forwarding);
        RouteTable { hosts, default, forwarding, upstreams, certificates, fallback_certificate: None, settings }
    }

    /// A host that only solvers name is served by a less specific one but for the challenge, and must go on to be: it would
    /// answer 404 as long as the challenge lasts, because hosts do not fall through to less specific ones.
    ///
    /// Every borrower has the rules for itself, so what is lent in all is bounded: two Ingresses of some thousand hosts and
    /// paths would otherwise multiply to more than any node's memory.
    pub(super) fn lend_to_solvers(&mut self, context: &mut Context<'_>) {
        let mut lent_so_far = 0;
        let borrowers = self.hosts.iter().filter(|(_, host)| host.is_for_solvers()).map(|(pattern, _)| pattern);
        for pattern in borrowers.cloned().collect::<Vec<_>>() {
            let HostPattern::Exact(name) = &pattern else { continue };
            let wildcard = name.parent().and_then(|parent| Host::parse(parent).ok()).map(HostPattern::Wildcard);
            let lenders = wildcard.into_iter().chain([HostPattern::Any]);
            let found = lenders.into_iter().find_map(|lender| Some((self.hosts.get(&lender)?, lender)));
            let Some((lent, lender)) = found else { continue };
            if lent_so_far + lent.rules.len() > MAX_LENT {
                let message = format!(
                    "rules of `{lender}` are lent to more hosts than can be held, so `{pattern}` answers 404 beside the challenge; solve fewer at one time"
                );
                if let Some(rule) = self.hosts.get(&pattern).and_then(|host| host.rules.values().next()) {
                    context.report(&rule.owner, Reason::TooLarge, message);
                }
                continue;
            }
            lent_so_far += lent.rules.len();
            let MergedHost { rules, fallback, lender: _ } = lent.clone();
            let Some(host) = self.hosts.get_mut(&pattern) else { continue };
            for (path, rule) in rules {
                host.rules.entry(path).or_insert(rule);
            }
            host.fallback = fallback;
            host.lender = Some(lender);
        }
    }
}

// === impl MergedHost ===

impl MergedHost {
    /// Who has `path` already, so that `object` cannot have it.
    ///
    /// `/a/` and `/a` are the same set of paths as prefixes, so one Ingress has both or neither.
    fn winner(&self, path: &PathMatch, object: &ObjectRef) -> Option<&MergedRule> {
        let owner = |path: &PathMatch| self.rules.get(path);
        let other_spelling = match path {
            PathMatch::Exact(_) | PathMatch::Pattern(_) => None,
            PathMatch::Prefix(prefix) => {
                let elements = path::elements(prefix);
                let is_short = elements.len() == prefix.len();
                Some(PathMatch::Prefix(if is_short { format!("{elements}/") } else { elements.to_owned() }))
            }
        };
        owner(path).or_else(|| owner(&other_spelling?).filter(|rule| rule.owner != *object))
    }

    /// Whether it is there for challenges alone.
    fn is_for_solvers(&self) -> bool {
        let mut rules = self.rules.values().peekable();
        self.fallback.is_none() && rules.peek().is_some() && rules.all(|rule| rule.standing == Standing::Solver)
    }
}

// === impl MergedRule ===

impl MergedRule {
    /// The rule as it stands when it is known whether any Ingress gives its host TLS.
    fn settle(self, has_tls: bool, globals: &Globals) -> Rule {
        let Self { mut rule, owner: _, standing: _, redirect } = self;
        let redirects = match redirect {
            Redirect::Never => false,
            Redirect::WithTls => has_tls,
            Redirect::Always => true,
        };
        if redirects {
            let (status, except) = (globals.redirect_status, Arc::clone(&globals.redirect_except));
            rule.filters.insert(0, Filter::RedirectHttps { status, except });
        }
        if has_tls {
            rule.filters.extend(globals.hsts.value().map(Filter::StrictTransportSecurity));
        }
        rule
    }
}

fn report_conflict(
    context: &mut Context<'_>,
    loser: &ObjectRef,
    (winner, standing): (&ObjectRef, Standing),
    what: &str,
) {
    let ObjectRef { kind, namespace, name, origin: _ } = winner;
    let message = match standing {
        _ if loser == winner => format!("{what} is claimed twice by this Ingress; the first stands, remove the other"),
        Standing::Solver => format!("{what} belongs to {kind} `{namespace}/{name}` until its challenge is answered"),
        Standing::Ordinary => format!("{what} belongs to the older {kind} `{namespace}/{name}`; remove one of the two"),
    };
    context.report(loser, Reason::HostPathConflict, message);
}
