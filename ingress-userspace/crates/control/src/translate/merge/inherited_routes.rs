//! Adds rules of less specific hosts to hosts that exist for challenges only.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::MergedHost;
use crate::{
    outcome::Reason,
    translate::{claims::MAX_INHERITED, features::Globals, outcomes::Outcomes},
};
use ingress_model::{Host, HostPattern, HostRoutes};

/// Settles the hosts that only solvers name. Apart from the challenge, such a host is served by a less specific one,
/// and must stay so. It would otherwise answer 404 during the challenge, because hosts do not fall through to less
/// specific ones.
///
/// Each such host has its own copy of the inherited rules, so their total is bounded. Two Ingresses of some thousand
/// hosts and paths would otherwise multiply beyond any node's memory. The namespaces of such hosts have equal shares,
/// so that none uses up another's.
pub(in super::super) fn inherit_routes(
    challenge_hosts: &BTreeMap<HostPattern, MergedHost>,
    ancestors: &BTreeMap<HostPattern, MergedHost>,
    globals: &Globals,
    outcomes: &mut Outcomes,
) -> Vec<(HostPattern, HostRoutes)> {
    let namespace = |host: &MergedHost| host.a_claimant().map(|claimant| Arc::clone(&claimant.namespace));
    let mut inherited_so_far: HashMap<_, usize> = challenge_hosts.values().map(|host| (namespace(host), 0)).collect();
    let share = MAX_INHERITED / inherited_so_far.len().max(1);
    let mut settled = Vec::new();
    for (pattern, host) in challenge_hosts {
        let mut ancestor = ancestor_of(pattern, ancestors);
        if let Some((name, inherited)) = ancestor {
            let inherited_so_far = inherited_so_far.entry(namespace(host)).or_default();
            if *inherited_so_far + inherited.rule_count() > share {
                let message = format!(
                    "rules of `{name}` apply to more hosts with challenges than the limit, so `{pattern}` answers 404 \
                     except for the challenge; solve fewer at one time"
                );
                if let Some(claimant) = host.a_claimant() {
                    outcomes.report(claimant, Reason::TooLarge, message);
                }
                ancestor = None;
            } else {
                *inherited_so_far += inherited.rule_count();
            }
        }
        settled.push((pattern.clone(), host.settle(ancestor.map(|(_, inherited)| inherited), globals)));
    }
    settled
}

/// Returns the less specific host that serves all requests without a rule of `pattern` itself.
fn ancestor_of<'l>(
    pattern: &HostPattern,
    ancestors: &'l BTreeMap<HostPattern, MergedHost>,
) -> Option<(&'l HostPattern, &'l MergedHost)> {
    let is_exact = matches!(pattern, HostPattern::Exact(_));
    let any = is_exact.then_some(HostPattern::Any);
    wildcard_of(pattern).into_iter().chain(any).find_map(|ancestor| ancestors.get_key_value(&ancestor))
}

/// Returns the wildcard that serves an exact host without rules of its own.
pub(in super::super) fn wildcard_of(pattern: &HostPattern) -> Option<HostPattern> {
    let HostPattern::Exact(name) = pattern else { return None };
    name.parent().and_then(|parent| Host::parse(parent).ok()).map(HostPattern::Wildcard)
}
