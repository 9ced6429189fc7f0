//! Serves a connection as a stream: finds its upstream, connects to an endpoint, and relays.
//!
//! A stream counts as one request of its host or port: as a success if both sides have ended regularly, as a client
//! error if access was denied, as a server error if no endpoint accepted a connection, and otherwise as aborted.

use std::{
    future::{Future, poll_fn},
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
    },
    listeners::{BoundListeners, ServedStream},
    observe::counters::{Bytes, Direction},
    request::in_flight::InFlight,
    upstream::{
        self, ConnectError,
        balance::{Choice, Tried, UpstreamState},
    },
};
use ingress_model::route::HostEntry;
use ingress_model::{ListenerName, StreamPort, StreamRetry, Transport};

/// The destination of a stream.
struct Opening<'s> {
    /// `None` if there is no upstream.
    upstream: Option<&'s UpstreamState>,
    connect_timeout: Duration,
    proxy_header: Option<ProxyHeader>,
}

/// Passes a connection on to pods if it begins TLS for a host with TLS passthrough. Otherwise returns it, with all its
/// bytes still unread.
pub(crate) async fn pass_through(conn: &Rc<Conn>, client: TcpStream, deadline: Instant) -> Option<TcpStream> {
    // An invalid beginning is left for the TLS handshake to report.
    let Ok(Ok(Some(name))) = timeout_at(deadline, hello::server_name(&client)).await else { return Some(client) };
    let (in_flight, opened) = {
        // Held only while connecting, not for the lifetime of the stream.
        let snapshot = conn.worker.snapshot();
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
        let Some(ServedStream { shares, id }) = listener.and_then(|listener| listener.stream.as_ref()) else {
            return reset(&client);
        };
        let upstream = shares.choose().and_then(|share| snapshot.upstream(share.target.ok()?));
        let connect_timeout = snapshot.forwarding.connect_timeout;
        let opening = Opening { upstream, connect_timeout, proxy_header: None };
        (conn.begin(*id), until_closed(&conn, connect(&conn, opening)).await)
    };
    pass(&conn, client, opened.flatten(), in_flight).await;
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

/// Connects to an endpoint of `opening`; tries one after the other.
async fn connect(conn: &Conn, opening: Opening<'_>) -> Option<TcpStream> {
    let Opening { upstream, connect_timeout, proxy_header } = opening;
    let StreamRetry { tries, within, enabled } = conn.settings.streams.retry;
    let mut tried = Tried::up_to(if enabled { tries as usize } else { 1 });
    let (worker, begun) = (&conn.worker, Instant::now());
    let upstream = upstream?;
    while let Some(endpoint) = upstream.pick(Choice::Next, || worker.now_ms(), &mut tried) {
        let address = endpoint.address();
        let error = match timeout(connect_timeout, worker.pool.tcp(address, proxy_header.as_ref())).await {
            Ok(Ok(tcp)) => {
                endpoint.succeeded();
                return Some(tcp);
            }
            Ok(Err(error)) => error,
            Err(_elapsed) => ConnectError::Timeout { address },
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
