//! Merges the claims of all Ingresses on one host: the first claim on a path gets it. The form of an Ingress is not
//! known here.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    Context, certificate_secret,
    claims::{AliasClaim, AliasKind, Claims, HostClaim},
    features::{Globals, client_certificates::Clients},
    ingress_role::IngressRole,
    outcomes::Outcomes,
    ownership::{Broader, MergeTurn, Ownership, Right},
};
use crate::{
    change::ObjectName,
    outcome::{ObjectRef, Reason},
};
use ingress_model::HostPattern;

mod host;
mod inherited_routes;
mod nginx_paths;
mod rule;

pub(super) use host::MergedHost;
pub(super) use inherited_routes::{inherit_routes, wildcard_of};

/// Result of merging the claims on one host.
#[derive(Default)]
pub(super) struct Merged {
    /// `None` if no Ingress has rules for it.
    pub(super) host: Option<MergedHost>,
    /// The origin of its certificate. `None` if no Ingress has one for it; the inner `None` if it is not usable.
    pub(super) certificate: Option<Option<Arc<str>>>,
    /// The Ingresses that contribute to it.
    pub(super) in_effect: BTreeSet<ObjectName>,
}

/// Merges `claims`, in order of precedence, on the host `pattern`. `broader` are the claims on the less specific hosts
/// that would serve it, the most specific first.
pub(super) fn merge(
    pattern: &HostPattern,
    claims: &[Arc<Claims>],
    broader: &[Broader<'_>],
    globals: &Globals,
    context: &mut Context<'_, '_>,
) -> Merged {
    let mut merge = Merge {
        pattern,
        namesake: claims.iter().map(Arc::as_ref).find(|claims| claims.names(pattern)),
        ownership: Ownership::of(pattern, claims, broader, globals),
        host: MergedHost::default(),
        is_routed: false,
        in_effect: BTreeSet::new(),
        tls: None,
        certificate: None,
    };
    let turns = merge.ownership.in_turn(claims);
    let (canaries, turns): (Vec<_>, Vec<_>) = turns.into_iter().partition(|turn| turn.claims.canary.is_some());
    if globals.is_of_nginx {
        merge.host.has_expressions =
            turns.iter().any(|turn| turn.right == Right::Everything && has_expressions(turn, pattern));
    }
    for turn in turns {
        merge.add(turn, globals, context);
    }
    for MergeTurn { claims, .. } in canaries {
        merge.split(claims, context.outcomes);
    }
    let Merge { ownership, mut host, is_routed, mut in_effect, tls, certificate, .. } = merge;
    if ownership.keeps_challenges() {
        host.guard_challenges(globals);
    }
    // TLS for a host without rules has no effect.
    in_effect.extend(tls.filter(|_| is_routed).cloned());
    let certificate = match certificate {
        Some((_, certificate)) => Some(certificate),
        // Used instead of another owner's certificate.
        None if is_routed => ownership.unshadowed(broader, globals, context),
        None => None,
    };
    ownership.report_problems(context.outcomes);
    Merged { host: is_routed.then_some(host), certificate, in_effect }
}

/// The claims on one host that have been merged so far.
struct Merge<'m> {
    pattern: &'m HostPattern,
    /// The first Ingress whose rules name the host.
    namesake: Option<&'m Claims>,
    ownership: Ownership<'m>,
    host: MergedHost,
    /// Whether an Ingress has rules for it.
    is_routed: bool,
    in_effect: BTreeSet<ObjectName>,
    /// The Ingress that gives it TLS.
    tls: Option<&'m ObjectName>,
    /// The origin of its certificate, `None` if that is not usable, and the Ingress that names it.
    certificate: Option<(&'m ObjectRef, Option<Arc<str>>)>,
}

// === impl Merge ===

impl<'m> Merge<'m> {
    /// Adds the claims of an Ingress that is no canary.
    fn add(&mut self, turn: MergeTurn<'m>, globals: &Globals, context: &mut Context<'_, '_>) {
        let claims = turn.claims;
        let name = &claims.precedence.name;
        let Some(claim) = claims.of(self.pattern) else { return };
        let HostClaim { rules, has_tls, certificate, alias } = claim;
        let alias = alias.as_deref().filter(|alias| self.is_free(alias, claims, context.outcomes));
        let rules = rules.iter().map(|rules| (rules, None)).chain(alias.map(|a| (&a.rules, Some(a.kind))));
        if turn.right != Right::Everything {
            refuse(self.pattern, turn, claim, &mut self.ownership, context.outcomes);
            if globals.is_of_nginx && turn.right == Right::Paths && has_expressions(&turn, self.pattern) {
                self.tell_scope(turn, context.outcomes);
            }
            for (rules, kind) in rules.filter(|_| turn.right == Right::Paths) {
                if self.host.add(self.pattern, rules, kind, turn, &mut self.ownership, context.outcomes) {
                    self.is_routed = true;
                    self.in_effect.insert(name.clone());
                }
            }
            return;
        }
        if !self.host.has_tls && (*has_tls || alias.is_some_and(|alias| alias.has_tls)) {
            self.host.has_tls = true;
            self.tls = Some(name);
        }
        for (rules, kind) in rules {
            // A claim without paths still establishes the host, which then answers 404.
            let is_first = !std::mem::replace(&mut self.is_routed, true);
            if self.host.add(self.pattern, rules, kind, turn, &mut self.ownership, context.outcomes) || is_first {
                self.in_effect.insert(name.clone());
            }
        }
        if let Some(secret) = certificate.as_ref().or(alias.and_then(|alias| alias.certificate.as_ref())) {
            self.certify(secret, claims, context);
        }
    }

    /// Reports that regular expressions of another namespace do not change how the owner's paths match, unlike in
    /// ingress-nginx, with an example.
    fn tell_scope(&self, turn: MergeTurn<'m>, outcomes: &mut Outcomes) {
        let Some(path) = self.host.plain_path().filter(|_| !self.host.has_expressions) else { return };
        let message = format!(
            "regular expressions hold for the paths of this Ingress alone, because host `{host}` belongs to another \
             namespace, while ingress-nginx would send `{host}{path}x` to `{path}`; if you need such requests, ask its \
             owner to serve them",
            host = self.pattern
        );
        outcomes.report(&turn.claims.object, Reason::HostOwnedByOther, message);
    }

    /// Takes the certificate of `secret`, unless an older Ingress has named another.
    fn certify(&mut self, secret: &ObjectName, claims: &'m Claims, context: &mut Context<'_, '_>) {
        let pattern = self.pattern;
        if *pattern == HostPattern::Any && context.options.default_certificate.is_some() {
            let message = format!(
                "secret `{secret}` is not used, because `--default-ssl-certificate` serves all hosts without \
                 their own certificate; name hosts in `spec.tls`"
            );
            context.report(&claims.object, Reason::CatchAllRefused, message);
            return;
        }
        match &self.certificate {
            None => {
                let origin = certificate_secret::certificate(secret, pattern, &claims.object, context);
                self.in_effect.extend(origin.is_some().then(|| claims.precedence.name.clone()));
                self.certificate = Some((&claims.object, origin));
            }
            // Several Ingresses of one host usually name the same Secret.
            Some((_, Some(origin))) if **origin == *secret.to_string() => {}
            Some((winner, _)) => {
                let what = format!("the certificate of host `{pattern}`");
                report_conflict(context.outcomes, &claims.object, (winner, IngressRole::Ordinary), &what);
            }
        }
    }

    /// Gives a canary its share of the requests.
    fn split(&mut self, claims: &Claims, outcomes: &mut Outcomes) {
        let (Some(when), Some(claim)) = (&claims.canary, claims.of(self.pattern)) else { return };
        let alias = claim.alias.as_deref().filter(|alias| self.is_free(alias, claims, outcomes));
        for rules in claim.rules.iter().chain(alias.map(|alias| &alias.rules)) {
            if self.host.split(self.pattern, rules, when, &claims.object, outcomes) {
                self.in_effect.insert(claims.precedence.name.clone());
            }
        }
    }

    /// Returns `true` if the host may be an alias: no rule names it, or only younger rules of others do. Otherwise this
    /// is reported on the Ingress of `claims`.
    fn is_free(&self, alias: &AliasClaim, claims: &Claims, outcomes: &mut Outcomes) -> bool {
        let namesake = self.namesake.filter(|namesake| !self.ownership.keeps_alias(claims, namesake));
        let Some(Claims { object: ObjectRef { kind, namespace, name, origin: _ }, .. }) = namesake else { return true };
        let key = match alias.kind {
            AliasKind::Same => "server-alias",
            AliasKind::Www => "from-to-www-redirect",
        };
        let message = format!(
            "`{key}` does nothing for `{}`, as {kind} `{namespace}/{name}` has rules for it; remove one of the two",
            self.pattern
        );
        outcomes.report(&claims.object, Reason::HostPathConflict, message);
        false
    }
}

/// Refuses the parts of `claim` that concern the host as a whole, since it belongs to another namespace.
fn refuse(
    pattern: &HostPattern,
    turn: MergeTurn<'_>,
    claim: &HostClaim,
    ownership: &mut Ownership<'_>,
    outcomes: &mut Outcomes,
) {
    let MergeTurn { claims, right, role: _ } = turn;
    let HostClaim { rules, has_tls, certificate, alias } = claim;
    if right == Right::Nothing && (rules.is_some() || alias.is_some()) {
        ownership.refuse(claims, "a path", outcomes);
    }
    if *has_tls || certificate.is_some() {
        ownership.refuse(claims, "TLS (`spec.tls`: certificate, redirect to HTTPS)", outcomes);
    }
    if rules.is_some() && claims.clients != Clients::Any {
        ownership.refuse(
            claims,
            "a certificate of clients (`auth-tls-*`), without which its paths answer 503,",
            outcomes,
        );
    }
    let has_fallback = rules.iter().any(|rules| rules.fallback.is_some());
    if right == Right::Paths && has_fallback && *pattern != HostPattern::Any {
        ownership.refuse(claims, "the default backend", outcomes);
    }
}

/// Returns `true` if ingress-nginx would match all paths of the host as regular expressions because of the Ingress of
/// `turn`.
fn has_expressions(turn: &MergeTurn<'_>, pattern: &HostPattern) -> bool {
    let Some(HostClaim { rules, alias, .. }) = turn.claims.of(pattern) else { return false };
    rules.iter().chain(alias.iter().map(|alias| &alias.rules)).any(|rules| rules.has_expressions)
}

fn report_conflict(outcomes: &mut Outcomes, loser: &ObjectRef, (winner, role): (&ObjectRef, IngressRole), what: &str) {
    let ObjectRef { kind, namespace, name, origin: _ } = winner;
    let message = match role {
        _ if loser == winner => format!("this Ingress claims {what} twice; the first applies, remove the other"),
        IngressRole::Solver => format!("{what} belongs to {kind} `{namespace}/{name}` until its challenge is answered"),
        IngressRole::Ordinary => {
            format!("{what} belongs to the older {kind} `{namespace}/{name}`; remove one of the two")
        }
    };
    outcomes.report(loser, Reason::HostPathConflict, message);
}
