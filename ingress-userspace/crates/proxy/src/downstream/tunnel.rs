//! A client's connection, or stream of HTTP/2 or HTTP/3, after an accepted WebSocket handshake: bytes are copied and
//! counted until either side or the worker ends it. The copying itself is in `upstream`.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    rc::Rc,
    sync::atomic::Ordering::Relaxed,
    task::{Context, Poll},
};

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use ingress_common::StatusClass;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task,
    time::{Sleep, sleep},
};

use crate::{
    downstream::{
        conn::{Conn, Order},
        h3_tunnel::TunnelStream,
    },
    observe::counters::{Bytes, Direction},
    request::in_flight::InFlight,
    upstream::{self, TunnelBytes, TunnelError},
};

/// An accepted handshake. Its request is in flight for as long as this value lives.
pub(crate) struct Tunnel {
    endpoint: upstream::UpstreamTunnel,
    received: Bytes,
    sent: Bytes,
    in_flight: InFlight,
}

/// The client's side of a tunnel.
pub(crate) struct TunnelClient<S> {
    pub(crate) stream: S,
    /// Returns the socket below `stream`.
    pub(crate) tcp: fn(&S) -> &TcpStream,
    /// Bytes that arrived behind the head of the handshake.
    pub(crate) early: Vec<u8>,
}

/// A stream of a client that has asked for a tunnel.
pub(crate) enum OpenedStream {
    Http2(OnUpgrade),
    /// The bytes that the client sends. Boxed so that other requests do not carry its size.
    Http3(Box<ingress_quic::RequestBody>),
}

/// State of the client's receiving side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// No bytes are pending.
    Free,
    /// Bytes are pending, but the client has taken some in this poll.
    Slow,
    Stalls,
}

/// Timer of a client of HTTP/2 or HTTP/3 that takes nothing from its stream.
#[derive(Default)]
struct Stall(Option<Pin<Box<Sleep>>>);

impl Tunnel {
    pub(crate) fn new(endpoint: upstream::UpstreamTunnel, in_flight: InFlight) -> Self {
        let cell = in_flight.cell();
        let (received, sent) = (Bytes::new(cell, Direction::In), Bytes::new(cell, Direction::Out));
        Self { endpoint, received, sent, in_flight }
    }

    /// Copies until the end. A tunnel closed by both sides counts as a successful request, because 101 has no class of
    /// its own; a broken one counts as aborted.
    pub(crate) async fn run<S>(mut self, conn: &Conn, client: TunnelClient<S>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let TunnelClient { mut stream, tcp, early } = client;
        upstream::watch(tcp(&stream));
        self.begin(&early);
        drop(early);
        let ended = poll_fn(|cx| {
            conn.listen(cx);
            // A drain waits for tunnels; only orders to close at once end them.
            if conn.ordered() == Order::Close {
                return Poll::Ready(None);
            }
            let (ended, client) = self.poll(cx, &mut stream);
            match client {
                Side::Free => conn.progress.wrote(),
                Side::Slow => {
                    conn.progress.wrote();
                    conn.progress.write_pending(conn.worker.now());
                }
                Side::Stalls => conn.progress.write_pending(conn.worker.now()),
            }
            ended.map(Some)
        })
        .await;
        self.end(ended);
    }

    /// Copies on an HTTP/2 stream, once the client has its response. The task `asked` serves the stream's request. The
    /// stream ends with its connection, and hyper's PING detects a dead client.
    pub(crate) async fn run_stream(mut self, conn: Rc<Conn>, asked: task::Id, opened: OnUpgrade) {
        let Ok(upgraded) = opened.await else { return };
        let sender = conn.take_spawned_by(asked);
        let ended = self.copy(&conn, &mut TokioIo::new(upgraded)).await;
        if !matches!(ended, Some(Ok(()))) {
            // Aborting the sender resets the stream; otherwise it would end as if complete.
            if let Some(sender) = sender {
                sender.abort();
            }
        }
        self.end(ended);
    }

    /// Copies on an HTTP/3 stream. If `stream` is dropped before its end, the client's stream is reset.
    pub(crate) async fn run_http3(mut self, conn: Rc<Conn>, mut stream: TunnelStream) {
        let ended = self.copy(&conn, &mut stream).await;
        self.end(ended);
    }

    /// Copies between the pod and a stream; `None` if the client takes nothing for too long.
    async fn copy<S>(&mut self, conn: &Conn, stream: &mut S) -> Option<Result<(), TunnelError>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut stalls = Stall::default();
        self.begin(&[]);
        poll_fn(|cx| {
            let (ended, client) = self.poll(cx, stream);
            if ended.is_pending() && stalls.poll(cx, client, conn).is_ready() {
                conn.worker.shared.stats.timed_out.fetch_add(1, Relaxed);
                return Poll::Ready(None);
            }
            ended.map(Some)
        })
        .await
    }

    /// Forwards the bytes that either side sent before the tunnel began.
    fn begin(&mut self, early: &[u8]) {
        let TunnelBytes { up, down, client_blocked: _ } = self.endpoint.begin(early);
        self.received.add(up);
        self.sent.add(down);
    }

    fn end(&mut self, ended: Option<Result<(), TunnelError>>) {
        match ended {
            Some(Ok(())) => self.in_flight.finish(StatusClass::Success),
            Some(Err(error)) => {
                if matches!(error, TunnelError::Silent) {
                    self.in_flight.timed_out();
                }
                tracing::debug!(error = &error as &dyn std::error::Error, "tunnel broke off");
            }
            None => tracing::debug!("tunnel was cut off"),
        }
    }

    fn poll<S>(&mut self, cx: &mut Context<'_>, stream: &mut S) -> (Poll<Result<(), TunnelError>>, Side)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Self { endpoint, received, sent, in_flight: _ } = self;
        let mut passed = TunnelBytes::default();
        let ended = endpoint.poll(cx, stream, &mut passed);
        let TunnelBytes { up, down, client_blocked } = passed;
        received.add(up);
        sent.add(down);
        // A tunnel may stay open for days, so the counters are flushed whenever it pauses.
        received.flush();
        sent.flush();
        let client = match (client_blocked, down) {
            (false, _) => Side::Free,
            // Bytes were taken, so the client makes progress although others are pending.
            (true, 1..) => Side::Slow,
            (true, 0) => Side::Stalls,
        };
        (ended, client)
    }
}

// === impl Stall ===

impl Stall {
    /// Ready when the client has stalled for too long.
    fn poll(&mut self, cx: &mut Context<'_>, client: Side, conn: &Conn) -> Poll<()> {
        if client != Side::Stalls {
            self.0 = None;
        }
        if client == Side::Free {
            return Poll::Pending;
        }
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep(conn.settings.stall_timeout)));
        sleep.as_mut().poll(cx)
    }
}
