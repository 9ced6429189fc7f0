//! Sums the health checks that rules ask of a node, and reports the Ingresses beyond its rate. The proxy delays checks;
//! here nothing is refused.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::{
    claims::{Claims, HostClaim},
    outcomes::Outcomes,
};
use crate::{change::ObjectName, outcome::Reason};
use ingress_model::{Check, Rule, Tree, Upstream, UpstreamKey};

/// The most checks of one node, as [`Check::rate`] counts them.
const MAX_RATE: u64 = Check::MAX_PER_SECOND as u64 * 1_000_000;

/// The checks of all upstreams in the table.
#[derive(Default)]
pub(super) struct Checks {
    /// Rate of each upstream with checks, over all of its endpoints.
    rates: HashMap<UpstreamKey, u64>,
    total: u64,
    /// Whether rates or claims have changed since the last judgement.
    is_stale: bool,
}

// === impl Checks ===

impl Checks {
    /// Sets the upstream that the table has for `key`.
    pub(super) fn set(&mut self, key: &UpstreamKey, upstream: Option<&Upstream>) {
        let rate = upstream.map_or(0, rate);
        let before = match rate {
            0 => self.rates.remove(key),
            rate => self.rates.insert(key.clone(), rate),
        };
        let before = before.unwrap_or_default();
        self.is_stale |= before != rate;
        self.total = self.total.saturating_sub(before).saturating_add(rate);
    }

    /// Marks the claims of an Ingress, or their effect, as changed.
    pub(super) fn touch(&mut self) {
        self.is_stale = true;
    }

    /// Returns whether a new judgement may differ from the last, and counts on it.
    pub(super) fn take_stale(&mut self) -> bool {
        std::mem::take(&mut self.is_stale)
    }

    /// Reports the Ingresses whose checks do not fit, oldest first, into the rate of a node. An upstream that several
    /// Ingresses share counts for the oldest. The text has no sums, because they change with every pod.
    ///
    /// All claims are looked through, but only above the limit.
    pub(super) fn judge(
        &self,
        claims: &HashMap<ObjectName, Arc<Claims>>,
        in_effect: &Tree<ObjectName, ()>,
        outcomes: &mut Outcomes,
    ) {
        if self.total <= MAX_RATE {
            return;
        }
        let in_effect = claims.values().filter(|claims| in_effect.contains_key(&claims.precedence.name));
        let mut checked: Vec<_> = in_effect.map(|claims| (claims, self.checked(claims))).collect();
        checked.retain(|(_, keys)| !keys.is_empty());
        checked.sort_unstable_by(|(a, _), (b, _)| a.precedence.seniority().cmp(&b.precedence.seniority()));
        let (mut counted, mut sum) = (HashSet::new(), 0_u64);
        for (claims, keys) in checked {
            let new = keys.into_iter().filter(|key| counted.insert(*key));
            let own: u64 = new.filter_map(|key| self.rates.get(key)).sum();
            if sum.saturating_add(own) <= MAX_RATE {
                sum += own;
                continue;
            }
            let message = format!(
                "the health checks of its pods, together with those of older Ingresses, are more than the {} per second that a node makes; the node makes all checks less often, set a longer `health-check-interval`",
                Check::MAX_PER_SECOND
            );
            outcomes.report(&claims.object, Reason::HealthChecksDelayed, message);
        }
    }

    /// Returns the upstreams with checks to which the rules of an Ingress lead.
    fn checked<'c>(&self, claims: &'c Claims) -> HashSet<&'c UpstreamKey> {
        let rules = claims.hosts.iter().flat_map(|(_, HostClaim { rules, alias, .. })| {
            rules.iter().chain(alias.as_deref().map(|alias| &alias.rules))
        });
        let rules = rules.flat_map(|claim| claim.rules.iter().chain(claim.fallback.as_deref()));
        let keys = rules.flat_map(|Rule { action, .. }| action.upstreams());
        keys.filter(|key| self.rates.contains_key(*key)).collect()
    }
}

fn rate(upstream: &Upstream) -> u64 {
    let check = upstream.health_policy.as_ref().and_then(|policy| policy.check.as_ref());
    let endpoints = u64::try_from(upstream.endpoints.len()).unwrap_or(u64::MAX);
    check.map_or(0, |check| check.rate().saturating_mul(endpoints))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{core::v1, discovery::v1::EndpointSlice};
    use serde_json::json;

    use super::*;
    use crate::{
        change::{Change, Object},
        cluster::Cluster,
        outcome::Origin,
        translate::{Options, Translation, Translator},
    };

    fn read<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
        serde_json::from_value(value).expect("an object")
    }

    fn apply(cluster: &mut Cluster, object: Object) {
        cluster.apply(Change::Apply { object, origin: Origin::Api });
    }

    /// Applies an Ingress, created on day `day`, with checks of Service `service` at this interval.
    fn ingress(cluster: &mut Cluster, day: usize, service: &str, interval: &str) {
        let backend = json!({"service": {"name": service, "port": {"number": 80}}});
        let path = json!({"path": "/", "pathType": "Prefix", "backend": backend});
        let object = Object::Ingress(Arc::new(read(json!({
            "metadata": {
                "namespace": "n",
                "name": format!("i{day}"),
                "creationTimestamp": format!("2026-01-{day:02}T00:00:00Z"),
                "annotations": {
                    "kubernetes.io/ingress.class": "xdp",
                    "xdp-ingress.io/health-check": "tcp",
                    "xdp-ingress.io/health-check-interval": interval,
                },
            },
            "spec": {"rules": [{"host": format!("i{day}.test"), "http": {"paths": [path]}}]},
        }))));
        apply(cluster, object);
    }

    /// Applies a Service with this many pods.
    fn service(cluster: &mut Cluster, name: &str, pods: usize) {
        let metadata = json!({"namespace": "n", "name": name});
        let spec = json!({"ports": [{"port": 80}]});
        let service: v1::Service = read(json!({"metadata": metadata, "spec": spec}));
        apply(cluster, Object::Service(Arc::new(service.into())));
        let second = name.bytes().next().unwrap_or_default();
        let pod = |number| json!({"addresses": [format!("10.{second}.{}.{}", number / 200, number % 200 + 1)]});
        let slice: EndpointSlice = read(json!({
            "metadata": {"namespace": "n", "name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "ports": [{"port": 80}],
            "endpoints": (0..pods).map(pod).collect::<Vec<_>>(),
        }));
        apply(cluster, Object::EndpointSlice(Arc::new(slice.into())));
    }

    fn reported(translation: &Translation) -> Vec<&str> {
        let outcomes = translation.outcomes.keys().filter(|outcome| outcome.reason == Reason::HealthChecksDelayed);
        outcomes.map(|outcome| &*outcome.object.name).collect()
    }

    #[test]
    fn ingresses_beyond_the_check_rate_of_a_node_are_reported() {
        let (mut cluster, mut translator) = (Cluster::default(), Translator::new(Options::default()));
        let mut look = |cluster: &Cluster| {
            let translation = translator.translate(cluster);
            assert!(translation == Translator::new(Options::default()).translate(cluster), "as one made anew");
            translation
        };
        for (name, pods) in [("a", 300), ("b", 300), ("c", 100)] {
            service(&mut cluster, name, pods);
        }
        // The youngest comes first. Two Ingresses share the checks of one Service.
        for (day, service) in [(4, "a"), (3, "c"), (2, "b"), (1, "a")] {
            ingress(&mut cluster, day, service, "1s");
            let _translation = look(&cluster);
        }
        let translation = look(&cluster);
        assert_eq!(reported(&translation), ["i2"], "the third fits beside the first");
        assert_eq!(translation.table.hosts.len(), 4, "nothing is refused");
        let message = translation.outcomes.keys().map(|outcome| &*outcome.message).collect::<String>();
        assert!(message.contains("500 per second") && message.contains("`health-check-interval`"), "{message}");
        // Pods that go make room, and those that come take it.
        service(&mut cluster, "b", 100);
        assert_eq!(reported(&look(&cluster)), [""; 0]);
        service(&mut cluster, "c", 101);
        assert_eq!(reported(&look(&cluster)), ["i3"]);
        ingress(&mut cluster, 3, "c", "2s");
        assert_eq!(reported(&look(&cluster)), [""; 0]);
        // The age decides, even if rules and pods remain the same.
        ingress(&mut cluster, 3, "c", "1s");
        ingress(&mut cluster, 4, "b", "1s");
        assert_eq!(reported(&look(&cluster)), ["i3"]);
    }
}
