//! Cost of regular expressions in paths: each is measured before it is compiled, and compiled only once. Rules are not
//! known here.

use std::collections::BTreeSet;

use super::{
    budget::{Budget, Holders},
    compiled_expressions::Cost,
    outcomes::Outcomes,
};
use crate::{change::ObjectName, outcome::Reason};

/// Maximum number and memory of the regular expressions of all Ingresses of a namespace, and of all.
const MAX_OF_NAMESPACE: Cost = Cost { count: 8_000, bytes: 8 << 20 };
const MAX_OF_ALL: Cost = Cost { count: 32_000, bytes: 32 << 20 };

/// Returns the budget of expressions, with no holders yet.
pub(super) fn holders() -> Holders<Cost> {
    let budget = Budget { of_namespace: MAX_OF_NAMESPACE, of_all: MAX_OF_ALL };
    Holders::new(budget, |claims| claims.expressions)
}

/// Determines the refused Ingresses anew, and returns those with a changed result.
pub(super) fn judge(holders: &mut Holders<Cost>, outcomes: &mut Outcomes) -> BTreeSet<ObjectName> {
    holders.judge(|refusal, budget| {
        let (amount, limit, scope) = (refusal.amount, budget.of(refusal.scope), refusal.scope);
        let message = if refusal.together.count > limit.count {
            format!(
                "its paths are {} regular expressions; with those of older Ingresses of {scope} they exceed the {} \
                 allowed; it is not served, use prefixes or fewer expressions",
                amount.count, limit.count
            )
        } else {
            format!(
                "the regular expressions of its paths need {} KiB; with those of older Ingresses of {scope} they exceed \
                 the {} KiB allowed; it is not served, write shorter ones or use prefixes",
                amount.bytes.div_ceil(1024),
                limit.bytes / 1024
            )
        };
        outcomes.report(&refusal.object, Reason::TooLarge, message);
    })
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
        translate::{Options, Translation, Translator, compiled_expressions::MAX_OF_INGRESS},
    };
    use ingress_model::{PathMatch, PathPattern};

    /// Returns an Ingress with its name as the host, and a path for each text.
    fn ingress(namespace: &str, name: &str, paths: impl Iterator<Item = String>) -> Change {
        let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
        let path = |text| json!({"path": text, "pathType": "ImplementationSpecific", "backend": backend});
        let paths: Vec<_> = paths.map(path).collect();
        let text = json!({
            "metadata": {
                "namespace": namespace,
                "name": name,
                "annotations": {"nginx.ingress.kubernetes.io/use-regex": "true", "kubernetes.io/ingress.class": "xdp"},
            },
            "spec": {"rules": [{"host": format!("{name}.{namespace}.test"), "http": {"paths": paths}}]},
        });
        let ingress = serde_json::from_value(text).expect("an Ingress");
        Change::Apply { object: Object::Ingress(Arc::new(ingress)), origin: Origin::Api }
    }

    fn light(count: usize) -> impl Iterator<Item = String> {
        (0..count).map(|number| format!("/a-{number}/[0-9]+"))
    }

    fn heavy(count: usize) -> impl Iterator<Item = String> {
        (0..count).map(|number| format!("/{number}_a{{2400}}x?"))
    }

    fn served(translation: &Translation) -> Vec<String> {
        translation.table.hosts.keys().map(ToString::to_string).collect()
    }

    fn too_large(translation: &Translation) -> Vec<String> {
        let outcomes = translation.outcomes.keys().filter(|outcome| outcome.reason == Reason::TooLarge);
        outcomes.map(|outcome| format!("{}: {}", outcome.object.name, outcome.message)).collect()
    }

    #[test]
    fn ten_thousand_expressions_are_refused_cheaply() {
        const VICTIM: usize = 3;
        // Excess ones are counted before any is compiled. `benches/expressions.rs` measures the time.
        for (name, paths, compilations) in [
            ("light", light(10_000).collect::<Vec<_>>(), 0..=0),
            ("heavy", heavy(10_000).collect(), 0..=0),
            // As many as have room in the memory of an Ingress, and the one that exceeds it.
            ("few-but-heavy", heavy(1_000).collect(), 10..=30),
        ] {
            let mut cluster = Cluster::default();
            cluster.apply(ingress("victim", "web", light(VICTIM)));
            cluster.apply(ingress("evil", name, paths.into_iter()));
            let mut translator = Translator::new(Options::default());
            let translation = translator.translate(&cluster);
            let made = translator.memo.expressions.compilations - VICTIM;
            assert!(compilations.contains(&made), "{name}: {made} compilations");
            assert_eq!(served(&translation), ["web.victim.test"], "{name}");
            let reported = too_large(&translation);
            assert!(
                matches!(&*reported, [one] if one.starts_with(&format!("{name}: ")) && one.contains("allowed")),
                "{reported:?}"
            );
        }
    }

    #[test]
    fn a_thousand_light_expressions_are_served() {
        let mut cluster = Cluster::default();
        cluster.apply(ingress("n", "light", light(1_000)));
        let translation = Translator::new(Options::default()).translate(&cluster);
        assert_eq!((served(&translation).len(), too_large(&translation)), (1, Vec::new()));
    }

    #[test]
    fn expression_limits_refuse_the_youngest_ingresses() {
        let (mut cluster, mut translator) = (Cluster::default(), Translator::new(Options::default()));
        // Close to 2 MiB each, so that 4 are within 8 MiB, and those of 4 namespaces within 32 MiB.
        let count = 20;
        let names = |namespace: usize| (0..8).map(move |number| (format!("n{namespace}"), format!("i{number}")));
        let all: Vec<_> = (0..6).flat_map(names).collect();
        for (namespace, name) in all.iter().rev() {
            cluster.apply(ingress(namespace, name, heavy(count)));
            // The result does not depend on the earlier state.
            drop(translator.translate(&cluster));
        }
        cluster.apply(ingress("victim", "light", std::iter::empty()));
        let translation = translator.translate(&cluster);
        let afresh = Translator::new(Options::default()).translate(&cluster);
        assert!(translation == afresh, "what is brought up to date equals what is made anew");
        let reported = too_large(&translation);
        assert_eq!(served(&translation).len() + reported.len(), all.len() + 1);
        for scope in ["its namespace", "all namespaces"] {
            assert!(reported.iter().any(|reported| reported.contains(scope)), "{scope}: {reported:?}");
        }
        let largest = translator.expressions.amounts().map(|cost| cost.bytes).max().expect("a holder");
        let fit = MAX_OF_NAMESPACE.bytes / largest;
        let of_first = |name: &&String| name.ends_with(".n0.test");
        assert_eq!(served(&translation).iter().filter(of_first).count(), fit);
        // An Ingress that goes makes room.
        let (namespace, name) = &all[0];
        cluster.apply(ingress(namespace, name, std::iter::empty()));
        let translation = translator.translate(&cluster);
        assert!(served(&translation).contains(&format!("i{fit}.n0.test")));
    }

    #[test]
    fn the_number_of_expressions_of_a_namespace_and_of_all_is_limited() {
        let (mut cluster, mut translator) = (Cluster::default(), Translator::new(Options::default()));
        let all = || (0..6).flat_map(|namespace| (0..5).map(move |name| (namespace, name)));
        // Short ones, the same in each Ingress, which need far less memory than allowed.
        let short = || (0..MAX_OF_INGRESS.count).map(|number| format!("/{number}"));
        for (namespace, name) in all() {
            cluster.apply(ingress(&format!("n{namespace}"), &format!("i{name}"), short()));
        }
        let translation = translator.translate(&cluster);
        // Without a date, names decide: the fifth Ingress of each namespace is one too many, and so is, after four
        // namespaces, each further one.
        let of_age = |name: &str| served(&translation).iter().filter(|host| host.ends_with(name)).count();
        let served_of_each: Vec<_> = (0..6).map(|namespace| of_age(&format!(".n{namespace}.test"))).collect();
        assert_eq!(served_of_each, [4, 4, 4, 4, 0, 0]);
        let reported = too_large(&translation);
        let of_scope = |scope: &str| reported.iter().filter(|reported| reported.contains(scope)).count();
        let namespace = of_scope("older Ingresses of its namespace they exceed the 8000 allowed");
        let all = of_scope("older Ingresses of all namespaces they exceed the 32000 allowed");
        assert_eq!((namespace, all, reported.len()), (4, 10, 14), "{reported:?}");
        // An Ingress that goes makes room.
        cluster.apply(ingress("n0", "i0", std::iter::empty()));
        let translation = translator.translate(&cluster);
        assert!(served(&translation).contains(&"i4.n0.test".to_owned()));
        assert!(translation == Translator::new(Options::default()).translate(&cluster));
    }

    #[test]
    fn an_edit_does_not_recompile_expressions_in_use() {
        let (mut cluster, mut translator) = (Cluster::default(), Translator::new(Options::default()));
        let patterns = |translation: &Translation| -> Vec<Arc<PathPattern>> {
            let rules = translation.table.hosts.values().flat_map(|routes| &routes.rules);
            let pattern = |path: &PathMatch| match path {
                PathMatch::Pattern(pattern) => Some(Arc::clone(pattern)),
                PathMatch::Exact(_) | PathMatch::Prefix(_) | PathMatch::Beginning(_) => None,
            };
            rules.filter_map(|rule| pattern(&rule.path)).collect()
        };
        cluster.apply(ingress("n", "i", light(3)));
        let before = patterns(&translator.translate(&cluster));
        cluster.apply(ingress("n", "i", light(4)));
        let after = patterns(&translator.translate(&cluster));
        assert_eq!((before.len(), after.len()), (3, 4));
        assert!(before.iter().all(|old| after.iter().any(|new| Arc::ptr_eq(old, new))));
    }
}
