//! Witness requests: URLs that ingress-nginx and this controller serve differently.
//!
//! For each host, a model of ingress-nginx decides about requests at the boundaries of its paths, and so does the route
//! table. Where the two differ, the URL is the witness. Filters, backends and certificates are not compared here.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use ingress_model::{Action, Host, HostPattern, PathMatch, RouteTable, Rule, path};
use ingress_nginx_model::{Decision, HostIngress, IngressPath, LocationMatch, Origin, PathKind, Server, boundaries};
use k8s_openapi::api::networking::v1::{HTTPIngressPath, Ingress, IngressBackend};
use serde::Serialize;

use crate::lookup::{Found, Lookup, RefusedPath};

/// The result of a comparison with ingress-nginx.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// Number of compared hosts, and of requests for them.
    pub hosts: usize,
    pub requests: usize,
    /// Witnesses by host, then by path.
    pub witnesses: Vec<Witness>,
    /// Hosts for which ingress-nginx' choice is not known, with the reason.
    pub unknown: Vec<UnknownHost>,
}

/// A request that is served differently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Witness {
    pub url: String,
    /// The Ingress that this is about, as `namespace/name`: the one that serves the request with ingress-nginx, or else
    /// here. `None` if no Ingress does.
    pub ingress: Option<String>,
    /// The answer of ingress-nginx, in words.
    pub nginx: String,
    /// The answer of this controller, in words.
    pub here: String,
    /// Number of further compared requests with the same two answers.
    pub further: usize,
}

/// A host that is not compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnknownHost {
    pub host: String,
    pub reason: String,
}

/// The rule that serves a request, as clients notice it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    /// A path of an Ingress, with its backend.
    Path {
        ingress: String,
        path: String,
        backend: String,
    },
    /// 301 to this path.
    AddSlash(String),
    /// The redirect of an Ingress for `/`.
    AppRoot(String),
    /// The default backend, of an Ingress or of the controller.
    Default(Option<String>),
    BadRequest(Option<String>),
}

/// An Ingress with its paths for one host.
struct Claim<'i> {
    name: String,
    ingress: &'i Ingress,
    has_app_root: bool,
    paths: Vec<&'i HTTPIngressPath>,
}

/// Compares `table` with what ingress-nginx makes of `ingresses`: all that belong to this controller. Their annotations
/// have the prefix `prefix`, such as `nginx.ingress.kubernetes.io`.
#[must_use]
pub fn witnesses<'i>(ingresses: impl IntoIterator<Item = &'i Ingress>, prefix: &str, table: &RouteTable) -> Comparison {
    let mut comparison = Comparison::default();
    for (host, claims) in by_host(ingresses, prefix) {
        let Ok(pattern) = HostPattern::parse(&host) else { continue };
        let of_nginx: Vec<_> = claims.iter().map(|claim| claim.of_nginx(prefix)).collect();
        match Server::of(&of_nginx) {
            Ok(server) => comparison.compare(&pattern, &claims, &of_nginx, &server, table),
            Err(error) => {
                let host = if host.is_empty() { "*".to_owned() } else { host };
                comparison.unknown.push(UnknownHost { host, reason: error.to_string() });
            }
        }
    }
    comparison
}

/// Returns the Ingresses of each host in ingress-nginx' order: the oldest first. Canaries have no paths of their own.
fn by_host<'i>(ingresses: impl IntoIterator<Item = &'i Ingress>, prefix: &str) -> BTreeMap<String, Vec<Claim<'i>>> {
    let is_canary = |ingress: &Ingress| is_true(annotation(ingress, prefix, "canary"));
    let mut all: Vec<_> = ingresses.into_iter().filter(|ingress| !is_canary(ingress)).collect();
    all.sort_by(|a, b| {
        let age = |ingress: &Ingress| ingress.metadata.creation_timestamp.clone();
        // Of the same second, the last by name goes first there. Objects of files have no time, so nothing is known.
        let (a_age, b_age) = (age(a), age(b));
        let names = name(a).cmp(&name(b));
        let ties = if a_age.is_some() && b_age.is_some() { names.reverse() } else { names };
        (a_age.is_none(), a_age).cmp(&(b_age.is_none(), b_age)).then(ties)
    });
    let mut hosts = BTreeMap::<String, Vec<Claim<'i>>>::new();
    let claim = |ingress| {
        let has_app_root = annotation(ingress, prefix, "app-root").is_some_and(|root| !root.is_empty());
        Claim { name: name(ingress), ingress, has_app_root, paths: Vec::new() }
    };
    for ingress in all {
        if is_catch_all(ingress) {
            hosts.entry(String::new()).or_default().push(claim(ingress));
        }
        for rule in ingress.spec.iter().flat_map(|spec| spec.rules.iter().flatten()) {
            let claims = hosts.entry(rule.host.clone().unwrap_or_default()).or_default();
            if claims.last().is_none_or(|claim| !std::ptr::eq(claim.ingress, ingress)) {
                claims.push(claim(ingress));
            }
            if let Some(claim) = claims.last_mut() {
                let paths = rule.http.iter().flat_map(|http| &http.paths);
                let is_served = |path: &&HTTPIngressPath| {
                    PathKind::of_path_type(&path.path_type).is_some() && path.backend.service.is_some()
                };
                claim.paths.extend(paths.filter(is_served));
            }
        }
    }
    hosts
}

/// Returns whether the default backend of an Ingress serves all hosts that no rule is for.
fn is_catch_all(ingress: &Ingress) -> bool {
    let spec = ingress.spec.as_ref().filter(|spec| spec.default_backend.is_some());
    spec.is_some_and(|spec| spec.rules.as_ref().is_none_or(Vec::is_empty))
}

fn name(ingress: &Ingress) -> String {
    let namespace = ingress.metadata.namespace.as_deref().unwrap_or("default");
    format!("{namespace}/{}", ingress.metadata.name.as_deref().unwrap_or_default())
}

fn annotation<'i>(ingress: &'i Ingress, prefix: &str, key: &str) -> Option<&'i str> {
    let annotations = ingress.metadata.annotations.as_ref()?;
    annotations.get(&format!("{}/{key}", prefix.trim_end_matches('/'))).map(String::as_str)
}

/// Reads a boolean as ingress-nginx does.
fn is_true(value: Option<&str>) -> bool {
    matches!(value, Some("1" | "t" | "T" | "TRUE" | "true" | "True"))
}

/// Returns a name that the pattern matches.
fn example(pattern: &HostPattern) -> String {
    match pattern {
        HostPattern::Exact(host) => host.to_string(),
        HostPattern::Wildcard(parent) | HostPattern::Suffix(parent) => format!("witness.{parent}"),
        HostPattern::Any => "witness.invalid".to_owned(),
    }
}

// === impl Claim ===

impl Claim<'_> {
    fn of_nginx(&self, prefix: &str) -> HostIngress {
        let path = |path: &&HTTPIngressPath| {
            let kind = PathKind::of_path_type(&path.path_type)?;
            Some(IngressPath { kind, text: path.path.clone().unwrap_or_default() })
        };
        HostIngress {
            use_regex: is_true(annotation(self.ingress, prefix, "use-regex")),
            rewrite_target: annotation(self.ingress, prefix, "rewrite-target").map(str::to_owned),
            has_app_root: self.has_app_root,
            paths: self.paths.iter().filter_map(path).collect(),
        }
    }

    fn has_default_backend(&self) -> bool {
        self.ingress.spec.as_ref().is_some_and(|spec| spec.default_backend.is_some())
    }

    fn answer(&self, path: &HTTPIngressPath) -> Answer {
        let path_text = text(path).to_owned();
        Answer::Path { ingress: self.name.clone(), path: path_text, backend: backend(&path.backend) }
    }

    /// Returns the path that `rule` is for.
    fn claimed(&self, rule: &Rule) -> Option<&HTTPIngressPath> {
        let wanted = rule.path.as_str();
        let is_exact = |path: &HTTPIngressPath| path.path_type == "Exact";
        let find = |wanted: &str, kind: Option<bool>| {
            let is_it = |path: &&&HTTPIngressPath| {
                path::decode_unreserved(text(path)) == wanted && kind.is_none_or(|kind| kind == is_exact(path))
            };
            self.paths.iter().find(is_it).copied()
        };
        match rule.path {
            PathMatch::Exact(_) => find(wanted, Some(true)),
            PathMatch::Prefix(_) => find(wanted, Some(false)),
            PathMatch::Pattern(_) => find(wanted, None),
            // Beside an exact path, a prefix has only what is below it.
            PathMatch::Beginning(_) => find(wanted, None).or_else(|| find(path::elements(wanted), Some(false))),
        }
    }
}

/// Returns the path as written, or `/` for none.
fn text(path: &HTTPIngressPath) -> &str {
    path.path.as_deref().filter(|text| !text.is_empty()).unwrap_or("/")
}

/// Returns a backend in words.
fn backend(backend: &IngressBackend) -> String {
    let service = backend.service.as_ref().map(|service| {
        let port = service.port.as_ref();
        let number = port.and_then(|port| port.number).map(|number| number.to_string());
        let port = number.or_else(|| port.and_then(|port| port.name.clone())).unwrap_or_default();
        format!("{}:{port}", service.name)
    });
    service.unwrap_or_else(|| "a resource".to_owned())
}

// === impl Comparison ===

impl Comparison {
    fn compare(
        &mut self,
        pattern: &HostPattern,
        claims: &[Claim<'_>],
        of_nginx: &[HostIngress],
        server: &Server,
        table: &RouteTable,
    ) {
        let host = example(pattern);
        let Ok(host) = Host::parse(&host) else { return };
        let lookup = Lookup::of(table, Lookup::pattern(table, host.as_str()).as_ref());
        if lookup.passes_tls() {
            return;
        }
        self.hosts += 1;
        let mut differences = BTreeMap::<(Answer, Answer), (String, usize)>::new();
        let paths: BTreeSet<String> = boundaries(of_nginx);
        // The shortest URL is the best witness.
        let mut paths: Vec<_> = paths.into_iter().collect();
        paths.sort_by_key(String::len);
        for path in paths {
            self.requests += 1;
            let (nginx, here) = (of_decision(server.decide(&path), claims), found(lookup.find(&host, &path), claims));
            if !nginx.is_same(&here) {
                differences.entry((nginx, here)).and_modify(|(_, count)| *count += 1).or_insert((path, 0));
            }
        }
        let mut witnesses: Vec<_> = differences
            .into_iter()
            .map(|((nginx, here), (path, further))| Witness {
                url: format!("https://{host}{path}"),
                ingress: nginx.ingress().or_else(|| here.ingress()).map(str::to_owned),
                nginx: nginx.to_string(),
                here: here.to_string(),
                further,
            })
            .collect();
        witnesses.sort_by(|a, b| a.url.len().cmp(&b.url.len()).then_with(|| a.url.cmp(&b.url)));
        self.witnesses.extend(witnesses);
    }
}

fn of_decision(decision: Decision<'_>, claims: &[Claim<'_>]) -> Answer {
    match decision {
        Decision::Location(location) => match location.origin {
            Origin::Path { ingress, path } => {
                let claim = claims.get(ingress);
                let path = claim.and_then(|claim| Some(claim.answer(claim.paths.get(path)?)));
                path.unwrap_or(Answer::Default(None))
            }
            Origin::Default => {
                let catch_all = claims.iter().find(|claim| is_catch_all(claim.ingress));
                let first = || claims.first().filter(|claim| claim.has_default_backend());
                Answer::Default(catch_all.or_else(first).map(|claim| claim.name.clone()))
            }
        },
        Decision::AddSlash(location) => match &location.matching {
            LocationMatch::Exact(path) | LocationMatch::Prefix(path) => Answer::AddSlash(path.clone()),
            LocationMatch::Expression(expression) => Answer::AddSlash(expression.as_str().to_owned()),
        },
        Decision::AppRoot(ingress) => match claims.get(ingress) {
            Some(claim) => Answer::AppRoot(claim.name.clone()),
            None => Answer::Default(None),
        },
        Decision::BadRequest => Answer::BadRequest(None),
    }
}

fn found(found: Result<(Cow<'_, str>, Found<'_>), RefusedPath>, claims: &[Claim<'_>]) -> Answer {
    let (rule, is_fallback) = match found {
        Ok((_, Found::Rule(rule))) => (rule, false),
        Ok((_, Found::Fallback(rule))) => (rule, true),
        Ok((_, Found::Nothing)) => return Answer::Default(None),
        Err(refused) => return Answer::BadRequest(Some(refused.to_string())),
    };
    let ingress = rule.owner.to_string();
    if is_fallback {
        return Answer::Default(Some(ingress));
    }
    let claim = claims.iter().find(|claim| claim.name == ingress);
    let is_redirect = matches!(rule.action, Action::Redirect(_));
    let text = rule.path.as_str();
    match claim.and_then(|claim| Some(claim.answer(claim.claimed(rule)?))) {
        // An Ingress with `app-root` has no other rule for exactly `/`.
        _ if is_redirect
            && claim.is_some_and(|claim| claim.has_app_root)
            && rule.path == PathMatch::Exact("/".into()) =>
        {
            Answer::AppRoot(ingress)
        }
        Some(answer) => answer,
        // Of all redirects, only these are for no path of their Ingress.
        None if is_redirect => Answer::AddSlash(format!("{text}/")),
        None => Answer::Path { ingress, path: text.to_owned(), backend: String::new() },
    }
}

// === impl Answer ===

impl Answer {
    /// Returns whether both answers mean the same to clients.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Path { ingress, path: _, backend },
                Self::Path { ingress: other_ingress, path: _, backend: other_backend },
            ) => ingress == other_ingress && backend == other_backend,
            (Self::BadRequest(_), Self::BadRequest(_)) => true,
            _ => self == other,
        }
    }

    fn ingress(&self) -> Option<&str> {
        match self {
            Self::Path { ingress, .. } | Self::AppRoot(ingress) => Some(ingress),
            Self::Default(ingress) => ingress.as_deref(),
            Self::AddSlash(_) | Self::BadRequest(_) => None,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path { ingress, path, backend } if backend.is_empty() => write!(f, "`{path}` of {ingress}"),
            Self::Path { ingress, path, backend } => write!(f, "`{path}` of {ingress}, to {backend}"),
            Self::AddSlash(path) => write!(f, "301 to `{path}`"),
            Self::AppRoot(ingress) => write!(f, "app-root of {ingress}"),
            Self::Default(None) => f.write_str("no rule: 404"),
            Self::Default(Some(ingress)) => write!(f, "default backend of {ingress}"),
            Self::BadRequest(None) => f.write_str("400"),
            Self::BadRequest(Some(reason)) => write!(f, "400: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests;
