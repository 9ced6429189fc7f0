//! Two namespaces that compete for hosts: a host of the older one behaves the same with and without the objects of the
//! younger one, except for paths that the younger one adds. Sets of Ingresses are random, and have few names, so that
//! they collide.
//!
//! `PROPTEST_CASES` sets how many sets are tried.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    env,
    path::Path,
    sync::Arc,
};

use ingress_control::{
    Origin,
    change::{Change, ObjectName},
    cluster::Cluster,
    source::manifests::parse,
    translate::{HostSharing, Options, translate},
};
use ingress_model::{Action, Host, HostPattern, HostRoutes, PathMatch, RouteTable, Rule, Unavailable, path};
use proptest::{prelude::*, test_runner::TestRunner};

use crate::feud::{Feud, Side, any_feud};

/// Hosts and paths to request.
const HOSTS: [&str; 6] = ["a.test", "www.a.test", "b.test", "x.wild.test", "y.wild.test", "alias.test"];
const PATHS: [&str; 15] = [
    "/",
    "/a",
    "/a/",
    "/a/b",
    "/a/b/c",
    "/a/1",
    "/A",
    "/k",
    "/k/x",
    "/zzz",
    "/.well-known",
    "/.well-known/acme-challenge",
    "/.well-known/acme-challenge/t",
    "/.well-known/acme-challenge/u",
    "/.well-known/acme-challenge-other/x",
];

/// The behaviour of one host, computed like the proxy's.
struct View {
    table: RouteTable,
}

/// The rule that answers. `path` is `None` for the default backend.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Answer<'t> {
    path: Option<&'t PathMatch>,
    rule: &'t Rule,
}

// === impl View ===

impl View {
    /// Returns the patterns that could serve `name`, the most specific first.
    fn patterns(name: &str) -> [HostPattern; 3] {
        let host = Host::parse(name).expect("a name");
        let parent = Host::parse(host.parent().expect("a parent")).expect("a name");
        [HostPattern::Exact(host), HostPattern::Wildcard(parent), HostPattern::Any]
    }

    fn host(&self, name: &str) -> Option<&HostRoutes> {
        Self::patterns(name).iter().find_map(|pattern| self.table.hosts.get(pattern)).map(Arc::as_ref)
    }

    fn answer(&self, name: &str, path: &'static str) -> Option<Answer<'_>> {
        let routes = self.host(name)?;
        let rule = routes.rules.iter().find(|rule| crate::feud::fits(&rule.path, path));
        let rule = rule.map(|rule| Answer { path: Some(&rule.path), rule });
        // A rule that refuses with "no rule" counts as none.
        let is_one = |answer: &Answer<'_>| answer.rule.action != Action::Refuse(Unavailable::NoRule);
        match rule {
            Some(rule) => Some(rule).filter(is_one),
            None => routes.fallback.as_deref().map(|rule| Answer { path: None, rule }),
        }
    }

    /// Returns the certificate that clients see for `name`.
    fn certificate(&self, name: &str) -> Option<&Arc<str>> {
        let named = Self::patterns(name).into_iter().find_map(|pattern| self.table.server_names.get(&pattern));
        named.and_then(Option::as_ref).or(self.table.fallback_certificate.as_ref())
    }
}

/// Whose classes are served.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Classes {
    Own,
    OfNginx,
}

fn translated(feud: &Feud, sides: &[Side], sharing: HostSharing, classes: Classes) -> View {
    let parsed = parse(&Path::new("in.yaml").into(), &feud.manifests(sides));
    assert!(parsed.remarks.is_empty(), "{:?}", parsed.remarks);
    let mut cluster = Cluster::default();
    for object in parsed.objects {
        cluster.apply(Change::Apply { object, origin: Origin::Api });
    }
    let mut options = Options {
        host_sharing: sharing,
        config_map: Some(ObjectName::new("xdp", "settings")),
        default_certificate: feud.has_default_certificate.then(|| ObjectName::new("xdp", "own")),
        ..Options::for_manifests()
    };
    if classes == Classes::OfNginx {
        options.classes.controller = "k8s.io/ingress-nginx".into();
    }
    View { table: translate(&cluster, &options).table }
}

/// Returns the pattern by which the older namespace owns `name`, unless the younger one has a host of its own there.
fn owned(feud: &Feud, name: &str) -> Option<HostPattern> {
    let (victim, evil) = (feud.names(Side::Victim), feud.names(Side::Evil));
    for pattern in View::patterns(name) {
        if victim.contains(&pattern) {
            return Some(pattern);
        }
        let has_solver = || {
            pattern != HostPattern::Any && [Side::Victim, Side::Evil].iter().any(|side| feud.solves(*side, &pattern))
        };
        let is_beside_catch_all = || !victim.contains(&View::patterns(name)[1]);
        if evil.contains(&pattern) || is_beside_catch_all() && has_solver() {
            return None;
        }
    }
    None
}

/// Returns whether a path of the younger namespace may answer in place of the owner's `path`: it must be more specific.
fn may_take(path: Option<&PathMatch>, by: Option<&PathMatch>) -> bool {
    let Some(by) = by else { return false };
    let length = match by {
        PathMatch::Exact(text) | PathMatch::Prefix(text) => path::elements(text).len(),
        PathMatch::Pattern(pattern) => crate::feud::common(pattern.as_str()).len(),
        PathMatch::Beginning(text) => text.len(),
    };
    match path {
        None => length > 0,
        Some(PathMatch::Exact(_)) => false,
        Some(PathMatch::Prefix(text)) => length > path::elements(text).len(),
        Some(PathMatch::Pattern(pattern)) => matches!(by, PathMatch::Exact(_)) || length > pattern.as_str().len(),
        Some(PathMatch::Beginning(text)) => matches!(by, PathMatch::Exact(_)) || length > text.len(),
    }
}

/// Returns whether the answer is the redirect of ingress-nginx to the same path with a slash.
fn adds_slash(answer: &Answer<'_>) -> bool {
    let Action::Redirect(redirect) = &answer.rule.action else { return false };
    let path = answer.path.map(|path| format!("{}/", path.as_str())).unwrap_or_default();
    redirect.status == 301 && redirect.location.to_string().ends_with(&path)
}

/// How much was compared, of one mode: a law about sets that never meet would hold of anything.
#[derive(Debug, Default)]
struct Compared {
    /// Answers of hosts, or rules, of the older namespace.
    kept: usize,
    /// Paths that the younger namespace has added.
    added: usize,
}

/// Checks one host in one mode; `alone` is without the younger namespace.
fn check(
    feud: &Feud,
    sharing: HostSharing,
    name: &str,
    [alone, both]: [&View; 2],
    compared: &mut Compared,
) -> Result<(), TestCaseError> {
    let Some(pattern) = owned(feud, name) else { return Ok(()) };
    let adds = match sharing {
        HostSharing::Paths => true,
        HostSharing::Granted => feud.grants(&pattern),
        HostSharing::Owner | HostSharing::Open => false,
    };
    let is_evils = |answer: &Answer<'_>| answer.rule.owner.starts_with("evil/");
    for path in PATHS {
        // A redirect that adds a slash leaves the path to a younger Ingress that claims it.
        let is_claimed = |answer: &Answer<'_>| is_evils(answer) || !adds_slash(answer);
        let (before, after) = (alone.answer(name, path).filter(is_claimed), both.answer(name, path).filter(is_claimed));
        let is_challenge = path.starts_with("/.well-known/acme-challenge/");
        let may_be_added = adds && !is_challenge && after.as_ref().is_some_and(is_evils);
        let is_same = match (before, after) {
            (None, _) if may_be_added => true,
            (Some(before), Some(after)) if may_be_added => may_take(before.path, after.path),
            (before, after) => before.map(|answer| answer.rule) == after.map(|answer| answer.rule),
        };
        prop_assert!(is_same, "{sharing:?} {name}{path}\nalone: {before:?}\nboth:  {after:?}");
        compared.added += usize::from(may_be_added);
        compared.kept += usize::from(!may_be_added && before.is_some());
    }
    let (before, after) = (alone.host(name), both.host(name));
    let of_host =
        |routes: Option<&HostRoutes>| routes.map(|routes| (routes.clients.clone(), routes.passthrough.clone()));
    prop_assert_eq!(of_host(before), of_host(after), "{:?} {}", sharing, name);
    if pattern != HostPattern::Any {
        prop_assert_eq!(alone.certificate(name), both.certificate(name), "{:?} {}", sharing, name);
    }
    Ok(())
}

/// With `open`, a path is still the older one's, if both ask for the same.
fn check_open(feud: &Feud, [alone, both]: [&View; 2], compared: &mut Compared) -> Result<(), TestCaseError> {
    let named: BTreeSet<_> = feud.rule_hosts(Side::Victim).into_iter().collect();
    for (pattern, routes) in alone.table.hosts.iter().filter(|(pattern, _)| named.contains(pattern)) {
        let is_challenge = |path: &PathMatch| path.as_str().starts_with("/.well-known/acme-challenge/");
        for rule in routes.rules.iter().filter(|rule| !is_challenge(&rule.path)) {
            let rules = both.table.hosts.get(pattern).map(|routes| &routes.rules[..]).unwrap_or_default();
            let found = rules.iter().find(|other| other.path == rule.path);
            prop_assert_eq!(found.map(|found| &found.owner), Some(&rule.owner), "{} {}", pattern, rule.path);
            compared.kept += 1;
        }
    }
    Ok(())
}

#[test]
fn a_younger_namespace_does_not_change_a_host() {
    let cases = env::var("PROPTEST_CASES").map_or(192, |text| text.parse().expect("a number"));
    let config =
        ProptestConfig { cases, max_shrink_iters: 4096, failure_persistence: None, ..ProptestConfig::default() };
    let compared = RefCell::new(BTreeMap::<_, Compared>::new());
    let outcome = TestRunner::new(config).run(&any_feud(), |feud| {
        for (sharing, classes) in [
            (HostSharing::Paths, Classes::Own),
            (HostSharing::Granted, Classes::Own),
            (HostSharing::Owner, Classes::Own),
            (HostSharing::Open, Classes::Own),
            (HostSharing::Paths, Classes::OfNginx),
        ] {
            let views = [&[Side::Victim][..], &[Side::Victim, Side::Evil]]
                .map(|sides| translated(&feud, sides, sharing, classes));
            let mut compared = compared.borrow_mut();
            let compared = compared.entry(format!("{classes:?} {sharing:?}")).or_default();
            if sharing == HostSharing::Open {
                check_open(&feud, views.each_ref(), compared)?;
                continue;
            }
            for name in HOSTS {
                check(&feud, sharing, name, views.each_ref(), compared)?;
            }
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let compared = compared.into_inner();
    // As many in each mode as there are sets, or most sets are about nothing.
    assert!(compared.len() == 5 && compared.values().all(|it| it.kept >= cases as usize), "{compared:?}");
    let adds: Vec<_> = compared.iter().filter(|(_, it)| it.added > 0).map(|(mode, _)| mode.as_str()).collect();
    assert_eq!(adds, ["OfNginx Paths", "Own Granted", "Own Paths"], "{compared:?}");
}
