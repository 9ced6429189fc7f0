//! Gathers what an HTTP/2 connection writes while it is polled once, so that responses of several streams go out as one
//! record of TLS and by one system call.
//!
//! ```text
//! hyper ─▶ Outbox ─▶ Wire ─▶ TLS
//! ```
//!
//! h2 writes and flushes each frame of data by itself, if it is not very short, whatever other streams have ready. No
//! flush says that it is the last, so none is obeyed until the connection has been polled.

use std::{
    cell::{Cell, RefCell},
    future::Future,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most bytes gathered: the payload of one record of TLS (RFC 8446, 5.1).
const ROOM: usize = 16 * 1024;
/// What is longer is not worth a copy.
const LONG: usize = 4 * 1024;

thread_local! {
    /// Memory for what is gathered: a connection holds some only while it is polled, or blocked.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A stream that is written to in a poll, and sent to after it. Clones are the same one.
pub(super) struct Outbox<IO>(Rc<RefCell<State<IO>>>);

struct State<IO> {
    io: IO,
    /// What was written but is not sent, from `sent` on.
    gathered: Vec<u8>,
    sent: usize,
    blocked: Blocked,
}

/// What the stream did not take of what it was given; it wakes the task when it takes more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocked {
    Nothing,
    /// Who writes still has it, and tries again. A flush before that would look like progress.
    Long,
    /// It is here or in the stream: until it is out, nothing is gathered, and who writes learns of it.
    Gathered,
}

/// A connection that sends, whenever it was polled, what it wrote into its outbox.
pub(super) struct Posting<'h, H, IO> {
    hyper: Pin<&'h mut H>,
    outbox: Outbox<IO>,
}

// === impl Outbox ===

impl<IO> Outbox<IO> {
    pub(super) fn new(io: IO) -> Self {
        Self(Rc::new(RefCell::new(State { io, gathered: Vec::new(), sent: 0, blocked: Blocked::Nothing })))
    }

    /// `hyper` with this as its stream.
    pub(super) fn follow<H>(self, hyper: Pin<&mut H>) -> Posting<'_, H, IO> {
        Posting { hyper, outbox: self }
    }
}

impl<IO> Clone for Outbox<IO> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Outbox<IO> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.borrow_mut().io).poll_read(cx, buf)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Outbox<IO> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_write(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.borrow_mut();
        if state.blocked == Blocked::Gathered { state.poll_send(cx) } else { Poll::Ready(Ok(())) }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.borrow_mut();
        if !state.gathered.is_empty() {
            ready!(state.poll_send(cx))?;
        }
        Pin::new(&mut state.io).poll_shutdown(cx)
    }
}

// === impl State ===

impl<IO: AsyncWrite + Unpin> State<IO> {
    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let length: usize = bufs.iter().map(|buf| buf.len()).sum();
        let is_long = length > LONG;
        let is_full = is_long || self.gathered.len() + length > ROOM;
        if self.blocked == Blocked::Gathered || (is_full && !self.gathered.is_empty()) {
            ready!(self.poll_send(cx))?;
        }
        if is_long {
            let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
            self.blocked = if written.is_pending() { Blocked::Long } else { Blocked::Nothing };
            return written;
        }
        self.blocked = Blocked::Nothing;
        if self.gathered.capacity() == 0 {
            self.gathered = SPARE.take();
            self.gathered.reserve_exact(ROOM);
        }
        bufs.iter().for_each(|buf| self.gathered.extend_from_slice(buf));
        Poll::Ready(Ok(length))
    }

    /// Sends what was gathered, all of it.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Unless it turns out otherwise. After a failure, too, so that the next call meets it again.
        self.blocked = Blocked::Gathered;
        while self.sent < self.gathered.len() {
            match ready!(Pin::new(&mut self.io).poll_write(cx, &self.gathered[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.sent += count,
            }
        }
        self.sent = 0;
        if self.gathered.capacity() > 0 {
            let mut spare = std::mem::take(&mut self.gathered);
            spare.clear();
            SPARE.set(spare);
        }
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        self.blocked = Blocked::Nothing;
        Poll::Ready(Ok(()))
    }
}

// === impl Posting ===

impl<H, IO> Posting<'_, H, IO> {
    pub(super) fn hyper(&mut self) -> Pin<&mut H> {
        self.hyper.as_mut()
    }
}

impl<H: Future, IO: AsyncWrite + Unpin> Future for Posting<'_, H, IO> {
    type Output = H::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<H::Output> {
        let Self { hyper, outbox } = self.get_mut();
        let polled = hyper.as_mut().poll(cx);
        let failed = {
            let mut state = outbox.0.borrow_mut();
            // One that has ended may have left something. One that is open tries a long write again by itself.
            let is_due = if polled.is_ready() { !state.gathered.is_empty() } else { state.blocked != Blocked::Long };
            is_due && matches!(state.poll_send(cx), Poll::Ready(Err(_)))
        };
        // Its next flush tells hyper.
        if failed && polled.is_pending() { hyper.as_mut().poll(cx) } else { polled }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::pin, task::Waker};

    use super::*;

    /// Takes so many bytes, and keeps them write by write.
    #[derive(Clone, Default)]
    struct Peer {
        room: Rc<Cell<usize>>,
        gone: Rc<Cell<bool>>,
        taken: Rc<RefCell<Vec<Vec<u8>>>>,
        flushed: Rc<Cell<usize>>,
    }

    impl Peer {
        fn with_room(room: usize) -> Self {
            let peer = Self::default();
            peer.room.set(room);
            peer
        }

        fn lengths(&self) -> Vec<usize> {
            self.taken.borrow().iter().map(Vec::len).collect()
        }
    }

    impl AsyncWrite for Peer {
        fn poll_write(self: Pin<&mut Self>, _cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            if self.gone.get() {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let length = buf.len().min(self.room.get());
            if length == 0 {
                return Poll::Pending;
            }
            self.room.set(self.room.get() - length);
            self.taken.borrow_mut().push(buf[..length].to_vec());
            Poll::Ready(Ok(length))
        }

        fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.flushed.set(self.flushed.get() + 1);
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// As h2 does with a frame. Bytes differ from one to the next, so that none is lost or moved unseen.
    fn write(outbox: &mut Outbox<Peer>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<()>> {
        assert_eq!(ready!(Pin::new(&mut *outbox).poll_write(cx, bytes))?, bytes.len());
        Pin::new(outbox).poll_flush(cx)
    }

    fn bytes(length: usize) -> Vec<u8> {
        (0..=250).cycle().take(length).collect()
    }

    /// Polls, once, a connection that has pieces so long to say.
    fn poll_once(peer: &Peer, lengths: &[usize]) {
        let outbox = Outbox::new(peer.clone());
        let (whole, mut inner) = (bytes(lengths.iter().sum()), outbox.clone());
        let mut hyper = pin!(poll_fn(|cx| {
            let mut rest = &whole[..];
            for length in lengths {
                let (piece, others) = rest.split_at(*length);
                assert!(matches!(write(&mut inner, cx, piece), Poll::Ready(Ok(()))));
                rest = others;
            }
            Poll::<()>::Pending
        }));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut outbox.follow(hyper.as_mut())).poll(&mut cx).is_pending());
        assert!(peer.taken.borrow().concat() == whole, "{lengths:?}");
    }

    #[test]
    fn what_is_written_in_one_poll_goes_out_together() {
        for (written, expect) in [
            (&[100, 200, 300][..], &[600][..]),
            (&[LONG; 5], &[ROOM, LONG]),
            (&[100, LONG + 1, 100, 100], &[100, LONG + 1, 200]),
            (&[LONG + 1, ROOM], &[LONG + 1, ROOM]),
            (&[], &[]),
        ] {
            let peer = Peer::with_room(usize::MAX);
            poll_once(&peer, written);
            assert_eq!(peer.lengths(), expect, "{written:?}");
        }
    }

    #[test]
    fn what_is_written_last_goes_out() {
        let peer = Peer::with_room(usize::MAX);
        let outbox = Outbox::new(peer.clone());
        let mut inner = outbox.clone();
        let mut hyper = pin!(poll_fn(|cx| write(&mut inner, cx, b"farewell")));
        let polled = Pin::new(&mut outbox.follow(hyper.as_mut())).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Ready(Ok(()))));
        assert_eq!(*peer.taken.borrow(), [b"farewell"]);
    }

    #[test]
    fn who_writes_waits_for_a_stream_that_takes_nothing() {
        for (first, second) in [(100, 100), (100, LONG + 1)] {
            let (peer, whole) = (Peer::with_room(50), bytes(first + second));
            let mut outbox = Outbox::new(peer.clone());
            let cx = &mut Context::from_waker(Waker::noop());
            assert!(write(&mut outbox, cx, &whole[..first]).is_ready());
            assert!(outbox.0.borrow_mut().poll_send(cx).is_pending());
            assert!(Pin::new(&mut outbox).poll_flush(cx).is_pending());
            assert!(write(&mut outbox, cx, &whole[first..]).is_pending());
            assert_eq!(peer.lengths(), [50]);
            peer.room.set(usize::MAX);
            assert!(write(&mut outbox, cx, &whole[first..]).is_ready());
            assert!(matches!(Pin::new(&mut outbox).poll_shutdown(cx), Poll::Ready(Ok(()))));
            assert!(peer.taken.borrow().concat() == whole, "{second}");
        }
    }

    #[test]
    fn a_long_write_that_is_not_taken_is_not_flushed() {
        let peer = Peer::with_room(0);
        let outbox = Outbox::new(peer.clone());
        let (long, mut inner) = (bytes(LONG + 1), outbox.clone());
        let mut hyper = pin!(poll_fn(|cx| write(&mut inner, cx, &long)));
        let cx = &mut Context::from_waker(Waker::noop());
        let mut posting = outbox.follow(hyper.as_mut());
        for _ in 0..2 {
            assert!(Pin::new(&mut posting).poll(cx).is_pending());
            assert_eq!(posting.outbox.0.borrow().blocked, Blocked::Long);
        }
        assert_eq!(peer.flushed.get(), 0, "so that it counts as one that the client does not take");
        peer.room.set(usize::MAX);
        assert!(matches!(Pin::new(&mut posting).poll(cx), Poll::Ready(Ok(()))));
        assert_eq!(peer.lengths(), [LONG + 1]);
    }

    #[test]
    fn what_is_left_goes_out_though_hyper_flushes_no_more() {
        let (peer, whole) = (Peer::default(), bytes(100));
        let outbox = Outbox::new(peer.clone());
        let (mut inner, mut written) = (outbox.clone(), false);
        let mut hyper = pin!(poll_fn(|cx| {
            if !std::mem::replace(&mut written, true) {
                assert!(write(&mut inner, cx, &whole).is_ready());
            }
            Poll::<()>::Pending
        }));
        let cx = &mut Context::from_waker(Waker::noop());
        let mut posting = outbox.follow(hyper.as_mut());
        for room in [50, usize::MAX] {
            peer.room.set(room);
            assert!(Pin::new(&mut posting).poll(cx).is_pending());
        }
        assert!(peer.taken.borrow().concat() == whole);
    }

    #[test]
    fn hyper_learns_of_a_stream_that_is_gone() {
        let peer = Peer::default();
        peer.gone.set(true);
        let outbox = Outbox::new(peer);
        let (mut inner, mut written) = (outbox.clone(), false);
        let mut hyper = pin!(poll_fn(|cx| {
            if !std::mem::replace(&mut written, true) {
                assert!(write(&mut inner, cx, b"frame").is_ready());
            }
            match ready!(Pin::new(&mut inner).poll_flush(cx)) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(error.kind()),
            }
        }));
        let polled = Pin::new(&mut outbox.follow(hyper.as_mut())).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(polled, Poll::Ready(io::ErrorKind::BrokenPipe));
    }
}
