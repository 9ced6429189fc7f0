//! Coalesces the writes of an HTTP/2 connection during one poll, so that responses of several streams share one TLS
//! record and one system call.
//!
//! ```text
//! hyper ─▶ Outbox ─▶ Wire ─▶ TLS
//! ```
//!
//! h2 writes and flushes each data frame separately unless it is very short, even when other streams have frames ready.
//! No flush is marked as the last one, so all are deferred until the connection has been polled.

use std::{
    cell::{Cell, RefCell},
    future::Future,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most bytes gathered: the payload of one TLS record (RFC 8446, 5.1).
const ROOM: usize = 16 * 1024;
/// Writes longer than this are passed on directly rather than copied.
const LONG: usize = 4 * 1024;

thread_local! {
    /// Spare buffer: a connection holds one only while it is polled or blocked.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A stream that buffers writes during a poll and sends them after it. Clones share one state.
pub(crate) struct WriteCoalescer<IO>(Rc<RefCell<CoalescerState<IO>>>);

struct CoalescerState<IO> {
    io: IO,
    /// Bytes written but not yet sent, from `sent` on.
    gathered: Vec<u8>,
    sent: usize,
    blocked: BlockedWrite,
}

/// Kind of write that the stream has blocked. The stream wakes the task once it accepts more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockedWrite {
    Nothing,
    /// The write was too long to copy; the caller retries it. Flushing first would report progress that was not made.
    Long,
    /// Gathered bytes, here or in the stream. Until they are sent, no further write is accepted and the writer sees
    /// `Pending`.
    Gathered,
}

/// A hyper connection that sends its gathered output after each poll.
pub(crate) struct Posting<'h, H, IO> {
    hyper: Pin<&'h mut H>,
    coalescer: WriteCoalescer<IO>,
}

// === impl WriteCoalescer ===

impl<IO> WriteCoalescer<IO> {
    pub(crate) fn new(io: IO) -> Self {
        Self(Rc::new(RefCell::new(CoalescerState {
            io,
            gathered: Vec::new(),
            sent: 0,
            blocked: BlockedWrite::Nothing,
        })))
    }

    /// Wraps `hyper`, which writes to this stream.
    pub(crate) fn follow<H>(self, hyper: Pin<&mut H>) -> Posting<'_, H, IO> {
        Posting { hyper, coalescer: self }
    }
}

impl<IO> Clone for WriteCoalescer<IO> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for WriteCoalescer<IO> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.borrow_mut().io).poll_read(cx, buf)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for WriteCoalescer<IO> {
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
        if state.blocked == BlockedWrite::Gathered { state.poll_send(cx) } else { Poll::Ready(Ok(())) }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.borrow_mut();
        if !state.gathered.is_empty() {
            ready!(state.poll_send(cx))?;
        }
        Pin::new(&mut state.io).poll_shutdown(cx)
    }
}

// === impl CoalescerState ===

impl<IO: AsyncWrite + Unpin> CoalescerState<IO> {
    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let length: usize = bufs.iter().map(|buf| buf.len()).sum();
        let is_long = length > LONG;
        let is_full = is_long || self.gathered.len() + length > ROOM;
        if self.blocked == BlockedWrite::Gathered || (is_full && !self.gathered.is_empty()) {
            ready!(self.poll_send(cx))?;
        }
        if is_long {
            let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
            self.blocked = if written.is_pending() { BlockedWrite::Long } else { BlockedWrite::Nothing };
            return written;
        }
        self.blocked = BlockedWrite::Nothing;
        if self.gathered.capacity() == 0 {
            self.gathered = SPARE.take();
            self.gathered.reserve_exact(ROOM);
        }
        bufs.iter().for_each(|buf| self.gathered.extend_from_slice(buf));
        Poll::Ready(Ok(length))
    }

    /// Sends all gathered bytes.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Assume the write blocks. The state stays so after a failure, too, and the next call reports it again.
        self.blocked = BlockedWrite::Gathered;
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
        self.blocked = BlockedWrite::Nothing;
        Poll::Ready(Ok(()))
    }
}

// === impl Posting ===

impl<H, IO> Posting<'_, H, IO> {
    pub(crate) fn hyper(&mut self) -> Pin<&mut H> {
        self.hyper.as_mut()
    }
}

impl<H: Future, IO: AsyncWrite + Unpin> Future for Posting<'_, H, IO> {
    type Output = H::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<H::Output> {
        let Self { hyper, coalescer } = self.get_mut();
        let polled = hyper.as_mut().poll(cx);
        let failed = {
            let mut state = coalescer.0.borrow_mut();
            // A connection that has ended may have left bytes behind. An open one retries a long write itself.
            let is_due =
                if polled.is_ready() { !state.gathered.is_empty() } else { state.blocked != BlockedWrite::Long };
            is_due && matches!(state.poll_send(cx), Poll::Ready(Err(_)))
        };
        // hyper learns of the failure by its next flush.
        if failed && polled.is_pending() { hyper.as_mut().poll(cx) } else { polled }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::pin, task::Waker};

    use super::*;

    /// A stream that accepts a limited number of bytes and records each write.
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

    /// Writes and flushes as h2 does with a frame. Consecutive bytes differ, so that a lost or displaced byte is
    /// noticed.
    fn write(coalescer: &mut WriteCoalescer<Peer>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<()>> {
        assert_eq!(ready!(Pin::new(&mut *coalescer).poll_write(cx, bytes))?, bytes.len());
        Pin::new(coalescer).poll_flush(cx)
    }

    fn bytes(length: usize) -> Vec<u8> {
        (0..=250).cycle().take(length).collect()
    }

    /// Polls a connection once, which writes pieces of the given lengths.
    fn poll_once(peer: &Peer, lengths: &[usize]) {
        let coalescer = WriteCoalescer::new(peer.clone());
        let (whole, mut inner) = (bytes(lengths.iter().sum()), coalescer.clone());
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
        assert!(Pin::new(&mut coalescer.follow(hyper.as_mut())).poll(&mut cx).is_pending());
        assert!(peer.taken.borrow().concat() == whole, "{lengths:?}");
    }

    #[test]
    fn writes_of_one_poll_are_coalesced() {
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
    fn the_last_write_is_flushed() {
        let peer = Peer::with_room(usize::MAX);
        let coalescer = WriteCoalescer::new(peer.clone());
        let mut inner = coalescer.clone();
        let mut hyper = pin!(poll_fn(|cx| write(&mut inner, cx, b"farewell")));
        let polled = Pin::new(&mut coalescer.follow(hyper.as_mut())).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Ready(Ok(()))));
        assert_eq!(*peer.taken.borrow(), [b"farewell"]);
    }

    #[test]
    fn writers_wait_for_a_blocked_stream() {
        for (first, second) in [(100, 100), (100, LONG + 1)] {
            let (peer, whole) = (Peer::with_room(50), bytes(first + second));
            let mut coalescer = WriteCoalescer::new(peer.clone());
            let cx = &mut Context::from_waker(Waker::noop());
            assert!(write(&mut coalescer, cx, &whole[..first]).is_ready());
            assert!(coalescer.0.borrow_mut().poll_send(cx).is_pending());
            assert!(Pin::new(&mut coalescer).poll_flush(cx).is_pending());
            assert!(write(&mut coalescer, cx, &whole[first..]).is_pending());
            assert_eq!(peer.lengths(), [50]);
            peer.room.set(usize::MAX);
            assert!(write(&mut coalescer, cx, &whole[first..]).is_ready());
            assert!(matches!(Pin::new(&mut coalescer).poll_shutdown(cx), Poll::Ready(Ok(()))));
            assert!(peer.taken.borrow().concat() == whole, "{second}");
        }
    }

    #[test]
    fn a_blocked_long_write_is_not_flushed() {
        let peer = Peer::with_room(0);
        let coalescer = WriteCoalescer::new(peer.clone());
        let (long, mut inner) = (bytes(LONG + 1), coalescer.clone());
        let mut hyper = pin!(poll_fn(|cx| write(&mut inner, cx, &long)));
        let cx = &mut Context::from_waker(Waker::noop());
        let mut posting = coalescer.follow(hyper.as_mut());
        for _ in 0..2 {
            assert!(Pin::new(&mut posting).poll(cx).is_pending());
            assert_eq!(posting.coalescer.0.borrow().blocked, BlockedWrite::Long);
        }
        assert_eq!(peer.flushed.get(), 0, "so that it counts as one that the client does not take");
        peer.room.set(usize::MAX);
        assert!(matches!(Pin::new(&mut posting).poll(cx), Poll::Ready(Ok(()))));
        assert_eq!(peer.lengths(), [LONG + 1]);
    }

    #[test]
    fn remaining_bytes_are_sent_without_another_flush() {
        let (peer, whole) = (Peer::default(), bytes(100));
        let coalescer = WriteCoalescer::new(peer.clone());
        let (mut inner, mut written) = (coalescer.clone(), false);
        let mut hyper = pin!(poll_fn(|cx| {
            if !std::mem::replace(&mut written, true) {
                assert!(write(&mut inner, cx, &whole).is_ready());
            }
            Poll::<()>::Pending
        }));
        let cx = &mut Context::from_waker(Waker::noop());
        let mut posting = coalescer.follow(hyper.as_mut());
        for room in [50, usize::MAX] {
            peer.room.set(room);
            assert!(Pin::new(&mut posting).poll(cx).is_pending());
        }
        assert!(peer.taken.borrow().concat() == whole);
    }

    #[test]
    fn hyper_is_notified_of_a_broken_stream() {
        let peer = Peer::default();
        peer.gone.set(true);
        let coalescer = WriteCoalescer::new(peer);
        let (mut inner, mut written) = (coalescer.clone(), false);
        let mut hyper = pin!(poll_fn(|cx| {
            if !std::mem::replace(&mut written, true) {
                assert!(write(&mut inner, cx, b"frame").is_ready());
            }
            match ready!(Pin::new(&mut inner).poll_flush(cx)) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(error.kind()),
            }
        }));
        let polled = Pin::new(&mut coalescer.follow(hyper.as_mut())).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(polled, Poll::Ready(io::ErrorKind::BrokenPipe));
    }
}
