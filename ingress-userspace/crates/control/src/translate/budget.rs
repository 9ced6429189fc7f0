//! Divides a budget that Ingresses share: older Ingresses come first, within the share of their namespace. The purpose
//! of the budget is not known here.
//!
//! Sums are kept up to date. A search for refused Ingresses happens only where a sum exceeds its bound. In one namespace
//! it costs the refused ones; while the total of all is too large, it looks at every Ingress that uses the budget.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
};

use super::{
    amount::Amount,
    claims::Claims,
    sum_list::{Excess, SumList},
};
use crate::{change::ObjectName, outcome::ObjectRef};

/// The share of each Ingress in a budget, and the Ingresses that get none of it.
pub(super) struct Holders<A> {
    budget: Budget<A>,
    /// Computes the amount that an Ingress would use.
    amount: fn(&Claims) -> A,
    /// Claims by namespace, the oldest first; Ingresses that use nothing are left out.
    namespaces: HashMap<Arc<str>, SumList<ByAge, A>>,
    total: A,
    /// Namespaces in which the set of refused Ingresses may have changed since the last judgement.
    stale: BTreeSet<Arc<str>>,
    /// Whether the total was too large at the last judgement.
    was_too_much: bool,
    refused: BTreeMap<ObjectName, BudgetRefusal<A>>,
}

/// Size of a budget.
#[derive(Clone, Copy)]
pub(super) struct Budget<A> {
    pub(super) of_namespace: A,
    pub(super) of_all: A,
}

/// An Ingress that gets none of a budget.
pub(super) struct BudgetRefusal<A> {
    pub(super) object: ObjectRef,
    /// The amount that it would use.
    pub(super) amount: A,
    /// The same, together with the amounts of older Ingresses.
    pub(super) together: A,
    pub(super) scope: BudgetScope,
}

/// The scope of the budget that older Ingresses use up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BudgetScope {
    Namespace,
    All,
}

/// Claims of an Ingress, ordered by age.
struct ByAge(Arc<Claims>);

// === impl Holders ===

impl<A: Amount> Holders<A> {
    pub(super) fn new(budget: Budget<A>, amount: fn(&Claims) -> A) -> Self {
        Self {
            budget,
            amount,
            namespaces: HashMap::new(),
            total: A::default(),
            stale: BTreeSet::new(),
            was_too_much: false,
            refused: BTreeMap::new(),
        }
    }

    /// Replaces the claims of an Ingress. Returns `true` if the set of refused Ingresses may have changed.
    pub(super) fn set(&mut self, before: Option<&Arc<Claims>>, now: Option<&Arc<Claims>>) -> bool {
        let Some(either) = before.or(now) else { return false };
        let namespace = &either.object.namespace;
        let amount = |claims: Option<&Arc<Claims>>| claims.map_or_else(A::default, |claims| (self.amount)(claims));
        let (less, more) = (amount(before), amount(now));
        if less == A::default() && more == A::default() {
            return false;
        }
        let was_too_much = self.asks_too_much(namespace);
        let held = self.namespaces.entry(Arc::clone(namespace)).or_default();
        if let Some(claims) = before {
            held.remove(&ByAge(Arc::clone(claims)));
        }
        if let Some(claims) = now.filter(|_| more != A::default()) {
            held.insert(ByAge(Arc::clone(claims)), more);
        }
        self.total += more;
        self.total -= less;
        if held.is_empty() {
            self.namespaces.remove(namespace);
        }
        let matters = was_too_much || self.asks_too_much(namespace);
        if matters {
            self.stale.insert(Arc::clone(namespace));
        }
        matters
    }

    /// Returns `true` if an Ingress of a namespace may be refused.
    fn asks_too_much(&self, namespace: &str) -> bool {
        let of_namespace = |held: &SumList<ByAge, A>| held.sum().exceeds(&self.budget.of_namespace);
        self.total.exceeds(&self.budget.of_all) || self.namespaces.get(namespace).is_some_and(of_namespace)
    }

    pub(super) fn refuses(&self, name: &ObjectName) -> bool {
        self.refused.contains_key(name)
    }

    /// Determines the refused Ingresses anew, oldest first, and calls `report` for each. Returns the Ingresses with a
    /// changed result.
    pub(super) fn judge(&mut self, mut report: impl FnMut(&BudgetRefusal<A>, &Budget<A>)) -> BTreeSet<ObjectName> {
        let is_too_much = self.total.exceeds(&self.budget.of_all);
        let concerns_all = std::mem::replace(&mut self.was_too_much, is_too_much) || is_too_much;
        let stale = std::mem::take(&mut self.stale);
        let is_judged = |namespace: &Arc<str>| concerns_all || stale.contains(namespace);
        let refused = if concerns_all { self.all_refusals() } else { self.refusals_of(&stale) };
        let before = self.refused.extract_if(.., |name, _| is_judged(&name.namespace));
        let before: BTreeSet<_> = before.map(|(name, _)| name).collect();
        let changed = before.symmetric_difference(&refused.keys().cloned().collect()).cloned().collect();
        self.refused.extend(refused);
        self.refused.values().for_each(|refusal| report(refusal, &self.budget));
        changed
    }

    /// Returns the refused Ingresses of these namespaces while the total is not too large, so that they affect no others.
    fn refusals_of(&self, namespaces: &BTreeSet<Arc<str>>) -> BTreeMap<ObjectName, BudgetRefusal<A>> {
        let held = namespaces.iter().filter_map(|namespace| self.namespaces.get(namespace));
        let excess = held.flat_map(|held| held.excess(&self.budget.of_namespace));
        let refusal = |Excess { member: ByAge(claims), amount, together }| {
            let scope = BudgetScope::Namespace;
            let refusal = BudgetRefusal { object: claims.object.clone(), amount, together, scope };
            (claims.precedence.name.clone(), refusal)
        };
        excess.map(refusal).collect()
    }

    /// Returns the refused Ingresses of all namespaces.
    fn all_refusals(&self) -> BTreeMap<ObjectName, BudgetRefusal<A>> {
        let mut holders: Vec<_> = self.namespaces.values().flat_map(SumList::iter).collect();
        holders.sort_by(|(a, _), (b, _)| a.cmp(b));
        let (mut of_all, mut of_namespaces) = (A::default(), HashMap::<&str, A>::new());
        let mut refused = BTreeMap::new();
        for (ByAge(claims), amount) in holders {
            let amount = *amount;
            let of_namespace = of_namespaces.entry(&claims.object.namespace).or_default();
            let (mut in_namespace, mut in_all) = (*of_namespace, of_all);
            in_namespace += amount;
            in_all += amount;
            let (scope, together) = if in_namespace.exceeds(&self.budget.of_namespace) {
                (BudgetScope::Namespace, in_namespace)
            } else if in_all.exceeds(&self.budget.of_all) {
                (BudgetScope::All, in_all)
            } else {
                (*of_namespace, of_all) = (in_namespace, in_all);
                continue;
            };
            let object = claims.object.clone();
            refused.insert(claims.precedence.name.clone(), BudgetRefusal { object, amount, together, scope });
        }
        refused
    }

    /// Returns the amount that each Ingress would use.
    #[cfg(test)]
    pub(super) fn amounts(&self) -> impl Iterator<Item = A> {
        self.namespaces.values().flat_map(SumList::iter).map(|(_, amount)| *amount)
    }
}

// === impl ByAge ===

impl Ord for ByAge {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.precedence.seniority().cmp(&other.0.precedence.seniority())
    }
}

impl PartialOrd for ByAge {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ByAge {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ByAge {}

// === impl BudgetScope ===

impl fmt::Display for BudgetScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Namespace => "its namespace",
            Self::All => "all namespaces",
        })
    }
}

// === impl Budget ===

impl<A: Amount> Budget<A> {
    /// Returns the bound of this scope.
    pub(super) fn of(&self, scope: BudgetScope) -> A {
        match scope {
            BudgetScope::Namespace => self.of_namespace,
            BudgetScope::All => self.of_all,
        }
    }
}

impl Amount for usize {
    fn exceeds(&self, limit: &Self) -> bool {
        self > limit
    }
}
