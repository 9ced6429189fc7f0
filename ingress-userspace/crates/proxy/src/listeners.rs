//! The listeners of Gateways, compiled: which one serves a connection or request at an address and port of the node.
//!
//! ```text
//! local address ──> BoundListeners ──host or server name──> ServedListener ──> Routes
//! ```
//!
//! Without Gateways there are no binds, and every connection belongs to the Ingresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ingress_model::{
    Bind, Bound, ClientCertificates, HostId, HostName, HostPattern, Listener, ListenerName, ListenerProtocol,
    RouteTable, StreamPort, Transport, Tree, UpstreamKey,
    route::{HostMap, Meter, NameMap, Routes, Shares, UpstreamId},
    tree::Difference,
};

use crate::{snapshot::Snapshot, upstream::balance::UpstreamState};

/// All listeners of a snapshot. Clones share unchanged state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listeners {
    binds: Arc<Binds>,
    served: NameMap<Arc<ServedListener>, ListenerName>,
    /// The listeners that these were compiled from.
    source: Tree<ListenerName, Arc<Listener>>,
    /// Listeners that relay the bytes of TLS connections, passed through or terminated.
    relaying: BTreeSet<ListenerName>,
    /// Listeners with hosts that have no number of their own, with how many.
    unnumbered: BTreeMap<ListenerName, usize>,
}

#[derive(Debug, Default)]
struct Binds {
    /// Binds of one address.
    addressed: BTreeMap<SocketAddr, BoundListeners>,
    /// Binds of every address of the node, by TCP port.
    anywhere: BTreeMap<u16, BoundListeners>,
    /// UDP listeners of one address.
    udp_addressed: BTreeMap<SocketAddr, ListenerName>,
    /// UDP listeners of every address of the node, by port.
    udp_anywhere: BTreeMap<u16, ListenerName>,
    ports: BTreeSet<StreamPort>,
    /// Addresses with a bind of their own, at any port.
    addresses: BTreeSet<IpAddr>,
    source: Tree<Bind, Arc<Bound>>,
}

/// The owner of a host at an address, for HTTP/3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Http3At<'a> {
    /// HTTP/3 has no socket for the address, or serves no such host there.
    Nowhere,
    Ingresses,
    /// A listener of a Gateway, which may not take HTTP/3.
    Listener {
        name: &'a ListenerName,
        takes: bool,
    },
}

/// The listeners at one address and TCP port.
#[derive(Debug)]
pub(crate) struct BoundListeners {
    http: HostMap<ListenerName>,
    tls: HostMap<ListenerName>,
    /// The TCP listener.
    stream: Option<ListenerName>,
    protocol: BoundProtocol,
    /// Whether requests that no listener takes go on to the Ingresses.
    shares_with_ingresses: bool,
}

/// The beginning of connections at an address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BoundProtocol {
    Http,
    Tls,
    Stream,
}

/// A listener and its routes.
#[derive(Debug)]
pub(crate) struct ServedListener {
    pub(crate) routes: Routes,
    pub(crate) protocol: ListenerProtocol,
    /// Requirements on client certificates in handshakes.
    pub(crate) clients: Option<Arc<ClientCertificates>>,
    takes_http3: bool,
    /// Origins of its certificates, in order of preference.
    pub(crate) certificates: Vec<Arc<str>>,
    /// Routes for bytes, by server name.
    pub(crate) streams: HostMap<Arc<ServedStream>>,
}

/// A route for bytes.
#[derive(Debug)]
pub(crate) struct ServedStream {
    /// `None` refuses connections.
    pub(crate) shares: Option<Shares>,
    /// Number under which connections are counted.
    pub(crate) id: HostId,
}

// === impl Listeners ===

impl Listeners {
    /// Compiles the listeners of `table` with numbers of upstreams and hosts from `upstream` and `host_id`. The cost is
    /// that of the difference to `previous`.
    pub(crate) fn compile(
        previous: Option<&Self>,
        table: &RouteTable,
        mut upstream: impl FnMut(&UpstreamKey) -> UpstreamId,
        mut host_id: impl FnMut(HostName<'_>) -> Option<HostId>,
    ) -> Self {
        let RouteTable { binds, listeners, .. } = table;
        let mut next = previous.cloned().unwrap_or_default();
        if next.binds.source != *binds {
            next.binds = Arc::new(Binds::compile(binds));
        }
        let known = std::mem::replace(&mut next.source, listeners.clone());
        let changed: BTreeSet<_> = known.differences(listeners).into_iter().map(|Difference { key, .. }| key).collect();
        let unnumbered = next.unnumbered.clone();
        let again = unnumbered.keys().filter(|name| !changed.contains(name));
        for name in changed.iter().copied().chain(again) {
            let before = next.served.get(name.as_str()).map(Arc::clone);
            let served = listeners.get(name).map(|listener| {
                let host_id = |pattern: &HostPattern| host_id(HostName { listener: Some(name), pattern });
                Arc::new(ServedListener::compile(listener, before.as_deref(), &mut upstream, host_id))
            });
            if served.as_ref().is_some_and(|served| served.relays_tls()) {
                next.relaying.insert(name.clone());
            } else {
                next.relaying.remove(name);
            }
            let missing = served.as_ref().map_or(0, |served| served.routes.unnumbered() + served.unnumbered_streams());
            next.served.set(name, served);
            let counted =
                if missing > 0 { next.unnumbered.insert(name.clone(), missing) } else { next.unnumbered.remove(name) };
            // If there is no number for a listener that has not changed, there is none for the others.
            if !changed.contains(name) && counted == Some(missing) {
                break;
            }
        }
        next
    }

    /// Returns whether there are no Gateways, so that all connections belong to Ingresses.
    pub(crate) fn is_empty(&self) -> bool {
        self.binds.ports.is_empty()
    }

    /// Returns whether any listener relays bytes, so that the server name of a connection is to be known before its
    /// handshake.
    pub(crate) fn relay_any(&self) -> bool {
        !self.relaying.is_empty()
    }

    /// Returns the listeners at a local address, if there are any.
    pub(crate) fn at(&self, local: SocketAddr) -> Option<&BoundListeners> {
        let Binds { addressed, anywhere, .. } = &*self.binds;
        addressed.get(&local).or_else(|| anywhere.get(&local.port()))
    }

    /// Returns whether `local` is at the address of a Gateway, and no listener is there. Connections to it are refused.
    pub(crate) fn refuses(&self, local: SocketAddr) -> bool {
        self.binds.addresses.contains(&local.ip()) && self.at(local).is_none()
    }

    /// Returns the route for datagrams to a local address, if a Gateway has one there.
    pub(crate) fn datagrams_at(&self, local: SocketAddr) -> Option<&ServedStream> {
        let Binds { udp_addressed, udp_anywhere, .. } = &*self.binds;
        let name = udp_addressed.get(&local).or_else(|| udp_anywhere.get(&local.port()))?;
        self.get(name)?.streams.get(&HostPattern::Any).map(Arc::as_ref)
    }

    /// Returns whether HTTP/3 is served at `local`, for some names at least: at an address of Gateways, only where they have
    /// listeners for TLS.
    pub(crate) fn serve_http3_at(&self, local: SocketAddr) -> bool {
        if self.is_empty() {
            return true;
        }
        // The kernel did not tell the address, which may be that of a Gateway.
        if local.ip().is_unspecified() {
            return false;
        }
        match self.at(local) {
            Some(bound) => bound.protocol() == BoundProtocol::Tls,
            None => !self.refuses(local),
        }
    }

    /// Returns who serves `host` at `local`, the address of a connection over TLS, if a socket at `port` may serve it by
    /// HTTP/3. Gateways have listeners at other ports, too, which HTTP/3 does not serve.
    pub(crate) fn http3_at(&self, local: SocketAddr, port: u16, host: &str) -> Http3At<'_> {
        if self.is_empty() {
            return Http3At::Ingresses;
        }
        let Some(bound) = self.at(local) else {
            return if self.refuses(local) { Http3At::Nowhere } else { Http3At::Ingresses };
        };
        if local.port() != port {
            return Http3At::Nowhere;
        }
        let listener = bound.of_host(host, true).and_then(|name| Some((name, self.get(name)?)));
        match listener {
            Some((name, listener)) => Http3At::Listener { name, takes: listener.takes_http3() },
            None if bound.shares_with_ingresses() => Http3At::Ingresses,
            None => Http3At::Nowhere,
        }
    }

    pub(crate) fn get(&self, name: &ListenerName) -> Option<&ServedListener> {
        self.served.get(name.as_str()).map(Arc::as_ref)
    }

    /// Returns whether any listener has this port.
    pub(crate) fn has_port(&self, port: StreamPort) -> bool {
        self.binds.ports.contains(&port)
    }

    /// Iterates over the ports of all binds.
    pub(crate) fn ports(&self) -> impl Iterator<Item = StreamPort> {
        self.binds.ports.iter().copied()
    }

    /// Returns how many hosts have no number of their own.
    pub(crate) fn unnumbered(&self) -> usize {
        self.unnumbered.values().sum()
    }

    /// Iterates over the meters of all metered rules.
    pub(crate) fn meters(&self) -> impl Iterator<Item = &Meter> {
        self.served.values().flat_map(|served| served.routes.meters())
    }
}

// === impl Binds ===

impl Binds {
    fn compile(source: &Tree<Bind, Arc<Bound>>) -> Self {
        let mut binds = Self { source: source.clone(), ..Self::default() };
        for (Bind { address, port }, bound) in source {
            binds.ports.insert(*port);
            binds.addresses.extend(address);
            let socket = address.map(|address| SocketAddr::new(address, port.number));
            match (port.transport, socket, &bound.stream) {
                (Transport::Tcp, Some(socket), _) => {
                    binds.addressed.insert(socket, BoundListeners::compile(*address, bound));
                }
                (Transport::Tcp, None, _) => {
                    binds.anywhere.insert(port.number, BoundListeners::compile(*address, bound));
                }
                (Transport::Udp, Some(socket), Some(name)) => drop(binds.udp_addressed.insert(socket, name.clone())),
                (Transport::Udp, None, Some(name)) => drop(binds.udp_anywhere.insert(port.number, name.clone())),
                (Transport::Udp, _, None) => {}
            }
        }
        binds
    }
}

// === impl ServedStream ===

impl ServedStream {
    /// Returns the current state of `upstream`, if it is still one of the backends.
    pub(crate) fn keeps(&self, upstream: &UpstreamState, snapshot: &Snapshot) -> Option<Arc<UpstreamState>> {
        let mut ids = self.shares.iter().flat_map(|shares| &shares.backends).filter_map(|share| share.target.ok());
        let id = ids.find(|id| snapshot.upstream(*id).is_some_and(|known| known.key() == upstream.key()))?;
        snapshot.shared_upstream(id).cloned()
    }
}

// === impl BoundListeners ===

impl BoundListeners {
    fn compile(address: Option<IpAddr>, bound: &Bound) -> Self {
        let Bound { http, tls, stream } = bound;
        let map = |names: &Tree<HostPattern, ListenerName>| {
            let mut map = HostMap::default();
            for (pattern, name) in names {
                map.set(pattern, Some(name.clone()));
            }
            map
        };
        let protocol = match (stream, tls.is_empty()) {
            (Some(_), _) => BoundProtocol::Stream,
            (None, false) => BoundProtocol::Tls,
            (None, true) => BoundProtocol::Http,
        };
        let shares_with_ingresses = address.is_none();
        Self { http: map(http), tls: map(tls), stream: stream.clone(), protocol, shares_with_ingresses }
    }

    pub(crate) fn protocol(&self) -> BoundProtocol {
        self.protocol
    }

    pub(crate) fn shares_with_ingresses(&self) -> bool {
        self.shares_with_ingresses
    }

    /// Returns the listener for requests to `host` (canonical form).
    pub(crate) fn of_host(&self, host: &str, is_secure: bool) -> Option<&ListenerName> {
        if is_secure { self.tls.find(host) } else { self.http.find(host) }
    }

    /// Returns the listener for handshakes with `server_name`, in lower case and empty for none.
    pub(crate) fn of_server_name(&self, server_name: &str) -> Option<&ListenerName> {
        self.tls.find(server_name)
    }

    /// Iterates over the listeners for TLS connections.
    pub(crate) fn of_tls(&self) -> impl Iterator<Item = &ListenerName> {
        self.tls.values()
    }

    /// Returns the listener for bytes of any kind.
    pub(crate) fn stream(&self) -> Option<&ListenerName> {
        self.stream.as_ref()
    }
}

// === impl ServedListener ===

impl ServedListener {
    fn unnumbered_streams(&self) -> usize {
        self.streams.values().filter(|stream| stream.id == HostId::UNATTRIBUTED).count()
    }

    /// Returns whether HTTP/3 may serve the listener; see [`Listener::takes_http3`].
    pub(crate) fn takes_http3(&self) -> bool {
        self.takes_http3
    }

    /// Returns whether the bytes of TLS connections are relayed, passed through or terminated.
    pub(crate) fn relays_tls(&self) -> bool {
        matches!(self.protocol, ListenerProtocol::TlsPassthrough | ListenerProtocol::TlsTerminate)
    }

    fn compile(
        listener: &Listener,
        previous: Option<&Self>,
        mut upstream: impl FnMut(&UpstreamKey) -> UpstreamId,
        mut host_id: impl FnMut(&HostPattern) -> Option<HostId>,
    ) -> Self {
        let Listener { protocol, hosts: _, certificates, clients, streams: backends } = listener;
        let mut streams = HostMap::default();
        for (pattern, backends) in backends {
            let shares = backends.as_ref().map(|backends| Shares::compile(backends, &mut upstream));
            let id = host_id(pattern).unwrap_or(HostId::UNATTRIBUTED);
            streams.set(pattern, Some(Arc::new(ServedStream { shares, id })));
        }
        let routes = Routes::of_listener(previous.map(|served| &served.routes), listener, upstream, host_id);
        let (clients, certificates) = (clients.clone(), certificates.clone());
        Self { protocol: *protocol, routes, clients, takes_http3: listener.takes_http3(), certificates, streams }
    }
}

#[cfg(test)]
mod tests;
