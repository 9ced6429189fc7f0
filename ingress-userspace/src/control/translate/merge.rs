//! Merges what all Ingresses claim of one host: the first to claim a path has it. It does not know what an Ingress
//! looks like.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{
    AliasClaim, AliasKind, Claims, Clients, Context, HostClaim, MAX_LENT, Precedence, RulesClaim,
    annotations::Redirect, secret, settings::Globals, solver::Standing,
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
    /// Whether connections over TLS are to be passed on to where it leads.
    passes: bool,
}

/// Merges what `claims`, in order of precedence, say of the host `pattern`.
pub(super) fn merge(pattern: &HostPattern, claims: &[Arc<Claims>], context: &mut Context<'_>) -> Merged {
    let mut host = MergedHost::default();
    let mut is_routed = false;
    let mut certificate: Option<(&ObjectRef, Option<Arc<str>>)> = None;
    let namesake = claims.iter().find(|claims| names(claims, pattern)).map(Arc::as_ref);
    let (canaries, claims): (Vec<_>, Vec<_>) = claims.iter().partition(|claims| claims.canary.is_some());
    for claims in claims {
        let Some(HostClaim { rules, has_tls, certificate: wanted, alias }) = claims.of(pattern) else { continue };
        let alias = alias.as_deref().filter(|alias| is_free(pattern, alias, namesake, &claims.object, context));
        host.has_tls |= *has_tls || alias.is_some_and(|alias| alias.has_tls);
        for (rules, kind) in rules.iter().map(|rules| (rules, None)).chain(alias.map(|a| (&a.rules, Some(a.kind)))) {
            is_routed = true;
            host.add(pattern, rules, kind, claims, context);
        }
        let Some(name) = wanted.as_ref().or(alias.and_then(|alias| alias.certificate.as_ref())) else { continue };
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
    for claims in canaries {
        let (Some(when), Some(claim)) = (&claims.canary, claims.of(pattern)) else { continue };
        let alias = claim.alias.as_deref().filter(|alias| is_free(pattern, alias, namesake, &claims.object, context));
        for rules in claim.rules.iter().chain(alias.map(|alias| &alias.rules)) {
            host.split(pattern, rules, when, &claims.object, context);
        }
    }
    Merged { host: is_routed.then_some(host), certificate: certificate.map(|(_, certificate)| certificate) }
}

/// Whether a rule of `claims` names the host, for more than a challenge.
fn names(claims: &Claims, pattern: &HostPattern) -> bool {
    let is_ordinary = claims.canary.is_none() && claims.precedence.standing == Standing::Ordinary;
    is_ordinary && claims.of(pattern).is_some_and(|claim| claim.rules.is_some())
}

/// Whether no rule names the host, so that it may be an alias. If it may not, that is reported on `object`.
fn is_free(
    pattern: &HostPattern,
    alias: &AliasClaim,
    namesake: Option<&Claims>,
    object: &ObjectRef,
    context: &mut Context<'_>,
) -> bool {
    let Some(Claims { object: ObjectRef { kind, namespace, name, origin: _ }, .. }) = namesake else { return true };
    let key = match alias.kind {
        AliasKind::Same => "server-alias",
        AliasKind::Www => "from-to-www-redirect",
    };
    let message = format!(
        "`{key}` does nothing for `{pattern}`, as {kind} `{namespace}/{name}` has rules for it; remove one of the two"
    );
    context.report(object, Reason::HostPathConflict, message);
    false
}

/// What becomes of the hosts that only solvers name. Such a host is served by a less specific one but for the
/// challenge, and must go on to be: it would answer 404 as long as the challenge lasts, because hosts do not fall
/// through to less specific ones.
///
/// Every borrower has the rules for itself, so what is lent in all is bounded: two Ingresses of some thousand hosts and
/// paths would otherwise multiply to more than any node's memory.
pub(super) fn lend(
    borrowers: &BTreeMap<HostPattern, MergedHost>,
    lenders: &BTreeMap<HostPattern, MergedHost>,
    context: &mut Context<'_>,
) -> Vec<(HostPattern, HostRoutes)> {
    let mut lent_so_far = 0;
    let mut settled = Vec::new();
    for (pattern, host) in borrowers {
        let mut lender = lender_of(pattern, lenders);
        if let Some((name, lent)) = lender {
            if lent_so_far + lent.rules.len() > MAX_LENT {
                let message = format!(
                    "rules of `{name}` are lent to more hosts than can be held, so `{pattern}` answers 404 beside the challenge; solve fewer at one time"
                );
                if let Some(rule) = host.rules.values().next() {
                    context.report(&rule.owner, Reason::TooLarge, message);
                }
                lender = None;
            } else {
                lent_so_far += lent.rules.len();
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
    fn add(
        &mut self,
        pattern: &HostPattern,
        claim: &RulesClaim,
        alias: Option<AliasKind>,
        claims: &Claims,
        context: &mut Context<'_>,
    ) {
        let Claims {
            object,
            precedence: Precedence { standing, .. },
            redirect,
            clients,
            passes,
            canary: _,
            expressions: _,
            hosts: _,
        } = claims;
        let RulesClaim { rules, fallback } = claim;
        let passes = *passes && alias != Some(AliasKind::Www);
        let merged = |rule: &Rule| MergedRule {
            rule: rule.clone(),
            owner: object.clone(),
            standing: *standing,
            redirect: *redirect,
            // Who is sent elsewhere has to be read, and answered.
            passes: passes && !matches!(rule.action, Action::Redirect(_)),
        };
        if *standing == Standing::Ordinary {
            // Claims come in order of precedence.
            let leader = &*self.leader.get_or_insert_with(|| object.clone());
            if passes && leader.namespace != object.namespace {
                let what = format!("where connections over TLS for host `{pattern}` lead (`ssl-passthrough`)");
                report_conflict(context, object, (leader, Standing::Ordinary), &what);
            }
        }
        match &self.clients {
            _ if *clients == Clients::Any => {}
            None => self.clients = Some((object.clone(), clients.clone())),
            Some((_, known)) if known == clients => {}
            Some((winner, _)) => {
                let what = format!("what clients of host `{pattern}` must show (`auth-tls-*`)");
                report_conflict(context, object, (winner, Standing::Ordinary), &what);
            }
        }
        for rule in rules {
            if let Some(winner) = self.winner(&rule.path, object) {
                // Each Ingress of the host sends it to the same place.
                if alias == Some(AliasKind::Www) && winner.rule.action == rule.action {
                    continue;
                }
                let what = format!("path `{}` of host `{pattern}`", rule.path);
                report_conflict(context, object, (&winner.owner, winner.standing), &what);
            } else {
                self.rules.insert(rule.path.clone(), merged(rule));
            }
        }
        let Some(rule) = fallback.as_deref() else { return };
        match &self.fallback {
            None => self.fallback = Some(merged(rule)),
            Some(winner) => {
                let what = format!("the default backend of host `{pattern}`");
                report_conflict(context, object, (&winner.owner, winner.standing), &what);
            }
        }
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
        let Self { rule, owner: _, standing, redirect, passes: _ } = self;
        let mut rule = rule.clone();
        match clients {
            _ if *standing == Standing::Solver => {}
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
