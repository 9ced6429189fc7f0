//! Accepts connections for one worker. No error of a connection or of the process ends the accept loop, and no error
//! makes it spin.

use std::{
    io,
    net::SocketAddr,
    rc::Rc,
    sync::atomic::Ordering::Relaxed,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::{
    downstream::{conn::Conn, park, refusal::Refusal},
    l4::tcp,
    listeners::{BoundListeners, BoundProtocol},
    server::{listen::Entrance, options::Options, signal::Signal, worker::Worker},
};

/// Connections accepted in one go before other tasks on the worker get a turn.
const BATCH: usize = 32;
/// Pause after an error that is unlikely to clear up at once.
const PAUSE: Duration = Duration::from_millis(10);

/// Accepts until signalled to stop. Then accepts the remaining backlog, because its clients consider their connections
/// established, and closes the listener.
pub(crate) async fn run(
    worker: Rc<Worker>,
    listener: TcpListener,
    entrance: Entrance,
    mut signal: watch::Receiver<Signal>,
) {
    loop {
        let first = tokio::select! {
            biased;
            _ = signal.wait_for(|signal| *signal != Signal::Serve) => break,
            accepted = listener.accept() => accepted,
        };
        if let Err(error) = first.map(|accepted| begin(&worker, accepted, entrance)) {
            failed(&worker, &listener, &error).await;
        }
        take(&worker, &listener, entrance);
        tokio::task::yield_now().await;
    }
    accept_backlog(&worker, listener, entrance);
}

/// Accepts connections that are waiting already, up to [`BATCH`].
fn take(worker: &Rc<Worker>, listener: &TcpListener, entrance: Entrance) {
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..BATCH {
        match listener.poll_accept(&mut cx) {
            Poll::Ready(Ok(accepted)) => begin(worker, accepted, entrance),
            // A persistent error occurs again in the loop, which handles it.
            Poll::Ready(Err(_)) | Poll::Pending => return,
        }
    }
}

/// Accepts the whole backlog. Calls accept(2) directly, because the runtime may not have received the readiness event
/// yet.
fn accept_backlog(worker: &Rc<Worker>, listener: TcpListener, entrance: Entrance) {
    let Ok(listener) = listener.into_std() else { return };
    while let Ok((stream, remote)) = listener.accept() {
        if let Ok(stream) = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)) {
            begin(worker, (stream, remote), entrance);
        }
    }
}

fn begin(worker: &Rc<Worker>, (stream, remote): (TcpStream, SocketAddr), entrance: Entrance) {
    worker.shared.stats.accepted.fetch_add(1, Relaxed);
    worker.load.accepted();
    if let Some(why) = worker.refuses() {
        return worker.shared.stats.refused.count(why);
    }
    // Fails if the client has disconnected already.
    let Ok(mut local) = stream.local_addr() else { return };
    local.set_port(public_port(worker, entrance, local.port()));
    let Some(entrance) = at_bind(worker, entrance, local) else {
        worker.shared.stats.refused.count(Refusal::NoListener);
        return tcp::reset(&stream);
    };
    let conn = Conn::new(Rc::clone(worker), remote, local, entrance == Entrance::Https);
    conn.announce();
    let entered = worker.enter(&conn);
    match entrance {
        Entrance::Http | Entrance::Https => tokio::task::spawn_local(park::Task::new(conn, stream, entered)),
        Entrance::Streams => tokio::task::spawn_local(async move {
            tcp::serve(conn, stream).await;
            drop(entered);
        }),
    };
}

/// Returns the protocol of a connection to `local`: that of the Gateways there, else that of the listening socket;
/// `None` if the address is a Gateway's, and its listeners have other ports.
fn at_bind(worker: &Worker, entrance: Entrance, local: SocketAddr) -> Option<Entrance> {
    let snapshot = worker.snapshot();
    if snapshot.listeners.is_empty() {
        return Some(entrance);
    }
    let local = SocketAddr::new(local.ip().to_canonical(), local.port());
    match snapshot.listeners.at(local).map(BoundListeners::protocol) {
        None => (!snapshot.listeners.refuses(local)).then_some(entrance),
        Some(BoundProtocol::Http) => Some(Entrance::Http),
        Some(BoundProtocol::Tls) => Some(Entrance::Https),
        Some(BoundProtocol::Stream) => Some(Entrance::Streams),
    }
}

/// Returns the port that the client connected to, for a connection to `port` of this node.
fn public_port(worker: &Worker, entrance: Entrance, port: u16) -> u16 {
    let Some(public) = worker.options.rewrite_offset.and_then(|offset| port.checked_sub(offset.get())) else {
        return port;
    };
    let Options { http_port, https_port, .. } = worker.options;
    let is_rewritten = match entrance {
        Entrance::Http => public == http_port,
        Entrance::Https => public == https_port,
        Entrance::Streams => {
            let snapshot = worker.snapshot();
            // A port that is a TCP service itself is not rewritten.
            snapshot.has_tcp_port(public) && !snapshot.has_tcp_port(port)
        }
    };
    if is_rewritten { public } else { port }
}

async fn failed(worker: &Worker, listener: &TcpListener, error: &io::Error) {
    worker.shared.stats.accept_errors.fetch_add(1, Relaxed);
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => {
            tracing::warn!("no file descriptors left; shedding a connection and the idle ones to endpoints");
            worker.reserve.shed(listener);
            worker.close_idle();
            worker.pipes.clear();
            tokio::time::sleep(PAUSE).await;
        }
        Some(libc::ENOBUFS | libc::ENOMEM) => tokio::time::sleep(PAUSE).await,
        // accept(2) reports errors of the connection that was about to be accepted.
        _ => tracing::debug!(error = error as &dyn std::error::Error, "accept failed"),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::{BodyExt, Empty};
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::upstream::{self, ConnectTarget, ExchangeLimits, UpstreamTransport};

    /// Returns a worker with one idle connection to an endpoint, and the endpoint's end of it.
    async fn worker() -> (Rc<Worker>, TcpStream) {
        let worker = Worker::alone();
        let endpoint = TcpListener::bind(("127.0.0.1", 0)).await.expect("bound");
        let connection = worker
            .pool
            .connect(
                ConnectTarget {
                    address: endpoint.local_addr().expect("address"),
                    transport: UpstreamTransport::Plain,
                    proxy_header: None,
                },
                Duration::from_secs(5),
            )
            .await
            .expect("connected");
        let (mut peer, _) = endpoint.accept().await.expect("accepted");
        peer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx").await.expect("sent");
        let head = |out: &mut Vec<u8>| upstream::write_request_line(out, &http::Method::GET, "/");
        let body = Empty::<Bytes>::new();
        let response = upstream::exchange(connection, ExchangeLimits::default(), &http::Method::GET, head, body).await;
        response.expect("a response").into_body().collect().await.expect("a body");
        assert_eq!(worker.pool.idle_total(), 1);
        (worker, peer)
    }

    #[tokio::test]
    async fn idle_upstream_connections_are_closed_when_descriptors_run_out() {
        for (code, kept) in [(libc::EMFILE, 0), (libc::ENFILE, 0), (libc::ECONNABORTED, 1)] {
            let (worker, _peer) = worker().await;
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("bound");
            failed(&worker, &listener, &io::Error::from_raw_os_error(code)).await;
            assert_eq!(worker.pool.idle_total(), kept, "{code}");
        }
    }

    #[tokio::test]
    async fn a_connection_has_the_public_port() {
        let worker = |rewrite_offset| {
            Worker::alone_with(Options { http_port: 80, https_port: 443, rewrite_offset, ..Options::default() })
        };
        let (rewriting, steering) = (worker(std::num::NonZeroU16::new(10_000)), worker(None));
        for (entrance, port, expected) in [
            (Entrance::Http, 10_080, 80),
            (Entrance::Https, 10_443, 443),
            // Connections from this node, or through an interface without rewriting.
            (Entrance::Http, 80, 80),
            (Entrance::Https, 443, 443),
            // Connections to the listener's own port.
            (Entrance::Http, 40_123, 40_123),
            (Entrance::Https, 10_080, 10_080),
            (Entrance::Streams, 10_080, 10_080),
        ] {
            assert_eq!(public_port(&rewriting, entrance, port), expected, "{entrance:?} {port}");
            assert_eq!(public_port(&steering, entrance, port), port, "{entrance:?} {port}");
        }
    }
}
