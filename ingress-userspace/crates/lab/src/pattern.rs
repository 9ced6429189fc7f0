//! Bytes that both ends can predict: a body of any length, and a check whether received bytes are that body. The check
//! is an exact comparison, not a checksum.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::LazyLock,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// Length after which the bytes repeat: a prime, so that every lost, doubled or swapped block of a usual size is
/// noticed.
const PERIOD: usize = 65_521;
/// Largest frame that a body yields.
const PIECE: usize = 16 * 1024;

static BLOCK: LazyLock<Bytes> = LazyLock::new(|| {
    // A linear congruential generator (Knuth, TAOCP 2, 3.3.4, line 26); the high byte is the random one.
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..PERIOD).map(|_| next()).collect()
});

/// A body with this number of bytes of the pattern.
#[derive(Debug)]
pub struct PatternBody {
    offset: u64,
    len: u64,
}

/// Compares received bytes with the pattern.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    received: u64,
    intact: bool,
}

/// Returns the pattern from `offset`, at least one byte and at most `limit` (more than 0).
fn piece(offset: u64, limit: u64) -> Bytes {
    let start = usize::try_from(offset % PERIOD as u64).unwrap_or_default();
    let len = (PERIOD - start).min(PIECE).min(usize::try_from(limit).unwrap_or(PIECE));
    BLOCK.slice(start..start + len)
}

// === impl PatternBody ===

impl PatternBody {
    #[must_use]
    pub fn new(len: u64) -> Self {
        Self { offset: 0, len }
    }
}

impl Body for PatternBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let left = self.len - self.offset;
        if left == 0 {
            return Poll::Ready(None);
        }
        let piece = piece(self.offset, left);
        self.offset += piece.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.offset == self.len
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len - self.offset)
    }
}

// === impl Check ===

impl Default for Check {
    fn default() -> Self {
        Self { received: 0, intact: true }
    }
}

impl Check {
    /// Checks the next bytes of the body.
    pub fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let expected = piece(self.received, bytes.len() as u64);
            let (now, rest) = bytes.split_at(expected.len());
            self.intact &= now == expected;
            self.received += now.len() as u64;
            bytes = rest;
        }
    }

    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Returns `true` if all bytes so far were those of the pattern.
    #[must_use]
    pub fn intact(&self) -> bool {
        self.intact
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: u64) -> Vec<u8> {
        let mut all = Vec::new();
        while (all.len() as u64) < len {
            all.extend_from_slice(&piece(all.len() as u64, len - all.len() as u64));
        }
        all
    }

    #[test]
    fn the_pattern_is_recognised_however_it_is_cut() {
        let body = bytes(200_000);
        for cut in [1, 1000, 1448, 16_384, 65_521, 200_000] {
            let mut check = Check::default();
            body.chunks(cut).for_each(|chunk| check.add(chunk));
            assert!(check.intact() && check.received() == 200_000, "pieces of {cut}");
        }
    }

    #[test]
    fn lost_repeated_and_changed_bytes_are_detected() {
        let body = bytes(200_000);
        let mut changed = body.clone();
        changed[150_000] ^= 1;
        let lost = [&body[..70_000], &body[70_000 + 4096..]].concat();
        let doubled = [&body[..70_000], &body[70_000 - 1448..]].concat();
        for damaged in [changed, lost, doubled] {
            let mut check = Check::default();
            check.add(&damaged);
            assert!(!check.intact());
        }
    }
}
