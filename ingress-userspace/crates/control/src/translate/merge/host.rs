//! The rules of one host, and the Ingress that owns each path. Claims on the host itself are decided elsewhere.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, LazyLock},
};

use super::{
    nginx_paths, report_conflict,
    rule::{CANARIES_MAX, MergedRule},
};
use crate::{
    outcome::{ObjectRef, Reason},
    translate::{
        claims::{AliasKind, Claims, RulesClaim},
        features::{Globals, client_certificates::Clients, https_redirect::Redirect},
        ingress_role::IngressRole,
        outcomes::Outcomes,
        ownership::{MergeTurn, Ownership, Right},
    },
};
use ingress_model::{
    Action, CanaryRule, HostPattern, HostRoutes, PathMatch, PathPattern, Rule, Unavailable,
    path::{self, ACME_CHALLENGE},
};

/// The match for challenges among expressions. It ranks behind those of the owner, which may answer challenges, and
/// before `/`.
static CHALLENGES: LazyLock<Option<Arc<PathPattern>>> = LazyLock::new(|| {
    let text = format!("{}(/|$)", ACME_CHALLENGE.replace('.', r"\."));
    let pattern = PathMatch::pattern_within(&text, usize::MAX).ok()?;
    Some(Arc::new(pattern.ranked(1)))
});

/// The rules of one host, before inherited rules are added.
#[derive(Clone, Default, PartialEq, Eq)]
pub(in super::super) struct MergedHost {
    /// The oldest Ingress with rules for it. Only its namespace may have connections passed through, as that affects
    /// every path.
    leader: Option<ObjectRef>,
    rules: BTreeMap<PathMatch, MergedRule>,
    fallback: Option<MergedRule>,
    /// Whether all paths of its owner match as regular expressions, as in ingress-nginx.
    pub(super) has_expressions: bool,
    /// Whether any Ingress gives it TLS.
    pub(super) has_tls: bool,
    /// The demands on its clients, and the Ingress that makes them.
    clients: Option<(ObjectRef, Clients)>,
    /// Whether the leader wants no HTTP/3.
    refuses_http3: bool,
}

// === impl MergedHost ===

impl MergedHost {
    /// Adds the rules of `claim` for paths that are still free. Returns `true` if it adds any, or if the host takes its
    /// demands on clients from it.
    pub(super) fn add(
        &mut self,
        pattern: &HostPattern,
        claim: &RulesClaim,
        alias: Option<AliasKind>,
        turn: MergeTurn<'_>,
        ownership: &mut Ownership<'_>,
        outcomes: &mut Outcomes,
    ) -> bool {
        let is_owner = turn.right == Right::Everything;
        self.lead(pattern, alias, turn, outcomes);
        let mut adds = is_owner && self.demand(pattern, turn.claims, outcomes);
        for rule in &claim.rules {
            adds |= self.add_rule(pattern, rule, alias, turn, ownership, outcomes);
        }
        let fallback = claim.fallback.as_deref().filter(|_| is_owner || *pattern == HostPattern::Any);
        match (fallback, &self.fallback) {
            (None, _) => adds,
            (Some(rule), None) => {
                self.fallback = Some(merged(rule.clone(), rule.path.clone(), alias, turn));
                true
            }
            (Some(_), Some(winner)) => {
                let what = format!("the default backend of host `{pattern}`");
                report_conflict(outcomes, &turn.claims.object, (&winner.owner, winner.role), &what);
                adds
            }
        }
    }

    /// Makes the first Ingress the leader, and reports one of another namespace that wants connections passed through.
    fn lead(&mut self, pattern: &HostPattern, alias: Option<AliasKind>, turn: MergeTurn<'_>, outcomes: &mut Outcomes) {
        let MergeTurn { role, right, claims: Claims { object, .. } } = turn;
        if role == IngressRole::Ordinary && (right == Right::Everything || self.leader.is_some()) {
            // Claims come in order of precedence.
            if self.leader.is_none() {
                self.refuses_http3 = turn.claims.refuses_http3;
            }
            let leader = &*self.leader.get_or_insert_with(|| object.clone());
            if passes(alias, turn) && leader.namespace != object.namespace {
                let what = format!("the target of TLS connections for host `{pattern}` (`ssl-passthrough`)");
                report_conflict(outcomes, object, (leader, IngressRole::Ordinary), &what);
            }
        }
    }

    /// Takes the demands on clients of `claims`, unless an older Ingress has others. Returns `true` if it takes them.
    fn demand(&mut self, pattern: &HostPattern, claims: &Claims, outcomes: &mut Outcomes) -> bool {
        let Claims { object, clients, .. } = claims;
        match &self.clients {
            _ if *clients == Clients::Any => false,
            None => {
                self.clients = Some((object.clone(), clients.clone()));
                true
            }
            Some((_, known)) if known == clients => false,
            Some((winner, _)) => {
                let what = format!("the client certificate policy of host `{pattern}` (`auth-tls-*`)");
                report_conflict(outcomes, object, (winner, IngressRole::Ordinary), &what);
                false
            }
        }
    }

    /// Adds a rule if its path is still free. Returns `true` if it is added.
    fn add_rule(
        &mut self,
        pattern: &HostPattern,
        rule: &Rule,
        alias: Option<AliasKind>,
        turn: MergeTurn<'_>,
        ownership: &mut Ownership<'_>,
        outcomes: &mut Outcomes,
    ) -> bool {
        let object = &turn.claims.object;
        let is_owner = turn.right == Right::Everything;
        let confined = if is_owner { Ok(rule.path.clone()) } else { Ownership::confined(&rule.path) };
        let path = match confined {
            Ok(path) => path,
            Err(why) => {
                ownership.refuse(turn.claims, format_args!("path `{}`, {why}", rule.path), outcomes);
                return false;
            }
        };
        let meant = match turn.role {
            IngressRole::Ordinary if is_owner && self.has_expressions => nginx_paths::as_expression(&path),
            IngressRole::Ordinary | IngressRole::Solver => path,
        };
        if matches!(rule.path, PathMatch::Exact(_)) {
            self.make_room(&meant);
        }
        let same = self.winner(&rule.path, object).or_else(|| self.winner(&meant, object));
        let Some(winner) = same.or_else(|| self.covering(&meant, object).filter(|_| !is_owner)) else {
            let new = merged(Rule { path: meant.clone(), ..rule.clone() }, rule.path.clone(), alias, turn);
            self.rules.insert(meant, new);
            return true;
        };
        // Each Ingress of the host redirects it to the same place.
        if alias != Some(AliasKind::Www) || winner.rule.action != rule.action {
            let what = format!("path `{}` of host `{pattern}`", rule.path);
            report_conflict(outcomes, object, (&winner.owner, winner.role), &what);
        }
        false
    }

    /// Leaves the path itself to an Exact path: of the same path as a Prefix, only those below it stay with the Prefix.
    fn make_room(&mut self, path: &PathMatch) {
        let PathMatch::Beginning(text) = path else { return };
        let is_prefix = |rule: &MergedRule| matches!(rule.claimed, PathMatch::Prefix(_)) && !text.ends_with('/');
        if !self.rules.get(path).is_some_and(is_prefix) {
            return;
        }
        if let Some(mut prefix) = self.rules.remove(path) {
            prefix.rule.path = PathMatch::Beginning(format!("{text}/").into());
            self.rules.entry(prefix.rule.path.clone()).or_insert(prefix);
        }
    }

    /// Returns the first of its paths that is longer than `/` and no regular expression.
    pub(super) fn plain_path(&self) -> Option<&str> {
        let is_plain = |path: &&PathMatch| matches!(path, PathMatch::Exact(_) | PathMatch::Prefix(_));
        self.rules.keys().filter(is_plain).map(|path| path::elements(path.as_str())).find(|path| !path.is_empty())
    }

    /// Lets a canary take a share of the requests of rules for the same paths. Returns `true` if it takes any.
    pub(super) fn split(
        &mut self,
        pattern: &HostPattern,
        claim: &RulesClaim,
        when: &CanaryRule,
        object: &ObjectRef,
        outcomes: &mut Outcomes,
    ) -> bool {
        let mut takes = false;
        // Only the main Ingress decides whether paths are regular expressions.
        let spelling = |path: &PathMatch| (matches!(path, PathMatch::Exact(_)), path.as_str().to_owned());
        let mut mains: HashMap<_, _> = self.rules.values_mut().map(|rule| (spelling(&rule.claimed), rule)).collect();
        let RulesClaim { rules, fallback, has_expressions: _ } = claim;
        for rule in rules {
            match mains.get_mut(&spelling(&rule.path)) {
                // A canary may take neither requests meant for another namespace, nor the response to a challenge.
                Some(main) if !main.may_be_split_by(object) => {
                    let what = format!("path `{}` of host `{pattern}`", rule.path);
                    report_conflict(outcomes, object, (&main.owner, main.role), &what);
                }
                Some(main) if main.is_split_as_often_as_may_be() => {
                    let what = format!("path `{}` of host `{pattern}`", rule.path);
                    report_too_many_canaries(outcomes, object, &what);
                }
                Some(main) => takes |= main.split(when, rule),
                None => {
                    let message = format!(
                        "no other Ingress has path `{}` of host `{pattern}`, so the canary gets no requests; add one",
                        rule.path
                    );
                    outcomes.report(object, Reason::CanaryWithoutMain, message);
                }
            }
        }
        match (fallback, &mut self.fallback) {
            (Some(_), Some(main)) if !main.may_be_split_by(object) => {
                let what = format!("the default backend of host `{pattern}`");
                report_conflict(outcomes, object, (&main.owner, main.role), &what);
            }
            (Some(_), Some(main)) if main.is_split_as_often_as_may_be() => {
                report_too_many_canaries(outcomes, object, &format!("the default backend of host `{pattern}`"));
            }
            (Some(rule), Some(main)) => takes |= main.split(when, rule),
            (Some(_), None) => {
                let message = format!(
                    "no other Ingress has a default backend for host `{pattern}`, so the canary gets no requests; add one"
                );
                outcomes.report(object, Reason::CanaryWithoutMain, message);
            }
            (None, _) => {}
        }
        takes
    }

    /// Returns the owner of `path`, if there is one, so that `object` cannot have it.
    ///
    /// `/a/` and `/a` are the same set of paths as prefixes, so one Ingress has both or neither.
    fn winner(&self, path: &PathMatch, object: &ObjectRef) -> Option<&MergedRule> {
        let owner = |path: &PathMatch| self.rules.get(path);
        let PathMatch::Prefix(prefix) = path else { return owner(path) };
        let elements = path::elements(prefix);
        let is_short = elements.len() == prefix.len();
        let text: Arc<str> = if is_short { format!("{elements}/").into() } else { elements.into() };
        let other = || owner(&PathMatch::Prefix(Arc::clone(&text))).filter(|rule| rule.owner != *object);
        let meant = || owner(&PathMatch::Beginning(Arc::clone(prefix)));
        let other_meant = || {
            let rule = owner(&PathMatch::Beginning(Arc::clone(&text)));
            rule.filter(|rule| rule.owner.namespace != object.namespace)
        };
        owner(path).or_else(other).or_else(meant).or_else(other_meant)
    }

    /// Returns the rule of another namespace that has the same path as `path`, but as a prefix or by a default backend.
    ///
    /// Otherwise `= /login` of another namespace would take the requests for which the owner wrote `/login`, and `/`
    /// would take those of the owner's default backend.
    fn covering(&self, path: &PathMatch, object: &ObjectRef) -> Option<&MergedRule> {
        let (PathMatch::Exact(text) | PathMatch::Prefix(text)) = path else { return None };
        let elements = path::elements(text);
        let is_exact = matches!(path, PathMatch::Exact(_));
        let prefix = |text: String| {
            let text: Arc<str> = text.into();
            let prefix = self.rules.get(&PathMatch::Prefix(Arc::clone(&text)));
            prefix.or_else(|| self.rules.get(&PathMatch::Beginning(text))).filter(|_| is_exact)
        };
        let fallback = self.fallback.as_ref().filter(|_| elements.is_empty());
        let covering = prefix(elements.to_owned()).or_else(|| prefix(format!("{elements}/"))).or(fallback);
        covering.filter(|rule| rule.owner.namespace != object.namespace)
    }

    /// Reserves challenges if another namespace answers all requests without a rule of the owner: certificates are
    /// issued for the host, and the host belongs to the owner.
    pub(super) fn guard_challenges(&mut self, globals: &Globals) {
        let Some(leader) = &self.leader else { return };
        let is_foreign = |rule: &&MergedRule| rule.owner.namespace != leader.namespace;
        let prefix = |text: &str| self.rules.get(&PathMatch::Prefix(text.into()));
        if !prefix("/").or(self.fallback.as_ref()).as_ref().is_some_and(is_foreign) {
            return;
        }
        let is_prefix =
            |text: &str| prefix(text).is_some() || self.rules.contains_key(&PathMatch::Beginning(text.into()));
        let is_known = |text: &str| is_prefix(text) || is_prefix(&format!("{text}/"));
        if is_known("/.well-known") || is_known(ACME_CHALLENGE) {
            return;
        }
        let is_expression = |path: &PathMatch| matches!(path, PathMatch::Pattern(_) | PathMatch::Beginning(_));
        let has_expressions = self.rules.keys().any(is_expression);
        let path = if has_expressions {
            let Some(pattern) = &*CHALLENGES else { return };
            PathMatch::Pattern(Arc::clone(pattern))
        } else {
            PathMatch::Prefix(ACME_CHALLENGE.into())
        };
        let owner = leader.clone();
        let rule = Rule {
            path: path.clone(),
            conditions: None,
            owner: format!("{}/{}", owner.namespace, owner.name).into(),
            filters: Vec::new(),
            action: Action::Refuse(Unavailable::NoRule),
            forwarding: Arc::clone(&globals.forwarding),
        };
        let (role, redirect, demands) = (IngressRole::Solver, Redirect::Never, Clients::Any);
        let claimed = path.clone();
        self.rules.insert(path, MergedRule { rule, claimed, owner, role, redirect, demands, passes: false });
    }

    pub(super) fn rule_count(&self) -> usize {
        self.rules.len()
    }

    /// Returns an Ingress with a rule of a host that exists for challenges only.
    pub(super) fn a_claimant(&self) -> Option<&ObjectRef> {
        self.rules.values().next().map(|rule| &rule.owner)
    }

    /// Returns `true` if the host exists for challenges only.
    pub(in super::super) fn is_for_solvers(&self) -> bool {
        let mut rules = self.rules.values().peekable();
        self.leader.is_none()
            && self.fallback.is_none()
            && rules.peek().is_some()
            && rules.all(|rule| rule.role == IngressRole::Solver)
    }

    /// Returns the routes of this host, with the rules of `ancestor` added to its own.
    pub(in super::super) fn settle(&self, ancestor: Option<&Self>, globals: &Globals) -> HostRoutes {
        let Self { leader, rules, fallback, has_expressions, has_tls, clients, refuses_http3 } = self;
        let clients =
            clients.as_ref().or_else(|| ancestor?.clients.as_ref()).map_or(&Clients::Any, |(_, clients)| clients);
        let refuses_http3 =
            if leader.is_some() { *refuses_http3 } else { ancestor.is_some_and(|host| host.refuses_http3) };
        let has_tls = *has_tls || ancestor.is_some_and(|ancestor| ancestor.has_tls);
        let inherited =
            ancestor.iter().flat_map(|ancestor| &ancestor.rules).filter(|(path, _)| !rules.contains_key(path));
        let mut all: Vec<&MergedRule> = rules.values().chain(inherited.map(|(_, rule)| rule)).collect();
        all.sort_by(|a, b| a.rule.path.cmp(&b.rule.path));
        let fallback = fallback.as_ref().or_else(|| ancestor?.fallback.as_ref());
        let passing = self.passing().or_else(|| ancestor?.passing());
        let mut settled: Vec<_> = all.into_iter().map(|rule| rule.settle(has_tls, clients, globals)).collect();
        if globals.is_of_nginx && !*has_expressions && !ancestor.is_some_and(|ancestor| ancestor.has_expressions) {
            nginx_paths::add_slashes(&mut settled);
        }
        HostRoutes {
            rules: settled,
            fallback: fallback.map(|rule| Box::new(rule.settle(has_tls, clients, globals))),
            clients: match clients {
                Clients::With(clients) => Some(Arc::clone(clients)),
                Clients::Any | Clients::Refused => None,
            },
            passthrough: passing.map(|rule| Arc::new(rule.passthrough(clients))),
            refuses_http3,
        }
    }

    /// Returns the rule with the pods that TLS connections are passed through to. Of several allowed rules, it is the
    /// one for `/`, or else the first.
    fn passing(&self) -> Option<&MergedRule> {
        let Self { leader, rules, fallback, .. } = self;
        let leader = leader.as_ref()?;
        let may_pass = |rule: &&MergedRule| rule.passes && rule.owner.namespace == leader.namespace;
        let asking = || rules.values().filter(may_pass);
        let root = asking().find(|rule| rule.rule.path.as_str() == "/");
        root.or_else(|| asking().next()).or_else(|| fallback.as_ref().filter(may_pass))
    }
}

/// Returns whether the Ingress of `turn` wants connections passed through.
fn passes(alias: Option<AliasKind>, turn: MergeTurn<'_>) -> bool {
    turn.claims.passes && alias != Some(AliasKind::Www)
}

/// Returns a rule of the Ingress of `turn`.
fn merged(rule: Rule, claimed: PathMatch, alias: Option<AliasKind>, turn: MergeTurn<'_>) -> MergedRule {
    let MergeTurn { role, right, claims: Claims { object, redirect, clients, .. } } = turn;
    MergedRule {
        claimed,
        owner: object.clone(),
        role,
        redirect: *redirect,
        demands: if right == Right::Everything { Clients::Any } else { clients.clone() },
        // A redirect needs a readable request, so its connections cannot be passed through.
        passes: passes(alias, turn) && !matches!(rule.action, Action::Redirect(_)),
        rule,
    }
}

fn report_too_many_canaries(outcomes: &mut Outcomes, object: &ObjectRef, what: &str) {
    let message = format!("{what} has {CANARIES_MAX} canaries already, which is the limit; remove one of them");
    outcomes.report(object, Reason::TooLarge, message);
}
