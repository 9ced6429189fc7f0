//! Serves a connection as a stream: finds its upstream, connects to an endpoint, and relays.
//!
//! A stream counts as one request of its host or port: as a success if both sides have ended regularly, as a client
//! error if access was denied, as a server error if no endpoint accepted a connection, and otherwise as aborted.

use std::{
    future::{Future, poll_fn},
    net::SocketAddr,
    pin::pin,
    rc::Rc,
    sync::atomic::Ordering::Relaxed,
    task::Poll,
    time::Duration,
};

use ingress_common::StatusClass;
use tokio::{
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};
use tokio_rustls::server::TlsStream;

use super::{
    hello,
    relay::{Relay, RelayError, RelayedBytes, reset},
};
use crate::{
    downstream::{
        conn::{Conn, Order},
        open,
        proxy_protocol::ProxyHeader,
        refusal::Refusal,
        tunnel::{Tunnel, TunnelClient},
    },
    listeners::{BoundListeners, ServedListener, ServedStream},
    observe::counters::{Bytes, Direction},
    request::in_flight::InFlight,
    snapshot::Snapshot,
    upstream::{
        self, ConnectError, ConnectTarget, ExchangeLimits, UpstreamTunnel,
        balance::{Choice, Tried, UpstreamState},
    },
};
use ingress_model::{
    HostPattern, ListenerName, ListenerProtocol, StreamPort, StreamRetry, Transport,
    route::{HostEntry, Shares},
};

/// The destination of a stream.
struct Opening<'s> {
    /// `None` if there is no upstream.
    upstream: Option<&'s UpstreamState>,
    connect_timeout: Duration,
    proxy_header: Option<ProxyHeader>,
}

// === impl Opening ===

impl<'s> Opening<'s> {
    /// Returns the destination of the next connection for a route of a Gateway's listener.
    fn of_stream(stream: &ServedStream, snapshot: &'s Snapshot) -> Self {
        let share = stream.shares.as_ref().and_then(Shares::choose);
        let upstream = share.and_then(|share| snapshot.upstream(share.target.ok()?));
        Self { upstream, connect_timeout: snapshot.forwarding.connect_timeout, proxy_header: None }
    }
}

/// Passes a connection on to pods if it begins TLS for a host with TLS passthrough. Otherwise returns it, with all its
/// bytes still unread.
pub(crate) async fn pass_through(conn: &Rc<Conn>, client: TcpStream, deadline: Instant) -> Option<TcpStream> {
    // An invalid beginning is left for the TLS handshake to report.
    let Ok(Ok(Some(name))) = timeout_at(deadline, hello::server_name(&client)).await else { return Some(client) };
    let (in_flight, opened) = {
        // Held only while connecting, not for the lifetime of the stream.
        let snapshot = conn.worker.snapshot();
        let bound = snapshot.listeners.at(conn.local());
        let listener = bound.and_then(|bound| snapshot.listeners.get(bound.of_server_name(&name)?));
        match listener {
            Some(listener) if listener.protocol == ListenerProtocol::TlsPassthrough => {
                let Some(stream) = listener.streams.find(&name) else {
                    reset(&client);
                    return None;
                };
                let opening = Opening::of_stream(stream, &snapshot);
                (conn.begin(stream.id), until_closed(conn, connect(conn, opening)).await)
            }
            // Terminated here.
            Some(_) => return Some(client),
            None if bound.is_some_and(|bound| !bound.shares_with_ingresses()) => {
                let relays = |name| snapshot.listeners.get(name).is_some_and(ServedListener::relays_tls);
                // A listener for bytes closes the connection, as the Gateway API requires; one for HTTPS sends an alert.
                if bound.into_iter().flat_map(BoundListeners::of_tls).any(relays) {
                    reset(&client);
                    return None;
                }
                return Some(client);
            }
            None => {
                let host = snapshot.routes.host(&name);
                let Some((host, passing)) = host.and_then(|host| Some((host, HostEntry::passing(host)?))) else {
                    return Some(client);
                };
                let mut in_flight = conn.begin(host.id);
                let policy = &passing.policy;
                if policy.access.as_ref().is_some_and(|access| !access.admits(conn.peer().address())) {
                    in_flight.finish(StatusClass::ClientError);
                    reset(&client);
                    return None;
                }
                let upstream = passing.upstream.and_then(|id| snapshot.upstream(id));
                let version = upstream.and_then(UpstreamState::proxy_header);
                let proxy_header = version.map(|version| conn.proxy_header(version, conn.peer().address()));
                let opening = Opening { upstream, connect_timeout: policy.connect_timeout, proxy_header };
                (in_flight, until_closed(conn, connect(conn, opening)).await)
            }
        }
    };
    pass(conn, client, opened.flatten(), in_flight).await;
    None
}

/// Serves a connection to the port of a TCP service, or of a Gateway's TCP listener, until it ends.
pub(crate) async fn serve(conn: Rc<Conn>, mut client: TcpStream) {
    let (snapshot, local) = (conn.worker.snapshot(), conn.local());
    let listener = snapshot.listeners.at(local).and_then(BoundListeners::stream);
    if let Some(name) = listener {
        let name = name.clone();
        drop(snapshot);
        return Box::pin(serve_listener(conn, client, &name)).await;
    }
    let port = StreamPort { transport: Transport::Tcp, number: local.port() };
    // The port may have been removed since the kernel accepted the connection; then there is no service.
    let accepts = snapshot.stream(port).map(|(service, _)| service.accepts_proxy_protocol);
    drop(snapshot);
    let Some(accepts) = accepts else { return reset(&client) };
    if accepts && !open::meet(&conn, &mut client).await {
        return conn.worker.shared.stats.refused.count(Refusal::ProxyProtocol);
    }
    let _counted = match open::count(&conn) {
        Ok(counted) => counted,
        Err(why) => return conn.worker.shared.stats.refused.count(why),
    };
    let (in_flight, opened) = {
        let snapshot = conn.worker.snapshot();
        let Some((service, upstream)) = snapshot.stream(port) else { return reset(&client) };
        let version = service.proxy_header;
        let proxy_header = version.map(|version| conn.proxy_header(version, conn.peer().address()));
        let connect_timeout = snapshot.forwarding.connect_timeout;
        let opening = Opening { upstream: Some(upstream), connect_timeout, proxy_header };
        (conn.begin(snapshot.stream_id(port)), until_closed(&conn, connect(&conn, opening)).await)
    };
    pass(&conn, client, opened.flatten(), in_flight).await;
}

/// Serves a connection to the TCP listener `name` of a Gateway.
async fn serve_listener(conn: Rc<Conn>, client: TcpStream, name: &ListenerName) {
    let _counted = match open::count(&conn) {
        Ok(counted) => counted,
        Err(why) => return conn.worker.shared.stats.refused.count(why),
    };
    let (in_flight, opened) = {
        let snapshot = conn.worker.snapshot();
        let listener = snapshot.listeners.get(name);
        let Some(stream) = listener.and_then(|listener| listener.streams.get(&HostPattern::Any)) else {
            return reset(&client);
        };
        let opening = Opening::of_stream(stream, &snapshot);
        (conn.begin(stream.id), until_closed(&conn, connect(&conn, opening)).await)
    };
    pass(&conn, client, opened.flatten(), in_flight).await;
}

/// Returns the listener that forwards the bytes of this connection, whose handshake is complete.
pub(crate) fn terminating_listener(conn: &Conn) -> Option<ListenerName> {
    let snapshot = conn.worker.snapshot();
    let name = snapshot.listeners.at(conn.local())?.of_server_name(conn.shown.server_name())?;
    let is_terminating = snapshot.listeners.get(name)?.protocol == ListenerProtocol::TlsTerminate;
    is_terminating.then(|| name.clone())
}

/// Relays the bytes of a TLS connection that was terminated for the listener `name` of a Gateway.
pub(crate) async fn serve_terminated(conn: &Rc<Conn>, client: TlsStream<TcpStream>, name: &ListenerName) {
    let (mut in_flight, opened) = {
        let snapshot = conn.worker.snapshot();
        let streams = snapshot.listeners.get(name).map(|listener| &listener.streams);
        let Some(stream) = streams.and_then(|streams| streams.find(conn.shown.server_name())) else {
            return reset(client.get_ref().0);
        };
        let opening = Opening::of_stream(stream, &snapshot);
        let mut in_flight = conn.begin(stream.id);
        let Some(upstream) = opening.upstream else {
            in_flight.finish(StatusClass::ServerError);
            return reset(client.get_ref().0);
        };
        let open = async |address| {
            let target = ConnectTarget { address, transport: upstream.transport(), proxy_header: None };
            conn.worker.pool.connect(target, opening.connect_timeout).await
        };
        let opened = until_closed(conn, try_endpoints(conn, upstream, open)).await;
        let idle = conn.settings.streams.timeout;
        let limits =
            ExchangeLimits { read_timeout: idle, client_timeout: idle, ..snapshot.limits(&snapshot.forwarding) };
        (in_flight, opened.flatten().map(|connection| UpstreamTunnel::over(connection, limits)))
    };
    match opened {
        Some(endpoint) => {
            let client = TunnelClient { stream: client, tcp: |tls| tls.get_ref().0, early: Vec::new() };
            Tunnel::new(endpoint, in_flight).run(conn, client).await;
        }
        None => {
            in_flight.finish(StatusClass::ServerError);
            reset(client.get_ref().0);
        }
    }
}

/// Relays the connection if an endpoint accepted one, or else resets it.
async fn pass(conn: &Conn, client: TcpStream, endpoint: Option<TcpStream>, mut in_flight: InFlight) {
    match endpoint {
        Some(endpoint) => relay(conn, client, endpoint, in_flight).await,
        None => {
            in_flight.finish(StatusClass::ServerError);
            reset(&client);
        }
    }
}

/// Connects to an endpoint of `opening`.
async fn connect(conn: &Conn, opening: Opening<'_>) -> Option<TcpStream> {
    let Opening { upstream, connect_timeout, proxy_header } = opening;
    let open =
        async |address| match timeout(connect_timeout, conn.worker.pool.tcp(address, proxy_header.as_ref())).await {
            Ok(opened) => opened,
            Err(_elapsed) => Err(ConnectError::Timeout { address }),
        };
    try_endpoints(conn, upstream?, open).await
}

/// Opens a connection to an endpoint of `upstream`; tries one after the other.
async fn try_endpoints<T>(
    conn: &Conn,
    upstream: &UpstreamState,
    open: impl AsyncFn(SocketAddr) -> Result<T, ConnectError>,
) -> Option<T> {
    let StreamRetry { tries, within, enabled } = conn.settings.streams.retry;
    let mut tried = Tried::up_to(if enabled { tries as usize } else { 1 });
    let (worker, begun) = (&conn.worker, Instant::now());
    while let Some(endpoint) = upstream.pick(Choice::Next, || worker.now_ms(), &mut tried) {
        let error = match open(endpoint.address()).await {
            Ok(opened) => {
                endpoint.succeeded();
                return Some(opened);
            }
            Err(error) => error,
        };
        tracing::debug!(error = &error as &dyn std::error::Error, "connect failed");
        // Lack of resources on this node is not a failure of the endpoint.
        if !matches!(error, ConnectError::Exhausted { .. }) {
            endpoint.failed(worker.now_ms());
        }
        if within.is_some_and(|within| begun.elapsed() >= within) {
            return None;
        }
    }
    None
}

/// Relays until both sides have ended, or until the worker closes the connection. Streams are drained like WebSockets:
/// they may go on until the deadline.
async fn relay(conn: &Conn, client: TcpStream, endpoint: TcpStream, mut in_flight: InFlight) {
    upstream::watch(&client);
    upstream::watch(&endpoint);
    let cell = in_flight.cell();
    let (mut received, mut sent) = (Bytes::new(cell, Direction::In), Bytes::new(cell, Direction::Out));
    let relay = Relay { client, endpoint, idle_timeout: conn.settings.streams.timeout };
    let passed = |RelayedBytes { up, down }| {
        received.add(up);
        sent.add(down);
        // A stream may be open for days, so its bytes are counted whenever it rests.
        received.flush();
        sent.flush();
    };
    match until_closed(conn, relay.run(&conn.worker.pipes, passed)).await {
        Some(Ok(())) => in_flight.finish(StatusClass::Success),
        Some(Err(error)) => {
            if matches!(error, RelayError::Idle) {
                conn.worker.shared.stats.timed_out.fetch_add(1, Relaxed);
            }
            tracing::debug!(remote = %conn.remote(), error = &error as &dyn std::error::Error, "stream broke off");
        }
        None => tracing::debug!(remote = %conn.remote(), "stream was cut off"),
    }
}

/// Returns the output of `work`, or `None` if the worker closes the connection before.
async fn until_closed<T>(conn: &Conn, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        conn.listen(cx);
        if conn.ordered() == Order::Close {
            return Poll::Ready(None);
        }
        work.as_mut().poll(cx).map(Some)
    })
    .await
}
