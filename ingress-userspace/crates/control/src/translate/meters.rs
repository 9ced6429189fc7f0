//! Limits the number of rules that are counted separately. It counts no requests.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use super::{
    Options,
    budget::{Budget, BudgetScope, Holders},
    claims::Claims,
    outcomes::Outcomes,
};
use crate::{change::ObjectName, outcome::Reason};
use ingress_model::{Forwarding, HostRoutes, Rule};

/// The rules that are counted separately.
pub(super) struct Meters {
    holders: Holders<usize>,
    /// Forwarding of the rules by refused Ingress: the original, and a copy without metrics, which all of its rules
    /// share.
    silenced: HashMap<ObjectName, (Arc<Forwarding>, Arc<Forwarding>)>,
}

// === impl Meters ===

impl Meters {
    pub(super) fn new(options: &Options) -> Self {
        let Options { max_metered_rules: of_all, max_metered_rules_per_namespace: of_namespace, .. } = *options;
        let holders = Holders::new(Budget { of_namespace, of_all }, |claims| claims.metered);
        Self { holders, silenced: HashMap::new() }
    }

    /// Like [`Holders::set`].
    pub(super) fn set(&mut self, before: Option<&Arc<Claims>>, now: Option<&Arc<Claims>>) -> bool {
        self.holders.set(before, now)
    }

    /// Determines anew which rules are counted only under their hosts, and returns the Ingresses with a changed result.
    pub(super) fn judge(&mut self, outcomes: &mut Outcomes) -> BTreeSet<ObjectName> {
        let changed = self.holders.judge(|refusal, budget| {
            let flag = match refusal.scope {
                BudgetScope::Namespace => "--max-metered-rules-per-namespace",
                BudgetScope::All => "--max-metered-rules",
            };
            let message = format!(
                "`metrics-per-path` would count {} rules; with those of older Ingresses of {} they exceed the {} \
                 allowed; its requests are counted only by host, set it for fewer Ingresses or raise `{flag}`",
                refusal.amount,
                refusal.scope,
                budget.of(refusal.scope)
            );
            outcomes.report(&refusal.object, Reason::TooLarge, message);
        });
        self.silenced.retain(|name, _| self.holders.refuses(name));
        changed
    }

    /// Switches metrics off for the rules of refused Ingresses.
    pub(super) fn silence(&mut self, routes: &mut HostRoutes) {
        let HostRoutes { rules, fallback, .. } = routes;
        let metered = rules.iter_mut().chain(fallback.as_deref_mut()).filter(|rule| rule.forwarding.metered);
        for Rule { owner, forwarding, .. } in metered {
            let Some((namespace, name)) = owner.split_once('/') else { continue };
            let name = ObjectName::new(namespace, name);
            if self.holders.refuses(&name) {
                *forwarding = self.silent(name, forwarding);
            }
        }
    }

    fn silent(&mut self, name: ObjectName, forwarding: &Arc<Forwarding>) -> Arc<Forwarding> {
        match self.silenced.get(&name) {
            Some((known, silent)) if Arc::ptr_eq(known, forwarding) => Arc::clone(silent),
            _ => {
                let silent = Arc::new(Forwarding { metered: false, ..Forwarding::clone(forwarding) });
                self.silenced.insert(name, (Arc::clone(forwarding), Arc::clone(&silent)));
                silent
            }
        }
    }
}
