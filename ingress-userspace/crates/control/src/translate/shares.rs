//! Limits on the hosts and paths that the Ingresses of one namespace may claim together; older Ingresses come first.

use std::{
    collections::BTreeSet,
    ops::{AddAssign, SubAssign},
};

use super::{
    Options,
    amount::Amount,
    budget::{Budget, Holders},
    claims::{Claims, HostClaim},
    outcomes::Outcomes,
};
use crate::{change::ObjectName, outcome::Reason};

/// Number of claims of an Ingress, or of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ClaimCounts {
    /// Names in rules and `tls`, and aliases.
    hosts: usize,
    /// Paths of each host and alias; a default backend counts as one.
    paths: usize,
}

/// Returns the budget of hosts and paths, with no holders yet.
pub(super) fn holders(options: &Options) -> Holders<ClaimCounts> {
    let of_namespace = ClaimCounts { hosts: options.max_hosts_per_namespace, paths: options.max_paths_per_namespace };
    let of_all = ClaimCounts { hosts: usize::MAX, paths: usize::MAX };
    Holders::new(Budget { of_namespace, of_all }, ClaimCounts::of)
}

/// Determines the refused Ingresses anew, and returns those with a changed result.
pub(super) fn judge(holders: &mut Holders<ClaimCounts>, outcomes: &mut Outcomes) -> BTreeSet<ObjectName> {
    holders.judge(|refusal, budget| {
        let (size, limit) = (refusal.amount, budget.of_namespace);
        let (what, count, limit, flag) = if refusal.together.hosts > limit.hosts {
            ("hosts", size.hosts, limit.hosts, "--max-hosts-per-namespace")
        } else {
            ("paths", size.paths, limit.paths, "--max-paths-per-namespace")
        };
        let message = format!(
            "it claims {count} {what}; with older Ingresses of its namespace it exceeds the {limit} allowed; it is not \
             served, remove some, or ask the operator to raise `{flag}`"
        );
        outcomes.report(&refusal.object, Reason::TooLarge, message);
    })
}

// === impl ClaimCounts ===

impl ClaimCounts {
    fn of(claims: &Claims) -> Self {
        let paths = |(_, claim): &(_, HostClaim)| {
            let HostClaim { rules, alias, has_tls: _, certificate: _ } = claim;
            let all = rules.iter().chain(alias.as_deref().map(|alias| &alias.rules));
            all.map(|rules| rules.rules.len() + usize::from(rules.fallback.is_some())).sum::<usize>()
        };
        Self { hosts: claims.hosts.len(), paths: claims.hosts.iter().map(paths).sum() }
    }
}

impl Amount for ClaimCounts {
    fn exceeds(&self, limit: &Self) -> bool {
        self.hosts > limit.hosts || self.paths > limit.paths
    }
}

impl AddAssign for ClaimCounts {
    fn add_assign(&mut self, Self { hosts, paths }: Self) {
        self.hosts += hosts;
        self.paths += paths;
    }
}

impl SubAssign for ClaimCounts {
    fn sub_assign(&mut self, Self { hosts, paths }: Self) {
        self.hosts -= hosts;
        self.paths -= paths;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::{
        change::{Change, Object},
        cluster::Cluster,
        outcome::Origin,
        translate::{Options, Translation, Translator},
    };

    /// Returns an Ingress created on day `day` with hosts of its own, each with this many paths.
    fn ingress(namespace: &str, day: usize, hosts: usize, paths: usize) -> Change {
        let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
        let path = |number| json!({"path": format!("/{number}"), "pathType": "Prefix", "backend": backend});
        let paths: Vec<_> = (0..paths).map(path).collect();
        let rule = |number| json!({"host": format!("h{number}.i{day}.{namespace}.test"), "http": {"paths": paths}});
        let text = json!({
            "metadata": {
                "namespace": namespace,
                "name": format!("i{day}"),
                "creationTimestamp": format!("2026-01-{day:02}T00:00:00Z"),
                "annotations": {"kubernetes.io/ingress.class": "xdp"},
            },
            "spec": {"rules": (0..hosts).map(rule).collect::<Vec<_>>()},
        });
        let ingress = serde_json::from_value(text).expect("an Ingress");
        Change::Apply { object: Object::Ingress(Arc::new(ingress)), origin: Origin::Api }
    }

    fn reported(translation: &Translation) -> Vec<String> {
        let outcomes = translation.outcomes.keys().filter(|outcome| outcome.reason == Reason::TooLarge);
        outcomes.map(|outcome| format!("{}/{}", outcome.object.namespace, outcome.object.name)).collect()
    }

    #[test]
    fn host_and_path_limits_refuse_the_youngest_ingresses() {
        let options = Options { max_hosts_per_namespace: 10, max_paths_per_namespace: 20, ..Options::default() };
        for (what, hosts, paths) in [("hosts", 4, 1), ("paths", 1, 8)] {
            let (mut cluster, mut translator) = (Cluster::default(), Translator::new(options.clone()));
            let mut translation = Translation::default();
            // The youngest comes first, and the claims of others are not affected by its size.
            for day in [3, 2, 1] {
                for namespace in ["greedy", "team"] {
                    let (hosts, paths) = if namespace == "team" { (1, 1) } else { (hosts, paths) };
                    cluster.apply(ingress(namespace, day, hosts, paths));
                    translation = translator.translate(&cluster);
                    let afresh = Translator::new(options.clone()).translate(&cluster);
                    assert!(translation == afresh, "what is brought up to date equals what is made anew");
                }
            }
            assert_eq!(reported(&translation), ["greedy/i3"], "{what}");
            assert_eq!(translation.table.hosts.len(), 2 * hosts + 3, "{what}");
            let message = translation.outcomes.keys().map(|outcome| outcome.message.clone()).collect::<String>();
            assert!(message.contains(&format!("--max-{what}-per-namespace")), "{message}");
            assert!(!translation.in_effect.contains_key(&ObjectName::new("greedy", "i3")));
            // An Ingress that becomes smaller makes room.
            cluster.apply(ingress("greedy", 1, 1, 1));
            let translation = translator.translate(&cluster);
            assert_eq!(reported(&translation), [""; 0], "{what}");
            assert_eq!(translation.table.hosts.len(), 2 * hosts + 1 + 3, "{what}");
        }
    }

    /// Returns an Ingress of `team` that only claims TLS for `a.team.test`, without rules.
    fn bare_tls() -> Change {
        let text = json!({
            "metadata": {
                "namespace": "team",
                "name": "tls",
                "creationTimestamp": "2026-01-09T00:00:00Z",
                "annotations": {"kubernetes.io/ingress.class": "xdp"},
            },
            "spec": {"tls": [{"hosts": ["a.team.test"], "secretName": "s"}]},
        });
        let ingress = serde_json::from_value(text).expect("an Ingress");
        Change::Apply { object: Object::Ingress(Arc::new(ingress)), origin: Origin::Api }
    }

    /// Returns an Ingress of `greedy` that claims `*.team.test` and this many other hosts.
    fn wildcard(others: usize) -> Change {
        let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
        let http = json!({"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]});
        let others = (0..others).map(|number| format!("h{number}.test"));
        let rules: Vec<_> =
            others.chain(["*.team.test".to_owned()]).map(|host| json!({"host": host, "http": http})).collect();
        let text = json!({
            "metadata": {
                "namespace": "greedy",
                "name": "wildcard",
                "creationTimestamp": "2026-01-05T00:00:00Z",
                "annotations": {"kubernetes.io/ingress.class": "xdp"},
            },
            "spec": {"rules": rules},
        });
        let ingress = serde_json::from_value(text).expect("an Ingress");
        Change::Apply { object: Object::Ingress(Arc::new(ingress)), origin: Origin::Api }
    }

    #[test]
    fn an_ingress_over_the_limit_owns_no_host_below_its_wildcard() {
        let options = Options { max_hosts_per_namespace: 5, ..Options::default() };
        let (mut cluster, mut translator) = (Cluster::default(), Translator::new(options.clone()));
        cluster.apply(bare_tls());
        cluster.apply(ingress("greedy", 1, 3, 1));
        for (others, is_owned) in [(1, true), (2, false), (1, true)] {
            cluster.apply(wildcard(others));
            let translation = translator.translate(&cluster);
            assert!(translation == Translator::new(options.clone()).translate(&cluster), "{others}");
            let is_refused = translation.outcomes.keys().any(|outcome| outcome.reason == Reason::HostOwnedByOther);
            assert_eq!(is_refused, is_owned, "{others}: {:?}", translation.outcomes);
        }
        // The owner changes when an older Ingress takes its room, though the Ingress itself does not change.
        cluster.apply(ingress("greedy", 1, 4, 1));
        let translation = translator.translate(&cluster);
        assert!(translation == Translator::new(options).translate(&cluster));
        let is_refused = translation.outcomes.keys().any(|outcome| outcome.reason == Reason::HostOwnedByOther);
        assert!(!is_refused, "{:?}", translation.outcomes);
    }
}
