//! Keeps the claims on hosts up to date, and finds the hosts that a change of claims makes stale. It merges no claims.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use super::{PendingWork, Translator};
use crate::{
    change::ObjectName,
    translate::{
        claims::{Claims, HostClaim},
        merge::{Merged, MergedHost, wildcard_of},
        ownership::Broader,
        part::Part,
    },
};
use ingress_model::{HostPattern, Tree};

impl Translator {
    /// Sets the claims of the Ingress `name`; `None` if it belongs to another controller, or is gone.
    pub(super) fn claim(&mut self, name: &ObjectName, claims: Option<Claims>, work: &mut PendingWork) {
        let before = self.claims.get(name);
        if before.map(Arc::as_ref) == claims.as_ref() {
            return;
        }
        let before = self.claims.remove(name);
        self.effects.touch(name);
        self.checks.touch();
        let claims = claims.map(Arc::new);
        if self.expressions.set(before.as_ref(), claims.as_ref()) {
            work.stale.insert(Part::Expressions);
        }
        if self.shares.set(before.as_ref(), claims.as_ref()) {
            work.stale.insert(Part::Shares);
        }
        if self.meters.set(before.as_ref(), claims.as_ref()) {
            work.stale.insert(Part::Meters);
        }
        let is_any_certified = self.is_any_certified();
        let reaching = before.iter().chain(&claims).flat_map(|claims| claims.reaching_below(is_any_certified));
        work.less_specific.extend(reaching.cloned());
        for (pattern, _) in before.iter().flat_map(|claims| &claims.hosts) {
            if let Some(claimants) = self.claimants.get_mut(pattern) {
                claimants.retain(|claims| claims.precedence.name != *name);
                if claimants.is_empty() {
                    self.claimants.remove(pattern);
                }
            }
            work.stale.insert(Part::Host(pattern.clone()));
        }
        match claims {
            None => drop(self.served.remove(name)),
            Some(claims) => {
                for (pattern, HostClaim { .. }) in &claims.hosts {
                    let claimants = self.claimants.entry(pattern.clone()).or_default();
                    let at = claimants.partition_point(|other| other.precedence < claims.precedence);
                    claimants.insert(at, Arc::clone(&claims));
                    work.stale.insert(Part::Host(pattern.clone()));
                }
                if before.is_none() {
                    self.served.insert(name.clone(), ());
                }
                self.claims.insert(name.clone(), claims);
            }
        }
    }

    /// Returns the claims on a host that are not refused, in order of precedence.
    pub(super) fn standing_claims(&self, pattern: &HostPattern) -> Cow<'_, [Arc<Claims>]> {
        let mut claims = Cow::from(self.claimants.get(pattern).map(Vec::as_slice).unwrap_or_default());
        if claims.iter().any(|claims| self.refuses(&claims.precedence.name)) {
            claims.to_mut().retain(|claims| !self.refuses(&claims.precedence.name));
        }
        claims
    }

    /// Returns the claims on the hosts that are less specific than `pattern`.
    pub(super) fn broader(&self, pattern: &HostPattern) -> Vec<Broader<'_>> {
        let any = (*pattern != HostPattern::Any).then_some(HostPattern::Any);
        let less_specific = wildcard_of(pattern).into_iter().chain(any);
        let claimed = |pattern| self.claimants.get_key_value(&pattern);
        let broader = |(pattern, _)| Broader { pattern, claims: self.standing_claims(pattern) };
        less_specific.filter_map(claimed).map(broader).collect()
    }

    /// Returns `true` if an Ingress exceeds a budget that it shares with others.
    fn refuses(&self, name: &ObjectName) -> bool {
        self.expressions.refuses(name) || self.shares.refuses(name)
    }

    /// Returns `true` if an Ingress claims a certificate for all hosts.
    fn is_any_certified(&self) -> bool {
        let is_certified = |claims: &Arc<Claims>| claims.of(&HostPattern::Any).is_some_and(HostClaim::may_certify);
        self.claimants.get(&HostPattern::Any).is_some_and(|claimants| claimants.iter().any(is_certified))
    }

    /// Marks the hosts that these Ingresses claim, and those below, as stale, because the Ingresses are refused now or
    /// no longer.
    pub(super) fn look_at_claims_of(&self, names: &BTreeSet<ObjectName>, work: &mut PendingWork) {
        self.look_at_hosts_of(names, work);
        let claims = names.iter().filter_map(|name| self.claims.get(name));
        let is_any_certified = self.is_any_certified();
        work.less_specific.extend(claims.flat_map(|claims| claims.reaching_below(is_any_certified).cloned()));
    }

    /// Marks the hosts that these Ingresses claim as stale.
    pub(super) fn look_at_hosts_of(&self, names: &BTreeSet<ObjectName>, work: &mut PendingWork) {
        let claims = names.iter().filter_map(|name| self.claims.get(name));
        let hosts = claims.flat_map(|claims| &claims.hosts);
        work.stale.extend(hosts.map(|(pattern, _)| Part::Host(pattern.clone())));
    }

    /// Marks the hosts as stale that one of `less_specific` serves where they have no rules of their own.
    pub(super) fn look_below(&self, less_specific: &BTreeSet<HostPattern>, work: &mut PendingWork) {
        let is_below = |pattern: &&HostPattern| {
            **pattern != HostPattern::Any && less_specific.contains(&HostPattern::Any)
                || wildcard_of(pattern).is_some_and(|wildcard| less_specific.contains(&wildcard))
        };
        work.stale.extend(self.claimants.keys().filter(is_below).cloned().map(Part::Host));
    }

    /// Sets the merged claims on a host. A host with inherited rules waits for the hosts that it may inherit from.
    pub(super) fn settle(&mut self, pattern: &HostPattern, merged: Merged, work: &mut PendingWork) {
        let Merged { host, certificate, in_effect: _ } = merged;
        match certificate {
            None => drop(self.table.server_names.remove(pattern)),
            Some(origin) if self.table.server_names.get(pattern) == Some(&origin) => {}
            Some(origin) => drop(self.table.server_names.insert(pattern.clone(), origin)),
        }
        let is_exact = matches!(pattern, HostPattern::Exact(_));
        let is_borrower = is_exact && host.as_ref().is_some_and(MergedHost::is_for_solvers);
        if is_borrower || self.challenge_hosts.contains_key(pattern) || (!is_exact && !self.challenge_hosts.is_empty())
        {
            work.stale.insert(Part::InheritedRoutes);
        }
        let routes = host.as_ref().map(|host| host.settle(None, &self.globals));
        match host {
            Some(host) if is_borrower => {
                self.challenge_hosts.insert(pattern.clone(), host);
                return;
            }
            Some(host) if !is_exact => drop(self.ancestors.insert(pattern.clone(), host)),
            Some(_) | None => drop(self.ancestors.remove(pattern)),
        }
        self.challenge_hosts.remove(pattern);
        self.route(pattern, routes, work);
    }

    /// Returns the Ingresses with a claim in the table.
    pub(super) fn in_effect(&mut self) -> Tree<ObjectName, ()> {
        self.effects.settle(|name| self.claims.get(name).map_or(0, |claims| claims.hosts.len()))
    }
}
