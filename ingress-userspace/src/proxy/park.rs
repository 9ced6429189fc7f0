//! A client's connection as a task: opened, then served whenever there is something to serve, and *parked* in between.
//!
//! ```text
//! Opening ─▶ Serving ─▶ Parked      what is parked: the socket, the session of TLS, its `Conn`, this task
//!    └───────────▲─────────┘▲
//!                └──────────┴─ bytes, an end, an order
//! ```
//!
//! Most connections of a node do nothing at most times, and then hyper still has buffers for them. So nothing that
//! reads requests is made before there are bytes to read, and it is given back when the connection has come to rest
//! (`warm` says when). The task, and with it all that counts the connection, stays the same. HTTP/2 and tunnels are
//! served to their end.

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

use super::{
    conn::{Conn, Order},
    limit::Counted,
    open::open,
    speak::{http1, http2},
    worker::Entered,
};

/// Most bytes that are read before hyper is made: as many as it would read first.
const EARLY_MAX: usize = 8 * 1024;

/// What the bytes of a client come over.
pub(super) enum Io {
    Plain(TcpStream),
    /// Boxed, so that others do not carry its size.
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection that is open.
pub(super) struct Opened {
    pub(super) io: Io,
    /// Counts it for its client, if those are limited.
    pub(super) counted: Option<Counted>,
}

/// A connection from its acceptance to its end.
pub(super) struct Task {
    stage: Stage,
    conn: Rc<Conn>,
    _counted: Option<Counted>,
    _entered: Entered,
}

/// What is large is boxed: the task is as large as its largest stage, and what is parked should be small.
enum Stage {
    /// `None` comes of it if the connection is not to be served.
    Opening(Pin<Box<dyn Future<Output = Option<Opened>>>>),
    Serving(Serving),
    Parked(Parked),
}

/// `None` comes of it at the end of the connection; else it rests.
type Serving = Pin<Box<dyn Future<Output = Option<Io>>>>;

/// A connection that waits for bytes, its end or an order.
struct Parked {
    /// Taken when it goes on.
    io: Option<Io>,
    conn: Rc<Conn>,
}

/// A connection that has something to serve, which may be no more than a farewell.
struct Awake {
    io: Io,
    /// What was read of it.
    early: Vec<u8>,
}

// === impl Task ===

impl Task {
    pub(super) fn new(conn: Rc<Conn>, tcp: TcpStream, entered: Entered) -> Self {
        let opening = Box::pin(open(Rc::clone(&conn), tcp));
        Self { stage: Stage::Opening(opening), conn, _counted: None, _entered: entered }
    }
}

impl Future for Task {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        loop {
            let next = match &mut this.stage {
                Stage::Opening(opening) => match ready!(opening.as_mut().poll(cx)) {
                    Some(Opened { io, counted }) => {
                        this._counted = counted;
                        Some(Stage::opened(io, &this.conn))
                    }
                    None => None,
                },
                Stage::Serving(serving) => ready!(serving.as_mut().poll(cx)).map(|io| Stage::parked(io, &this.conn)),
                Stage::Parked(parked) => ready!(parked.poll(cx)).map(|awake| Stage::Serving(serve(awake, &this.conn))),
            };
            match next {
                Some(next) => this.stage = next,
                None => return Poll::Ready(()),
            }
        }
    }
}

// === impl Stage ===

impl Stage {
    /// TLS may have taken the first request from the socket along with the end of the handshake, and HTTP/2 begins with
    /// a word of ours.
    fn opened(io: Io, conn: &Rc<Conn>) -> Self {
        let is_to_be_served = match &io {
            Io::Plain(_) => false,
            // Part of a record is no request yet: the rest of it shows in the socket.
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
            http2(tls, early, conn).await;
            None
        }),
        Io::Tls(tls) => Box::pin(async move { http1(tls, |tls| tls.get_ref().0, early, conn).await.map(Io::Tls) }),
    }
}

/// Whether the handshake has agreed on it.
fn is_http2(tls: &TlsStream<TcpStream>) -> bool {
    tls.get_ref().1.alpn_protocol() == Some(b"h2")
}

// === impl Parked ===

impl Parked {
    /// Ready when it is awake; `None` if there is not even a farewell to say.
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
                        // The client is gone, or has nothing more to ask for.
                        self.io = None;
                    }
                }
                // Asked of the kernel: the runtime takes an accepted socket for readable before it knows. Whoever reads
                // meets an end again.
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
    fn the_task_of_what_is_parked_is_little() {
        assert!(size_of::<Task>() <= 128, "{} bytes", size_of::<Task>());
    }
}
