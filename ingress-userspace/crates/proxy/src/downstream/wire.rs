//! The client's byte stream between socket (or TLS) and hyper. It records progress and enforces the verdicts of
//! `h1_framing` and `h2_frames`. Where hyper writes placeholders, it moves the pipe's content to the socket
//! (`response_splice`). Where hyper can read placeholders, it moves the socket's content into a pipe (`upload_splice`).

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

use crate::{
    downstream::{
        conn::Conn,
        h1_framing::{FramingViolation, ScanPosition, Scanner},
        h2_frames::{FrameRefusal, Frames, OVERSIZED, Spoken},
        upload_splice::UploadSplice,
        vectored_write,
    },
    l4::pipe::{Pipe, WORTHWHILE},
    limits::violations::Violation,
};

/// Replacement for a head that is out of order. A NUL is not allowed anywhere in a head, so hyper answers 400 and
/// closes, without calling a service.
const POISON: &[u8] = b"\0\r\n\r\n";

/// Most bytes read and discarded at the end of a connection, and the longest time for that. A client could as well send
/// these bytes to a pod, so the cost is mainly time; `Progress` bounds the silence in between.
const LINGER_MAX: usize = 256 * 1024 * 1024;
const LINGER_TIME: Duration = Duration::from_secs(30);

/// Least room in hyper's buffer for which a pipe is filled. hyper begins with half of that and grows the buffer for a
/// client that fills it. For a client that sends less at a time, a pipe would cost more calls than it saves copies.
const TAKEN_IN_MIN: usize = 16 * 1024;

/// A stream that reports to its [`Conn`].
pub(crate) struct Wire<IO> {
    io: IO,
    /// Returns the socket, if the stream is not encrypted: then bytes can be spliced from and to it.
    plain: Option<fn(&IO) -> &TcpStream>,
    conn: Rc<Conn>,
    follows: Follows,
    phase: Phase,
    /// Bytes read but not delivered yet: at most one read behind the head of a WebSocket handshake that is not answered
    /// yet, or bytes read before the wire was created.
    held: Vec<u8>,
    /// `None` until the write side has ended.
    linger: Option<Linger>,
}

/// Budget for reading and discarding at the end.
#[derive(Clone, Copy)]
struct Linger {
    left: usize,
    since: Instant,
}

/// Parser that inspects the bytes.
enum Follows {
    Http1(Scanner),
    Http2(Frames),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No bytes are delivered yet; the first ones determine the protocol.
    Opening,
    Open,
    /// The client speaks HTTP/2, and hyper's HTTP/1 sees only the end of the stream.
    Other,
    /// A head was out of order: the poison is delivered next.
    Refused,
    /// A body was out of order: its service learns of it by an error.
    Broken,
    Closed,
}

impl<IO> Wire<IO> {
    /// Creates an HTTP/1 stream, for now: without TLS a client may begin with HTTP/2 (RFC 9113, 3.3), and no HTTP/1
    /// server would understand that preface. `plain` returns the socket of an unencrypted stream; `early` was read
    /// already.
    pub(crate) fn http1(io: IO, plain: Option<fn(&IO) -> &TcpStream>, conn: Rc<Conn>, early: Vec<u8>) -> Self {
        // A connection parked between two requests has already begun.
        let begins = !conn.progress.is_idle();
        let phase = if begins && !conn.secure && conn.settings.http2 { Phase::Opening } else { Phase::Open };
        let follows = Follows::Http1(Scanner::new(conn.head_max()));
        Self { io, plain, conn, follows, phase, held: early, linger: None }
    }

    /// Creates an HTTP/2 stream; `early` was read already.
    pub(crate) fn http2(io: IO, conn: Rc<Conn>, early: Vec<u8>) -> Self {
        let follows = Follows::Http2(Frames::new(conn.worker.now()));
        Self { io, plain: None, conn, follows, phase: Phase::Open, held: early, linger: None }
    }

    /// Returns whether the client speaks HTTP/2 after all.
    pub(crate) fn is_http2(&self) -> bool {
        self.phase == Phase::Other
    }

    /// Returns the stream itself, and the bytes read but not delivered.
    pub(crate) fn into_parts(self) -> (IO, Vec<u8>) {
        (self.io, self.held)
    }

    /// Inspects the bytes read into `buf` after `before`.
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
            Err(FramingViolation { good }) => good,
        };
        self.conn.worker.shared.stats.refused_framing.fetch_add(1, Relaxed);
        if scanner.is_http() {
            self.conn.offend(Violation::Malformed);
        }
        // The bytes in order still go to hyper; they may hold the head of the malformed body.
        buf.set_filled(before + good);
        self.phase = if scanner.place() == ScanPosition::Body { Phase::Broken } else { Phase::Refused };
        if good == 0 { self.refuse(buf) } else { Ok(()) }
    }

    fn follow_frames(&mut self, buf: &mut ReadBuf<'_>, before: usize) -> io::Result<()> {
        let Follows::Http2(frames) = &mut self.follows else { return Ok(()) };
        let (now, was_begun) = (self.conn.worker.now(), frames.is_begun());
        if let Err(refusal) = frames.receive(&buf.filled()[before..], now) {
            let stats = &self.conn.worker.shared.stats;
            let (count, violation) = match refusal {
                FrameRefusal::Preface | FrameRefusal::Size { .. } => {
                    (&stats.refused_framing, Some(Violation::Malformed))
                }
                FrameRefusal::Flood => (&stats.flooded, Some(Violation::Flood)),
                FrameRefusal::Resets => (&stats.flooded, None),
            };
            count.fetch_add(1, Relaxed);
            if let Some(violation) = violation {
                self.conn.offend(violation);
            }
            if let FrameRefusal::Size { good } = refusal {
                buf.set_filled(before + good);
                // Fits into the room of the frame header that it replaces.
                buf.put_slice(OVERSIZED);
                self.phase = Phase::Closed;
                return Ok(());
            }
            buf.set_filled(before);
            self.phase = Phase::Closed;
            return Err(io::Error::new(io::ErrorKind::InvalidData, refusal));
        }
        // Further requests of an HTTP/2 client come on other streams, so the connection is idle when it has none. Other
        // input does not count as activity: it may be no more than the answer to a PING.
        if frames.is_begun() && !was_begun {
            self.conn.progress.read(ScanPosition::Between, now);
        }
        Ok(())
    }

    /// Holds back the bytes behind a WebSocket handshake, which ends at `end`.
    fn hold(&mut self, buf: &mut ReadBuf<'_>, end: usize) {
        self.conn.handshake();
        // Goes before the bytes held already, which came later.
        let later = std::mem::replace(&mut self.held, buf.filled()[end..].to_vec());
        self.held.extend_from_slice(&later);
        buf.set_filled(end);
    }

    /// Delivers the replacement for the rest of the stream.
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
    /// Returns the upload pipe for the next read, its source, and the bytes left of the body, if splicing pays off.
    fn upload_splice(&self, buf: &ReadBuf<'_>) -> Option<(Rc<UploadSplice>, &TcpStream, u64)> {
        let Follows::Http1(scanner) = &self.follows else { return None };
        let (plain, left) = (self.plain?, scanner.left());
        if left < WORTHWHILE || buf.remaining() < TAKEN_IN_MIN {
            return None;
        }
        Some((self.conn.upload_splice()?, plain(&self.io), left))
    }

    /// Reads the next bytes, into a pipe if possible, and then an equal number of placeholder bytes into `buf`.
    fn poll_bytes(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Some((upload_splice, tcp, left)) = self.upload_splice(buf) else {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        };
        let most = usize::try_from(left).map_or(buf.remaining(), |left| left.min(buf.remaining()));
        match ready!(self.conn.worker.pipes.poll_fill(cx, tcp, most))? {
            None => {}
            // There is no pipe to be had, so plain reads are better.
            Some(Pipe::Buffer(bytes)) => {
                self.conn.close_upload_splice();
                buf.put_slice(&bytes);
            }
            Some(pipe @ Pipe::Kernel { .. }) => {
                buf.initialize_unfilled_to(pipe.held());
                buf.advance(pipe.held());
                upload_splice.put(pipe, left);
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Returns whether the client may still be sending bytes that will not be read.
    fn is_amid_request(&self) -> bool {
        match &self.follows {
            Follows::Http1(scanner) => {
                !matches!(self.phase, Phase::Opening | Phase::Open) || scanner.place() == ScanPosition::Body
            }
            Follows::Http2(_) => false,
        }
    }

    /// Reads until the first bytes determine the protocol.
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

    /// Reads while a WebSocket handshake is being answered: only to notice that the client is gone, or one piece of
    /// early data.
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

    /// Delivers the held bytes, as the requests that they should be if a handshake was declined.
    fn deliver(&mut self, buf: &mut ReadBuf<'_>) -> io::Result<()> {
        let before = buf.filled().len();
        let rest = self.held.split_off(self.held.len().min(buf.remaining()));
        buf.put_slice(&std::mem::replace(&mut self.held, rest));
        self.follow(buf, before)
    }

    /// Reads on until the client closes its side, too. Closing a socket with unread bytes resets the connection, which
    /// can destroy the last response for a client that is still sending (RFC 9112, 9.6).
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
        let now = self.conn.worker.now();
        match &result {
            Poll::Pending => self.conn.progress.write_pending(now),
            Poll::Ready(Ok(count)) => self.conn.progress.took(*count, now),
            Poll::Ready(Err(_)) => self.conn.progress.wrote(),
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

    /// Writes `bufs`, the last of which is the placeholder for the pipe's content: first the others, then that content.
    fn poll_write_piped(&mut self, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let response_splice = self.conn.response_splice();
        let result = match (response_splice.before(bufs), self.plain) {
            (Some([]), Some(tcp)) => response_splice.poll_drain(cx, tcp(&self.io), &self.conn.worker.pipes),
            (Some(before), Some(_)) => vectored_write::poll_write(&mut self.io, cx, before),
            _ => {
                tracing::error!("the bytes to write do not match those in the pipe, which is a defect; closing");
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
            Some(_) => vectored_write::poll_write(&mut this.io, cx, bufs),
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
                this.conn.progress.took(0, this.conn.worker.now());
                Poll::Ready(result)
            }
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // The connection continues as HTTP/2.
        if this.is_http2() {
            return Poll::Ready(Ok(()));
        }
        if this.linger.is_none() {
            let lingers = this.is_amid_request();
            // The close of the socket follows and says the same, unless unread bytes are in the socket: then the client
            // would see a reset instead of an end.
            let is_end_by_close = this.plain.is_some() && this.conn.progress.is_read() && !lingers;
            if !is_end_by_close {
                match Pin::new(&mut this.io).poll_shutdown(cx) {
                    // The close_notify of TLS can block, too.
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
