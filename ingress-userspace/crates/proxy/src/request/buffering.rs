//! Buffers the beginning of a request body in memory until a pod may have it (`proxy-request-buffering`), and counts each
//! byte until the pod takes it. The namespaces of the pods share the space.

use std::{collections::VecDeque, rc::Rc};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Frame, SizeHint};

use crate::{downstream::conn::Conn, limits::buffer_space::Share, server::memory::Pressure};

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
    fn buffered_pieces_are_full_and_lossless() {
        let whole: Vec<u8> = (0..=250).cycle().take(3 * PIECE + 7).collect();
        for step in [1, 1000, PIECE - 1, PIECE, PIECE + 1, whole.len()] {
            let mut pieces = VecDeque::new();
            whole.chunks(step).for_each(|chunk| append(&mut pieces, chunk));
            let lengths: Vec<_> = pieces.iter().map(BytesMut::len).collect();
            assert_eq!(lengths, [PIECE, PIECE, PIECE, 7], "{step}");
            assert!(pieces.iter().flatten().copied().eq(whole.iter().copied()), "{step}");
        }
    }
}
