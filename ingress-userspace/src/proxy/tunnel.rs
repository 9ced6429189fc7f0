//! A client's connection after its WebSocket handshake was accepted: bytes are copied and counted until either side or the
//! worker ends it. The copying itself is `upstream`'s.

use std::{
    future::poll_fn,
    task::{Context, Poll},
};

use ingress_common::StatusClass;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use super::{
    access_log::Entry,
    conn::{Conn, InFlight, Order},
    counters::{Bytes, Direction},
    upstream::{self, Passed},
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

impl Tunnel {
    pub(super) fn new(endpoint: upstream::Tunnel, in_flight: InFlight) -> Self {
        let cell = in_flight.cell();
        let (received, sent) = (Bytes::new(cell, Direction::In), Bytes::new(cell, Direction::Out));
        Self { endpoint, received, sent, in_flight }
    }

    /// Writes a line about it when it is over.
    pub(super) fn tell(&mut self, entry: Box<Entry>) {
        self.in_flight.tell(entry);
    }

    /// Copies until the end. A request that ends as both sides wanted counts as successful, for 101 has no class of its own;
    /// one that breaks off counts as aborted.
    pub(super) async fn run<S>(mut self, conn: &Conn, client: Client<S>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Client { mut stream, tcp, early } = client;
        let Passed { up, down, client_blocked: _ } = self.endpoint.begin(tcp(&stream), &early);
        self.received.add(up);
        self.sent.add(down);
        drop(early);
        let ended = poll_fn(|cx| {
            conn.listen(cx);
            // Draining waits for tunnels: only what ends the connection at once ends them.
            if conn.ordered() == Order::Close {
                return Poll::Ready(None);
            }
            self.poll(cx, conn, &mut stream).map(Some)
        })
        .await;
        match ended {
            Some(Ok(())) => self.in_flight.finish(StatusClass::Success),
            Some(Err(error)) => tracing::debug!(error = &error as &dyn std::error::Error, "tunnel broke off"),
            None => tracing::debug!("tunnel was cut off"),
        }
    }

    fn poll<S>(&mut self, cx: &mut Context<'_>, conn: &Conn, stream: &mut S) -> Poll<Result<(), upstream::TunnelError>>
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
        if client_blocked && down == 0 {
            conn.progress.write_pending(conn.worker.now());
        } else if !client_blocked || down > 0 {
            conn.progress.wrote();
        }
        ended
    }
}
