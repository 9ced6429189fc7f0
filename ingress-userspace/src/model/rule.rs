//! The route table: hosts, their rules in order of precedence, and what each rule does.

use std::{fmt, sync::Arc};

use super::{
    AuthService, Certificate, ClientCertificates, Filter, Forwarding, HostPattern, Passthrough, PathMatch, Settings,
    Split, StreamPort, StreamService, Template, TicketKeys, Tree, Upstream, UpstreamKey,
};

/// Everything that the request path needs to know, complete and consistent: every upstream that an action or a stream
/// service names is in `upstreams`, and every certificate that a server name selects in `certificates`, where there may
/// be more. What is named by many may so change without them. A copy costs nothing, and what differs between two is
/// found at the cost of what differs ([`Tree::differences`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTable {
    pub hosts: Tree<HostPattern, Arc<HostRoutes>>,
    /// What serves a request that no host or no path matched; `None` answers 404.
    pub default: Option<Action>,
    /// How `default` forwards.
    pub forwarding: Arc<Forwarding>,
    pub upstreams: Tree<UpstreamKey, Arc<Upstream>>,
    /// By [`Certificate::origin`].
    pub certificates: Tree<Arc<str>, Arc<Certificate>>,
    /// The origin of the certificate that a server name selects. `None`: the name is claimed but has no usable
    /// certificate, so the fallback certificate stands in, rather than a less specific one that may be another owner's.
    pub server_names: Tree<HostPattern, Option<Arc<str>>>,
    /// The origin of what serves a name without a usable certificate; `None` leaves it to a self-signed one.
    pub fallback_certificate: Option<Arc<str>>,
    /// Ports of the node that lead to services without HTTP.
    pub streams: Tree<StreamPort, StreamService>,
    /// What seals tickets of TLS sessions; `None` leaves it to keys that nobody else has.
    pub ticket_keys: Option<Arc<TicketKeys>>,
    pub settings: Settings,
}

/// The rules of one host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostRoutes {
    /// In order of precedence ([`PathMatch`]'s order); paths are unique.
    pub rules: Vec<Rule>,
    /// What serves a path that no rule matches; `None` leaves it to [`RouteTable::default`].
    pub fallback: Option<Box<Rule>>,
    /// What its clients must show in handshakes. Each rule that is to be protected by that has a filter for it.
    pub clients: Option<Arc<ClientCertificates>>,
    /// Where its connections over TLS are passed on to; `None` serves them by `rules`. Its upstream is one of a rule's.
    pub passthrough: Option<Arc<Passthrough>>,
}

/// One path of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub path: PathMatch,
    /// Who asked for this rule, for people: `namespace/name`.
    pub owner: Arc<str>,
    /// In the order of [`Filter`]'s variants.
    pub filters: Vec<Filter>,
    pub action: Action,
    pub forwarding: Arc<Forwarding>,
}

impl Rule {
    /// Where its requests may lead to: its action, and what its filters ask.
    pub fn upstreams(&self) -> impl Iterator<Item = &UpstreamKey> {
        let asked = self.filters.iter().flat_map(|filter| {
            let asked = match filter {
                Filter::Authentication(authentication) => {
                    let service = authentication.external.as_ref().and_then(|external| match &external.service {
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
    /// The upstreams that it may lead to.
    pub fn upstreams(&self) -> impl Iterator<Item = &UpstreamKey> {
        let (main, split) = match self {
            Self::Forward(key) => (Some(key), None),
            Self::Split(split) => (Some(&split.main), Some(split)),
            Self::Refuse(_) | Self::Redirect(_) => (None, None),
        };
        main.into_iter().chain(split.into_iter().flat_map(|split| &split.canaries).map(|canary| &canary.upstream))
    }
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Forward(UpstreamKey),
    /// The rule stands but cannot be honoured; it answers 503 rather than leave its path to another rule.
    Refuse(Unavailable),
    Redirect(Arc<Redirect>),
    /// To one of several upstreams.
    Split(Arc<Split>),
}

/// Sends the client elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// 301, 302, 303, 307 or 308.
    pub status: u16,
    /// A URI, or the path of one on the same host.
    pub location: Template,
}

/// Why a rule cannot be honoured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// The backend names a Service that does not exist.
    NoService,
    /// The backend names a port that the Service does not have.
    NoPort,
    /// The backend is of a kind, or speaks a protocol, that is not supported, or leads where it must not.
    Backend,
    /// The rule asks for a protection that is not supported, and must not be served without it.
    Policy,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoService => "no such service",
            Self::NoPort => "no such port",
            Self::Backend => "backend not supported",
            Self::Policy => "policy not supported",
        })
    }
}
