//! The dependencies and outcomes of each part of a translation. It makes no part itself.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::{
    few::{self, Few},
    part::{Dependency, Part, PartTrace},
};
use crate::outcome::Outcome;
use ingress_model::Tree;

/// The traces of all parts. Each part and each dependency is one allocation, since hash maps have room to spare and
/// most parts occur several times.
#[derive(Default)]
pub(super) struct Records {
    parts: HashMap<Arc<Part>, Record>,
    /// The parts made from a dependency: one or two for most, all Ingresses for their class.
    dependents: HashMap<Arc<Dependency>, Few<Arc<Part>>>,
    /// Dependencies that lost their last dependent, and may have got another since.
    orphans: Vec<Arc<Dependency>>,
    /// Outcomes of all parts.
    outcomes: Tree<Arc<Outcome>, ()>,
    /// Number of further parts that report an outcome, besides the first.
    repeated: BTreeMap<Arc<Outcome>, usize>,
    /// The names that any part looked up.
    external_names: Tree<Arc<str>, ()>,
}

/// Sorted, without duplicates.
#[derive(Default)]
struct Record {
    reads: Box<[Arc<Dependency>]>,
    outcomes: Box<[Arc<Outcome>]>,
}

// === impl Records ===

impl Records {
    /// Replaces the trace of `part`.
    pub(super) fn record(&mut self, part: Part, trace: PartTrace) {
        let PartTrace { reads, outcomes } = trace;
        let outcomes: BTreeSet<_> = outcomes.into_iter().map(Arc::new).collect();
        let reads = reads.into_iter().map(|read| match self.dependents.get_key_value(&read) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::new(read),
        });
        let new = Record { reads: reads.collect(), outcomes: outcomes.into_iter().collect() };
        let (part, old) = self.parts.remove_entry(&part).unwrap_or_else(|| (Arc::new(part), Record::default()));
        for read in new.reads.iter().filter(|read| old.reads.binary_search(read).is_err()) {
            few::add(&mut self.dependents, read, Arc::clone(&part));
            if let Dependency::Addresses(name) = &**read {
                self.external_names.insert(Arc::clone(name), ());
            }
        }
        for read in old.reads.iter().filter(|read| new.reads.binary_search(read).is_err()) {
            if few::remove(&mut self.dependents, read, &part) {
                self.orphans.push(Arc::clone(read));
            }
        }
        for outcome in new.outcomes.iter().filter(|outcome| old.outcomes.binary_search(outcome).is_err()) {
            self.report(outcome);
        }
        for outcome in old.outcomes.iter().filter(|outcome| new.outcomes.binary_search(outcome).is_err()) {
            self.unsay(outcome);
        }
        if !new.reads.is_empty() || !new.outcomes.is_empty() {
            self.parts.insert(part, new);
        }
    }

    /// Removes the dependencies and outcomes of `part`.
    pub(super) fn forget(&mut self, part: Part) {
        self.record(part, PartTrace::default());
    }

    /// Returns the parts that were made from `dependency`.
    pub(super) fn dependents_of(&self, dependency: &Dependency) -> impl Iterator<Item = &Part> {
        self.dependents.get(dependency).into_iter().flat_map(Few::iter).map(|part| &**part)
    }

    /// Returns a dependency that has no dependents left.
    pub(super) fn take_orphan(&mut self) -> Option<Dependency> {
        while let Some(orphan) = self.orphans.pop() {
            if !self.dependents.contains_key(&orphan) {
                if let Dependency::Addresses(name) = &*orphan {
                    self.external_names.remove(name);
                }
                return Some(Arc::unwrap_or_clone(orphan));
            }
        }
        None
    }

    pub(super) fn outcomes(&self) -> &Tree<Arc<Outcome>, ()> {
        &self.outcomes
    }

    pub(super) fn external_names(&self) -> &Tree<Arc<str>, ()> {
        &self.external_names
    }

    fn report(&mut self, outcome: &Arc<Outcome>) {
        if self.outcomes.contains_key(outcome) {
            *self.repeated.entry(Arc::clone(outcome)).or_default() += 1;
        } else {
            self.outcomes.insert(Arc::clone(outcome), ());
        }
    }

    fn unsay(&mut self, outcome: &Arc<Outcome>) {
        match self.repeated.get_mut(outcome) {
            Some(1) => drop(self.repeated.remove(outcome)),
            Some(times) => *times -= 1,
            None => drop(self.outcomes.remove(outcome)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::ObjectName;

    #[test]
    fn dependents_are_found_until_they_are_forgotten() {
        for count in [1, 2, 9, 24] {
            let mut records = Records::default();
            let part = |number: usize| Part::Ingress(ObjectName::new("n", &number.to_string()));
            let check = |records: &Records, numbers: std::ops::Range<usize>| {
                let found: BTreeSet<_> = records.dependents_of(&Dependency::Classes).cloned().collect();
                let expect: BTreeSet<_> = numbers.map(part).collect();
                assert_eq!(found, expect, "of {count}");
            };
            for number in 0..count {
                let reads = [Dependency::Classes].into();
                records.record(part(number), PartTrace { reads, outcomes: Vec::new() });
            }
            check(&records, 0..count);
            (0..count / 2).for_each(|number| records.forget(part(number)));
            check(&records, count / 2..count);
            assert_eq!(records.take_orphan(), None, "of {count}");
            (count / 2..count).for_each(|number| records.forget(part(number)));
            check(&records, 0..0);
            assert_eq!(records.take_orphan(), Some(Dependency::Classes), "of {count}");
        }
    }
}
