//! Random sets of Ingresses of two namespaces; those of one namespace are all older.

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
    fmt::Write as _,
    sync::LazyLock,
};

use ingress_model::{Host, HostPattern, PathMatch, path};
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub(crate) struct Feud {
    victim: Vec<Wish>,
    evil: Vec<Wish>,
    pub(crate) has_default_certificate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Side {
    Victim,
    Evil,
}

/// An Ingress.
#[derive(Clone, Debug)]
struct Wish {
    rules: Vec<(&'static str, Vec<(&'static str, &'static str)>)>,
    has_default: bool,
    /// Hosts (`None` for those of the rules), and whether a Secret is named.
    tls: Vec<(Option<&'static str>, bool)>,
    annotations: BTreeSet<(&'static str, &'static str)>,
    is_solver: bool,
    day: u8,
}

const HOSTS: &[&str] = &["", "a.test", "a.test", "www.a.test", "b.test", "*.wild.test", "x.wild.test", "alias.test"];
/// Paths that both kinds may have, and regular expressions with the common beginning of their matches.
const PATHS: &[&str] = &[
    "/",
    "/a",
    "/a/",
    "/a/b",
    "/k",
    "/.well-known",
    "/.well-known/acme-challenge",
    "/.well-known/acme-challenge/t",
    "/.well-known/acme-challenge-other",
];
const EXPRESSIONS: &[(&str, &str)] = &[
    ("/(.*)", ""),
    ("/((((((((.*))))))))", ""),
    ("/a(/|$)(.*)", "/a"),
    ("/a/[0-9]+", "/a"),
    ("/A", "/A"),
    ("/a|/", ""),
    // The kelvin sign equals `k` without regard to case.
    ("/\u{212a}", ""),
    (r"/\.well-\u{212a}nown/acme-challenge/t", r"/.well-"),
    (r"/\.well-known/acme-challenge/[a-z]", "/.well-known/acme-challenge"),
];
/// `NS` stands for the namespace.
const ANNOTATIONS: &[(&str, &str)] = &[
    ("nginx.ingress.kubernetes.io/use-regex", "true"),
    ("nginx.ingress.kubernetes.io/ssl-redirect", "false"),
    ("nginx.ingress.kubernetes.io/force-ssl-redirect", "true"),
    ("nginx.ingress.kubernetes.io/auth-tls-secret", "NS/ca"),
    ("nginx.ingress.kubernetes.io/auth-tls-secret", "NS/none"),
    ("nginx.ingress.kubernetes.io/server-alias", "alias.test"),
    ("nginx.ingress.kubernetes.io/server-alias", "x.wild.test, b.test"),
    ("nginx.ingress.kubernetes.io/from-to-www-redirect", "true"),
    ("nginx.ingress.kubernetes.io/canary", "true"),
    ("nginx.ingress.kubernetes.io/canary-weight", "50"),
    ("nginx.ingress.kubernetes.io/ssl-passthrough", "true"),
    ("nginx.ingress.kubernetes.io/app-root", "/app"),
    ("nginx.ingress.kubernetes.io/permanent-redirect", "https://other.test"),
    ("nginx.ingress.kubernetes.io/rewrite-target", "/new"),
    ("xdp-ingress.io/share-hosts-with", "evil"),
];

pub(crate) fn any_feud() -> impl Strategy<Value = Feud> {
    let wishes = |least| prop::collection::vec(any_wish(), least..4);
    (wishes(1), wishes(1), any::<bool>(), any::<bool>()).prop_map(
        |(mut victim, evil, grants, has_default_certificate)| {
            // Grants are rare among all annotations, and some are needed in each run.
            if let Some(first) = victim.first_mut().filter(|_| grants) {
                first.annotations.insert(("xdp-ingress.io/share-hosts-with", "evil"));
            }
            Feud { victim, evil, has_default_certificate }
        },
    )
}

fn any_wish() -> impl Strategy<Value = Wish> {
    let expressions = EXPRESSIONS.iter().map(|(text, _)| *text);
    let texts: Vec<_> = PATHS.iter().copied().chain(expressions).collect();
    let kind = prop::sample::select(vec!["Exact", "Prefix", "ImplementationSpecific"]);
    let path = (prop::sample::select(texts), kind);
    let rule = (prop::sample::select(HOSTS), prop::collection::vec(path, 0..4));
    let tls = (prop::option::weighted(0.8, prop::sample::select(HOSTS)), any::<bool>());
    (
        prop::collection::vec(rule, 0..3),
        prop::bool::weighted(0.2),
        prop::collection::vec(tls, 0..2),
        prop::collection::btree_set(prop::sample::select(ANNOTATIONS), 0..3),
        prop::bool::weighted(0.15),
        1..10u8,
    )
        .prop_map(|(rules, has_default, tls, annotations, is_solver, day)| {
            let is_solver = is_solver && !rules.is_empty();
            let wish = Wish { rules, has_default, tls, annotations, is_solver, day };
            if is_solver { wish.for_challenges() } else { wish }
        })
}

/// Returns the common beginning of all matches of an expression, by whole elements.
pub(crate) fn common(expression: &str) -> &str {
    match EXPRESSIONS.iter().find(|(text, _)| *text == expression) {
        Some((_, common)) => common,
        // In plain paths, a dot is the only character with a meaning in expressions.
        None => path::elements(expression.split('.').next().unwrap_or_default()),
    }
}

/// Returns whether `path` matches. Expressions are compiled for that, so answers are cached.
pub(crate) fn fits(rule: &PathMatch, path: &'static str) -> bool {
    thread_local! {
        static KNOWN: RefCell<HashMap<(String, &'static str), bool>> = RefCell::default();
    }
    if !matches!(rule, PathMatch::Pattern(_)) {
        return rule.matches(path);
    }
    KNOWN.with_borrow_mut(|known| *known.entry((rule.as_str().to_owned(), path)).or_insert_with(|| rule.matches(path)))
}

/// A certificate for all names, and an authority, as data of Secrets.
static DATA: LazyLock<(String, String)> = LazyLock::new(|| {
    let names = ["a.test", "www.a.test", "b.test", "*.wild.test", "x.wild.test", "alias.test"].map(str::to_owned);
    let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    (format!("{{tls.crt: {certificate:?}, tls.key: {key:?}}}"), format!("{{ca.crt: {certificate:?}}}"))
});

// === impl Side ===

impl Side {
    fn namespace(self) -> &'static str {
        match self {
            Self::Victim => "victim",
            Self::Evil => "evil",
        }
    }
}

// === impl Feud ===

impl Feud {
    fn wishes(&self, side: Side) -> &[Wish] {
        match side {
            Side::Victim => &self.victim,
            Side::Evil => &self.evil,
        }
    }

    /// Returns the objects of `sides`, and the common ones.
    pub(crate) fn manifests(&self, sides: &[Side]) -> String {
        let (certificate, authority) = &*DATA;
        let mut text =
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: xdp, name: settings}\ndata: {hsts: \"true\"}\n"
                .to_owned();
        for namespace in ["xdp", "victim", "evil"] {
            write!(
                text,
                "---\napiVersion: v1\nkind: Secret\nmetadata: {{namespace: {namespace}, name: own}}\nstringData: {certificate}\n\
                 ---\napiVersion: v1\nkind: Secret\nmetadata: {{namespace: {namespace}, name: ca}}\nstringData: {authority}\n\
                 ---\napiVersion: v1\nkind: Service\nmetadata: {{namespace: {namespace}, name: web}}\nspec: {{ports: [{{port: 80}}]}}\n"
            )
            .expect("a string takes all");
        }
        for side in sides {
            for (number, wish) in self.wishes(*side).iter().enumerate() {
                text += &wish.manifest(*side, number);
            }
        }
        text
    }

    /// Returns the hosts in rules of ordinary Ingresses.
    pub(crate) fn rule_hosts(&self, side: Side) -> Vec<HostPattern> {
        let ordinary = self.wishes(side).iter().filter(|wish| wish.is_ordinary());
        ordinary.flat_map(Wish::hosts).collect()
    }

    /// Returns the hosts in rules and aliases of ordinary Ingresses: those are hosts of their own.
    pub(crate) fn names(&self, side: Side) -> BTreeSet<HostPattern> {
        let ordinary = self.wishes(side).iter().filter(|wish| wish.is_ordinary());
        self.rule_hosts(side).into_iter().chain(ordinary.flat_map(Wish::aliases)).collect()
    }

    /// Returns whether a solver of `side` names `pattern`.
    pub(crate) fn solves(&self, side: Side, pattern: &HostPattern) -> bool {
        let solvers = self.wishes(side).iter().filter(|wish| wish.is_solver);
        solvers.flat_map(Wish::hosts).any(|host| host == *pattern)
    }

    /// Returns whether an Ingress of the older namespace lets the younger one add paths to `pattern`.
    pub(crate) fn grants(&self, pattern: &HostPattern) -> bool {
        let shares =
            |wish: &&Wish| !wish.is_solver && wish.annotations.iter().any(|(key, _)| key.ends_with("share-hosts-with"));
        // A `tls` entry without hosts is a claim on all hosts.
        let has_tls_for_all = |wish: &Wish| wish.tls.iter().any(|(host, _)| host.is_none());
        let claims = |wish: &Wish| {
            wish.hosts().chain(wish.aliases()).any(|host| host == *pattern)
                || *pattern == HostPattern::Any && has_tls_for_all(wish)
        };
        self.victim.iter().filter(shares).any(|wish| claims(wish) || wish.covers(pattern))
    }
}

// === impl Wish ===

impl Wish {
    /// Turns it into a challenge solver of cert-manager for the same hosts.
    fn for_challenges(mut self) -> Self {
        let path = ("/.well-known/acme-challenge/t", "Exact");
        self.rules.iter_mut().for_each(|(_, paths)| *paths = vec![path]);
        Self { has_default: false, tls: Vec::new(), ..self }
    }

    fn is_ordinary(&self) -> bool {
        !self.is_solver && !self.annotations.iter().any(|(key, _)| key.ends_with("/canary"))
    }

    fn hosts(&self) -> impl Iterator<Item = HostPattern> {
        let catch_all = (self.rules.is_empty() && self.has_default).then_some("");
        let hosts = self.rules.iter().map(|(host, _)| *host).chain(catch_all);
        hosts.map(|host| HostPattern::parse(host).expect("a host"))
    }

    /// Returns whether it claims `pattern` by `tls` alone.
    fn covers(&self, pattern: &HostPattern) -> bool {
        let named = self.tls.iter().filter_map(|(host, _)| *host);
        named.map(|host| HostPattern::parse(host).expect("a host")).any(|host| host == *pattern)
    }

    fn value(&self, end: &str) -> Option<&'static str> {
        // Of two values for one key the last is written.
        self.annotations.iter().rev().find(|(key, _)| key.ends_with(end)).map(|(_, value)| *value)
    }

    fn aliases(&self) -> impl Iterator<Item = HostPattern> {
        let named: Vec<_> = self.hosts().filter(|host| *host != HostPattern::Any).collect();
        let aliases = self.value("/server-alias").filter(|_| !named.is_empty()).unwrap_or_default();
        let aliases: Vec<_> = aliases.split(", ").filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let with_www = |pattern: &HostPattern| match pattern {
            HostPattern::Exact(host) => match host.as_str().strip_prefix("www.") {
                Some(rest) => Some(rest.to_owned()),
                None => Some(format!("www.{host}")),
            },
            HostPattern::Wildcard(_) | HostPattern::Suffix(_) | HostPattern::Any => None,
        };
        let has_www = self.value("/from-to-www-redirect").is_some();
        let counterparts: Vec<_> = named.iter().filter(|_| has_www).filter_map(with_www).collect();
        aliases.into_iter().chain(counterparts).map(|name| HostPattern::Exact(Host::parse(&name).expect("a name")))
    }

    fn manifest(&self, side: Side, number: usize) -> String {
        const BACKEND: &str = "{service: {name: web, port: {number: 80}}}";
        let namespace = side.namespace();
        let month = if side == Side::Victim { 1 } else { 2 };
        let labels = if self.is_solver { ", labels: {acme.cert-manager.io/http01-solver: \"true\"}" } else { "" };
        let annotations: HashMap<_, _> = self.annotations.iter().copied().collect();
        let annotations: Vec<_> =
            annotations.iter().map(|(key, value)| format!("{key}: {:?}", value.replace("NS", namespace))).collect();
        let mut spec = vec!["ingressClassName: xdp".to_owned()];
        if self.has_default {
            spec.push(format!("defaultBackend: {BACKEND}"));
        }
        let tls = self.tls.iter().map(|(host, has_secret)| {
            let hosts = host.map(|host| format!("hosts: [\"{host}\"]"));
            let secret = has_secret.then(|| "secretName: own".to_owned());
            format!("{{{}}}", hosts.into_iter().chain(secret).collect::<Vec<_>>().join(", "))
        });
        spec.push(format!("tls: [{}]", tls.collect::<Vec<_>>().join(", ")));
        let rules = self.rules.iter().map(|(host, paths)| {
            let path =
                |(path, kind): &(&str, &str)| format!("{{path: '{path}', pathType: {kind}, backend: {BACKEND}}}");
            let paths: Vec<_> = paths.iter().map(path).collect();
            format!("{{host: \"{host}\", http: {{paths: [{}]}}}}", paths.join(", "))
        });
        spec.push(format!("rules: [{}]", rules.collect::<Vec<_>>().join(", ")));
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{namespace: {namespace}, name: i{number}, \
             creationTimestamp: \"2026-{month:02}-{:02}T00:00:00Z\"{labels}, annotations: {{{}}}}}\nspec: {{{}}}\n",
            self.day,
            annotations.join(", "),
            spec.join(", ")
        )
    }
}
