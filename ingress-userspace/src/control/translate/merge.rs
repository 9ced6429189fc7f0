//! Merges what all Ingresses claim of one host: the first to claim a path has it. It does not know what an Ingress
//! looks like.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{
    AliasClaim, AliasKind, Claims, Clients, Context, HostClaim, MAX_LENT, RulesClaim,
    annotations::Redirect,
    ownership::{Broader, Ownership, Right, Turn},
    secret,
    settings::Globals,
    solver::Standing,
};
use crate::{
    control::outcome::{ObjectRef, Reason},
    model::{
        Action, Canary, CanaryRule, Filter, Host, HostPattern, HostRoutes, Passthrough, PathMatch, Rule, Split,
        Unavailable, path,
    },
};

/// What the claims on one host come to.
#[derive(Default)]
pub(super) struct Merged {
    /// `None` if nobody has rules for it.
    pub(super) host: Option<MergedHost>,
    /// The origin of its certificate. `None` if nobody has one for it; the inner `None` if it is not usable.
    pub(super) certificate: Option<Option<Arc<str>>>,
}

/// The rules of one host, as they are until it is known whether it borrows others.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct MergedHost {
    /// The oldest Ingress with rules for it. Only its namespace has connections passed on, as that goes for every path.
    leader: Option<ObjectRef>,
    rules: BTreeMap<PathMatch, MergedRule>,
    fallback: Option<MergedRule>,
    /// Whether any Ingress gives it TLS.
    has_tls: bool,
    /// What its clients must show, and the Ingress that says so.
    clients: Option<(ObjectRef, Clients)>,
}

#[derive(Clone, PartialEq, Eq)]
struct MergedRule {
    rule: Rule,
    owner: ObjectRef,
    standing: Standing,
    redirect: Redirect,
    /// What its Ingress asks of clients and cannot have for the host, so that it is not served without.
    demands: Clients,
    /// Whether connections over TLS are to be passed on to where it leads.
    passes: bool,
}

/// Merges what `claims`, in order of precedence, say of the host `pattern`. `broader` are the claims on the less specific
/// hosts that would serve it, the most specific first.
pub(super) fn merge(
    pattern: &HostPattern,
    claims: &[Arc<Claims>],
    broader: &[Broader<'_>],
    context: &mut Context<'_>,
) -> Merged {
    let mut host = MergedHost::default();
    let mut ownership = Ownership::of(pattern, claims, broader, context);
    let mut is_routed = false;
    let mut certificate: Option<(&ObjectRef, Option<Arc<str>>)> = None;
    let namesake = claims.iter().find(|claims| names(claims, pattern)).map(Arc::as_ref);
    let (canaries, turns): (Vec<_>, Vec<_>) =
        ownership.in_turn(claims).into_iter().partition(|turn| turn.claims.canary.is_some());
    for turn in turns {
        let claims = turn.claims;
        let Some(claim) = claims.of(pattern) else { continue };
        let HostClaim { rules, has_tls, certificate: wanted, alias } = claim;
        let alias = alias.as_deref().filter(|alias| is_free(pattern, alias, namesake, claims, &ownership, context));
        let rules = rules.iter().map(|rules| (rules, None)).chain(alias.map(|a| (&a.rules, Some(a.kind))));
        if turn.right != Right::Everything {
            refuse(pattern, turn, claim, &mut ownership, context);
            for (rules, kind) in rules.filter(|_| turn.right == Right::Paths) {
                is_routed |= host.add(pattern, rules, kind, turn, &mut ownership, context);
            }
            continue;
        }
        host.has_tls |= *has_tls || alias.is_some_and(|alias| alias.has_tls);
        for (rules, kind) in rules {
            is_routed = true;
            host.add(pattern, rules, kind, turn, &mut ownership, context);
        }
        let Some(name) = wanted.as_ref().or(alias.and_then(|alias| alias.certificate.as_ref())) else { continue };
        if *pattern == HostPattern::Any && context.options.default_certificate.is_some() {
            let message = format!(
                "secret `{name}` is not used, as `--default-ssl-certificate` is for all hosts without a certificate of their own; name hosts in `spec.tls`"
            );
            context.report(&claims.object, Reason::CatchAllRefused, message);
            continue;
        }
        match &certificate {
            None => certificate = Some((&claims.object, secret::certificate(name, pattern, &claims.object, context))),
            // The same Secret asked for twice is how several Ingresses of one host are usually written.
            Some((_, Some(origin))) if **origin == *name.to_string() => {}
            Some((winner, _)) => {
                let what = format!("the certificate of host `{pattern}`");
                report_conflict(context, &claims.object, (winner, Standing::Ordinary), &what);
            }
        }
    }
    for Turn { claims, .. } in canaries {
        let (Some(when), Some(claim)) = (&claims.canary, claims.of(pattern)) else { continue };
        let alias =
            claim.alias.as_deref().filter(|alias| is_free(pattern, alias, namesake, claims, &ownership, context));
        for rules in claim.rules.iter().chain(alias.map(|alias| &alias.rules)) {
            host.split(pattern, rules, when, &claims.object, context);
        }
    }
    let certificate = match certificate {
        Some((_, certificate)) => Some(certificate),
        // The default certificate, instead of somebody else's.
        None => (is_routed && ownership.is_overshadowed(broader, context)).then_some(None),
    };
    ownership.tell(context);
    Merged { host: is_routed.then_some(host), certificate }
}

/// Refuses what `claim` asks for the host as a whole, though it belongs to another namespace.
fn refuse(
    pattern: &HostPattern,
    turn: Turn<'_>,
    claim: &HostClaim,
    ownership: &mut Ownership<'_>,
    context: &mut Context<'_>,
) {
    let Turn { claims, right, standing: _ } = turn;
    let HostClaim { rules, has_tls, certificate, alias } = claim;
    if right == Right::Nothing && (rules.is_some() || alias.is_some()) {
        ownership.refuse(claims, "a path", context);
    }
    if *has_tls || certificate.is_some() {
        ownership.refuse(claims, "TLS (`spec.tls`: certificate, redirect to HTTPS)", context);
    }
    if rules.is_some() && claims.clients != Clients::Any {
        ownership.refuse(
            claims,
            "a certificate of clients (`auth-tls-*`), without which its paths answer 503,",
            context,
        );
    }
    let has_fallback = rules.iter().any(|rules| rules.fallback.is_some());
    if right == Right::Paths && has_fallback && *pattern != HostPattern::Any {
        ownership.refuse(claims, "the default backend", context);
    }
}

/// Whether a rule of `claims` names the host, for more than a challenge.
fn names(claims: &Claims, pattern: &HostPattern) -> bool {
    let is_ordinary = claims.canary.is_none() && claims.precedence.standing == Standing::Ordinary;
    is_ordinary && claims.of(pattern).is_some_and(|claim| claim.rules.is_some())
}

/// Whether no rule names the host, or only younger ones of others, so that it may be an alias. If it may not, that is
/// reported on the Ingress of `claims`.
fn is_free(
    pattern: &HostPattern,
    alias: &AliasClaim,
    namesake: Option<&Claims>,
    claims: &Claims,
    ownership: &Ownership<'_>,
    context: &mut Context<'_>,
) -> bool {
    let namesake = namesake.filter(|namesake| !ownership.keeps_alias(claims, namesake));
    let Some(Claims { object: ObjectRef { kind, namespace, name, origin: _ }, .. }) = namesake else { return true };
    let key = match alias.kind {
        AliasKind::Same => "server-alias",
        AliasKind::Www => "from-to-www-redirect",
    };
    let message = format!(
        "`{key}` does nothing for `{pattern}`, as {kind} `{namespace}/{name}` has rules for it; remove one of the two"
    );
    context.report(&claims.object, Reason::HostPathConflict, message);
    false
}

/// What becomes of the hosts that only solvers name. Such a host is served by a less specific one but for the
/// challenge, and must go on to be: it would answer 404 as long as the challenge lasts, because hosts do not fall
/// through to less specific ones.
///
/// Every borrower has the rules for itself, so what is lent in all is bounded: two Ingresses of some thousand hosts and
/// paths would otherwise multiply to more than any node's memory. Each namespace that borrows has an equal share, so that
/// none uses up another's.
pub(super) fn lend(
    borrowers: &BTreeMap<HostPattern, MergedHost>,
    lenders: &BTreeMap<HostPattern, MergedHost>,
    context: &mut Context<'_>,
) -> Vec<(HostPattern, HostRoutes)> {
    let namespace = |host: &MergedHost| host.rules.values().next().map(|rule| Arc::clone(&rule.owner.namespace));
    let mut lent_so_far: HashMap<_, usize> = borrowers.values().map(|host| (namespace(host), 0)).collect();
    let share = MAX_LENT / lent_so_far.len().max(1);
    let mut settled = Vec::new();
    for (pattern, host) in borrowers {
        let mut lender = lender_of(pattern, lenders);
        if let Some((name, lent)) = lender {
            let lent_so_far = lent_so_far.entry(namespace(host)).or_default();
            if *lent_so_far + lent.rules.len() > share {
                let message = format!(
                    "rules of `{name}` are lent to more hosts than can be held, so `{pattern}` answers 404 beside the challenge; solve fewer at one time"
                );
                if let Some(rule) = host.rules.values().next() {
                    context.report(&rule.owner, Reason::TooLarge, message);
                }
                lender = None;
            } else {
                *lent_so_far += lent.rules.len();
            }
        }
        settled.push((pattern.clone(), host.settle(lender.map(|(_, lent)| lent), &context.globals)));
    }
    settled
}

/// The less specific host that serves what is not of `pattern` alone.
fn lender_of<'l>(
    pattern: &HostPattern,
    lenders: &'l BTreeMap<HostPattern, MergedHost>,
) -> Option<(&'l HostPattern, &'l MergedHost)> {
    let HostPattern::Exact(name) = pattern else { return None };
    let wildcard = name.parent().and_then(|parent| Host::parse(parent).ok()).map(HostPattern::Wildcard);
    wildcard.into_iter().chain([HostPattern::Any]).find_map(|lender| lenders.get_key_value(&lender))
}

// === impl MergedHost ===

impl MergedHost {
    /// Adds the rules of `claim` that nobody has yet; returns whether there are any.
    fn add(
        &mut self,
        pattern: &HostPattern,
        claim: &RulesClaim,
        alias: Option<AliasKind>,
        turn: Turn<'_>,
        ownership: &mut Ownership<'_>,
        context: &mut Context<'_>,
    ) -> bool {
        let Turn { standing, right, claims } = turn;
        let Claims { object, redirect, clients, passes, .. } = claims;
        let is_owner = right == Right::Everything;
        let passes = *passes && alias != Some(AliasKind::Www);
        let merged = |rule: &Rule| MergedRule {
            rule: rule.clone(),
            owner: object.clone(),
            standing,
            redirect: *redirect,
            demands: if is_owner { Clients::Any } else { clients.clone() },
            // Who is sent elsewhere has to be read, and answered.
            passes: passes && !matches!(rule.action, Action::Redirect(_)),
        };
        if standing == Standing::Ordinary && (is_owner || self.leader.is_some()) {
            // Claims come in order of precedence.
            let leader = &*self.leader.get_or_insert_with(|| object.clone());
            if passes && leader.namespace != object.namespace {
                let what = format!("where connections over TLS for host `{pattern}` lead (`ssl-passthrough`)");
                report_conflict(context, object, (leader, Standing::Ordinary), &what);
            }
        }
        match &self.clients {
            _ if *clients == Clients::Any || !is_owner => {}
            None => self.clients = Some((object.clone(), clients.clone())),
            Some((_, known)) if known == clients => {}
            Some((winner, _)) => {
                let what = format!("what clients of host `{pattern}` must show (`auth-tls-*`)");
                report_conflict(context, object, (winner, Standing::Ordinary), &what);
            }
        }
        let mut adds = false;
        for rule in &claim.rules {
            let confined = if is_owner { Ok(rule.path.clone()) } else { Ownership::confined(&rule.path) };
            let path = match confined {
                Ok(path) => path,
                Err(why) => {
                    ownership.refuse(claims, format_args!("path `{}`, {why}", rule.path), context);
                    continue;
                }
            };
            if let Some(winner) = self.winner(&rule.path, object).or_else(|| self.winner(&path, object)) {
                // Each Ingress of the host sends it to the same place.
                if alias == Some(AliasKind::Www) && winner.rule.action == rule.action {
                    continue;
                }
                let what = format!("path `{}` of host `{pattern}`", rule.path);
                report_conflict(context, object, (&winner.owner, winner.standing), &what);
            } else {
                adds = true;
                self.rules.insert(path.clone(), merged(&Rule { path, ..rule.clone() }));
            }
        }
        let Some(rule) = claim.fallback.as_deref().filter(|_| is_owner || *pattern == HostPattern::Any) else {
            return adds;
        };
        match &self.fallback {
            None => {
                adds = true;
                self.fallback = Some(merged(rule));
            }
            Some(winner) => {
                let what = format!("the default backend of host `{pattern}`");
                report_conflict(context, object, (&winner.owner, winner.standing), &what);
            }
        }
        adds
    }

    /// Lets a canary take some of the requests of the rules for the same paths.
    fn split(
        &mut self,
        pattern: &HostPattern,
        claim: &RulesClaim,
        when: &CanaryRule,
        object: &ObjectRef,
        context: &mut Context<'_>,
    ) {
        // The main Ingress alone says whether paths are regular expressions.
        let spelling = |path: &PathMatch| (matches!(path, PathMatch::Exact(_)), path.as_str().to_owned());
        let mut mains: HashMap<_, _> = self.rules.iter_mut().map(|(path, rule)| (spelling(path), rule)).collect();
        let RulesClaim { rules, fallback } = claim;
        for rule in rules {
            match mains.get_mut(&spelling(&rule.path)) {
                // Nobody takes requests that were meant for another namespace, or the answer to a challenge.
                Some(main) if !main.may_be_split_by(object) => {
                    let what = format!("path `{}` of host `{pattern}`", rule.path);
                    report_conflict(context, object, (&main.owner, main.standing), &what);
                }
                Some(main) => main.split(when, rule),
                None => {
                    let message = format!(
                        "no other Ingress has path `{}` of host `{pattern}`, from which it could take requests; add one",
                        rule.path
                    );
                    context.report(object, Reason::CanaryWithoutMain, message);
                }
            }
        }
        match (fallback, &mut self.fallback) {
            (Some(_), Some(main)) if !main.may_be_split_by(object) => {
                let what = format!("the default backend of host `{pattern}`");
                report_conflict(context, object, (&main.owner, main.standing), &what);
            }
            (Some(rule), Some(main)) => main.split(when, rule),
            (Some(_), None) => {
                let message = format!(
                    "no other Ingress has a default backend for host `{pattern}`, from which it could take requests; add one"
                );
                context.report(object, Reason::CanaryWithoutMain, message);
            }
            (None, _) => {}
        }
    }

    /// Who has `path` already, so that `object` cannot have it.
    ///
    /// `/a/` and `/a` are the same set of paths as prefixes, so one Ingress has both or neither.
    fn winner(&self, path: &PathMatch, object: &ObjectRef) -> Option<&MergedRule> {
        let owner = |path: &PathMatch| self.rules.get(path);
        let other_spelling = match path {
            PathMatch::Exact(_) | PathMatch::Pattern(_) => None,
            PathMatch::Prefix(prefix) => {
                let elements = path::elements(prefix);
                let is_short = elements.len() == prefix.len();
                Some(PathMatch::Prefix(if is_short { format!("{elements}/").into() } else { elements.into() }))
            }
        };
        owner(path).or_else(|| owner(&other_spelling?).filter(|rule| rule.owner != *object))
    }

    /// Whether it is there for challenges alone.
    pub(super) fn is_for_solvers(&self) -> bool {
        let mut rules = self.rules.values().peekable();
        self.fallback.is_none() && rules.peek().is_some() && rules.all(|rule| rule.standing == Standing::Solver)
    }

    /// The routes of this host, with the rules of `lender` beside its own.
    pub(super) fn settle(&self, lender: Option<&Self>, globals: &Globals) -> HostRoutes {
        let Self { leader: _, rules, fallback, has_tls, clients } = self;
        let clients =
            clients.as_ref().or_else(|| lender?.clients.as_ref()).map_or(&Clients::Any, |(_, clients)| clients);
        let has_tls = *has_tls || lender.is_some_and(|lender| lender.has_tls);
        let lent = lender.iter().flat_map(|lender| &lender.rules).filter(|(path, _)| !rules.contains_key(path));
        let mut all: Vec<&MergedRule> = rules.values().chain(lent.map(|(_, rule)| rule)).collect();
        all.sort_by(|a, b| a.rule.path.cmp(&b.rule.path));
        let fallback = fallback.as_ref().or_else(|| lender?.fallback.as_ref());
        let passing = self.passing().or_else(|| lender?.passing());
        HostRoutes {
            rules: all.into_iter().map(|rule| rule.settle(has_tls, clients, globals)).collect(),
            fallback: fallback.map(|rule| Box::new(rule.settle(has_tls, clients, globals))),
            clients: match clients {
                Clients::With(clients) => Some(Arc::clone(clients)),
                Clients::Any | Clients::Nobody => None,
            },
            passthrough: passing.map(|rule| Arc::new(rule.passthrough(clients))),
        }
    }

    /// The rule to whose pods connections over TLS are passed on, if any asks for that: of those that do, and may, the
    /// one for `/`, or the first.
    fn passing(&self) -> Option<&MergedRule> {
        let Self { leader, rules, fallback, has_tls: _, clients: _ } = self;
        let leader = leader.as_ref()?;
        let may_pass = |rule: &&MergedRule| rule.passes && rule.owner.namespace == leader.namespace;
        let asking = || rules.values().filter(may_pass);
        let root = asking().find(|rule| rule.rule.path.as_str() == "/");
        root.or_else(|| asking().next()).or_else(|| fallback.as_ref().filter(may_pass))
    }
}

// === impl MergedRule ===

impl MergedRule {
    /// Whether the canary `object` is of the same namespace.
    fn may_be_split_by(&self, object: &ObjectRef) -> bool {
        self.owner.namespace == object.namespace && self.standing == Standing::Ordinary
    }

    /// Sends requests that `when` is for to where `rule` leads; one that leads nowhere takes none.
    fn split(&mut self, when: &CanaryRule, rule: &Rule) {
        let Action::Forward(upstream) = &rule.action else { return };
        let canary = Canary { when: when.clone(), upstream: upstream.clone() };
        match &mut self.rule.action {
            Action::Forward(main) => {
                let split = Split { main: main.clone(), canaries: vec![canary] };
                self.rule.action = Action::Split(Arc::new(split));
            }
            Action::Split(split) => Arc::make_mut(split).canaries.push(canary),
            Action::Refuse(_) | Action::Redirect(_) => {}
        }
    }

    /// Connections that are passed on to where the rule leads. Whoever must show a certificate cannot be asked for it.
    fn passthrough(&self, clients: &Clients) -> Passthrough {
        let Rule { path: _, owner: _, filters, action, forwarding } = &self.rule;
        let upstream = match (clients, action) {
            (Clients::Any, Action::Forward(key)) => Some(key.clone()),
            (Clients::Any, Action::Split(split)) => Some(split.main.clone()),
            (Clients::With(_) | Clients::Nobody, _) | (_, Action::Refuse(_) | Action::Redirect(_)) => None,
        };
        let access = filters.iter().find_map(|filter| match filter {
            Filter::Access(access) => Some(Arc::clone(access)),
            _ => None,
        });
        Passthrough { upstream, access, connect_timeout: forwarding.connect_timeout }
    }

    /// The rule as it stands when it is known whether any Ingress gives its host TLS.
    ///
    /// What clients must show, they must show to all rules of the host, whichever Ingress asked for it, but not to
    /// solvers, whose clients come over plain HTTP and have none.
    fn settle(&self, has_tls: bool, clients: &Clients, globals: &Globals) -> Rule {
        let Self { rule, owner: _, standing, redirect, demands, passes: _ } = self;
        let mut rule = rule.clone();
        match clients {
            _ if *standing == Standing::Solver => {}
            _ if *demands != Clients::Any && demands != clients => rule.action = Action::Refuse(Unavailable::Policy),
            Clients::Any => {}
            Clients::With(clients) => rule.filters.insert(0, Filter::ClientCertificate(Arc::clone(clients))),
            Clients::Nobody => rule.action = Action::Refuse(Unavailable::Policy),
        }
        let redirects = match redirect {
            Redirect::Never => false,
            Redirect::WithTls => has_tls,
            Redirect::Always => true,
        };
        if redirects {
            let (status, except) = (globals.redirect_status, Arc::clone(&globals.redirect_except));
            rule.filters.insert(0, Filter::RedirectHttps { status, except });
        }
        if has_tls {
            rule.filters.extend(globals.hsts.value().map(Filter::StrictTransportSecurity));
        }
        rule
    }
}

fn report_conflict(
    context: &mut Context<'_>,
    loser: &ObjectRef,
    (winner, standing): (&ObjectRef, Standing),
    what: &str,
) {
    let ObjectRef { kind, namespace, name, origin: _ } = winner;
    let message = match standing {
        _ if loser == winner => format!("{what} is claimed twice by this Ingress; the first stands, remove the other"),
        Standing::Solver => format!("{what} belongs to {kind} `{namespace}/{name}` until its challenge is answered"),
        Standing::Ordinary => format!("{what} belongs to the older {kind} `{namespace}/{name}`; remove one of the two"),
    };
    context.report(loser, Reason::HostPathConflict, message);
}
