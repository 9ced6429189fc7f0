//! Buffers the beginning of a request body in memory until a pod may have it (`proxy-request-buffering`), and counts each
//! byte until the pod takes it. The namespaces of the pods share the space.

use std::{
    collections::{HashMap, VecDeque},
    rc::Rc,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Frame, SizeHint};

use crate::{downstream::conn::Conn, server::memory::Pressure};

/// Most buffered bytes per process, and the divisor of the cgroup's memory limit for the same.
const MAX: usize = 256 << 20;
const PART: u64 = 8;

/// Most bytes of a piece. Each piece has a separate allocation, so that a taken piece does not keep the others alive.
const PIECE: usize = 16 * 1024;

/// The buffered part of a body. Bytes are copied: a slice of the read buffer would keep all of that buffer in memory.
pub(crate) struct RequestBuffer {
    pieces: VecDeque<BytesMut>,
    trailers: Option<HeaderMap>,
    /// Bytes in the pieces.
    length: usize,
    share: Share,
    conn: Rc<Conn>,
}

/// The buffered bytes of all bodies. A namespace may buffer more as long as it has less than is still free. One namespace
/// therefore gets half of the space, and the next one half of the rest. Switches share a buffer between ports in the same
/// way (the dynamic thresholds of Choudhury and Hahne, 1998). Some space remains however many namespaces take all they can.
#[derive(Debug)]
pub(crate) struct BufferSpace {
    total: AtomicUsize,
    max: AtomicUsize,
    namespaces: Mutex<HashMap<Box<str>, Share>>,
}

/// The buffered bytes for pods of one namespace.
type Share = Arc<AtomicUsize>;

// === impl BufferSpace ===

impl BufferSpace {
    pub(crate) fn new() -> Self {
        Self { total: AtomicUsize::new(0), max: AtomicUsize::new(MAX), namespaces: Mutex::default() }
    }

    /// Sets the space by the memory limit, if there is one.
    pub(crate) fn limit(&self, memory: Option<u64>) {
        let part = usize::try_from(memory.unwrap_or(u64::MAX) / PART).unwrap_or(usize::MAX);
        self.max.store(part.min(MAX), Relaxed);
    }

    pub(crate) fn total(&self) -> usize {
        self.total.load(Relaxed)
    }

    fn share(&self, namespace: &str) -> Share {
        let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = namespaces.get(namespace) {
            return Arc::clone(share);
        }
        // Namespaces come and go. A namespace without buffered bodies needs no entry.
        namespaces.retain(|_, share| Arc::strong_count(share) > 1);
        Arc::clone(namespaces.entry(namespace.into()).or_default())
    }

    fn has_room(&self, share: &Share) -> bool {
        let free = self.max.load(Relaxed).saturating_sub(self.total());
        share.load(Relaxed) < free
    }

    fn add(&self, share: &Share, count: usize) {
        share.fetch_add(count, Relaxed);
        self.total.fetch_add(count, Relaxed);
    }

    fn subtract(&self, share: &Share, count: usize) {
        share.fetch_sub(count, Relaxed);
        self.total.fetch_sub(count, Relaxed);
    }
}

// === impl RequestBuffer ===

impl std::fmt::Debug for RequestBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").field("length", &self.length).finish_non_exhaustive()
    }
}

impl RequestBuffer {
    /// Returns an empty buffer for a body to pods of `namespace`.
    pub(crate) fn new(conn: &Rc<Conn>, namespace: &str) -> Self {
        let share = conn.worker.shared.buffer_space.share(namespace);
        Self { pieces: VecDeque::new(), trailers: None, length: 0, share, conn: Rc::clone(conn) }
    }

    /// Returns the number of buffered bytes.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Returns whether everything was taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.trailers.is_none()
    }

    /// Returns whether more bytes may be buffered.
    pub(crate) fn has_room(&self) -> bool {
        let shared = &self.conn.worker.shared;
        shared.pressure() < Pressure::Tight && shared.buffer_space.has_room(&self.share)
    }

    pub(crate) fn put(&mut self, frame: Frame<Bytes>) {
        match frame.into_data() {
            Ok(data) => {
                append(&mut self.pieces, &data);
                self.length += data.len();
                self.conn.keep(data.len());
                self.conn.worker.shared.buffer_space.add(&self.share, data.len());
            }
            Err(other) => self.trailers = other.into_trailers().ok(),
        }
    }

    /// Takes the first piece of the bytes, or the trailers after the last piece. A taken piece no longer counts.
    pub(crate) fn take(&mut self) -> Option<Frame<Bytes>> {
        let Some(piece) = self.pieces.pop_front() else { return self.trailers.take().map(Frame::trailers) };
        self.let_go(piece.len());
        Some(Frame::data(piece.freeze()))
    }

    fn let_go(&mut self, count: usize) {
        self.length -= count;
        self.conn.let_go(count);
        self.conn.worker.shared.buffer_space.subtract(&self.share, count);
    }

    /// Returns the size hint of this part and the `rest` after it.
    pub(crate) fn size_hint(&self, rest: &SizeHint) -> SizeHint {
        let kept = self.len() as u64;
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(kept));
        // Trailers need chunked framing, so a body with trailers has no announced length.
        if let Some(upper) = rest.upper().filter(|_| self.trailers.is_none()).and_then(|upper| upper.checked_add(kept))
        {
            hint.set_upper(upper);
        }
        hint
    }
}

impl Drop for RequestBuffer {
    fn drop(&mut self) {
        self.let_go(self.length);
    }
}

/// Appends `data`. It fills the last piece before it begins another one, so that short frames need little more memory than
/// their bytes.
fn append(pieces: &mut VecDeque<BytesMut>, mut data: &[u8]) {
    while !data.is_empty() {
        match pieces.back_mut().filter(|last| last.len() < PIECE) {
            Some(last) => {
                let (now, later) = data.split_at(data.len().min(PIECE - last.len()));
                last.extend_from_slice(now);
                data = later;
            }
            None => pieces.push_back(BytesMut::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_full_however_the_bytes_come_and_nothing_is_lost() {
        let whole: Vec<u8> = (0..=250).cycle().take(3 * PIECE + 7).collect();
        for step in [1, 1000, PIECE - 1, PIECE, PIECE + 1, whole.len()] {
            let mut pieces = VecDeque::new();
            whole.chunks(step).for_each(|chunk| append(&mut pieces, chunk));
            let lengths: Vec<_> = pieces.iter().map(BytesMut::len).collect();
            assert_eq!(lengths, [PIECE, PIECE, PIECE, 7], "{step}");
            assert!(pieces.iter().flatten().copied().eq(whole.iter().copied()), "{step}");
        }
    }

    #[test]
    fn no_namespaces_together_leave_nothing_for_another() {
        const LIMIT: usize = 1 << 20;
        let buffer_space = BufferSpace::new();
        buffer_space.limit(Some((LIMIT as u64) * PART));
        let fill = |namespace: &str| {
            let share = buffer_space.share(namespace);
            while buffer_space.has_room(&share) {
                buffer_space.add(&share, 1);
            }
            share
        };
        let mut shares = Vec::new();
        // Each gets half of what those before it have left.
        for (namespace, expect) in [("a", LIMIT / 2), ("b", LIMIT / 4), ("c", LIMIT / 8), ("a", LIMIT / 2)] {
            shares.push(fill(namespace));
            assert_eq!(shares.last().expect("one").load(Relaxed), expect, "{namespace}");
        }
        assert_eq!((buffer_space.total(), buffer_space.namespaces.lock().expect("whole").len()), (LIMIT / 8 * 7, 3));
        for share in &shares[..3] {
            buffer_space.subtract(share, share.load(Relaxed));
        }
        shares.clear();
        assert_eq!(fill("d").load(Relaxed), LIMIT / 2);
        assert_eq!(buffer_space.namespaces.lock().expect("whole").len(), 1, "those that keep nothing are forgotten");
    }
}
