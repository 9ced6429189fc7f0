//! Bytes of responses that wait within HTTP/2 for their client, of one connection and of each of its streams, and their
//! bound. It sends nothing and ends nothing.
//!
//! ```text
//! pod ─▶ Body ── Piece ──▶ h2, stream by stream ──▶ socket
//!          ▲                 │ sent or dropped
//!          └──── Backlog ◀───┘
//! ```
//!
//! A client may grant windows of 2 GiB and read nothing. h2 bounds what one stream queues, but not what all of them do,
//! so each [`Piece`] counts here until its bytes are with the socket. A stream that has bytes queued takes no more of its
//! pod while the connection has [`CONNECTION_MAX`]; one that has none always takes some, so that streams which a client
//! leaves alone stop no other.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    task::{Context, Poll, Waker},
};

use bytes::{Buf, Bytes};

/// Bytes that one stream queues before it waits: as many as one large read of a pod brings.
pub(super) const STREAM_MAX: usize = 128 * 1024;
/// Bytes that the streams of a connection queue together before those that have some wait.
const CONNECTION_MAX: usize = 256 * 1024;
/// With no more than this, all that wait go on. Half, so that not each frame that is sent wakes them.
const RESUMED: usize = CONNECTION_MAX / 2;

/// What waits for the client of one connection.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    held: Cell<usize>,
    /// All bytes that it was ever rid of, and how many those were when it was last looked at and not empty.
    released: Cell<u64>,
    seen: Cell<Option<u64>>,
    streams: RefCell<Streams>,
}

/// Places are used again, so that in the long run there is no allocation.
#[derive(Debug, Default)]
struct Streams {
    places: Vec<Waiting>,
    free: Vec<usize>,
}

/// What waits of one stream. The place is free when its body is gone and its last piece, too.
#[derive(Debug, Default)]
struct Waiting {
    held: usize,
    open: bool,
    waker: Option<Waker>,
}

/// The place of a body that is on its way.
#[derive(Debug)]
pub(super) struct Place {
    backlog: Rc<Backlog>,
    at: usize,
}

/// Bytes of a response on their way to the client.
#[derive(Debug, Default)]
pub(super) struct Piece {
    bytes: Bytes,
    /// Where they count, over HTTP/2.
    counted: Option<(Rc<Backlog>, usize)>,
}

// === impl Backlog ===

impl Backlog {
    /// Bytes that wait for the client.
    pub(super) fn held(&self) -> usize {
        self.held.get()
    }

    /// Whether so much waits that pods are to be read in small pieces.
    pub(super) fn is_long(&self) -> bool {
        self.held.get() >= RESUMED
    }

    /// Whether bytes wait, as they did at the last call, and the client has taken none since.
    pub(super) fn is_stuck(&self) -> bool {
        let released = (self.held.get() > 0).then(|| self.released.get());
        self.seen.replace(released) == released && released.is_some()
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
        let mut streams = self.streams.borrow_mut();
        let Streams { places, free } = &mut *streams;
        if let Some(waiting) = places.get_mut(at) {
            waiting.held = waiting.held.saturating_sub(count);
            if waiting.held == 0 {
                waiting.wake();
                if !waiting.open {
                    free.push(at);
                }
            }
        }
        if before > RESUMED && held <= RESUMED {
            places.iter_mut().for_each(Waiting::wake);
        }
    }
}

impl Waiting {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

// === impl Place ===

impl Place {
    pub(super) fn new(backlog: &Rc<Backlog>) -> Self {
        let mut streams = backlog.streams.borrow_mut();
        let Streams { places, free } = &mut *streams;
        let at = free.pop().unwrap_or_else(|| {
            places.push(Waiting::default());
            places.len() - 1
        });
        if let Some(waiting) = places.get_mut(at) {
            waiting.open = true;
        }
        drop(streams);
        Self { backlog: Rc::clone(backlog), at }
    }

    /// Ready when the stream may take more of its pod.
    pub(super) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.backlog.held.get() < CONNECTION_MAX {
            return Poll::Ready(());
        }
        let mut streams = self.backlog.streams.borrow_mut();
        match streams.places.get_mut(self.at) {
            Some(waiting) if waiting.held > 0 => {
                waiting.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// Counts `bytes` until they are sent or dropped.
    pub(super) fn piece(&self, bytes: Bytes) -> Piece {
        self.backlog.add(self.at, bytes.len());
        Piece { bytes, counted: Some((Rc::clone(&self.backlog), self.at)) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut streams = self.backlog.streams.borrow_mut();
        let Streams { places, free } = &mut *streams;
        let Some(waiting) = places.get_mut(self.at) else { return };
        waiting.open = false;
        if waiting.held == 0 {
            free.push(self.at);
        }
        let waker = waiting.waker.take();
        // Outside the borrow: what it does at its end is not ours to know.
        drop(streams);
        drop(waker);
    }
}

// === impl Piece ===

impl Piece {
    /// The bytes from `at` on, which are no longer in this one.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        Self { bytes: self.bytes.split_off(at), counted: self.counted.clone() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// Those that count nowhere.
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
    fn a_full_connection_stops_streams_that_have_bytes_queued_and_no_other() {
        let (backlog, woken) = (Rc::new(Backlog::default()), Arc::new(Woken::default()));
        let waker = Waker::from(Arc::clone(&woken));
        let cx = &mut Context::from_waker(&waker);
        let (first, second, third) = (Place::new(&backlog), Place::new(&backlog), Place::new(&backlog));
        let mut large = first.piece(bytes(CONNECTION_MAX - 1));
        assert!(first.poll_room(cx).is_ready());
        let small = second.piece(bytes(1));
        assert!(first.poll_room(cx).is_pending() && second.poll_room(cx).is_pending());
        assert!(third.poll_room(cx).is_ready(), "one that has nothing queued");
        // One whose last byte is sent goes on, though the connection has more than it may.
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

    #[test]
    fn bytes_count_until_they_are_sent_or_dropped_and_places_are_used_again() {
        let backlog = Rc::new(Backlog::default());
        for _ in 0..3 {
            let place = Place::new(&backlog);
            let mut piece = place.piece(bytes(100));
            let rest = piece.split_off(60);
            assert_eq!((piece.remaining(), rest.remaining(), backlog.held()), (60, 40, 100));
            piece.advance(10);
            drop(place);
            assert_eq!(backlog.held(), 90);
            drop(rest);
            let other = Place::new(&backlog);
            drop((piece, other));
            assert_eq!(backlog.held(), 0);
        }
        assert_eq!(backlog.streams.borrow().places.len(), 2);
        assert_eq!(backlog.streams.borrow().free.len(), 2);
    }

    #[test]
    fn a_connection_is_stuck_whose_client_took_nothing_since_the_last_look() {
        let backlog = Rc::new(Backlog::default());
        let place = Place::new(&backlog);
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
