//! The client's byte stream between socket (or TLS) and hyper: watches progress and what `scan` and `frames` refuse,
//! moves what is in the pipe to the socket where hyper writes what stands for it (`piped`), and what is on the socket
//! into a pipe where hyper can read what stands for it (`intake`).

use std::{
    io,
    mem::MaybeUninit,
    pin::Pin,
    rc::Rc,
    sync::atomic::Ordering::Relaxed,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::{
    conn::Conn,
    frames::{Frames, OVERSIZED, Refusal, Spoken},
    gather,
    intake::Intake,
    offence::Offence,
    pipe::{Pipe, WORTHWHILE},
    scan::{Place, Scanner, Violation},
};

/// What hyper gets in place of a head that is out of order: a NUL is allowed nowhere in a head, so that hyper answers
/// 400 and closes, and no service is called.
const POISON: &[u8] = b"\0\r\n\r\n";

/// Most bytes read and discarded at the end of a connection, and for how long at most. What a client sends meanwhile it
/// could as well send to a pod; time is what it costs us, and how long it may be silent is for `Progress`.
const LINGER_MAX: usize = 256 * 1024 * 1024;
const LINGER_TIME: Duration = Duration::from_secs(30);

/// For how much room of hyper's a pipe is filled. hyper begins with half of that and goes on with more where a client
/// fills it: of one that sends less at a time a pipe would cost more calls than it saves copies.
const TAKEN_IN_MIN: usize = 16 * 1024;

/// A stream that tells its [`Conn`] what it sees.
pub(super) struct Wire<IO> {
    io: IO,
    /// The socket, if what is read and written is what is on it: then bytes can come from it and go to it through a pipe.
    plain: Option<fn(&IO) -> &TcpStream>,
    conn: Rc<Conn>,
    follows: Follows,
    phase: Phase,
    /// What was read but is not delivered yet: what came after the head of a WebSocket handshake, until it is answered,
    /// one read at most; or what was read before there was a wire.
    held: Vec<u8>,
    /// `None` until our side has ended.
    linger: Option<Linger>,
}

/// What may still be read and discarded.
#[derive(Clone, Copy)]
struct Linger {
    left: usize,
    since: Instant,
}

/// What looks at the bytes.
enum Follows {
    Http1(Scanner),
    Http2(Frames),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing is delivered yet, and the first bytes tell the protocol.
    Opening,
    Open,
    /// The client turned out to speak HTTP/2, and hyper's HTTP/1 gets nothing but an end.
    Other,
    /// A head was out of order: the poison is to be delivered next.
    Refused,
    /// A body was: its service learns of it by an error.
    Broken,
    Closed,
}

impl<IO> Wire<IO> {
    /// HTTP/1, as far as is known: without TLS a client may begin with HTTP/2, whose preface no HTTP/1 server would
    /// understand (RFC 9113, 3.3). `plain` is the socket, if nothing is between; `early` was read already.
    pub(super) fn http1(io: IO, plain: Option<fn(&IO) -> &TcpStream>, conn: Rc<Conn>, early: Vec<u8>) -> Self {
        // What was parked between two requests has begun long ago.
        let begins = !conn.progress.is_idle();
        let phase = if begins && !conn.secure && conn.settings.http2 { Phase::Opening } else { Phase::Open };
        let follows = Follows::Http1(Scanner::new(conn.worker.options.head_max));
        Self { io, plain, conn, follows, phase, held: early, linger: None }
    }

    /// HTTP/2; `early` was read already.
    pub(super) fn http2(io: IO, conn: Rc<Conn>, early: Vec<u8>) -> Self {
        let follows = Follows::Http2(Frames::new(conn.worker.now()));
        Self { io, plain: None, conn, follows, phase: Phase::Open, held: early, linger: None }
    }

    /// Whether the client speaks HTTP/2 after all.
    pub(super) fn is_http2(&self) -> bool {
        self.phase == Phase::Other
    }

    /// The stream itself, and what was read of it but not delivered.
    pub(super) fn into_parts(self) -> (IO, Vec<u8>) {
        (self.io, self.held)
    }

    /// Follows what was read into `buf` after `before`.
    fn follow(&mut self, buf: &mut ReadBuf<'_>, before: usize) -> io::Result<()> {
        let scanner = match &mut self.follows {
            Follows::Http1(scanner) => scanner,
            Follows::Http2(_) => return self.follow_frames(buf, before),
        };
        let verdict = scanner.scan(&buf.filled()[before..]);
        let heads = scanner.take_heads();
        if heads > 0 {
            self.conn.heads_read(heads);
        }
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
        if scanner.is_http() {
            self.conn.offend(Offence::Malformed);
        }
        // What is in order, perhaps the head of the body that is not, still goes to hyper.
        buf.set_filled(before + good);
        self.phase = if scanner.place() == Place::Body { Phase::Broken } else { Phase::Refused };
        if good == 0 { self.refuse(buf) } else { Ok(()) }
    }

    fn follow_frames(&mut self, buf: &mut ReadBuf<'_>, before: usize) -> io::Result<()> {
        let Follows::Http2(frames) = &mut self.follows else { return Ok(()) };
        let (now, was_begun) = (self.conn.worker.now(), frames.is_begun());
        if let Err(refusal) = frames.receive(&buf.filled()[before..], now) {
            let stats = &self.conn.worker.shared.stats;
            let (count, offence) = match refusal {
                Refusal::Preface | Refusal::Size { .. } => (&stats.refused_framing, Some(Offence::Malformed)),
                Refusal::Flood => (&stats.flooded, Some(Offence::Flood)),
                Refusal::Resets => (&stats.flooded, None),
            };
            count.fetch_add(1, Relaxed);
            if let Some(offence) = offence {
                self.conn.offend(offence);
            }
            if let Refusal::Size { good } = refusal {
                buf.set_filled(before + good);
                // In the room of the header that it stands for.
                buf.put_slice(OVERSIZED);
                self.phase = Phase::Closed;
                return Ok(());
            }
            buf.set_filled(before);
            self.phase = Phase::Closed;
            return Err(io::Error::new(io::ErrorKind::InvalidData, refusal));
        }
        // The next requests of an HTTP/2 client come on other streams: it is idle when it has none. What it sends else
        // tells nothing of that: it may be no more than an answer to a PING.
        if frames.is_begun() && !was_begun {
            self.conn.progress.read(Place::Between, now);
        }
        Ok(())
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
        if std::mem::replace(&mut self.phase, Phase::Closed) == Phase::Broken {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "request body framing is malformed"));
        }
        let fits = POISON.len().min(buf.remaining());
        buf.put_slice(&POISON[..fits]);
        Ok(())
    }
}

impl<IO: AsyncRead + Unpin> Wire<IO> {
    /// Where what is read next goes in place of `buf`, from where, and how much of the body is to come.
    fn intake(&self, buf: &ReadBuf<'_>) -> Option<(Rc<Intake>, &TcpStream, u64)> {
        let Follows::Http1(scanner) = &self.follows else { return None };
        let (plain, left) = (self.plain?, scanner.left());
        if left < WORTHWHILE || buf.remaining() < TAKEN_IN_MIN {
            return None;
        }
        Some((self.conn.intake()?, plain(&self.io), left))
    }

    /// Reads what comes next, into a pipe if that may be, and then as many bytes that mean nothing into `buf`.
    fn poll_bytes(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Some((intake, tcp, left)) = self.intake(buf) else {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        };
        let most = usize::try_from(left).map_or(buf.remaining(), |left| left.min(buf.remaining()));
        match ready!(self.conn.worker.pipes.poll_fill(cx, tcp, most))? {
            None => {}
            // There are no pipes to be had, and reading is better.
            Some(Pipe::Buffer(bytes)) => {
                self.conn.close_intake();
                buf.put_slice(&bytes);
            }
            Some(pipe @ Pipe::Kernel { .. }) => {
                buf.initialize_unfilled_to(pipe.held());
                buf.advance(pipe.held());
                intake.put(pipe, left);
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Whether the client may still be sending what nobody is going to read.
    fn is_amid_request(&self) -> bool {
        match &self.follows {
            Follows::Http1(scanner) => {
                !matches!(self.phase, Phase::Opening | Phase::Open) || scanner.place() == Place::Body
            }
            Follows::Http2(_) => false,
        }
    }

    /// Reads until the first bytes tell the protocol.
    fn poll_opening(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (before, mut has_ended) = (buf.filled().len(), false);
        loop {
            match Spoken::of(&self.held) {
                Spoken::Unclear if !has_ended => {}
                Spoken::Http2 => {
                    self.phase = Phase::Other;
                    return Poll::Ready(Ok(()));
                }
                Spoken::Http1 | Spoken::Unclear => {
                    self.phase = Phase::Open;
                    return Poll::Ready(if self.held.is_empty() { Ok(()) } else { self.deliver(buf) });
                }
            }
            ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
            let fresh = &buf.filled()[before..];
            has_ended = fresh.is_empty();
            self.held.extend_from_slice(fresh);
            buf.set_filled(before);
        }
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

    /// Delivers what was held: as the requests that it should be, if a handshake was declined.
    fn deliver(&mut self, buf: &mut ReadBuf<'_>) -> io::Result<()> {
        let before = buf.filled().len();
        let rest = self.held.split_off(self.held.len().min(buf.remaining()));
        buf.put_slice(&std::mem::replace(&mut self.held, rest));
        self.follow(buf, before)
    }

    /// Reads on until the client closes its side, too. Closing a socket with unread bytes resets the connection, which
    /// can take our last response from a client that is still sending (RFC 9112, 9.6).
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut bytes = [MaybeUninit::uninit(); 8 * 1024];
        while let Some(Linger { left: left @ 1.., since }) = self.linger {
            let mut buf = ReadBuf::uninit(&mut bytes);
            let ended = ready!(Pin::new(&mut self.io).poll_read(cx, &mut buf)).is_err() || buf.filled().is_empty();
            let now = self.conn.worker.now();
            let ended = ended || now.saturating_duration_since(since) >= LINGER_TIME;
            let left = if ended { 0 } else { left.saturating_sub(buf.filled().len()) };
            self.linger = Some(Linger { left, since });
            self.conn.progress.linger(now);
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Wire<IO> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match this.phase {
            Phase::Opening => return this.poll_opening(cx, buf),
            Phase::Open => {}
            Phase::Refused | Phase::Broken => return Poll::Ready(this.refuse(buf)),
            Phase::Other | Phase::Closed => return Poll::Ready(Ok(())),
        }
        if let Follows::Http1(scanner) = &mut this.follows
            && scanner.is_held()
        {
            if !this.conn.take_declined() {
                return this.poll_held(cx, buf);
            }
            scanner.release();
        }
        if !this.held.is_empty() {
            return Poll::Ready(this.deliver(buf));
        }
        let before = buf.filled().len();
        match this.poll_bytes(cx, buf) {
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
    fn wrote<'b>(
        &mut self,
        result: Poll<io::Result<usize>>,
        bufs: impl IntoIterator<Item = &'b [u8]>,
    ) -> Poll<io::Result<usize>> {
        match result {
            Poll::Pending => self.conn.progress.write_pending(self.conn.worker.now()),
            Poll::Ready(_) => self.conn.progress.wrote(),
        }
        if let (&Poll::Ready(Ok(mut left)), Follows::Http2(frames)) = (&result, &mut self.follows) {
            for buf in bufs {
                let length = left.min(buf.len());
                frames.send(&buf[..length]);
                left -= length;
            }
        }
        result
    }

    /// Writes `bufs`, of which the last stands for what is in the pipe: first the others, then that.
    fn poll_write_piped(&mut self, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let piped = self.conn.piped();
        let result = match (piped.before(bufs), self.plain) {
            (Some([]), Some(tcp)) => piped.poll_drain(cx, tcp(&self.io), &self.conn.worker.pipes),
            (Some(before), Some(_)) => gather::poll_write(&mut self.io, cx, before),
            _ => {
                tracing::error!("what is to be written is not what is in the pipe, which is a defect; closing");
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            }
        };
        self.wrote(result, [])
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Wire<IO> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.conn.filled().is_some() {
            return this.poll_write_piped(cx, bufs);
        }
        let result = match this.plain {
            Some(_) => gather::poll_write(&mut this.io, cx, bufs),
            None => Pin::new(&mut this.io).poll_write_vectored(cx, bufs),
        };
        this.wrote(result, bufs.iter().map(|buf| &**buf))
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
        // It goes on as HTTP/2.
        if this.is_http2() {
            return Poll::Ready(Ok(()));
        }
        if this.linger.is_none() {
            let lingers = this.is_amid_request();
            // The socket is closed next, which says the same, unless there are bytes in it that nobody has read: then the
            // client would hear of no end, only of a reset.
            let is_said_by_closing = this.plain.is_some() && this.conn.progress.is_read() && !lingers;
            if !is_said_by_closing {
                match Pin::new(&mut this.io).poll_shutdown(cx) {
                    // The farewell of TLS waits, too.
                    Poll::Pending => {
                        this.conn.progress.write_pending(this.conn.worker.now());
                        return Poll::Pending;
                    }
                    Poll::Ready(result) => {
                        this.conn.progress.wrote();
                        result?;
                    }
                }
            }
            let now = this.conn.worker.now();
            this.linger = Some(Linger { left: if lingers { LINGER_MAX } else { 0 }, since: now });
            this.conn.progress.linger(now);
        }
        this.poll_linger(cx)
    }
}
