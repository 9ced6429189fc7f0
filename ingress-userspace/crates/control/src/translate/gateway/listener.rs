//! The own fields of a listener: protocol, port, hostname and kinds of routes. Other listeners and Secrets are not known
//! here.

use std::collections::{BTreeMap, BTreeSet};

use super::report::Flaw;
use crate::{
    change::Kind,
    gateway::{
        Group, Listener, ListenerTls, NamespacesFrom, Protocol, ReferentKind, RouteKind, RouteNamespaces, TlsMode,
        selects,
    },
    translate::text::{shorten, shorten_error},
};
use ingress_model::{HostPattern, ListenerProtocol, StreamPort, Transport};

/// A listener whose own fields are understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(super) protocol: ListenerProtocol,
    pub(super) port: StreamPort,
    pub(super) hostname: HostPattern,
}

/// Returns the listeners of an object, each name once. The API server lets no name pass twice; files may hold it.
pub(super) fn distinct(listeners: &[Listener]) -> impl Iterator<Item = &Listener> {
    let mut names = BTreeSet::new();
    listeners.iter().filter(move |listener| names.insert(&listener.name))
}

// === impl Shape ===

impl Shape {
    /// Reads a listener.
    ///
    /// # Errors
    /// The reason for which it cannot be served.
    pub(super) fn of(listener: &Listener) -> Result<Self, Flaw> {
        let Listener { name: _, hostname, port, protocol, tls, allowed_routes } = listener;
        let protocol = protocol_of(protocol, tls.as_ref())?;
        if *port == 0 {
            return Err(Flaw::new("PortUnavailable", "port `0` is no port; name one from 1 to 65535"));
        }
        let is_named = !matches!(protocol, ListenerProtocol::Tcp | ListenerProtocol::Udp);
        let hostname = hostname.as_deref().unwrap_or_default();
        if !is_named && !hostname.is_empty() {
            let message = format!("`hostname` has no meaning with protocol `{protocol}`; remove it");
            return Err(Flaw::unsupported(message));
        }
        let hostname = match HostPattern::parse_suffix(hostname) {
            Ok(hostname) => hostname,
            Err(error) => {
                return Err(Flaw::unsupported(format!("{}; correct `hostname`", shorten_error(&error))));
            }
        };
        check_namespaces(&allowed_routes.namespaces)?;
        let transport = if protocol == ListenerProtocol::Udp { Transport::Udp } else { Transport::Tcp };
        Ok(Self { protocol, port: StreamPort { transport, number: *port }, hostname })
    }
}

fn protocol_of(protocol: &Protocol, tls: Option<&ListenerTls>) -> Result<ListenerProtocol, Flaw> {
    let mode = tls.map(|tls| &tls.mode);
    Ok(match (protocol, mode) {
        (Protocol::Http, None) => ListenerProtocol::Http,
        (Protocol::Https, None | Some(TlsMode::Terminate)) => ListenerProtocol::Https,
        (Protocol::Tls, Some(TlsMode::Passthrough)) => ListenerProtocol::TlsPassthrough,
        (Protocol::Tls, Some(TlsMode::Terminate)) => ListenerProtocol::TlsTerminate,
        (Protocol::Tcp, None) => ListenerProtocol::Tcp,
        (Protocol::Udp, None) => ListenerProtocol::Udp,
        (Protocol::Tls, None) => return Err(Flaw::unsupported("there is no `tls`; add it with a `mode`")),
        (Protocol::Https | Protocol::Tls, Some(mode)) => {
            let message = format!(
                "TLS mode `{}` is not supported with protocol `{}`; use `Terminate`",
                shorten(mode.as_str()),
                protocol.as_str()
            );
            return Err(Flaw::unsupported(message));
        }
        (Protocol::Http | Protocol::Tcp | Protocol::Udp, Some(_)) => {
            let message = format!("`tls` has no place with protocol `{}`; remove it", protocol.as_str());
            return Err(Flaw::unsupported(message));
        }
        (Protocol::Other(other), _) => {
            let message =
                format!("protocol `{}` is not supported; use `HTTP`, `HTTPS`, `TLS`, `TCP` or `UDP`", shorten(other));
            return Err(Flaw::new("UnsupportedProtocol", message));
        }
    })
}

fn check_namespaces(allowed: &RouteNamespaces) -> Result<(), Flaw> {
    let RouteNamespaces { from, selector } = allowed;
    match from {
        NamespacesFrom::All | NamespacesFrom::Same | NamespacesFrom::None => Ok(()),
        NamespacesFrom::Selector => match selector.as_ref().and_then(|selector| selects(selector, &BTreeMap::new())) {
            Some(_) => Ok(()),
            None => Err(Flaw::unsupported("`from: Selector` needs a valid `selector`; correct it")),
        },
        NamespacesFrom::Other(from) => {
            let message = format!("`from: {}` is not known; use `Same`, `All` or `Selector`", shorten(from));
            Err(Flaw::unsupported(message))
        }
    }
}

/// Returns the kinds of routes that a protocol may have.
fn kinds_of(protocol: &Protocol) -> &'static [Kind] {
    match protocol {
        Protocol::Http | Protocol::Https => &[Kind::HttpRoute, Kind::GrpcRoute],
        Protocol::Tls => &[Kind::TlsRoute],
        Protocol::Tcp => &[Kind::TcpRoute],
        Protocol::Udp => &[Kind::UdpRoute],
        Protocol::Other(_) => &[],
    }
}

/// Returns the kinds of routes that may attach, in the order in which the listener names them, and the flaw of other
/// kinds there.
pub(super) fn kinds(listener: &Listener) -> (Vec<Kind>, Option<Flaw>) {
    let possible = kinds_of(&listener.protocol);
    let named = &listener.allowed_routes.kinds;
    if named.is_empty() {
        return (possible.to_vec(), None);
    }
    let (mut kinds, mut flaw) = (Vec::new(), None);
    for named @ RouteKind { group: _, kind } in named {
        match route_kind(named).filter(|kind| possible.contains(kind)) {
            Some(kind) if kinds.contains(&kind) => {}
            Some(kind) => kinds.push(kind),
            None => {
                let message = format!(
                    "routes of kind `{}` are not possible with protocol `{}`; remove the kind",
                    shorten(kind.as_str()),
                    shorten(listener.protocol.as_str())
                );
                flaw.get_or_insert(Flaw::new("InvalidRouteKinds", message));
            }
        }
    }
    (kinds, flaw)
}

fn route_kind(RouteKind { group, kind }: &RouteKind) -> Option<Kind> {
    if *group != Group::Gateway {
        return None;
    }
    Some(match kind {
        ReferentKind::HttpRoute => Kind::HttpRoute,
        ReferentKind::GrpcRoute => Kind::GrpcRoute,
        ReferentKind::TlsRoute => Kind::TlsRoute,
        ReferentKind::TcpRoute => Kind::TcpRoute,
        ReferentKind::UdpRoute => Kind::UdpRoute,
        _ => return None,
    })
}

/// Returns whether hosts exist that both patterns match.
pub(super) fn intersect(one: &HostPattern, other: &HostPattern) -> bool {
    match (one, other) {
        (HostPattern::Any, _) | (_, HostPattern::Any) => true,
        (HostPattern::Exact(host), pattern) | (pattern, HostPattern::Exact(host)) => pattern.matches(host.as_str()),
        (HostPattern::Suffix(a) | HostPattern::Wildcard(a), HostPattern::Suffix(b) | HostPattern::Wildcard(b)) => {
            a == b || one.matches(b.as_str()) || other.matches(a.as_str())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostnames_intersect_as_the_specification_says() {
        for (one, other, expect) in [
            ("", "", true),
            ("", "a.test", true),
            ("", "*.a.test", true),
            ("a.test", "a.test", true),
            ("a.test", "b.test", false),
            ("a.test", "*.test", true),
            ("a.b.test", "*.test", true),
            ("test", "*.test", false),
            ("*.test", "*.test", true),
            ("*.a.test", "*.test", true),
            ("*.a.test", "*.b.test", false),
            ("*.a.test", "*.aa.test", false),
        ] {
            let pattern = |text| HostPattern::parse_suffix(text).expect("a hostname");
            assert_eq!(intersect(&pattern(one), &pattern(other)), expect, "{one} {other}");
            assert_eq!(intersect(&pattern(other), &pattern(one)), expect, "{other} {one}");
        }
    }
}
