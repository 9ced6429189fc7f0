//! The client's byte stream between socket (or TLS) and hyper: watches progress and, for HTTP/1, framing.

use std::{
    io,
    pin::Pin,
    rc::Rc,
    sync::atomic::Ordering::Relaxed,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    conn::Conn,
    scan::{Place, Scanner, Violation},
};

/// What hyper gets in place of a head that is out of order: a NUL is allowed nowhere in a head, so that hyper answers 400
/// and closes, and no service is called.
const POISON: &[u8] = b"\0\r\n\r\n";

/// Most bytes read and thrown away at the end of a connection.
const LINGER_MAX: usize = 16 * 1024 * 1024;

/// A stream that tells its [`Conn`] what it sees.
pub(super) struct Wire<IO> {
    io: IO,
    conn: Rc<Conn>,
    /// `None` for HTTP/2, whose framing has one reading.
    scanner: Option<Scanner>,
    end: End,
    /// What came after the head of a WebSocket handshake, until it is answered. One read at most.
    held: Vec<u8>,
    /// Bytes that may still be thrown away; `None` until our side is shut down.
    linger: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    /// A head was out of order: the poison is to be delivered next.
    Refused,
    /// A body was: its service learns of it by an error.
    Broken,
    Closed,
}

impl<IO> Wire<IO> {
    pub(super) fn http1(io: IO, conn: Rc<Conn>) -> Self {
        let scanner = Some(Scanner::new(conn.worker.options.head_max));
        Self { io, conn, scanner, end: End::Open, held: Vec::new(), linger: None }
    }

    pub(super) fn http2(io: IO, conn: Rc<Conn>) -> Self {
        Self { io, conn, scanner: None, end: End::Open, held: Vec::new(), linger: None }
    }

    /// The stream itself, and what was read of it but not delivered.
    pub(super) fn into_parts(self) -> (IO, Vec<u8>) {
        (self.io, self.held)
    }

    /// Follows what was read into `buf` after `before`.
    fn follow(&mut self, buf: &mut ReadBuf<'_>, before: usize) -> io::Result<()> {
        // What an HTTP/2 client sends tells nothing of whether it is idle: it may be no more than an answer to a PING.
        let Some(scanner) = &mut self.scanner else { return Ok(()) };
        let verdict = scanner.scan(&buf.filled()[before..]);
        self.conn.progress.read(scanner.place(), self.conn.worker.now());
        let good = match verdict {
            Ok(followed) => {
                if scanner.is_held() {
                    self.hold(buf, before + followed);
                }
                return Ok(());
            }
            Err(Violation { good }) => good,
        };
        self.conn.worker.shared.stats.refused_framing.fetch_add(1, Relaxed);
        // What is in order, perhaps the head of the body that is not, still goes to hyper.
        buf.set_filled(before + good);
        self.end = if scanner.place() == Place::Body { End::Broken } else { End::Refused };
        if good == 0 { self.refuse(buf) } else { Ok(()) }
    }

    /// Keeps back what came after a WebSocket handshake, which ends at `end`.
    fn hold(&mut self, buf: &mut ReadBuf<'_>, end: usize) {
        self.conn.handshake();
        // Before what is held already, which came later.
        let later = std::mem::replace(&mut self.held, buf.filled()[end..].to_vec());
        self.held.extend_from_slice(&later);
        buf.set_filled(end);
    }

    /// Delivers what hyper gets in place of the rest.
    fn refuse(&mut self, buf: &mut ReadBuf<'_>) -> io::Result<()> {
        if std::mem::replace(&mut self.end, End::Closed) == End::Broken {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "request body framing is malformed"));
        }
        let fits = POISON.len().min(buf.remaining());
        buf.put_slice(&POISON[..fits]);
        Ok(())
    }
}

impl<IO: AsyncRead + Unpin> Wire<IO> {
    /// Whether the client may still be sending what nobody is going to read.
    fn is_amid_request(&self) -> bool {
        self.end != End::Open || self.scanner.as_ref().is_some_and(|scanner| scanner.place() == Place::Body)
    }

    /// Reads while a WebSocket handshake is being answered: only to learn that the client is gone, or one piece of what
    /// it sends too early.
    fn poll_held(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.held.is_empty() {
            return Poll::Pending;
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        if buf.filled().len() == before {
            return Poll::Ready(Ok(()));
        }
        self.held.extend_from_slice(&buf.filled()[before..]);
        buf.set_filled(before);
        Poll::Pending
    }

    /// The handshake was declined: what was held is delivered as the requests that it should be.
    fn deliver(&mut self, buf: &mut ReadBuf<'_>) -> io::Result<()> {
        let before = buf.filled().len();
        let rest = self.held.split_off(self.held.len().min(buf.remaining()));
        buf.put_slice(&std::mem::replace(&mut self.held, rest));
        self.follow(buf, before)
    }

    /// Reads on until the client closes its side, too. Closing a socket with unread bytes resets the connection, which
    /// can take our last response from a client that is still sending (RFC 9112, 9.6). `Progress` bounds the time.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut bytes = [0; 8 * 1024];
        while let Some(left @ 1..) = self.linger {
            let mut buf = ReadBuf::new(&mut bytes);
            let ended = ready!(Pin::new(&mut self.io).poll_read(cx, &mut buf)).is_err() || buf.filled().is_empty();
            self.linger = Some(if ended { 0 } else { left.saturating_sub(buf.filled().len()) });
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Wire<IO> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match this.end {
            End::Open => {}
            End::Refused | End::Broken => return Poll::Ready(this.refuse(buf)),
            End::Closed => return Poll::Ready(Ok(())),
        }
        if let Some(scanner) = this.scanner.as_mut().filter(|scanner| scanner.is_held()) {
            if !this.conn.take_declined() {
                return this.poll_held(cx, buf);
            }
            scanner.release();
        }
        if !this.held.is_empty() {
            return Poll::Ready(this.deliver(buf));
        }
        let before = buf.filled().len();
        match Pin::new(&mut this.io).poll_read(cx, buf) {
            Poll::Pending => {
                this.conn.progress.read_pending(this.conn.worker.now());
                Poll::Pending
            }
            Poll::Ready(Ok(())) if buf.filled().len() > before => Poll::Ready(this.follow(buf, before)),
            Poll::Ready(result) => Poll::Ready(result),
        }
    }
}

impl<IO: AsyncWrite + Unpin> Wire<IO> {
    fn wrote(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match result {
            Poll::Pending => self.conn.progress.write_pending(self.conn.worker.now()),
            Poll::Ready(_) => self.conn.progress.wrote(),
        }
        result
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Wire<IO> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.io).poll_write(cx, buf);
        this.wrote(result)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.io).poll_write_vectored(cx, bufs);
        this.wrote(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match Pin::new(&mut this.io).poll_flush(cx) {
            Poll::Pending => {
                this.conn.progress.write_pending(this.conn.worker.now());
                Poll::Pending
            }
            Poll::Ready(result) => {
                this.conn.progress.wrote();
                Poll::Ready(result)
            }
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.io).poll_shutdown(cx))?;
            this.linger = Some(if this.is_amid_request() { LINGER_MAX } else { 0 });
            this.conn.progress.linger(this.conn.worker.now());
        }
        this.poll_linger(cx)
    }
}
