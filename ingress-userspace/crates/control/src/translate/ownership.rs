//! Decides which namespace owns a host, and which claims others may make on it. It merges nothing.
//!
//! The owner of a host is the namespace of the oldest Ingress with rules for it. The owner decides on the host as a
//! whole: its certificate, the redirect to HTTPS and HSTS, client certificates, challenges, aliases. A host that only
//! `tls` entries or solvers name belongs to its wildcard, if that has an older owner. A name with rules of its own is a
//! host of its own, regardless of the wildcard's owner.

use std::{borrow::Cow, collections::BTreeSet, fmt, sync::Arc};

use super::{
    Context, certificate_secret,
    claims::{Claims, HostClaim},
    features::Globals,
    ingress_role::IngressRole,
    lookup::Lookup,
    options::HostSharing,
    outcomes::Outcomes,
};
use crate::{
    change::ObjectName,
    outcome::{ObjectRef, Reason},
};
use ingress_model::{HostPattern, PathMatch, path};

/// Ownership of a host, while the claims on it are merged.
pub(super) struct Ownership<'m> {
    pattern: &'m HostPattern,
    sharing: HostSharing,
    owner: Option<&'m Claims>,
    /// Namespaces that may add paths, if grants are required.
    granted: BTreeSet<Arc<str>>,
    /// Namespaces with refused claims, each with one of its Ingresses.
    refused: BTreeSet<(Arc<str>, Arc<str>)>,
}

/// Claims that one Ingress may make on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Right {
    /// The host belongs to its namespace, has no owner, or is shared openly.
    Everything,
    Paths,
    Nothing,
}

/// Order and role in which the claims of one Ingress on a host are merged.
#[derive(Clone, Copy)]
pub(super) struct MergeTurn<'m> {
    pub(super) role: IngressRole,
    pub(super) right: Right,
    pub(super) claims: &'m Claims,
}

/// Returns the Ingress with the rules, or the aliases, that make its namespace the owner of `pattern`. `claims` are in
/// order of precedence.
fn owner<'m>(pattern: &HostPattern, claims: &'m [Arc<Claims>]) -> Option<&'m Claims> {
    let has_rules = |claims: &&Claims| {
        let is_ordinary = claims.canary.is_none() && claims.precedence.role == IngressRole::Ordinary;
        is_ordinary && claims.of(pattern).is_some_and(|claim| claim.rules.is_some() || claim.alias.is_some())
    };
    claims.iter().map(Arc::as_ref).find(has_rules)
}

// === impl Ownership ===

impl<'m> Ownership<'m> {
    /// Determines the ownership of `pattern` from the `claims` on it; `broader` are the claims on the less specific
    /// hosts that would serve it.
    pub(super) fn of(
        pattern: &'m HostPattern,
        claims: &'m [Arc<Claims>],
        broader: &'m [Broader<'m>],
        globals: &Globals,
    ) -> Self {
        let wildcard = broader.iter().find(|broader| *broader.pattern != HostPattern::Any);
        let of_wildcard = || wildcard.and_then(|wildcard| owner(wildcard.pattern, &wildcard.claims));
        let owner = owner(pattern, claims).or_else(of_wildcard);
        let sharing = globals.sharing_of(owner.and_then(|owner| owner.class.as_deref()));
        let mut granted = sharing.grants.clone();
        let owners = claims.iter().filter(|claims| owner.is_some_and(|owner| owner.is_neighbour_of(claims)));
        granted.extend(owners.flat_map(|claims| claims.shares_with.iter().cloned()));
        Self { pattern, sharing: sharing.mode, owner, granted, refused: BTreeSet::new() }
    }

    /// Returns the right of `claims`.
    fn right(&self, claims: &Claims) -> Right {
        let is_other = |owner: &Claims| !owner.is_neighbour_of(claims) && owner.is_older_than(claims);
        match self.sharing {
            _ if !self.owner.is_some_and(is_other) => Right::Everything,
            HostSharing::Open => Right::Everything,
            HostSharing::Paths => Right::Paths,
            HostSharing::Granted if self.granted.contains(&claims.object.namespace) => Right::Paths,
            HostSharing::Granted | HostSharing::Owner => Right::Nothing,
        }
    }

    /// Returns the role in which `claims` are merged. A solver keeps its role only for a host of its own namespace, or
    /// without an owner, because answering challenges for a host is enough to get certificates for it.
    fn role(&self, claims: &Claims, all: &[Arc<Claims>]) -> IngressRole {
        let has_rules = |other: &&Arc<Claims>| {
            let is_ordinary = other.precedence.role == IngressRole::Ordinary && other.canary.is_none();
            is_ordinary && other.is_neighbour_of(claims) && other.of(self.pattern).is_some_and(|of| of.rules.is_some())
        };
        match (claims.precedence.role, self.owner) {
            (IngressRole::Solver, Some(owner)) if !owner.is_neighbour_of(claims) => match self.sharing {
                HostSharing::Open if all.iter().any(|other| has_rules(&other)) => IngressRole::Solver,
                _ => IngressRole::Ordinary,
            },
            (role, _) => role,
        }
    }

    /// Returns the claims in the order in which they are merged, with their roles. The owner's claims come before those
    /// of others, which depend on its permission.
    pub(super) fn in_turn(&self, claims: &'m [Arc<Claims>]) -> Vec<MergeTurn<'m>> {
        let turn = |claimant: &'m Arc<Claims>| MergeTurn {
            role: self.role(claimant, claims),
            right: self.right(claimant),
            claims: claimant,
        };
        let mut turns: Vec<_> = claims.iter().map(turn).collect();
        turns.sort_by(|a, b| a.precedence().cmp(&b.precedence()));
        turns
    }

    /// Returns `true` if an alias of `claims` stays although the rules of `namesake` name the host.
    pub(super) fn keeps_alias(&self, claims: &Claims, namesake: &Claims) -> bool {
        self.sharing != HostSharing::Open && !namesake.is_neighbour_of(claims) && claims.is_older_than(namesake)
    }

    /// Returns `path` as another namespace than the owner's may have it, or the reason why it may not. An expression
    /// reaches no further than a prefix would, and only the owner answers challenges for the host.
    pub(super) fn confined(path: &PathMatch) -> Result<PathMatch, &'static str> {
        const CHALLENGES: Result<PathMatch, &str> = Err("where challenges are answered,");
        match path {
            PathMatch::Exact(text) | PathMatch::Prefix(text) | PathMatch::Beginning(text) => {
                let elements = path::elements(text);
                let is_above = matches!(path, PathMatch::Prefix(_)) && elements == "/.well-known";
                let is_below = PathMatch::Prefix(path::ACME_CHALLENGE.into()).matches(elements);
                if is_above || is_below { CHALLENGES } else { Ok(path.clone()) }
            }
            PathMatch::Pattern(pattern) => {
                let confined = pattern.confined().ok_or("with only the path `/` common to all its matches,")?;
                let beginning = pattern.beginning().to_ascii_lowercase();
                let challenges = format!("{}/", path::ACME_CHALLENGE);
                let meets = beginning.starts_with(&challenges) || challenges.starts_with(&beginning);
                if meets { CHALLENGES } else { Ok(PathMatch::Pattern(Arc::new(confined))) }
            }
        }
    }

    /// Returns `true` if other namespaces may answer requests without a rule of the owner, with the exception of
    /// challenges.
    pub(super) fn keeps_challenges(&self) -> bool {
        self.sharing != HostSharing::Open
    }

    /// Reports on the Ingress of `claims` that `what` belongs to the owner, and records the namespace for a report to
    /// the owner.
    pub(super) fn refuse(&mut self, claims: &Claims, what: impl fmt::Display, outcomes: &mut Outcomes) {
        let Some(owner) = self.owner else { return };
        let ObjectRef { kind, namespace, name, origin: _ } = &owner.object;
        let message = format!(
            "{what} of host `{}` is refused, because the older {kind} `{namespace}/{name}` makes namespace \
             `{namespace}` the host's owner; ask that owner, or the operator for another `--host-sharing`",
            self.pattern
        );
        outcomes.report(&claims.object, Reason::HostOwnedByOther, message);
        let ObjectRef { namespace, name, .. } = &claims.object;
        if !self.refused.iter().any(|(known, _)| known == namespace) {
            self.refused.insert((Arc::clone(namespace), Arc::clone(name)));
        }
    }

    /// Reports to the owner which namespaces had claims refused.
    pub(super) fn report_problems(self, outcomes: &mut Outcomes) {
        let Self { pattern, owner: Some(owner), refused, .. } = self else { return };
        for (namespace, name) in refused {
            let message = format!(
                "Ingress `{namespace}/{name}` makes claims on host `{pattern}`, which belongs to this namespace; they \
                 are refused, ask its owner to remove them if the host is your own"
            );
            outcomes.report(&owner.object, Reason::HostClaimedByOther, message);
        }
    }

    /// Returns the certificate to use instead of that of a less specific host, if that one is neither the owner's nor
    /// older. It is the next one that would serve the host, or none, which means the default certificate.
    pub(super) fn unshadowed(
        &self,
        broader: &[Broader<'_>],
        globals: &Globals,
        context: &mut Context<'_, '_>,
    ) -> Option<Option<Arc<str>>> {
        let owner = self.owner.filter(|_| self.sharing != HostSharing::Open)?;
        let is_foreign = |other: &Claims| !owner.is_neighbour_of(other) && owner.is_older_than(other);
        let certified =
            broader.iter().filter_map(|broader| Some((broader.pattern, broader.certified(globals, context.lookup)?)));
        let certified: Vec<_> = certified.collect();
        let (_, (nearest, _)) = certified.first()?;
        if !is_foreign(nearest) {
            return None;
        }
        let next = certified.iter().find(|(_, (claims, _))| !is_foreign(claims));
        Some(next.and_then(|(pattern, (claims, name))| {
            certificate_secret::certificate(name, pattern, &claims.object, context)
        }))
    }
}

/// The claims on a less specific host, in order of precedence, without refused Ingresses.
pub(super) struct Broader<'m> {
    pub(super) pattern: &'m HostPattern,
    pub(super) claims: Cow<'m, [Arc<Claims>]>,
}

// === impl Broader ===

impl Broader<'_> {
    /// Returns the Ingress that gives the host its certificate, by `tls` or by an alias, and the Secret.
    fn certified(&self, globals: &Globals, lookup: &Lookup<'_>) -> Option<(&Claims, &ObjectName)> {
        if *self.pattern == HostPattern::Any && lookup.options.default_certificate.is_some() {
            return None;
        }
        let ownership = Ownership::of(self.pattern, &self.claims, &[], globals);
        let all = || self.claims.iter().map(Arc::as_ref);
        let namesake = all().find(|claims| claims.names(self.pattern));
        let mut entitled =
            all().filter(|claims| claims.canary.is_none() && ownership.right(claims) == Right::Everything);
        entitled.find_map(|claims| {
            let HostClaim { certificate, alias, .. } = claims.of(self.pattern)?;
            // An alias has no effect beside rules for its name, as in the merge.
            let is_free = namesake.is_none_or(|namesake| ownership.keeps_alias(claims, namesake));
            let alias = alias.as_deref().filter(|_| is_free);
            let name = certificate.as_ref().or_else(|| alias?.certificate.as_ref())?;
            Some((claims, name))
        })
    }
}

// === impl MergeTurn ===

impl MergeTurn<'_> {
    fn precedence(&self) -> impl Ord {
        (self.role, self.right, self.claims.precedence.seniority())
    }
}

// === impl Claims ===

impl Claims {
    fn is_neighbour_of(&self, other: &Self) -> bool {
        self.object.namespace == other.object.namespace
    }

    /// Returns `true` if a rule of the Ingress names the host, for more than a challenge.
    pub(super) fn names(&self, pattern: &HostPattern) -> bool {
        let is_ordinary = self.canary.is_none() && self.precedence.role == IngressRole::Ordinary;
        is_ordinary && self.of(pattern).is_some_and(|claim| claim.rules.is_some())
    }

    fn is_older_than(&self, other: &Self) -> bool {
        self.precedence.seniority() < other.precedence.seniority()
    }
}
