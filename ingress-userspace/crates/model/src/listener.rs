//! Listeners of Gateways: the addresses and ports at which they accept, and the routes that only they serve.
//!
//! ```text
//! Bind (address, port) ──> Bound { listeners, … } ──host or server name──> Listener ──> its hosts ──> rules
//! ```
//!
//! Ingresses need none of this: their hosts are served at the ports of the node.

use std::{borrow::Borrow, fmt, net::IpAddr, sync::Arc};

use super::{ClientCertificates, HostPattern, HostRoutes, StreamPort, Tree, WeightedBackends};

/// An address and port at which listeners accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bind {
    /// `None` stands for every address of the node that has no bind of its own for the port.
    pub address: Option<IpAddr>,
    pub port: StreamPort,
}

/// The listeners of one [`Bind`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// Listeners by hostname; the most specific one that matches serves a connection or request. Plain HTTP has one
    /// set, HTTPS and TLS share the other.
    pub http: Tree<HostPattern, ListenerName>,
    pub tls: Tree<HostPattern, ListenerName>,
    /// Listener for bytes or datagrams of any name.
    pub stream: Option<ListenerName>,
}

/// Name of a listener: `namespace/gateway/listener`, or `namespace/set/listener` with a leading `set:` for those of a
/// ListenerSet.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerName(Arc<str>);

/// Name of a host in counters: its pattern, followed by the listener for hosts of Gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostName<'n> {
    /// `None` for hosts of Ingresses.
    pub listener: Option<&'n ListenerName>,
    pub pattern: &'n HostPattern,
}

/// A listener and everything it serves. A request never leaves its listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    pub protocol: ListenerProtocol,
    /// Routes by the hostname that the *route* has. The listener's own hostname is in [`Bound`], so a request that
    /// arrives here matches it already. A request falls through from a host without a matching rule to the next one.
    pub hosts: Tree<HostPattern, Arc<HostRoutes>>,
    /// Origins of the certificates for handshakes, by which [`super::RouteTable::certificates`] knows them. The first
    /// one that covers the server name is used, else the first one. Without any, handshakes fail.
    pub certificates: Vec<Arc<str>>,
    /// Requirements on client certificates in handshakes.
    pub clients: Option<Arc<ClientCertificates>>,
    /// Routes for bytes, by the server name that the *route* has, of which the most specific one counts; for TCP and UDP
    /// there is one for [`HostPattern::Any`]. Connections without a route, and without backends, are refused.
    pub streams: Tree<HostPattern, Option<Arc<WeightedBackends>>>,
}

/// Protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ListenerProtocol {
    Http,
    Https,
    /// TLS that is passed through to pods.
    TlsPassthrough,
    /// TLS that is terminated here, and whose bytes go to pods.
    TlsTerminate,
    Tcp,
    Udp,
}

// === impl Listener ===

impl Listener {
    /// Returns whether HTTP/3 may serve the listener. It asks no client for a certificate.
    #[must_use]
    pub fn takes_http3(&self) -> bool {
        self.protocol == ListenerProtocol::Https && self.clients.is_none()
    }
}

// === impl ListenerName ===

impl ListenerName {
    /// Returns the name of listener `listener` of a Gateway.
    #[must_use]
    pub fn of_gateway(namespace: &str, gateway: &str, listener: &str) -> Self {
        Self(format!("{namespace}/{gateway}/{listener}").into())
    }

    /// Returns the name of listener `listener` of a ListenerSet.
    #[must_use]
    pub fn of_set(namespace: &str, set: &str, listener: &str) -> Self {
        Self(format!("set:{namespace}/{set}/{listener}").into())
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for ListenerName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ListenerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ListenerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

// === impl Listener ===

impl Listener {
    /// Returns a listener without routes.
    #[must_use]
    pub fn new(protocol: ListenerProtocol) -> Self {
        Self { protocol, hosts: Tree::new(), certificates: Vec::new(), clients: None, streams: Tree::new() }
    }
}

/// Formats the name, such as `shop.test`, or `*.shop.test@shop/gateway/https`.
impl fmt::Display for HostName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { listener, pattern } = self;
        match listener {
            Some(listener) => write!(f, "{pattern}@{listener}"),
            None => write!(f, "{pattern}"),
        }
    }
}

/// Formats the bind, such as `192.0.2.1 tcp/80`, or `* udp/53` for every address.
impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, port } = self;
        match address {
            Some(address) => write!(f, "{address} {port}"),
            None => write!(f, "* {port}"),
        }
    }
}

impl fmt::Display for ListenerProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "HTTP",
            Self::Https => "HTTPS",
            Self::TlsPassthrough => "TLS passthrough",
            Self::TlsTerminate => "TLS",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}
