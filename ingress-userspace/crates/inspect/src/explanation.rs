//! Why a URL is served as it is: the host, the rule, the rules that were not chosen, and the certificate.
//!
//! The result is what the proxy does with a GET request for the URL: clients, header fields and the health of pods are
//! not known here, and neither is the address that a client uses. A listener of a Gateway with a rule for the request
//! goes before the Ingresses. The chosen rule is the first match in the order of precedence; a test compares it with the
//! lookup of the request path.

use http::{Uri, uri::PathAndQuery};
use ingress_model::{
    Action, Filter, Host, HostPattern, HostRoutes, PathMatch, RefusedPaths, RouteTable, Rule, UpstreamKey, host,
    path::ACME_CHALLENGE, request_path,
};
use serde::{Deserialize, Serialize};

mod listeners;

use self::listeners::Request;
use crate::route::{self, ActionDocument, PathKind, RouteDocument, RouteEntry};

/// Maximum number of rules that an explanation lists as not chosen.
const CONSIDERED_MAX: usize = 100;

/// Why a URL is served as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// `http` or `https`.
    pub scheme: String,
    /// Host in canonical form: lower case, without port and trailing dot.
    pub host: String,
    /// Path in the form that is matched and sent to pods.
    pub path: String,
    pub verdict: Verdict,
    /// The verdict in one sentence.
    pub summary: String,
    /// The rule that serves the request.
    pub route: Option<RouteDocument>,
    /// Hosts of the configuration that match the request's host, the chosen one first.
    pub hosts: Vec<String>,
    /// Other rules of the chosen host, or of all hosts of a listener, in order of precedence, with the reason why each is not chosen.
    pub considered: Vec<Considered>,
    /// Number of rules that `considered` leaves out.
    pub considered_left_out: usize,
    /// The certificate that a client gets for the host; `None` for plain HTTP.
    pub certificate: Option<CertificateChoice>,
    /// Further facts that decide about the request, one sentence each.
    pub notes: Vec<String>,
}

/// The result for a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A rule sends the request to pods.
    Forwarded,
    /// A rule or the redirect to HTTPS answers with a redirect.
    Redirected,
    /// A rule answers with an error: it cannot be applied, or it needs TLS and the request has none.
    Refused,
    /// No rule matches; the default backend answers.
    DefaultBackend,
    /// No rule matches and there is no default backend: 404.
    NotFound,
    /// The path is refused with 400 before any rule applies.
    BadRequest,
    /// The connection is passed to the pods without decryption.
    Passthrough,
}

/// A rule that does not serve the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Considered {
    pub path: Option<String>,
    pub path_type: PathKind,
    pub ingress: String,
    /// Why the rule does not serve the request.
    pub reason: String,
}

/// The certificate for a server name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateChoice {
    /// The server name of the configuration that matches; `None` if no one does.
    pub server_name: Option<String>,
    /// The Secret, as `namespace/name`; `None` for the self-signed certificate of the process.
    pub secret: Option<String>,
    pub is_fallback: bool,
}

/// A URL that cannot be explained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExplainError {
    #[error("`{0}` is no URL; write it as `https://shop.example.com/cart`")]
    NotAUrl(String),
    #[error("`{0}` is no scheme of this controller; use `http` or `https`")]
    Scheme(String),
    #[error(transparent)]
    Host(#[from] ingress_model::HostError),
}

/// Explains how `table` serves a GET request for `url`. Without a scheme, `https://` is assumed. Port and query matter
/// for routes of Gateways alone; without a port, it is 443 or 80.
///
/// # Errors
/// Fails if `url` is no URL with the scheme `http` or `https`, or its host is no DNS name.
pub fn explain(table: &RouteTable, url: &str) -> Result<Explanation, ExplainError> {
    let Url { scheme, host, port, path, target } = Url::parse(url)?;
    let is_secure = scheme == "https";
    let mut explanation = Explanation {
        scheme,
        certificate: is_secure.then(|| certificate_choice(table, host.as_str())),
        hosts: matching_hosts(host.as_str())
            .filter(|pattern| table.hosts.contains_key(pattern))
            .map(|p| p.to_string())
            .collect(),
        host: host.as_str().to_owned(),
        path,
        verdict: Verdict::NotFound,
        summary: String::new(),
        route: None,
        considered: Vec::new(),
        considered_left_out: 0,
        notes: Vec::new(),
    };
    if explanation.ask_listeners(table, Request { port, target: target.as_ref() }) {
        return Ok(explanation);
    }
    let chosen = matching_hosts(host.as_str()).find_map(|pattern| Some((table.hosts.get(&pattern)?, pattern)));
    if let Some((routes, _)) = &chosen
        && is_secure
        && let Some(passthrough) = &routes.passthrough
    {
        explanation.verdict = Verdict::Passthrough;
        explanation.certificate = None;
        explanation.summary = format!("TLS connections of the host are passed through: {passthrough}");
        return Ok(explanation);
    }
    let routes = chosen.as_ref().map(|(routes, _)| &***routes);
    match canonical(table, |path| routes.and_then(|routes| self::chosen(routes, path)), &explanation.path) {
        Ok(path) => explanation.path = path,
        Err(reason) => {
            explanation.refuse_path(&reason);
            return Ok(explanation);
        }
    }
    match chosen {
        Some((routes, pattern)) => explanation.choose(table, &pattern, routes),
        None => explanation.fall_back(table, "no host of the configuration matches"),
    }
    Ok(explanation)
}

/// The parts of a URL that decide.
struct Url {
    scheme: String,
    host: Host,
    port: u16,
    path: String,
    /// Path and query as written; `None` for the root without either.
    target: Option<PathAndQuery>,
}

impl Url {
    fn parse(text: &str) -> Result<Self, ExplainError> {
        let wrong = || ExplainError::NotAUrl(text.to_owned());
        let full = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
        let uri: Uri = full.split('#').next().unwrap_or_default().parse().map_err(|_invalid| wrong())?;
        let scheme = uri.scheme_str().ok_or_else(wrong)?.to_ascii_lowercase();
        if !matches!(&*scheme, "http" | "https") {
            return Err(ExplainError::Scheme(scheme));
        }
        let host = Host::parse(uri.host().ok_or_else(wrong)?)?;
        let path = if uri.path().is_empty() { "/" } else { uri.path() };
        let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
        Ok(Self { scheme, host, port, path: path.to_owned(), target: uri.path_and_query().cloned() })
    }
}

/// Yields the patterns that match `host`, in order of precedence.
pub(crate) fn matching_hosts(host: &str) -> impl Iterator<Item = HostPattern> {
    let exact = Host::parse(host).ok().map(HostPattern::Exact);
    let wildcard = host::parent(host).and_then(|parent| Host::parse(parent).ok()).map(HostPattern::Wildcard);
    exact.into_iter().chain(wildcard).chain([HostPattern::Any])
}

/// Returns the canonical form of `path`, or the reason why a request with it is refused. `rule` returns the rule for a
/// path.
fn canonical<'r>(table: &RouteTable, rule: impl Fn(&str) -> Option<&'r Rule>, path: &str) -> Result<String, String> {
    let (path, readings) = request_path::forms(path).map_err(|error| error.to_string())?;
    if table.settings.refused_paths != RefusedPaths::default() {
        request_path::check(&path, table.settings.refused_paths).map_err(|error| error.to_string())?;
    }
    let same = |one: Option<&Rule>, other: Option<&Rule>| match (one, other) {
        (Some(one), Some(other)) => std::ptr::eq(one, other),
        (None, None) => true,
        _ => false,
    };
    if let Some(other) = readings.iter().find(|other| !same(rule(&path), rule(other))) {
        return Err(format!("pods may read the path as `{other}`, for which another rule holds"));
    }
    Ok(path.into_owned())
}

/// Returns the rule that serves `path`: the first match, or else the rule for all other paths.
fn chosen<'r>(routes: &'r HostRoutes, path: &str) -> Option<&'r Rule> {
    routes.rules.iter().find(|rule| rule.path.matches(path)).or(routes.fallback.as_deref())
}

/// Returns the certificate that clients of `host` get: a name, or a pattern such as `*.example.com`.
#[must_use]
pub fn certificate_choice(table: &RouteTable, host: &str) -> CertificateChoice {
    let claimed = matching_hosts(host).find_map(|pattern| Some((table.server_names.get(&pattern)?, pattern)));
    let secret = claimed.as_ref().and_then(|(secret, _)| (*secret).clone());
    let is_fallback = secret.is_none();
    let secret = secret.or_else(|| table.fallback_certificate.clone());
    CertificateChoice {
        server_name: claimed.map(|(_, pattern)| pattern.to_string()),
        secret: secret.map(|secret| secret.to_string()),
        is_fallback,
    }
}

/// Returns the upstreams that requests of the scheme never reach.
fn upstreams_of_other_scheme(action: &Action, is_secure: bool) -> Vec<&str> {
    let Action::Split(split) = action else { return Vec::new() };
    let others = split.over_tls.iter().map(|(clear, over_tls)| if is_secure { clear } else { over_tls });
    others.map(UpstreamKey::as_str).collect()
}

/// Returns why a rule other than the chosen one does not serve `path`.
fn reason(rule: &Rule, path: &str) -> String {
    if rule.path.matches(path) {
        return "it matches, too, but the chosen rule has precedence".to_owned();
    }
    match &rule.path {
        PathMatch::Exact(_) => "the path is not exactly this one".to_owned(),
        PathMatch::Prefix(prefix) if path.starts_with(&**prefix) => {
            "the prefix ends within an element of the path; prefixes match whole elements".to_owned()
        }
        PathMatch::Prefix(_) => "the path is not below this prefix".to_owned(),
        PathMatch::Pattern(_) => "the path does not begin with a match of the expression".to_owned(),
        PathMatch::Beginning(_) => "the path does not begin with this text, in any case".to_owned(),
    }
}

// === impl Explanation ===

impl Explanation {
    fn choose(&mut self, table: &RouteTable, pattern: &HostPattern, routes: &HostRoutes) {
        if let Some(clients) = &routes.clients {
            self.notes.push(format!("Handshakes request a client certificate: {clients}."));
        }
        let rule = chosen(routes, &self.path);
        let others = routes.rules.iter().filter(|other| rule.is_none_or(|rule| !std::ptr::eq(*other, rule)));
        for other in others {
            self.consider(other, reason(other, &self.path));
        }
        let Some(rule) = rule else {
            return self.fall_back(table, &format!("no rule of `{pattern}` matches the path"));
        };
        let is_fallback = routes.fallback.as_deref().is_some_and(|fallback| std::ptr::eq(fallback, rule));
        let document = RouteEntry::new(table, None, pattern, rule, is_fallback).document();
        self.apply(&document, rule, &format!("Ingress `{}`", rule.owner));
        self.route = Some(document);
    }

    fn refuse_path(&mut self, reason: &str) {
        self.verdict = Verdict::BadRequest;
        self.summary = format!("The request is refused with 400: {reason}.");
    }

    /// Adds a rule that is not chosen.
    fn consider(&mut self, rule: &Rule, reason: String) {
        if self.considered.len() == CONSIDERED_MAX {
            self.considered_left_out += 1;
            return;
        }
        self.considered.push(Considered {
            path: Some(rule.path.as_str().to_owned()),
            path_type: PathKind::of(&rule.path),
            ingress: rule.owner.to_string(),
            reason,
        });
    }

    /// Sets the verdict of the chosen rule; `from` names its Ingress, or its route and listener.
    fn apply(&mut self, document: &RouteDocument, rule: &Rule, from: &str) {
        let redirects = rule.filters.iter().find_map(|filter| match filter {
            Filter::RedirectHttps { status, except } => Some((status, except)),
            _ => None,
        });
        if let Some((status, except)) = redirects
            && self.scheme == "http"
        {
            let is_challenge = self.path.strip_prefix(ACME_CHALLENGE).is_some_and(|rest| rest.starts_with('/'));
            if !is_challenge && !except.iter().any(|path| path.matches(&self.path)) {
                self.verdict = Verdict::Redirected;
                self.summary = format!("{from} redirects the request to HTTPS with {status}.");
                return;
            }
        }
        if self.scheme == "http" && rule.filters.iter().any(|filter| matches!(filter, Filter::ClientCertificate(_))) {
            self.verdict = Verdict::Refused;
            self.summary = format!("{from} requires client certificates, so plain HTTP gets 403.");
            return;
        }
        (self.verdict, self.summary) = match &document.action {
            ActionDocument::Forward { backends } => {
                let others = upstreams_of_other_scheme(&rule.action, self.scheme == "https");
                let backends = backends.iter().filter(|backend| !others.contains(&&*backend.upstream));
                let names: Vec<_> = backends.clone().map(|backend| format!("`{}`", backend.upstream)).collect();
                let count: usize = backends.clone().map(|backend| backend.endpoints.len()).sum();
                for backend in backends.filter(|backend| backend.endpoints.is_empty()) {
                    self.notes.push(format!("`{}` has no pod that takes requests: it answers 503.", backend.upstream));
                }
                let pods = if count == 1 { "one pod".to_owned() } else { format!("{count} pods") };
                (Verdict::Forwarded, format!("{from} sends the request to {} ({pods}).", names.join(" or ")))
            }
            ActionDocument::Refuse { status, reason } => (
                Verdict::Refused,
                match document.listener {
                    None => format!("The rule of {from} answers {status}: {reason}; see the problems of the Ingress."),
                    Some(_) => format!("{from} answers {status}: {reason}; see the conditions of the route."),
                },
            ),
            ActionDocument::Redirect { status, location } => {
                (Verdict::Redirected, format!("{from} redirects the request to `{location}` with {status}."))
            }
        };
    }

    fn fall_back(&mut self, table: &RouteTable, why: &str) {
        self.route = route::default_backend(table);
        (self.verdict, self.summary) = match &self.route {
            Some(_) => (Verdict::DefaultBackend, format!("The default backend answers, because {why}.")),
            None => (Verdict::NotFound, format!("The request gets 404, because {why}.")),
        };
    }
}

#[cfg(test)]
mod listener_tests;
#[cfg(test)]
mod tests;
