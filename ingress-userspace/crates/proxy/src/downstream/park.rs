//! A client's connection as a task: it opens, is served whenever there is something to serve, and is *parked* in
//! between.
//!
//! ```text
//! Opening ─▶ Serving ─▶ Parked      parked: the socket, the TLS session, its `Conn`, this task
//!    └───────────▲─────────┘▲
//!                └──────────┴─ bytes, an end, an order
//! ```
//!
//! Most connections of a node are idle at most times, yet hyper would hold buffers for each. So the HTTP machinery is
//! created only when there are bytes to read, and dropped when the connection is idle again (`warm` says when). The
//! task stays the same, and with it all counters of the connection. HTTP/2 connections and tunnels are never parked
//! again.

use std::{
    future::Future,
    mem::MaybeUninit,
    pin::Pin,
    rc::Rc,
    sync::atomic::Ordering::Relaxed,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead as _, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::server::TlsStream;

use crate::{
    downstream::{
        conn::{Conn, Order},
        http_server::{http1, http2},
        io::{Io, Opened},
        open::open,
    },
    limits::CountGuard,
    server::worker::RegisteredConn,
};

/// Most bytes read before hyper is created: the size of hyper's first read.
const EARLY_MAX: usize = 8 * 1024;

/// A connection from its acceptance to its end.
pub(crate) struct Task {
    stage: ParkStage,
    conn: Rc<Conn>,
    _counted: Option<CountGuard>,
    _entered: RegisteredConn,
}

/// The task is as large as its largest stage. Large stages are boxed to keep parked connections small.
enum ParkStage {
    /// Yields `None` if the connection is not to be served.
    Opening(Pin<Box<dyn Future<Output = Option<Opened>>>>),
    Serving(Serving),
    Parked(Parked),
}

/// Yields `None` when the connection has ended, or the transport when it is idle.
type Serving = Pin<Box<dyn Future<Output = Option<Io>>>>;

/// An idle connection that waits for bytes, its end or an order of the worker.
struct Parked {
    /// Taken when the connection wakes.
    io: Option<Io>,
    conn: Rc<Conn>,
}

/// A connection with something to serve, which may be just its orderly end (GOAWAY, close_notify).
struct Awake {
    io: Io,
    /// Bytes already read from it.
    early: Vec<u8>,
}

// === impl Task ===

impl Task {
    pub(crate) fn new(conn: Rc<Conn>, tcp: TcpStream, entered: RegisteredConn) -> Self {
        let opening = Box::pin(open(Rc::clone(&conn), tcp));
        Self { stage: ParkStage::Opening(opening), conn, _counted: None, _entered: entered }
    }
}

impl Future for Task {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        loop {
            let next = match &mut this.stage {
                ParkStage::Opening(opening) => match ready!(opening.as_mut().poll(cx)) {
                    Some(Opened { io, counted }) => {
                        this._counted = counted;
                        Some(ParkStage::opened(io, &this.conn))
                    }
                    None => None,
                },
                ParkStage::Serving(serving) => {
                    ready!(serving.as_mut().poll(cx)).map(|io| ParkStage::parked(io, &this.conn))
                }
                ParkStage::Parked(parked) => {
                    ready!(parked.poll(cx)).map(|awake| ParkStage::Serving(serve(awake, &this.conn)))
                }
            };
            match next {
                Some(next) => this.stage = next,
                None => return Poll::Ready(()),
            }
        }
    }
}

// === impl ParkStage ===

impl ParkStage {
    /// Chooses the first stage of an open connection. It is served at once if TLS has already read the first request
    /// along with the end of the handshake, and if it is HTTP/2, where the server's SETTINGS are due at once.
    fn opened(io: Io, conn: &Rc<Conn>) -> Self {
        let is_to_be_served = match &io {
            Io::Plain(_) => false,
            // Part of a TLS record is no request yet; the rest of the record makes the socket readable.
            Io::Tls(tls) => is_http2(tls) || !tls.get_ref().1.wants_read(),
        };
        if is_to_be_served {
            Self::Serving(serve(Awake { io, early: Vec::new() }, conn))
        } else {
            Self::parked(io, conn)
        }
    }

    fn parked(io: Io, conn: &Rc<Conn>) -> Self {
        conn.worker.shared.stats.parked.fetch_add(1, Relaxed);
        Self::Parked(Parked { io: Some(io), conn: Rc::clone(conn) })
    }
}

fn serve(Awake { io, early }: Awake, conn: &Rc<Conn>) -> Serving {
    let conn = Rc::clone(conn);
    match io {
        Io::Plain(tcp) => Box::pin(async move { http1(tcp, |tcp| tcp, early, conn).await.map(Io::Plain) }),
        Io::Tls(tls) if is_http2(&tls) => Box::pin(async move {
            http2(tls, |tls| tls.get_ref().0, early, conn).await;
            None
        }),
        Io::Tls(tls) => Box::pin(async move { http1(tls, |tls| tls.get_ref().0, early, conn).await.map(Io::Tls) }),
    }
}

/// Returns whether the handshake has negotiated HTTP/2.
fn is_http2(tls: &TlsStream<TcpStream>) -> bool {
    tls.get_ref().1.alpn_protocol() == Some(b"h2")
}

// === impl Parked ===

impl Parked {
    /// Ready when the connection wakes; `None` if it closes without an orderly end.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Awake>> {
        self.conn.listen(cx);
        let mut early = Vec::new();
        match self.conn.ordered() {
            Order::Serve => match &mut self.io {
                Some(Io::Plain(tcp)) => {
                    let mut bytes = [MaybeUninit::uninit(); EARLY_MAX];
                    let mut read = ReadBuf::uninit(&mut bytes);
                    drop(ready!(Pin::new(tcp).poll_read(cx, &mut read)));
                    early = read.filled().to_vec();
                    if early.is_empty() {
                        // The client has closed its side, so no request will come.
                        self.io = None;
                    }
                }
                // The peek asks the kernel, because the runtime assumes that an accepted socket is readable before it
                // knows. An end of the stream is met again by the next read.
                Some(Io::Tls(tls)) => drop(ready!(tls.get_ref().0.poll_peek(cx, &mut ReadBuf::new(&mut [0])))),
                None => {}
            },
            Order::Finish => {}
            Order::Close => self.io = None,
        }
        Poll::Ready(self.io.take().map(|io| Awake { io, early }))
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.conn.worker.shared.stats.parked.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_task_of_a_parked_connection_is_small() {
        assert!(size_of::<Task>() <= 128, "{} bytes", size_of::<Task>());
    }
}
