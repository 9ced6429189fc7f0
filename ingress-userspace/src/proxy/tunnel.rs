//! A client's connection, or stream of HTTP/2, after its WebSocket handshake was accepted: bytes are copied and counted
//! until either side or the worker ends it. The copying itself is `upstream`'s.

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

use super::{
    conn::{Conn, Order},
    counters::{Bytes, Direction},
    in_flight::InFlight,
    upstream::{self, Passed, TunnelError},
};

/// An accepted handshake. The request is in flight for as long as this lives.
pub(super) struct Tunnel {
    endpoint: upstream::Tunnel,
    received: Bytes,
    sent: Bytes,
    in_flight: InFlight,
}

/// What a client's side of a tunnel is.
pub(super) struct Client<S> {
    pub(super) stream: S,
    /// The socket below it.
    pub(super) tcp: fn(&S) -> &TcpStream,
    /// What came after the head of the handshake.
    pub(super) early: Vec<u8>,
}

/// How the client takes what is sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// Nothing waits for it.
    Free,
    /// Something does, but it has taken what was before that.
    Slow,
    Stalls,
}

/// Since when a client of HTTP/2 takes nothing from its stream.
#[derive(Default)]
struct Stall(Option<Pin<Box<Sleep>>>);

impl Tunnel {
    pub(super) fn new(endpoint: upstream::Tunnel, in_flight: InFlight) -> Self {
        let cell = in_flight.cell();
        let (received, sent) = (Bytes::new(cell, Direction::In), Bytes::new(cell, Direction::Out));
        Self { endpoint, received, sent, in_flight }
    }

    /// Copies until the end. A request that ends as both sides wanted counts as successful, for 101 has no class of its
    /// own; one that breaks off counts as aborted.
    pub(super) async fn run<S>(mut self, conn: &Conn, client: Client<S>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Client { mut stream, tcp, early } = client;
        upstream::watch(tcp(&stream));
        self.begin(&early);
        drop(early);
        let ended = poll_fn(|cx| {
            conn.listen(cx);
            // Draining waits for tunnels: only what ends the connection at once ends them.
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

    /// The same on a stream of HTTP/2, whose request is served by the task `asked`, once the client has been told. What
    /// ends its connection ends the stream, and a dead client is found by hyper's PING.
    pub(super) async fn run_stream(mut self, conn: Rc<Conn>, asked: task::Id, opened: OnUpgrade) {
        let Ok(upgraded) = opened.await else { return };
        let sender = conn.take_spawned_by(asked);
        let (mut stream, mut stalls) = (TokioIo::new(upgraded), Stall::default());
        self.begin(&[]);
        let ended = poll_fn(|cx| {
            let (ended, client) = self.poll(cx, &mut stream);
            if ended.is_pending() && stalls.poll(cx, client, &conn).is_ready() {
                conn.worker.shared.stats.timed_out.fetch_add(1, Relaxed);
                return Poll::Ready(None);
            }
            ended.map(Some)
        })
        .await;
        if !matches!(ended, Some(Ok(()))) {
            // Without a sender the stream is reset; else it would end as if all were well.
            if let Some(sender) = sender {
                sender.abort();
            }
        }
        self.end(ended);
    }

    /// What either side sent before is under way.
    fn begin(&mut self, early: &[u8]) {
        let Passed { up, down, client_blocked: _ } = self.endpoint.begin(early);
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
        let mut passed = Passed::default();
        let ended = endpoint.poll(cx, stream, &mut passed);
        let Passed { up, down, client_blocked } = passed;
        received.add(up);
        sent.add(down);
        // A tunnel may be open for days: what passed shows as soon as it rests.
        received.flush();
        sent.flush();
        let client = match (client_blocked, down) {
            (false, _) => Side::Free,
            // There is room for more only after something was taken.
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
