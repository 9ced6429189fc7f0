//! Read buffers of a worker, lent to exchanges and taken back. An idle connection and an exchange that only waits hold
//! none. Responses that wait for their clients share buffers: HTTP/3 keeps each until it is acknowledged, and would keep
//! 16 KiB for a response of 1 KiB.

use std::{cell::RefCell, ops};

use bytes::BytesMut;

/// Size of the first buffer of an exchange, which fits the head and a small body.
const SMALL: usize = 16 * 1024;
/// Size of the buffer for a body known to be large.
const LARGE: usize = 128 * 1024;
/// If less room than this remains, the buffer is reallocated before the next read.
const ROOM_MIN: usize = 4 * 1024;
/// Free buffers kept per worker and kind; others are returned to the allocator. 64 × 16 KiB + 8 × 128 KiB = 2 MiB at
/// most.
const SMALL_KEPT: usize = 64;
const LARGE_KEPT: usize = 8;
/// Number of free buffers tried before a new one is allocated; frames of them may still be in use.
const TRIES: usize = 3;
/// Buffers for request heads: the number kept, and the largest capacity worth keeping.
const TEXT_KEPT: usize = 16;
const TEXT_MAX: usize = 16 * 1024;

thread_local! {
    static SMALL_FREE: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
    static LARGE_FREE: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
    static TEXT_FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Bytes that were read and not parsed yet. Frames are slices of the buffer, so its memory is reused once the last of
/// them is dropped.
#[derive(Debug, Default)]
pub(super) struct ReadBuffer {
    bytes: BytesMut,
    kind: BufferKind,
}

/// A request head to be written.
#[derive(Debug, Default)]
pub(super) struct TextBuffer(Vec<u8>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BufferKind {
    #[default]
    None,
    Small,
    Large,
}

// === impl ReadBuffer ===

impl ReadBuffer {
    /// Makes room for a read: allocates a buffer if there is none, or replaces a small one by a large one and keeps its
    /// bytes.
    pub(super) fn prepare(&mut self, large: bool) {
        let wanted = if large { BufferKind::Large } else { BufferKind::Small };
        match self.kind {
            BufferKind::None => *self = Self::take(wanted),
            BufferKind::Small if large => {
                let small = std::mem::replace(self, Self::take(wanted));
                self.bytes.extend_from_slice(&small.bytes);
            }
            BufferKind::Small | BufferKind::Large => {}
        }
        if self.bytes.capacity() - self.bytes.len() < ROOM_MIN {
            self.bytes.reserve(self.kind.size());
        }
    }

    /// Returns the memory to the free list if the buffer is empty.
    pub(super) fn rest(&mut self) {
        if self.bytes.is_empty() {
            *self = Self::default();
        }
    }

    fn take(kind: BufferKind) -> Self {
        let size = kind.size();
        let found = kind.with_free(|free| {
            let tried = free.len().saturating_sub(TRIES)..free.len();
            // Frames may refer to one half; the other is free all the same. A large body needs all.
            let least = if kind == BufferKind::Small { SMALL / 2 } else { size };
            let has_room = |bytes: &mut BytesMut| bytes.try_reclaim(size) || bytes.capacity() >= least;
            let index = tried.rev().find(|index| has_room(&mut free[*index]))?;
            Some(free.swap_remove(index))
        });
        Self { bytes: found.flatten().unwrap_or_else(|| BytesMut::with_capacity(size)), kind }
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        let Self { bytes, kind } = self;
        // Otherwise the memory is returned to the allocator.
        kind.with_free(|free| {
            if free.len() < kind.kept() {
                bytes.clear();
                free.push(std::mem::take(bytes));
            }
        });
    }
}

impl ops::Deref for ReadBuffer {
    type Target = BytesMut;

    fn deref(&self) -> &BytesMut {
        &self.bytes
    }
}

impl ops::DerefMut for ReadBuffer {
    fn deref_mut(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }
}

// === impl BufferKind ===

impl BufferKind {
    fn size(self) -> usize {
        match self {
            Self::None => 0,
            Self::Small => SMALL,
            Self::Large => LARGE,
        }
    }

    fn kept(self) -> usize {
        match self {
            Self::None => 0,
            Self::Small => SMALL_KEPT,
            Self::Large => LARGE_KEPT,
        }
    }

    /// Runs `act` on the worker's free list of this kind. Returns `None` if there is no such list, or if the thread is
    /// shutting down.
    fn with_free<T>(self, act: impl FnOnce(&mut Vec<BytesMut>) -> T) -> Option<T> {
        let list = match self {
            Self::None => return None,
            Self::Small => &SMALL_FREE,
            Self::Large => &LARGE_FREE,
        };
        list.try_with(|free| act(&mut free.borrow_mut())).ok()
    }
}

// === impl TextBuffer ===

impl TextBuffer {
    pub(super) fn take() -> Self {
        let kept = TEXT_FREE.try_with(|free| free.borrow_mut().pop()).ok().flatten();
        Self(kept.unwrap_or_else(|| Vec::with_capacity(1024)))
    }
}

impl Drop for TextBuffer {
    fn drop(&mut self) {
        let mut text = std::mem::take(&mut self.0);
        if !(1..=TEXT_MAX).contains(&text.capacity()) {
            return;
        }
        text.clear();
        let kept = TEXT_FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < TEXT_KEPT {
                free.push(text);
            }
        });
        // Fails only while the thread is shutting down, when the buffer need not be kept.
        kept.unwrap_or_default();
    }
}

impl ops::Deref for TextBuffer {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl ops::DerefMut for TextBuffer {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// Reads `length` bytes `value` into a new buffer, and returns them as a frame.
    fn frame(length: usize, value: u8) -> Bytes {
        let mut buffer = ReadBuffer::default();
        buffer.prepare(false);
        buffer.resize(length, value);
        buffer.split().freeze()
    }

    #[test]
    fn frames_share_a_buffer_until_half_of_it_is_used() {
        let first = frame(1_000, b'1');
        let begin = first.as_ptr();
        let others: Vec<_> = (0..7).map(|_| frame(1_100, b'2')).collect();
        for (index, other) in others.iter().enumerate() {
            assert_eq!(other.as_ptr(), begin.wrapping_add(1_000 + 1_100 * index));
        }
        // They are 8,700 bytes.
        let elsewhere = frame(1, b'3');
        assert!(!(begin..begin.wrapping_add(SMALL)).contains(&elsewhere.as_ptr()));
        assert!(first.iter().all(|byte| *byte == b'1'));
        assert!(others.iter().flatten().all(|byte| *byte == b'2'));
    }

    #[test]
    fn memory_is_reused_once_no_frame_refers_to_it() {
        let first = frame(SMALL / 2 + 1, b'1');
        let begin = first.as_ptr();
        drop(first);
        assert_eq!(frame(SMALL, b'2').as_ptr(), begin);
    }

    #[test]
    fn growing_keeps_the_bytes() {
        let mut buffer = ReadBuffer::default();
        buffer.prepare(false);
        buffer.extend_from_slice(b"kept");
        buffer.prepare(true);
        assert_eq!(&buffer[..], b"kept");
        assert!(buffer.capacity() >= LARGE);
    }
}
