//! Opens a connection: reads the PROXY header and performs the TLS handshake. It speaks no HTTP.

use std::{
    io,
    rc::Rc,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use tokio::{
    net::TcpStream,
    time::{Instant, timeout_at},
};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};

use ingress_model::{ListenerProtocol, route::HostEntry};

use crate::{
    downstream::{
        buffer_size::PIECE,
        conn::Conn,
        io::{Io, Opened},
        proxy_protocol::{self, Header},
        refusal::Refusal,
    },
    l4::tcp,
    limits::CountGuard,
    snapshot::Snapshot,
    tls::{self, client_certificates::Greeting},
};

/// Opens a connection. Returns `None` if it was refused or passed through.
pub(crate) async fn open(conn: Rc<Conn>, mut stream: TcpStream) -> Option<Opened> {
    let refused = &conn.worker.shared.stats.refused;
    if conn.settings.trust.proxy_protocol && !Box::pin(meet(&conn, &mut stream)).await {
        refused.count(Refusal::ProxyProtocol);
        return None;
    }
    let counted = count(&conn).map_err(|why| refused.count(why)).ok()?;
    let io = if conn.secure {
        // Boxed to keep the handshake's size out of plain connections.
        let shaken = Box::pin(shake_hands(&conn, stream)).await?;
        if let Some(name) = tcp::terminating_listener(&conn) {
            Box::pin(tcp::serve_terminated(&conn, shaken, &name)).await;
            return None;
        }
        Io::Tls(Box::new(shaken))
    } else {
        Io::Plain(stream)
    };
    Some(Opened { io, counted })
}

/// Performs the TLS handshake. Returns `None` if it fails or if the connection is passed through without termination.
async fn shake_hands(conn: &Rc<Conn>, mut stream: TcpStream) -> Option<TlsStream<TcpStream>> {
    let deadline = Instant::now() + conn.worker.options.handshake_timeout;
    let snapshot = conn.worker.snapshot();
    let passes = snapshot.routes.pass_through() || snapshot.listeners.relay_any();
    drop(snapshot);
    if passes {
        // Boxed for the same reason as below.
        stream = Box::pin(tcp::pass_through(conn, stream, deadline)).await?;
    }
    let snapshot = conn.worker.snapshot();
    let is_by_name = snapshot.routes.ask_clients() || snapshot.settings.handshakes.rejects_unknown_names;
    let is_bound = !snapshot.listeners.is_empty() && snapshot.listeners.at(conn.local()).is_some();
    let accepted = if is_by_name || is_bound {
        // Boxed to keep its size out of connections whose configuration does not depend on the server name.
        timeout_at(deadline, Box::pin(accept_by_name(conn, stream, &snapshot))).await
    } else {
        drop(snapshot);
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::clone(conn.worker.shared.tls.of(&conn.settings)));
        timeout_at(deadline, acceptor.accept(stream)).await
    };
    match accepted {
        Ok(Ok(mut stream)) => {
            stream.get_mut().1.set_buffer_limit(Some(PIECE));
            Some(stream)
        }
        failed => {
            conn.worker.shared.stats.handshake_errors.fetch_add(1, Relaxed);
            tracing::debug!(remote = %conn.remote(), ok = failed.is_ok(), "tls handshake failed");
            None
        }
    }
}

/// Counts the connection against its client's limit, if there is one, for as long as the result is held. Returns an
/// error above the limit.
pub(crate) fn count(conn: &Conn) -> Result<Option<CountGuard>, Refusal> {
    let Some(max) = conn.settings.connections_per_client else { return Ok(None) };
    let client = conn.peer().address();
    // A trusted proxy has connections for many clients.
    if conn.settings.trust.trusts(client) {
        return Ok(None);
    }
    conn.worker.shared.limiter.connect(client, max).map(Some).ok_or(Refusal::ClientConnections)
}

/// Reads the PROXY header and sets the connection's peer. Returns whether the connection may be served.
pub(crate) async fn meet(conn: &Conn, stream: &mut TcpStream) -> bool {
    let trust = &conn.settings.trust;
    if !trust.admits_proxy(conn.remote().ip()) {
        return false;
    }
    match tokio::time::timeout(trust.proxy_protocol_timeout, proxy_protocol::read(stream)).await {
        Ok(Ok(Header::Local)) => true,
        Ok(Ok(Header::Proxied { source, destination })) => conn.meet(source, destination),
        Ok(Err(error)) => {
            tracing::debug!(remote = %conn.remote(), error = &error as &dyn std::error::Error, "no client is known");
            false
        }
        Err(_elapsed) => false,
    }
}

/// Performs a handshake that depends on the server name: it requests a client certificate if the named host requires
/// one, and fails on unknown names if the settings reject them.
async fn accept_by_name(conn: &Conn, stream: TcpStream, snapshot: &Snapshot) -> io::Result<TlsStream<TcpStream>> {
    let mut start = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream).await?;
    let server_name = start.client_hello().server_name().unwrap_or_default().to_ascii_lowercase();
    let configs = &conn.worker.shared.tls;
    let bound = snapshot.listeners.at(conn.local());
    let listener = bound.and_then(|bound| snapshot.listeners.get(bound.of_server_name(&server_name)?));
    let is_left = listener.is_none() && bound.is_some_and(|bound| !bound.shares_with_ingresses());
    if is_left || (listener.is_none() && tls::is_rejected(&server_name, snapshot)) {
        return Err(tls::reject(&mut start.io).await);
    }
    if let Some(listener) = listener {
        // Without a certificate there is no listener to answer.
        let Some(key) = snapshot.certificates.among(&listener.certificates, &server_name) else {
            return Err(tls::reject(&mut start.io).await);
        };
        let is_http = listener.protocol == ListenerProtocol::Https;
        let clients = listener.clients.as_ref();
        let config = configs.with_key(key, is_http, clients, &conn.settings).map_err(io::Error::other)?;
        let stream = start.into_stream(config).await?;
        let enforced = listener.clients.clone();
        conn.shown.greeted(Greeting { server_name, asked: false, enforced, chain: Vec::new() });
        return Ok(stream);
    }
    let policy = snapshot.routes.host(&server_name).and_then(HostEntry::clients);
    let config = match policy {
        Some(policy) => configs.requesting_certificate(policy, &conn.settings).map_err(io::Error::other)?,
        None => Arc::clone(configs.of(&conn.settings)),
    };
    let stream = start.into_stream(config).await?;
    let chain = stream.get_ref().1.peer_certificates().map(<[_]>::to_vec).unwrap_or_default();
    conn.shown.greeted(Greeting { server_name, asked: policy.is_some(), enforced: None, chain });
    Ok(stream)
}
