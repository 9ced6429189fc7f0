//! What each part of a translation was made from, and what there is to say about it. It makes no part itself.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::context::{Dependency, Trace};
use crate::{
    control::{change::ObjectName, outcome::Outcome},
    model::{HostPattern, Tree, UpstreamKey},
};

/// What is made anew by itself. In order: a part may depend on those before it, and never on one behind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Part {
    /// What holds for all Ingresses alike.
    Globals,
    /// The addresses of nodes and of the API server.
    Machinery,
    Upstream(UpstreamKey),
    /// What an Ingress claims.
    Ingress(ObjectName),
    DefaultBackend,
    FallbackCertificate,
    /// What all claims on a host come to.
    Host(HostPattern),
    /// What hosts for challenges borrow.
    Loans,
}

/// The traces of all parts.
#[derive(Default)]
pub(super) struct Records {
    parts: HashMap<Part, Record>,
    dependents: BTreeSet<(Dependency, Part)>,
    /// Dependencies that lost their last dependent, and may have got another since.
    orphans: Vec<Dependency>,
    /// What all parts say.
    outcomes: Tree<Arc<Outcome>, ()>,
    /// By how many parts it is said, besides the first.
    repeated: BTreeMap<Arc<Outcome>, usize>,
    /// The names whose addresses any part asked for.
    external_names: Tree<Arc<str>, ()>,
}

/// Sorted, without duplicates.
#[derive(Default)]
struct Record {
    reads: Box<[Dependency]>,
    outcomes: Box<[Arc<Outcome>]>,
}

// === impl Records ===

impl Records {
    /// Sets the trace of `part` in place of the one that it had.
    pub(super) fn record(&mut self, part: Part, trace: Trace) {
        let Trace { reads, outcomes } = trace;
        let outcomes: BTreeSet<_> = outcomes.into_iter().map(Arc::new).collect();
        let new = Record { reads: reads.into_iter().collect(), outcomes: outcomes.into_iter().collect() };
        let old = self.parts.remove(&part).unwrap_or_default();
        for read in new.reads.iter().filter(|read| old.reads.binary_search(read).is_err()) {
            self.dependents.insert((read.clone(), part.clone()));
            if let Dependency::Addresses(name) = read {
                self.external_names.insert(Arc::clone(name), ());
            }
        }
        for read in old.reads.iter().filter(|read| new.reads.binary_search(read).is_err()) {
            self.dependents.remove(&(read.clone(), part.clone()));
            if self.dependents_of(read).next().is_none() {
                self.orphans.push(read.clone());
            }
        }
        for outcome in new.outcomes.iter().filter(|outcome| old.outcomes.binary_search(outcome).is_err()) {
            self.say(outcome);
        }
        for outcome in old.outcomes.iter().filter(|outcome| new.outcomes.binary_search(outcome).is_err()) {
            self.unsay(outcome);
        }
        if !new.reads.is_empty() || !new.outcomes.is_empty() {
            self.parts.insert(part, new);
        }
    }

    /// Takes back what `part` was made from and said.
    pub(super) fn forget(&mut self, part: Part) {
        self.record(part, Trace::default());
    }

    /// The parts that were made from `dependency`.
    pub(super) fn dependents_of<'r>(&'r self, dependency: &'r Dependency) -> impl Iterator<Item = &'r Part> {
        // The first of all parts.
        let first = (dependency.clone(), Part::Globals);
        self.dependents.range(first..).take_while(move |(read, _)| read == dependency).map(|(_, part)| part)
    }

    /// A dependency that nothing is made from any more.
    pub(super) fn take_orphan(&mut self) -> Option<Dependency> {
        while let Some(orphan) = self.orphans.pop() {
            if self.dependents_of(&orphan).next().is_none() {
                if let Dependency::Addresses(name) = &orphan {
                    self.external_names.remove(name);
                }
                return Some(orphan);
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

    fn say(&mut self, outcome: &Arc<Outcome>) {
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
