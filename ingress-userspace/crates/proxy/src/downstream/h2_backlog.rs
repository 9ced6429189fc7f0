//! Response bytes that wait within HTTP/2 for their client, counted and bounded by connection and by stream. It sends
//! nothing and closes nothing.
//!
//! ```text
//! pod ─▶ Body ── Piece ──▶ h2, stream by stream ──▶ socket
//!         ▲                 │ sent or dropped
//!         └──── Backlog ◀───┘
//! ```
//!
//! A client may grant windows of 2 GiB and never read. h2 bounds the queue of each stream, but not their sum, so each
//! [`Piece`] counts here until its bytes are written to the socket. While a connection is at [`CONNECTION_MAX`],
//! streams with queued bytes read no more from their pods. A stream without queued bytes may always read, so streams
//! that a client does not read cannot block others.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    task::{Context, Poll, Waker},
};

use bytes::{Buf, Bytes};
use tokio::task::AbortHandle;

use crate::downstream::h2_slow_start::SlowStartWindow;

/// Bytes that one stream queues before it waits: the size of one large read from a pod.
pub(crate) const STREAM_MAX: usize = 128 * 1024;
/// Bytes that all streams of a connection queue before those with queued bytes wait.
pub(crate) const CONNECTION_MAX: usize = 256 * 1024;
/// Waiting streams continue when the queue has shrunk to this. Half of the maximum, so that not every frame sent wakes
/// them.
const RESUMED: usize = CONNECTION_MAX / 2;

/// The bytes queued for the client of one connection.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    held: Cell<usize>,
    /// The total number of bytes released, and its value at the last check, if bytes were queued then.
    released: Cell<u64>,
    seen: Cell<Option<u64>>,
    streams: RefCell<Streams>,
    /// The window of concurrent requests.
    pub(crate) start: SlowStartWindow,
}

/// The places of streams, which are reused to avoid allocations.
#[derive(Debug, Default)]
struct Streams {
    places: Vec<StreamQueue>,
    free: Vec<usize>,
}

/// The queue of one stream. The place is free once its body and its last piece are gone.
#[derive(Debug, Default)]
struct StreamQueue {
    held: usize,
    open: bool,
    waker: Option<Waker>,
    /// The task of the stream, until its body is dropped.
    stream: Option<AbortHandle>,
    /// Consecutive checks with queued bytes of which none were taken since the previous check.
    unchanged: u8,
}

/// The effects of bytes that the client has taken.
#[derive(Default)]
struct Released {
    /// The waker to call if the stream has no queued bytes left.
    waker: Option<Waker>,
    /// Whether they were the last bytes of a response.
    is_last: bool,
}

/// The place of a body in progress.
#[derive(Debug)]
pub(crate) struct StreamBacklog {
    backlog: Rc<Backlog>,
    at: usize,
}

/// Response bytes on their way to the client.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    bytes: Bytes,
    /// The place where the bytes count, over HTTP/2.
    counted: Option<(Rc<Backlog>, usize)>,
}

// === impl Backlog ===

impl Backlog {
    /// Returns the number of queued bytes.
    pub(crate) fn held(&self) -> usize {
        self.held.get()
    }

    /// Returns whether the queue is so long that pods should be read in small pieces.
    pub(crate) fn is_long(&self) -> bool {
        self.held.get() >= RESUMED
    }

    /// Returns whether the connection has queued as many bytes as it may.
    pub(crate) fn is_full(&self) -> bool {
        self.held.get() >= CONNECTION_MAX
    }

    /// Returns whether bytes are queued, were so at the previous call, and the client has taken none since.
    pub(crate) fn is_stuck(&self) -> bool {
        let released = (self.held.get() > 0).then(|| self.released.get());
        self.seen.replace(released) == released && released.is_some()
    }

    /// Checks each stream, and calls `stuck` for those with queued bytes of which the client has taken none in `looks`
    /// consecutive intervals. `stuck` gets the bytes and the task; streams with a response that h2 holds completely are
    /// skipped. Returns whether bytes of any other stream are queued.
    pub(crate) fn look(&self, looks: u8, mut stuck: impl FnMut(usize, AbortHandle)) -> bool {
        let mut is_any_open = false;
        for waiting in &mut self.streams.borrow_mut().places {
            if waiting.held == 0 {
                waiting.unchanged = 0;
                continue;
            }
            // The first check only starts the count.
            waiting.unchanged = waiting.unchanged.saturating_add(1);
            let Some(stream) = &waiting.stream else { continue };
            is_any_open = true;
            if waiting.unchanged > looks {
                stuck(waiting.held, stream.clone());
            }
        }
        is_any_open
    }

    fn add(&self, at: usize, count: usize) {
        self.held.set(self.held.get() + count);
        if let Some(waiting) = self.streams.borrow_mut().places.get_mut(at) {
            waiting.held += count;
        }
    }

    fn release(&self, at: usize, count: usize) {
        if count == 0 {
            return;
        }
        let before = self.held.get();
        let held = before.saturating_sub(count);
        self.held.set(held);
        self.released.set(self.released.get().wrapping_add(count as u64));
        // Waking may call back into this backlog at once, so it happens after the borrow has ended.
        let Released { waker, is_last } = self.streams.borrow_mut().release(at, count);
        if let Some(waker) = waker {
            waker.wake();
        }
        if is_last {
            self.start.taken();
        }
        if before > RESUMED && held <= RESUMED {
            self.wake_all();
        }
    }

    fn wake_all(&self) {
        let mut from = 0;
        while let Some((at, waker)) = self.take_waker(from) {
            waker.wake();
            from = at + 1;
        }
    }

    /// Takes the waker of the first place from `from` on that has one.
    fn take_waker(&self, from: usize) -> Option<(usize, Waker)> {
        let mut streams = self.streams.borrow_mut();
        let mut places = streams.places.iter_mut().enumerate().skip(from);
        places.find_map(|(at, waiting)| Some((at, waiting.waker.take()?)))
    }
}

// === impl Streams ===

impl Streams {
    fn release(&mut self, at: usize, count: usize) -> Released {
        let Some(waiting) = self.places.get_mut(at) else { return Released::default() };
        waiting.held = waiting.held.saturating_sub(count);
        waiting.unchanged = 0;
        if waiting.held > 0 {
            return Released::default();
        }
        let (waker, is_last) = (waiting.waker.take(), !waiting.open);
        if is_last {
            self.free.push(at);
        }
        Released { waker, is_last }
    }
}

// === impl StreamBacklog ===

impl StreamBacklog {
    /// Creates the place of a response that the task `stream` sends.
    pub(crate) fn new(backlog: &Rc<Backlog>, stream: Option<AbortHandle>) -> Self {
        let mut streams = backlog.streams.borrow_mut();
        let Streams { places, free } = &mut *streams;
        let at = free.pop().unwrap_or_else(|| {
            places.push(StreamQueue::default());
            places.len() - 1
        });
        if let Some(waiting) = places.get_mut(at) {
            *waiting = StreamQueue { open: true, stream, ..StreamQueue::default() };
        }
        drop(streams);
        Self { backlog: Rc::clone(backlog), at }
    }

    /// Ready when the stream may read more from its pod.
    pub(crate) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.backlog.is_full() {
            return Poll::Ready(());
        }
        let mut streams = self.backlog.streams.borrow_mut();
        let Some(waiting) = streams.places.get_mut(self.at).filter(|waiting| waiting.held > 0) else {
            return Poll::Ready(());
        };
        let former = waiting.waker.replace(cx.waker().clone());
        // Dropping the last waker of a task drops the task, and its pieces call back into this backlog.
        drop(streams);
        drop(former);
        Poll::Pending
    }

    /// Counts `bytes` until they are sent or dropped.
    pub(crate) fn piece(&self, bytes: Bytes) -> Piece {
        self.backlog.add(self.at, bytes.len());
        Piece { bytes, counted: Some((Rc::clone(&self.backlog), self.at)) }
    }
}

impl Drop for StreamBacklog {
    fn drop(&mut self) {
        let mut streams = self.backlog.streams.borrow_mut();
        let Streams { places, free } = &mut *streams;
        let Some(waiting) = places.get_mut(self.at) else { return };
        waiting.open = false;
        if waiting.held == 0 {
            free.push(self.at);
        } else {
            self.backlog.start.leave();
        }
        let (waker, stream) = (waiting.waker.take(), waiting.stream.take());
        // Dropped after the borrow has ended, because their destructors are unknown code.
        drop(streams);
        drop((waker, stream));
    }
}

// === impl Piece ===

impl Piece {
    /// Splits off the bytes from `at` on.
    pub(crate) fn split_off(&mut self, at: usize) -> Self {
        Self { bytes: self.bytes.split_off(at), counted: self.counted.clone() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// The bytes count nowhere from now on.
impl From<Piece> for Bytes {
    fn from(mut piece: Piece) -> Self {
        let bytes = std::mem::take(&mut piece.bytes);
        if let Some((backlog, at)) = &piece.counted {
            backlog.release(*at, bytes.len());
        }
        bytes
    }
}

/// Pieces that count nowhere.
impl From<Bytes> for Piece {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, counted: None }
    }
}

impl Buf for Piece {
    #[inline]
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    #[inline]
    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if let Some((backlog, at)) = &self.counted {
            backlog.release(*at, count);
        }
    }
}

impl Drop for Piece {
    #[inline]
    fn drop(&mut self) {
        if let Some((backlog, at)) = &self.counted {
            backlog.release(*at, self.bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn bytes(length: usize) -> Bytes {
        Bytes::from(vec![0; length])
    }

    #[test]
    fn a_full_backlog_blocks_only_streams_with_queued_bytes() {
        let (backlog, woken) = (Rc::new(Backlog::default()), Arc::new(Woken::default()));
        let waker = Waker::from(Arc::clone(&woken));
        let cx = &mut Context::from_waker(&waker);
        let (first, second, third) = (
            StreamBacklog::new(&backlog, None),
            StreamBacklog::new(&backlog, None),
            StreamBacklog::new(&backlog, None),
        );
        let mut large = first.piece(bytes(CONNECTION_MAX - 1));
        assert!(first.poll_room(cx).is_ready());
        let small = second.piece(bytes(1));
        assert!(first.poll_room(cx).is_pending() && second.poll_room(cx).is_pending());
        assert!(third.poll_room(cx).is_ready(), "one that has nothing queued");
        // A stream continues once its last byte is sent, even if the connection is above its limit.
        let more = third.piece(bytes(10));
        drop(small);
        assert_eq!(woken.0.load(Relaxed), 1);
        assert!(second.poll_room(cx).is_ready());
        large.advance(CONNECTION_MAX / 2 - 2);
        assert_eq!((woken.0.load(Relaxed), first.poll_room(cx).is_ready()), (1, true));
        large.advance(20);
        assert_eq!((woken.0.load(Relaxed), backlog.is_long()), (2, false));
        drop((large, more));
        assert_eq!(backlog.held(), 0);
    }

    thread_local! {
        static DROPPED_BY_WAKER: RefCell<Option<Piece>> = const { RefCell::new(None) };
    }

    struct Dropping;

    impl std::task::Wake for Dropping {
        fn wake(self: Arc<Self>) {
            drop(DROPPED_BY_WAKER.take());
        }
    }

    #[test]
    fn a_waker_may_drop_a_piece_of_the_same_connection() {
        let waker = Waker::from(Arc::new(Dropping));
        for last_of_stream in [true, false] {
            let backlog = Rc::new(Backlog::default());
            let (first, second, third) = (
                StreamBacklog::new(&backlog, None),
                StreamBacklog::new(&backlog, None),
                StreamBacklog::new(&backlog, None),
            );
            let (large, small) = (first.piece(bytes(CONNECTION_MAX)), second.piece(bytes(1)));
            assert!(second.poll_room(&mut Context::from_waker(&waker)).is_pending());
            DROPPED_BY_WAKER.set(Some(third.piece(bytes(1))));
            if last_of_stream {
                drop((small, large));
            } else {
                drop((large, small));
            }
            assert!(DROPPED_BY_WAKER.take().is_none(), "the waker was called");
            assert_eq!(backlog.held(), 0);
        }
    }

    #[test]
    fn bytes_count_until_sent_or_dropped_and_entries_are_reused() {
        let backlog = Rc::new(Backlog::default());
        for _ in 0..3 {
            let place = StreamBacklog::new(&backlog, None);
            let mut piece = place.piece(bytes(100));
            let rest = piece.split_off(60);
            assert_eq!((piece.remaining(), rest.remaining(), backlog.held()), (60, 40, 100));
            piece.advance(10);
            drop(place);
            assert_eq!(backlog.held(), 90);
            drop(rest);
            let other = StreamBacklog::new(&backlog, None);
            drop((piece, other));
            assert_eq!(backlog.held(), 0);
        }
        assert_eq!(backlog.streams.borrow().places.len(), 2);
        assert_eq!(backlog.streams.borrow().free.len(), 2);
    }

    #[tokio::test]
    async fn a_stream_is_stuck_if_its_bytes_stay_between_checks() {
        let backlog = Rc::new(Backlog::default());
        let tasks: Vec<_> = (0..3).map(|_| tokio::spawn(std::future::pending::<()>())).collect();
        let places: Vec<_> = tasks.iter().map(|task| StreamBacklog::new(&backlog, Some(task.abort_handle()))).collect();
        let looked = || {
            let mut found = Vec::new();
            let is_any_open = backlog.look(2, |held, stream| found.push((held, stream.id())));
            assert_eq!(is_any_open, backlog.held() > 0);
            found
        };
        let id = |number: usize| tasks[number].id();
        let (large, mut taken, small) =
            (places[0].piece(bytes(500)), places[1].piece(bytes(400)), places[2].piece(bytes(9)));
        assert_eq!((looked(), looked()), (vec![], vec![]));
        taken.advance(1);
        assert_eq!(looked(), vec![(500, id(0)), (9, id(2))]);
        assert_eq!(looked(), vec![(500, id(0)), (9, id(2))]);
        assert_eq!(looked(), vec![(500, id(0)), (399, id(1)), (9, id(2))]);
        let mut places = places.into_iter();
        drop(places.next());
        assert_eq!(looked(), vec![(399, id(1)), (9, id(2))], "the first response is with h2 as a whole");
        drop((large, taken, small));
        assert_eq!(looked(), vec![]);
    }

    #[test]
    fn a_connection_is_stuck_without_progress_since_the_last_check() {
        let backlog = Rc::new(Backlog::default());
        let place = StreamBacklog::new(&backlog, None);
        assert!(!backlog.is_stuck(), "nothing waits");
        let mut piece = place.piece(bytes(100));
        assert!(!backlog.is_stuck(), "it is new");
        assert!(backlog.is_stuck());
        piece.advance(1);
        assert!(!backlog.is_stuck());
        assert!(backlog.is_stuck());
        drop(piece);
        assert!(!backlog.is_stuck());
    }
}
