//! The rules of a route table, as documents.

use std::net::SocketAddr;

use ingress_model::{
    Action, Canary, HostPattern, HostRoutes, ListenerName, PathMatch, RouteTable, Rule, Split, Unavailable, Upstream,
    UpstreamKey, WeightedBackend,
};
use serde::{Deserialize, Serialize};

use crate::redaction;

/// A path of a host, and the treatment of its requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteDocument {
    /// The listener of a Gateway that serves the host, as `namespace/gateway/listener`; `None` for hosts of Ingresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listener: Option<String>,
    /// Host name, `*.` and a name for a wildcard, or `*` for every host without rules of its own.
    pub host: String,
    /// The path, prefix or regular expression; `None` for [`PathKind::Fallback`].
    pub path: Option<String>,
    pub path_type: PathKind,
    /// Conditions on method, fields and query besides the path; `None` if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<String>,
    /// The Ingress or route that the rule comes from, as `namespace/name`; empty for the default backend of the controller.
    pub ingress: String,
    /// Filters in the order of their application, without values of header fields and without queries.
    pub filters: Vec<String>,
    pub action: ActionDocument,
    /// Forwarding settings that differ from the defaults, as `name=value` with blanks between; empty if none does.
    pub settings: String,
}

/// Comparison of a path with that of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathKind {
    /// This path alone.
    Exact,
    /// This path and everything below it, element by element.
    Prefix,
    /// Paths that begin with a match of the regular expression.
    Regex,
    /// Paths that no other rule of the host matches.
    Fallback,
}

/// The treatment of a request that has passed all filters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ActionDocument {
    /// Sends the request to one of these backends.
    Forward { backends: Vec<BackendDocument> },
    /// Answers with an error, because the rule cannot be applied.
    Refuse { status: u16, reason: String },
    /// Redirects the client; the location has no query.
    Redirect { status: u16, location: String },
}

/// The pods behind one port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendDocument {
    /// Name of the upstream: `namespace/service:port`.
    pub upstream: String,
    /// Protocol between the proxy and the pods: `http/1.1`, `h2c`, `https` or `h2`.
    pub protocol: String,
    /// Condition under which the backend gets the request; `None` for the backend of all other requests.
    pub condition: Option<String>,
    /// Addresses of the pods that take requests. Health of single pods is not considered here.
    pub endpoints: Vec<SocketAddr>,
}

/// A rule without its document, so that a page of a large table is cheap.
#[derive(Clone, Copy, Debug)]
pub struct RouteEntry<'t> {
    table: &'t RouteTable,
    listener: Option<&'t ListenerName>,
    host: &'t HostPattern,
    rule: &'t Rule,
    is_fallback: bool,
}

/// A selection of rules. Empty fields select all.
#[derive(Clone, Debug, Default)]
pub struct RouteFilter {
    /// Selects hosts that contain this text, in any case.
    pub host: Option<String>,
    /// Selects rules of Ingresses in this namespace.
    pub namespace: Option<String>,
    /// Selects rules of this Ingress: `namespace/name`.
    pub ingress: Option<String>,
}

/// Returns the selected rules in order of hosts, and for each host in order of precedence; first those of Ingresses,
/// then those of each listener of a Gateway.
pub fn routes<'t>(table: &'t RouteTable, filter: &'t RouteFilter) -> impl Iterator<Item = RouteEntry<'t>> + use<'t> {
    let of_ingresses = table.hosts.iter().map(|(host, routes)| (None, host, routes));
    let of_listeners = table.listeners.iter();
    let of_listeners = of_listeners
        .flat_map(|(name, listener)| listener.hosts.iter().map(move |(host, routes)| (Some(name), host, routes)));
    let hosts = of_ingresses.chain(of_listeners).filter(|(_, pattern, _)| filter.takes_host(pattern));
    let entries = hosts.flat_map(move |(listener, host, routes)| entries(table, listener, host, routes));
    entries.filter(|entry| filter.takes_rule(entry.rule))
}

/// Returns the rules of one host of Ingresses in order of precedence; none if `table` does not have it.
pub fn routes_of<'t>(table: &'t RouteTable, host: &'t HostPattern) -> impl Iterator<Item = RouteEntry<'t>> + use<'t> {
    table.hosts.get(host).into_iter().flat_map(move |routes| entries(table, None, host, routes))
}

fn entries<'t>(
    table: &'t RouteTable,
    listener: Option<&'t ListenerName>,
    host: &'t HostPattern,
    routes: &'t HostRoutes,
) -> impl Iterator<Item = RouteEntry<'t>> + use<'t> {
    let rules = routes.rules.iter().map(|rule| (rule, false));
    let fallback = routes.fallback.as_deref().map(|rule| (rule, true));
    rules.chain(fallback).map(move |(rule, is_fallback)| RouteEntry { table, listener, host, rule, is_fallback })
}

/// Returns the document of the default backend of the controller, if there is one.
#[must_use]
pub(crate) fn default_backend(table: &RouteTable) -> Option<RouteDocument> {
    table.default.as_ref().map(|action| RouteDocument {
        listener: None,
        host: HostPattern::Any.to_string(),
        path: None,
        path_type: PathKind::Fallback,
        conditions: None,
        ingress: String::new(),
        filters: Vec::new(),
        action: action_document(table, action),
        settings: table.forwarding.to_string().trim_start().to_owned(),
    })
}

fn action_document(table: &RouteTable, action: &Action) -> ActionDocument {
    let backend = |key: &UpstreamKey, condition: Option<String>| {
        let (protocol, endpoints) = match table.upstreams.get(key) {
            Some(upstream) => {
                let Upstream { protocol, tls: _, health_policy: _, proxy_header: _, endpoints } = &**upstream;
                (protocol.to_string(), endpoints.iter().map(|endpoint| endpoint.address).collect())
            }
            None => (String::new(), Vec::new()),
        };
        BackendDocument { upstream: key.to_string(), protocol, condition, endpoints }
    };
    match action {
        Action::Forward(key) => ActionDocument::Forward { backends: vec![backend(key, None)] },
        Action::Split(split) => {
            let Split { main, canaries, over_tls } = &**split;
            let by_scheme = |key: &UpstreamKey, when: Option<String>| {
                let secure = over_tls.iter().find(|(clear, _)| clear == key).map(|(_, upstream)| {
                    let when = when.as_ref().map_or_else(|| "over TLS".to_owned(), |when| format!("{when}, over TLS"));
                    backend(upstream, Some(when))
                });
                secure.into_iter().chain([backend(key, when)])
            };
            let canaries =
                canaries.iter().flat_map(|Canary { when, upstream }| by_scheme(upstream, Some(when.to_string())));
            ActionDocument::Forward { backends: canaries.chain(by_scheme(main, None)).collect() }
        }
        Action::Weighted(backends) => {
            let (total, backends) = (backends.total(), backends.as_slice().iter());
            let documents = backends.map(|WeightedBackend { weight, target, filters: _ }| match target {
                Ok(key) => backend(key, Some(format!("{weight}/{total}"))),
                Err(reason) => BackendDocument {
                    upstream: format!("({reason})"),
                    protocol: String::new(),
                    condition: Some(format!("{weight}/{total}")),
                    endpoints: Vec::new(),
                },
            });
            ActionDocument::Forward { backends: documents.collect() }
        }
        Action::Refuse(reason) => ActionDocument::Refuse { status: status_of(*reason), reason: reason.to_string() },
        Action::Redirect(redirect) => ActionDocument::Redirect {
            status: redirect.status,
            location: redaction::without_queries(&redirect.location.to_string()),
        },
    }
}

pub(crate) fn status_of(reason: Unavailable) -> u16 {
    match reason {
        Unavailable::NoRule => 404,
        Unavailable::InvalidReference => 500,
        Unavailable::NoService | Unavailable::NoPort | Unavailable::Backend | Unavailable::Policy => 503,
    }
}

// === impl RouteEntry ===

impl<'t> RouteEntry<'t> {
    pub(crate) fn new(
        table: &'t RouteTable,
        listener: Option<&'t ListenerName>,
        host: &'t HostPattern,
        rule: &'t Rule,
        is_fallback: bool,
    ) -> Self {
        Self { table, listener, host, rule, is_fallback }
    }

    /// Returns the Ingress or route that the rule comes from, as `namespace/name`.
    #[must_use]
    pub fn ingress(&self) -> &'t str {
        &self.rule.owner
    }

    #[must_use]
    pub fn document(&self) -> RouteDocument {
        let Self { table, listener, host, rule, is_fallback } = *self;
        let Rule { path, conditions, owner, filters, action, forwarding } = rule;
        RouteDocument {
            listener: listener.map(ToString::to_string),
            host: host.to_string(),
            path: (!is_fallback).then(|| path.as_str().to_owned()),
            path_type: if is_fallback { PathKind::Fallback } else { PathKind::of(path) },
            conditions: conditions.as_ref().map(ToString::to_string),
            ingress: owner.to_string(),
            filters: filters.iter().map(redaction::filter).collect(),
            action: action_document(table, action),
            settings: forwarding.to_string().trim_start().to_owned(),
        }
    }
}

// === impl PathKind ===

impl PathKind {
    pub(crate) fn of(path: &PathMatch) -> Self {
        match path {
            PathMatch::Exact(_) => Self::Exact,
            PathMatch::Prefix(_) => Self::Prefix,
            PathMatch::Pattern(_) | PathMatch::Beginning(_) => Self::Regex,
        }
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Prefix => "prefix",
            Self::Regex => "regex",
            Self::Fallback => "fallback",
        }
    }
}

// === impl RouteFilter ===

impl RouteFilter {
    fn takes_host(&self, pattern: &HostPattern) -> bool {
        self.host.as_deref().is_none_or(|text| pattern.to_string().contains(&text.to_ascii_lowercase()))
    }

    fn takes_rule(&self, rule: &Rule) -> bool {
        let namespace = rule.owner.split_once('/').map_or("", |(namespace, _)| namespace);
        self.namespace.as_deref().is_none_or(|wanted| wanted == namespace)
            && self.ingress.as_deref().is_none_or(|wanted| wanted == &*rule.owner)
    }
}
