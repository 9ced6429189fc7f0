//! What regular expressions of paths may cost: each is measured before it is compiled, and none twice. It knows no rules.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Weak},
};

use super::Precedence;
use crate::{
    control::{
        change::ObjectName,
        outcome::{ObjectRef, Reason},
    },
    model::{PathError, PathMatch, PathPattern, PatternError},
};

use super::Context;

/// Regular expressions of one Ingress.
pub(super) const MAX_COUNT: usize = 2_000;
/// Memory of the automata of regular expressions, in bytes: those of one Ingress, of all Ingresses of a namespace, and
/// of all.
pub(super) const MAX_OF_INGRESS: usize = 2 << 20;
const MAX_OF_NAMESPACE: usize = 8 << 20;
const MAX_OF_ALL: usize = 32 << 20;

/// The expressions that are in use.
#[derive(Default)]
pub(super) struct Known {
    by_text: HashMap<Arc<str>, Weak<PathPattern>>,
    /// How many are there before those that are in no use are looked for.
    sweep_at: usize,
}

/// What one Ingress may still have.
pub(super) struct Allowance {
    left: usize,
    pub(super) is_exhausted: bool,
}

/// Which Ingresses have expressions, and which of them are more than is allowed.
#[derive(Default)]
pub(super) struct Expressions {
    /// In order of precedence.
    sizes: BTreeMap<Precedence, (ObjectRef, usize)>,
    refused: BTreeSet<ObjectName>,
}

// === impl Known ===

impl Known {
    fn find(&self, text: &str, groups: bool) -> Option<Arc<PathPattern>> {
        let known = self.by_text.get(text)?.upgrade()?;
        (known.alone().is_some() || !groups).then_some(known)
    }

    fn insert(&mut self, pattern: &Arc<PathPattern>) {
        if self.by_text.len() >= self.sweep_at {
            self.by_text.retain(|_, known| known.strong_count() > 0);
            self.sweep_at = (2 * self.by_text.len()).max(64);
        }
        self.by_text.insert(pattern.text(), Arc::downgrade(pattern));
    }
}

// === impl Allowance ===

impl Allowance {
    pub(super) const fn new() -> Self {
        Self { left: MAX_OF_INGRESS, is_exhausted: false }
    }

    pub(super) const fn used(&self) -> usize {
        MAX_OF_INGRESS - self.left
    }

    /// The match for the expression `text`, `None` once there is no allowance left for it.
    pub(super) fn read(&mut self, text: &str, groups: bool, known: &mut Known) -> Option<Result<PathMatch, PathError>> {
        if self.is_exhausted {
            return None;
        }
        let pattern = match known.find(text, groups) {
            Some(pattern) => pattern,
            None => {
                let new = PathMatch::pattern_within(text, self.left);
                let new = new.and_then(|new| if groups { Ok(new.with_groups()?) } else { Ok(new) });
                match new {
                    Ok(new) => Arc::new(new),
                    // One that is too large by itself is told as such.
                    Err(PathError::Pattern(PatternError::TooLarge(_))) if self.left < PathPattern::MAX => {
                        self.is_exhausted = true;
                        return None;
                    }
                    Err(error) => return Some(Err(error)),
                }
            }
        };
        let Some(left) = self.left.checked_sub(pattern.size()) else {
            self.is_exhausted = true;
            return None;
        };
        self.left = left;
        known.insert(&pattern);
        Some(Ok(PathMatch::Pattern(pattern)))
    }
}

// === impl Expressions ===

impl Expressions {
    /// Sets how much an Ingress has in place of what it had, and says whether that is different.
    pub(super) fn set(&mut self, before: Option<&Precedence>, now: Option<(&Precedence, &ObjectRef, usize)>) -> bool {
        let before = before.and_then(|before| self.sizes.remove_entry(before));
        let now = now.filter(|(_, _, size)| *size > 0);
        let now = now.map(|(precedence, object, size)| (precedence.clone(), (object.clone(), size)));
        let differs = before != now;
        self.sizes.extend(now);
        differs
    }

    pub(super) fn refuses(&self, name: &ObjectName) -> bool {
        self.refused.contains(name)
    }

    /// Looks anew who is refused, oldest first, and returns those of whom it is not what it was.
    pub(super) fn judge(&mut self, context: &mut Context<'_>) -> BTreeSet<ObjectName> {
        let (mut of_all, mut of_namespaces) = (0, HashMap::<&str, usize>::new());
        let mut refused = BTreeSet::new();
        for (Precedence { name, .. }, (object, size)) in &self.sizes {
            let of_namespace = of_namespaces.entry(&name.namespace).or_default();
            let (whose, limit) = if *of_namespace + size > MAX_OF_NAMESPACE {
                ("its namespace", MAX_OF_NAMESPACE)
            } else if of_all + size > MAX_OF_ALL {
                ("all namespaces", MAX_OF_ALL)
            } else {
                *of_namespace += size;
                of_all += size;
                continue;
            };
            let message = format!(
                "the regular expressions of its paths need {} KiB, and together with those of older Ingresses of {whose} more than the {} KiB allowed; it is not served, write shorter ones or use prefixes",
                size.div_ceil(1024),
                limit / 1024
            );
            context.report(object, Reason::TooLarge, message);
            refused.insert(name.clone());
        }
        let changed = self.refused.symmetric_difference(&refused).cloned().collect();
        self.refused = refused;
        changed
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::*;
    use crate::control::{
        change::{Change, Object},
        cluster::Cluster,
        outcome::Origin,
        translate::{Options, Translation, Translator},
    };

    /// An Ingress whose host is its name, with a path of each text.
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
    fn ten_thousand_expressions_are_refused_by_name_and_before_they_cost_much() {
        for (name, change) in [
            ("light", ingress("evil", "light", light(10_000))),
            ("heavy", ingress("evil", "heavy", heavy(10_000))),
            ("few-but-heavy", ingress("evil", "few-but-heavy", heavy(1_000))),
        ] {
            let mut cluster = Cluster::default();
            cluster.apply(ingress("victim", "web", light(3)));
            cluster.apply(change);
            let begun = Instant::now();
            let translation = Translator::new(Options::default()).translate(&cluster);
            // Of a build that is not optimised, on a machine that does other things.
            assert!(begun.elapsed() < Duration::from_secs(5), "{name} took {:?}", begun.elapsed());
            assert_eq!(served(&translation), ["web.victim.test"], "{name}");
            let told = too_large(&translation);
            assert!(
                matches!(&*told, [one] if one.starts_with(&format!("{name}: ")) && one.contains("allowed")),
                "{told:?}"
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
    fn the_expressions_of_a_namespace_and_of_all_have_a_bound_that_the_youngest_meet() {
        let (mut cluster, mut translator) = (Cluster::default(), Translator::new(Options::default()));
        // Close to 2 MiB each, so that 4 are within 8 MiB, and those of 4 namespaces within 32 MiB.
        let count = 20;
        let names = |namespace: usize| (0..8).map(move |number| (format!("n{namespace}"), format!("i{number}")));
        let all: Vec<_> = (0..6).flat_map(names).collect();
        for (namespace, name) in all.iter().rev() {
            cluster.apply(ingress(namespace, name, heavy(count)));
            // Whatever was there before, it comes to the same.
            drop(translator.translate(&cluster));
        }
        cluster.apply(ingress("victim", "light", std::iter::empty()));
        let translation = translator.translate(&cluster);
        let afresh = Translator::new(Options::default()).translate(&cluster);
        assert!(translation == afresh, "what is brought up to date equals what is made anew");
        let told = too_large(&translation);
        assert_eq!(served(&translation).len() + told.len(), all.len() + 1);
        for whose in ["its namespace", "all namespaces"] {
            assert!(told.iter().any(|told| told.contains(whose)), "{whose}: {told:?}");
        }
        let size: usize =
            translator.expressions.sizes.values().map(|(_, size)| size).max().copied().unwrap_or_default();
        let fit = MAX_OF_NAMESPACE / size;
        let of_first = |name: &&String| name.ends_with(".n0.test");
        assert_eq!(served(&translation).iter().filter(of_first).count(), fit);
        // One that goes makes room.
        let (namespace, name) = &all[0];
        cluster.apply(ingress(namespace, name, std::iter::empty()));
        let translation = translator.translate(&cluster);
        assert!(served(&translation).contains(&format!("i{fit}.n0.test")));
    }

    #[test]
    fn an_edit_reads_no_expression_again_that_is_in_use() {
        let (mut cluster, mut translator) = (Cluster::default(), Translator::new(Options::default()));
        let patterns = |translation: &Translation| -> Vec<Arc<PathPattern>> {
            let rules = translation.table.hosts.values().flat_map(|routes| &routes.rules);
            let pattern = |path: &PathMatch| match path {
                PathMatch::Pattern(pattern) => Some(Arc::clone(pattern)),
                PathMatch::Exact(_) | PathMatch::Prefix(_) => None,
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
