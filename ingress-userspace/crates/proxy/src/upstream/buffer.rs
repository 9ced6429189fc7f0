//! Read buffers of a worker, lent to exchanges and taken back. An idle connection and an exchange that only waits hold
//! none. Responses that wait for their clients share buffers: HTTP/3 keeps each until it is acknowledged, and would keep
//! 16 KiB for a response of 1 KiB.

use std::{cell::RefCell, collections::VecDeque, ops};

use bytes::BytesMut;

/// Size of the first buffer of an exchange, which fits the head and a small body.
const SMALL: usize = 16 * 1024;
/// Size of the buffer for a body known to be large.
const LARGE: usize = 128 * 1024;
/// If less room than this remains, the buffer is reallocated before the next read.
const ROOM_MIN: usize = 4 * 1024;
/// Buffers kept per worker and kind; others are returned to the allocator. 64 × 16 KiB + 8 × 128 KiB = 2 MiB at most.
const SMALL_KEPT: usize = 64;
const LARGE_KEPT: usize = 8;
/// Number of used up buffers tried before a new one is allocated.
const TRIES: usize = 3;
/// Buffers for request heads: the number kept, and the largest capacity worth keeping.
const TEXT_KEPT: usize = 16;
const TEXT_MAX: usize = 16 * 1024;

thread_local! {
    static SMALL_FREE: RefCell<FreeBuffers> = const { RefCell::new(FreeBuffers::new()) };
    static LARGE_FREE: RefCell<FreeBuffers> = const { RefCell::new(FreeBuffers::new()) };
    static TEXT_FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Bytes that were read and not parsed yet. Frames are slices of the buffer, so its memory is reused once the last of
/// them is dropped.
#[derive(Debug, Default)]
pub(super) struct ReadBuffer {
    bytes: BytesMut,
    kind: BufferKind,
}

/// The buffers of one kind that no exchange has.
struct FreeBuffers {
    /// Buffers with room. The last one is taken first, since its memory is in the caches.
    free: Vec<BytesMut>,
    /// Buffers without room, because frames of them are in use. The first one has been there for longest. If it stood
    /// among the others, they would soon be all like it, and each exchange would allocate.
    used_up: VecDeque<BytesMut>,
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
        let found = kind.with_free(|free| free.take(kind)).flatten();
        Self { bytes: found.unwrap_or_else(|| BytesMut::with_capacity(kind.size())), kind }
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        let Self { bytes, kind } = self;
        // Otherwise the memory is returned to the allocator.
        kind.with_free(|free| free.put(std::mem::take(bytes), *kind));
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

// === impl FreeBuffers ===

impl FreeBuffers {
    const fn new() -> Self {
        Self { free: Vec::new(), used_up: VecDeque::new() }
    }

    fn take(&mut self, kind: BufferKind) -> Option<BytesMut> {
        if let Some(mut bytes) = self.free.pop() {
            // All of it, if its frames are gone by now.
            let _all = bytes.try_reclaim(kind.size());
            return Some(bytes);
        }
        let tried = self.used_up.iter_mut().take(TRIES);
        let index = tried.enumerate().find_map(|(index, bytes)| bytes.try_reclaim(kind.size()).then_some(index))?;
        self.used_up.remove(index)
    }

    /// Takes back `bytes`, whose content is not needed. If there are too many, the allocator gets the one that has waited
    /// for its frames for longest: a slow client may have them.
    fn put(&mut self, mut bytes: BytesMut, kind: BufferKind) {
        bytes.clear();
        let has_room = bytes.try_reclaim(kind.least_room());
        if self.free.len() + self.used_up.len() >= kind.kept() && self.used_up.pop_front().is_none() {
            return;
        }
        if has_room {
            self.free.push(bytes);
        } else {
            self.used_up.push_back(bytes);
        }
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

    /// Returns the least room of a buffer that an exchange gets. A small one may have frames in use, in one half; a large
    /// body needs all.
    fn least_room(self) -> usize {
        match self {
            Self::None | Self::Large => self.size(),
            Self::Small => SMALL / 2,
        }
    }

    /// Runs `act` on the worker's free buffers of this kind. Returns `None` if the kind has none, or if the thread is
    /// shutting down.
    fn with_free<T>(self, act: impl FnOnce(&mut FreeBuffers) -> T) -> Option<T> {
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
    use std::collections::HashSet;

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
    fn buffers_that_clients_hold_are_used_again_when_those_have_read() {
        let (mut buffers, mut next) = (HashSet::new(), std::ptr::null());
        let mut in_flight: VecDeque<Bytes> = VecDeque::new();
        // Clients that read nothing hold some for ever.
        let mut held = Vec::new();
        for number in 0..10_000 {
            let sent = frame(1_200, b'x');
            if sent.as_ptr() != next {
                buffers.insert(sent.as_ptr());
            }
            next = sent.as_ptr().wrapping_add(1_200);
            if number % 1_000 == 0 {
                held.push(sent);
            } else {
                in_flight.push_back(sent);
            }
            if in_flight.len() > 300 {
                in_flight.pop_front();
            }
        }
        // A buffer has 7 of them, so 300 take 43 buffers, and those of the silent clients 10 more.
        assert!((43..=SMALL_KEPT + held.len()).contains(&buffers.len()), "{} buffers", buffers.len());
    }

    #[test]
    fn no_more_buffers_are_kept_than_the_limit() {
        let held: Vec<Bytes> = (0..3 * SMALL_KEPT).map(|_| frame(SMALL / 2 + 1, b'x')).collect();
        let kept = |free: &mut FreeBuffers| free.free.len() + free.used_up.len();
        assert_eq!(BufferKind::Small.with_free(kept), Some(SMALL_KEPT));
        drop(held);
        let unused: Vec<ReadBuffer> = (0..3 * SMALL_KEPT).map(|_| ReadBuffer::take(BufferKind::Small)).collect();
        drop(unused);
        assert_eq!(BufferKind::Small.with_free(kept), Some(SMALL_KEPT));
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
