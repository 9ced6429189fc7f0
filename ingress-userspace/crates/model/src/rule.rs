//! The route table: hosts, their rules in order of precedence, and the action of each rule.

use std::{fmt, sync::Arc};

use super::{
    AuthService, Bind, Bound, Certificate, ClientCertificates, Conditions, Filter, Forwarding, HostPattern, Listener,
    ListenerName, Passthrough, PathMatch, Redirect, Settings, Split, StreamPort, StreamService, TicketKeys, Tree,
    Upstream, UpstreamKey, WeightedBackends,
};

/// All input of the request path, complete and consistent. Every upstream named by an action or a stream service is in
/// `upstreams`, and every certificate selected by a server name is in `certificates`, which may contain more. Shared
/// objects can thus change without the objects that name them. A clone is free, and comparing two tables costs only
/// their difference ([`Tree::differences`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTable {
    /// Hosts of Ingresses. They are served at every address of the node, behind the listeners of Gateways.
    pub hosts: Tree<HostPattern, Arc<HostRoutes>>,
    /// Addresses and ports of Gateways. Every listener named there is in `listeners`.
    pub binds: Tree<Bind, Arc<Bound>>,
    pub listeners: Tree<ListenerName, Arc<Listener>>,
    /// Action for requests that match no host or no path; `None` answers 404.
    pub default: Option<Action>,
    /// Forwarding policy of `default`.
    pub forwarding: Arc<Forwarding>,
    pub upstreams: Tree<UpstreamKey, Arc<Upstream>>,
    /// Certificates by [`Certificate::origin`].
    pub certificates: Tree<Arc<str>, Arc<Certificate>>,
    /// Origin of the certificate for a server name. With `None`, the name is claimed but has no usable certificate. The
    /// fallback certificate is then used, not a less specific one that may belong to another owner.
    pub server_names: Tree<HostPattern, Option<Arc<str>>>,
    /// Origin of the certificate for names without a usable one; `None` uses a self-signed one.
    pub fallback_certificate: Option<Arc<str>>,
    /// Ports of the node that lead to services without HTTP.
    pub streams: Tree<StreamPort, StreamService>,
    /// Keys that encrypt TLS session tickets; `None` uses keys of this process alone.
    pub ticket_keys: Option<Arc<TicketKeys>>,
    pub settings: Settings,
}

/// The rules of one host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostRoutes {
    /// Rules in order of precedence: [`PathMatch`]'s order first. Rules with the same path differ in their conditions,
    /// and none comes after one without conditions.
    pub rules: Vec<Rule>,
    /// Rule for paths without a match; `None` leaves them to [`RouteTable::default`].
    pub fallback: Option<Box<Rule>>,
    /// Requirements on client certificates in handshakes. Each rule that they protect also has a filter for them.
    pub clients: Option<Arc<ClientCertificates>>,
    /// TLS passthrough of the host's connections; `None` serves them by `rules`. The upstream is also one of a rule.
    pub passthrough: Option<Arc<Passthrough>>,
    /// Whether HTTP/3 neither serves nor offers the host.
    pub refuses_http3: bool,
}

impl HostRoutes {
    /// Returns whether HTTP/3 may serve the host. It cannot ask clients for certificates or pass TLS through, because QUIC
    /// chooses its TLS configuration before it knows the name.
    #[must_use]
    pub fn takes_http3(&self) -> bool {
        !self.refuses_http3 && self.clients.is_none() && self.passthrough.is_none()
    }
}

/// A path of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub path: PathMatch,
    /// Further conditions; a request for which one fails goes on to the next rule. Never empty. Rules of Ingresses have
    /// none, and neither have rules with [`PathMatch::Pattern`] or [`PathMatch::Beginning`].
    pub conditions: Option<Box<Conditions>>,
    /// Ingress or route that owns the rule, for display: `namespace/name`.
    pub owner: Arc<str>,
    /// Filters in the order of [`Filter`]'s variants.
    pub filters: Vec<Filter>,
    pub action: Action,
    pub forwarding: Arc<Forwarding>,
}

impl Rule {
    /// Iterates over the upstreams that its requests may reach: those of the action and of the filters.
    pub fn upstreams(&self) -> impl Iterator<Item = &UpstreamKey> {
        let asked = self.filters.iter().flat_map(|filter| {
            let asked = match filter {
                Filter::Authentication(authentication) => {
                    let service = authentication.ext_authz.as_ref().and_then(|ext_authz| match &ext_authz.service {
                        AuthService::Upstream { key, host: _ } => Some(key),
                        AuthService::SameHost => None,
                    });
                    [service, authentication.token.as_ref().and_then(|token| token.keys.upstream())]
                }
                Filter::Mirror(mirror) => [Some(&mirror.upstream), None],
                Filter::ErrorPages(pages) => [Some(&pages.backend), None],
                _ => [None, None],
            };
            asked.into_iter().flatten()
        });
        self.action.upstreams().chain(asked)
    }
}

impl Action {
    /// Iterates over the upstreams that the action may choose.
    pub fn upstreams(&self) -> impl Iterator<Item = &UpstreamKey> {
        let (main, split, weighted) = match self {
            Self::Forward(key) => (Some(key), None, None),
            Self::Split(split) => (Some(&split.main), Some(split), None),
            Self::Weighted(backends) => (None, None, Some(backends)),
            Self::Refuse(_) | Self::Redirect(_) => (None, None, None),
        };
        let canaries = split.into_iter().flat_map(|split| &split.canaries).map(|canary| &canary.upstream);
        let over_tls = split.into_iter().flat_map(|split| &split.over_tls).map(|(_, upstream)| upstream);
        let weighted = weighted.into_iter().flat_map(|backends| backends.as_slice());
        main.into_iter()
            .chain(canaries)
            .chain(over_tls)
            .chain(weighted.filter_map(|backend| backend.target.as_ref().ok()))
    }
}

/// Action on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Forward(UpstreamKey),
    /// Answers with an error. The rule is valid but cannot be applied, and its path must not fall to another rule.
    Refuse(Unavailable),
    Redirect(Arc<Redirect>),
    /// Forwards to one of several upstreams.
    Split(Arc<Split>),
    /// Forwards to one of several backends by weight.
    Weighted(Arc<WeightedBackends>),
}

/// Reason why a rule cannot be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// No rule exists for the path, and no backend may answer it: 404. Others answer 503 unless they say otherwise.
    NoRule,
    /// The backend names a Service that does not exist.
    NoService,
    /// The backend names a port that the Service does not have.
    NoPort,
    /// The backend has an unsupported kind or protocol, or a destination that is not allowed.
    Backend,
    /// A backend of a Gateway route is not a valid reference: 500, as the Gateway API requires.
    InvalidReference,
    /// The rule requires a protection that is not supported, and must not be served without it.
    Policy,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoRule => "no rule",
            Self::NoService => "no such service",
            Self::NoPort => "no such port",
            Self::Backend => "backend not supported",
            Self::InvalidReference => "invalid reference to a backend",
            Self::Policy => "policy not supported",
        })
    }
}
