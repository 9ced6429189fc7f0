//! Says to which namespace a host belongs, and what others may ask for it. It merges nothing.
//!
//! The owner of a host is the namespace of the oldest Ingress with rules for it. What holds for the host as a whole is
//! the owner's: its certificate, the redirect to HTTPS and HSTS, certificates of clients, challenges, aliases. A host
//! that only `tls` entries or solvers name is its wildcard's, if that has an older owner; a name with rules of its own
//! is a host of its own, whoever has the wildcard.

use std::{collections::BTreeSet, fmt, str::FromStr, sync::Arc};

use super::{Claims, Context, solver::Standing};
use crate::{
    control::outcome::{ObjectRef, Reason},
    model::{HostPattern, PathMatch, path},
};

/// What an Ingress may ask for a host of another namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostSharing {
    /// Further paths, and nothing else.
    #[default]
    Paths,
    /// Nothing.
    Owner,
    /// Further paths, where the owner or the operator grants that.
    Granted,
    /// Everything that nobody has asked for before, as with ingress-nginx.
    Open,
}

/// Whose a host is, while the claims on it are merged.
pub(super) struct Ownership<'m> {
    pattern: &'m HostPattern,
    sharing: HostSharing,
    owner: Option<&'m Claims>,
    /// Namespaces that may add paths, if only some may.
    granted: BTreeSet<Arc<str>>,
    /// Namespaces that were refused something, each with an Ingress of it.
    refused: BTreeSet<(Arc<str>, Arc<str>)>,
}

/// What one Ingress may ask for a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Right {
    /// The host is its namespace's, nobody's or everybody's.
    Everything,
    Paths,
    Nothing,
}

/// When and as what the claims of one Ingress on a host are merged.
#[derive(Clone, Copy)]
pub(super) struct Turn<'m> {
    pub(super) standing: Standing,
    pub(super) right: Right,
    pub(super) claims: &'m Claims,
}

/// The Ingress whose rules, or whose aliases, make it the owner of `pattern`. `claims` are in order of precedence.
fn owner<'m>(pattern: &HostPattern, claims: &'m [Arc<Claims>]) -> Option<&'m Claims> {
    let has_rules = |claims: &&Claims| {
        let is_ordinary = claims.canary.is_none() && claims.precedence.standing == Standing::Ordinary;
        is_ordinary && claims.of(pattern).is_some_and(|claim| claim.rules.is_some() || claim.alias.is_some())
    };
    claims.iter().map(Arc::as_ref).find(has_rules)
}

// === impl Ownership ===

impl<'m> Ownership<'m> {
    /// Of `pattern`, which `claims` are on; `broader` are the claims on the less specific hosts that would serve it.
    pub(super) fn of(
        pattern: &'m HostPattern,
        claims: &'m [Arc<Claims>],
        broader: &'m [Broader<'m>],
        context: &Context<'_>,
    ) -> Self {
        let wildcard = broader.iter().find(|broader| *broader.pattern != HostPattern::Any);
        let of_wildcard = || wildcard.and_then(|wildcard| owner(wildcard.pattern, wildcard.claims));
        let owner = owner(pattern, claims).or_else(of_wildcard);
        let mut granted = context.globals.sharing_grants.clone();
        let owners = claims.iter().filter(|claims| owner.is_some_and(|owner| owner.is_neighbour_of(claims)));
        granted.extend(owners.flat_map(|claims| claims.shares_with.iter().cloned()));
        Self { pattern, sharing: context.globals.sharing, owner, granted, refused: BTreeSet::new() }
    }

    /// What `claims` may ask for.
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

    /// As what `claims` are merged. A solver is believed for a host of its own namespace, or of none: whoever answers
    /// challenges for a host gets certificates for it.
    fn standing(&self, claims: &Claims, all: &[Arc<Claims>]) -> Standing {
        let has_rules = |other: &&Arc<Claims>| {
            let is_ordinary = other.precedence.standing == Standing::Ordinary && other.canary.is_none();
            is_ordinary && other.is_neighbour_of(claims) && other.of(self.pattern).is_some_and(|of| of.rules.is_some())
        };
        match (claims.precedence.standing, self.owner) {
            (Standing::Solver, Some(owner)) if !owner.is_neighbour_of(claims) => match self.sharing {
                HostSharing::Open if all.iter().any(|other| has_rules(&other)) => Standing::Solver,
                _ => Standing::Ordinary,
            },
            (standing, _) => standing,
        }
    }

    /// The claims in the order in which they are merged, each as what it is merged: the owner's go before those of
    /// others, which are there by its leave.
    pub(super) fn in_turn(&self, claims: &'m [Arc<Claims>]) -> Vec<Turn<'m>> {
        let turn = |claimant: &'m Arc<Claims>| Turn {
            standing: self.standing(claimant, claims),
            right: self.right(claimant),
            claims: claimant,
        };
        let mut turns: Vec<_> = claims.iter().map(turn).collect();
        turns.sort_by(|a, b| a.precedence().cmp(&b.precedence()));
        turns
    }

    /// Whether an alias of `claims` stands where the rules of `namesake` name the host.
    pub(super) fn keeps_alias(&self, claims: &Claims, namesake: &Claims) -> bool {
        self.sharing != HostSharing::Open && !namesake.is_neighbour_of(claims) && claims.is_older_than(namesake)
    }

    /// `path` as another namespace than the owner's may have it, or why it may not: an expression goes no further than
    /// a prefix would, and nobody else answers challenges for the host.
    pub(super) fn confined(path: &PathMatch) -> Result<PathMatch, &'static str> {
        const CHALLENGES: Result<PathMatch, &str> = Err("where challenges are answered,");
        match path {
            PathMatch::Exact(text) | PathMatch::Prefix(text) => {
                let elements = path::elements(text);
                let is_above = matches!(path, PathMatch::Prefix(_)) && elements == "/.well-known";
                let is_below = elements.starts_with(path::ACME_CHALLENGE.trim_end_matches('/'));
                if is_above || is_below { CHALLENGES } else { Ok(path.clone()) }
            }
            PathMatch::Pattern(pattern) => {
                let confined = pattern.confined().ok_or("whose matches have no path but `/` in common,")?;
                let beginning = pattern.beginning().to_ascii_lowercase();
                let (one, other) = (beginning.as_str(), path::ACME_CHALLENGE);
                let meets = one.starts_with(other) || other.starts_with(one);
                if meets { CHALLENGES } else { Ok(PathMatch::Pattern(Arc::new(confined))) }
            }
        }
    }

    /// Says on the Ingress of `claims` that `what` is the owner's, and once for its namespace on the owner's.
    pub(super) fn refuse(&mut self, claims: &Claims, what: impl fmt::Display, context: &mut Context<'_>) {
        let Some(owner) = self.owner else { return };
        let ObjectRef { kind, namespace, name, origin: _ } = &owner.object;
        let message = format!(
            "{what} of host `{}` is refused, as the older {kind} `{namespace}/{name}` makes namespace `{namespace}` the host's owner; ask there for it, or the operator for another `--host-sharing`",
            self.pattern
        );
        context.report(&claims.object, Reason::HostOwnedByOther, message);
        let ObjectRef { namespace, name, .. } = &claims.object;
        if !self.refused.iter().any(|(known, _)| known == namespace) {
            self.refused.insert((Arc::clone(namespace), Arc::clone(name)));
        }
    }

    /// Tells the owner who was refused something.
    pub(super) fn tell(self, context: &mut Context<'_>) {
        let Self { pattern, owner: Some(owner), refused, .. } = self else { return };
        for (namespace, name) in refused {
            let message = format!(
                "Ingress `{namespace}/{name}` asks for what is this namespace's alone to say of host `{pattern}`; it is refused, ask its owner to remove it if the host is yours"
            );
            context.report(&owner.object, Reason::HostClaimedByOther, message);
        }
    }

    /// Whether the certificate that a less specific host has would serve this one, though it is neither the owner's nor
    /// was there before.
    pub(super) fn is_overshadowed(&self, broader: &[Broader<'_>], context: &Context<'_>) -> bool {
        let Some(owner) = self.owner.filter(|_| self.sharing != HostSharing::Open) else { return false };
        let certified = broader.iter().find_map(|broader| broader.certified(context));
        certified.is_some_and(|other| !owner.is_neighbour_of(other) && owner.is_older_than(other))
    }
}

/// The claims on a less specific host, in order of precedence.
pub(super) struct Broader<'m> {
    pub(super) pattern: &'m HostPattern,
    pub(super) claims: &'m [Arc<Claims>],
}

// === impl Broader ===

impl<'m> Broader<'m> {
    /// The Ingress that gives the host its certificate.
    fn certified(&self, context: &Context<'_>) -> Option<&'m Claims> {
        if *self.pattern == HostPattern::Any && context.options.default_certificate.is_some() {
            return None;
        }
        let ownership = Ownership::of(self.pattern, self.claims, &[], context);
        let has_one = |claims: &&Claims| {
            claims.of(self.pattern).is_some_and(|claim| claim.certificate.is_some())
                && claims.canary.is_none()
                && ownership.right(claims) == Right::Everything
        };
        self.claims.iter().map(Arc::as_ref).find(has_one)
    }
}

// === impl Turn ===

impl Turn<'_> {
    fn precedence(&self) -> impl Ord {
        (self.standing, self.right, self.claims.precedence.seniority())
    }
}

// === impl HostSharing ===

impl FromStr for HostSharing {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "paths" => Self::Paths,
            "owner" => Self::Owner,
            "granted" => Self::Granted,
            "open" => Self::Open,
            _ => return Err("`paths`, `owner`, `granted` or `open`"),
        })
    }
}

// === impl Claims ===

impl Claims {
    fn is_neighbour_of(&self, other: &Self) -> bool {
        self.object.namespace == other.object.namespace
    }

    fn is_older_than(&self, other: &Self) -> bool {
        self.precedence.seniority() < other.precedence.seniority()
    }
}
