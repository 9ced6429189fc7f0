//! A rule of a merged host, and the canaries that take a share of its requests.

use std::sync::Arc;

use crate::{
    outcome::ObjectRef,
    translate::{
        features::{Globals, client_certificates::Clients, https_redirect::Redirect},
        ingress_role::IngressRole,
    },
};
use ingress_model::{Action, Canary, CanaryRule, Filter, Passthrough, PathMatch, Rule, Split, Unavailable};

/// Maximum number of canaries of one rule; each request is compared with every one.
pub(super) const CANARIES_MAX: usize = 16;

/// A rule, before the properties of its host are known.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct MergedRule {
    pub(super) rule: Rule,
    /// The path as its Ingress claims it.
    pub(super) claimed: PathMatch,
    pub(super) owner: ObjectRef,
    pub(super) role: IngressRole,
    pub(super) redirect: Redirect,
    /// Demands on clients that its Ingress makes and the host does not meet, so that the rule is not served without
    /// them.
    pub(super) demands: Clients,
    /// Whether TLS connections are to be passed through to its pods.
    pub(super) passes: bool,
}

// === impl MergedRule ===

impl MergedRule {
    /// Returns `true` if the canary `object` is of the same namespace.
    pub(super) fn may_be_split_by(&self, object: &ObjectRef) -> bool {
        self.owner.namespace == object.namespace && self.role == IngressRole::Ordinary
    }

    /// Returns `true` if the rule has the maximum number of canaries.
    pub(super) fn is_split_as_often_as_may_be(&self) -> bool {
        matches!(&self.rule.action, Action::Split(split) if split.canaries.len() >= CANARIES_MAX)
    }

    /// Sends the requests that match `when` to the upstream of `rule`. A canary without an upstream takes none. Returns
    /// `true` if requests are sent there.
    pub(super) fn split(&mut self, when: &CanaryRule, rule: &Rule) -> bool {
        let (upstream, secure) = match &rule.action {
            Action::Forward(upstream) => (upstream, &[][..]),
            Action::Split(split) => (&split.main, &*split.over_tls),
            Action::Refuse(_) | Action::Redirect(_) | Action::Weighted(_) => return false,
        };
        let canary = Canary { when: when.clone(), upstream: upstream.clone() };
        let mut split = match &self.rule.action {
            Action::Forward(main) => Split { main: main.clone(), canaries: Vec::new(), over_tls: Vec::new() },
            Action::Split(split) => Split::clone(split),
            Action::Refuse(_) | Action::Redirect(_) | Action::Weighted(_) => return false,
        };
        // For the same pods, the settings of the rule itself count, as in ingress-nginx.
        let is_new = *upstream != split.main && split.canaries.iter().all(|known| known.upstream != *upstream);
        split.over_tls.extend(secure.iter().filter(|_| is_new).cloned());
        split.canaries.push(canary);
        self.rule.action = Action::Split(Arc::new(split));
        true
    }

    /// Returns the passthrough to the rule's pods. Clients with a required certificate cannot be asked for it, so they
    /// get no upstream.
    pub(super) fn passthrough(&self, clients: &Clients) -> Passthrough {
        let Rule { path: _, conditions: _, owner: _, filters, action, forwarding } = &self.rule;
        let upstream = match (clients, action) {
            (Clients::Any, Action::Forward(key)) => Some(key.clone()),
            (Clients::Any, Action::Split(split)) => Some(split.main.clone()),
            (Clients::With(_) | Clients::Refused, _)
            | (_, Action::Refuse(_) | Action::Redirect(_) | Action::Weighted(_)) => None,
        };
        let access = filters.iter().find_map(|filter| match filter {
            Filter::Access(access) => Some(Arc::clone(access)),
            _ => None,
        });
        Passthrough { upstream, access, connect_timeout: forwarding.connect_timeout }
    }

    /// Returns the final rule, once it is known whether any Ingress gives its host TLS.
    ///
    /// Demands on clients hold for all rules of the host, independent of the Ingress that made them. Solvers are
    /// exempt, because their clients come over plain HTTP and have no certificate.
    pub(super) fn settle(&self, has_tls: bool, clients: &Clients, globals: &Globals) -> Rule {
        let Self { rule, claimed: _, owner: _, role, redirect, demands, passes: _ } = self;
        let mut rule = rule.clone();
        match clients {
            _ if *role == IngressRole::Solver => {}
            _ if *demands != Clients::Any && demands != clients => rule.action = Action::Refuse(Unavailable::Policy),
            Clients::Any => {}
            Clients::With(clients) => rule.filters.insert(0, Filter::ClientCertificate(Arc::clone(clients))),
            Clients::Refused => rule.action = Action::Refuse(Unavailable::Policy),
        }
        if let Some(filter) = redirect.filter(has_tls, &globals.https_redirect) {
            rule.filters.insert(0, filter);
        }
        if has_tls {
            rule.filters.extend(globals.hsts.filter());
        }
        rule
    }
}
