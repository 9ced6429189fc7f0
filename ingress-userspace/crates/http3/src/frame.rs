//! Frames of HTTP/3 (RFC 9114, 7), and the decoder of request streams.
//!
//! The decoder keeps nothing of DATA: payloads are slices of the caller's chunks. It copies the payload of HEADERS only
//! if that arrives in several chunks, and never more of it than the limit.

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    error::{Code, Error},
    varint,
};

/// Type of DATA.
pub const DATA: u64 = 0x0;
/// Type of HEADERS.
pub const HEADERS: u64 = 0x1;
/// Type of CANCEL_PUSH.
pub const CANCEL_PUSH: u64 = 0x3;
/// Type of SETTINGS.
pub const SETTINGS: u64 = 0x4;
/// Type of PUSH_PROMISE.
pub const PUSH_PROMISE: u64 = 0x5;
/// Type of GOAWAY.
pub const GOAWAY: u64 = 0x7;
/// Type of MAX_PUSH_ID.
pub const MAX_PUSH_ID: u64 = 0xd;
/// Type of PRIORITY_UPDATE for a request (RFC 9218, 7.2).
pub const PRIORITY_UPDATE_REQUEST: u64 = 0xf_0700;
/// Type of PRIORITY_UPDATE for a push (RFC 9218, 7.2).
pub const PRIORITY_UPDATE_PUSH: u64 = 0xf_0701;

/// Greatest number of bytes in unknown frames that are skipped, between two frames with data.
pub const SKIPPED_MAX: u64 = 64 * 1024;
/// Greatest number of frames without effect (unknown ones, and DATA without bytes), between two frames with data.
pub const IDLE_FRAMES_MAX: u32 = 100;

/// Appends the head of a frame: its type and the length of its payload, which must follow.
pub fn write_head(kind: u64, length: u64, out: &mut impl BufMut) {
    varint::write(kind, out);
    varint::write(length, out);
}

/// Returns whether `kind` is a frame of HTTP/2 that HTTP/3 reserves (RFC 9114, 7.2.8).
pub(crate) fn is_of_http2(kind: u64) -> bool {
    matches!(kind, 0x2 | 0x6 | 0x8 | 0x9)
}

/// The beginning of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: u64,
    pub(crate) length: u64,
}

/// Reads heads of frames, whose bytes may come in several chunks.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeadReader {
    kind: Option<u64>,
    integer: varint::Reader,
}

impl HeadReader {
    /// Takes bytes from `chunk`. Returns the head when it is complete, and begins anew.
    pub(crate) fn read(&mut self, chunk: &mut Bytes) -> Option<Head> {
        let kind = match self.kind {
            Some(kind) => kind,
            None => *self.kind.insert(self.integer.read(chunk)?),
        };
        let length = self.integer.read(chunk)?;
        self.kind = None;
        Some(Head { kind, length })
    }

    /// Returns whether no byte of a frame has been read.
    pub(crate) fn is_empty(&self) -> bool {
        self.kind.is_none() && self.integer.is_empty()
    }
}

/// Counts frames of the peer that have no effect.
#[derive(Clone, Debug, Default)]
pub(crate) struct Idle {
    frames: u32,
    bytes: u64,
}

impl Idle {
    /// Counts a frame with a payload of `length` bytes that is skipped.
    pub(crate) fn count(&mut self, length: u64) -> Result<(), Error> {
        self.frames += 1;
        self.bytes = self.bytes.saturating_add(length);
        if self.frames > IDLE_FRAMES_MAX || self.bytes > SKIPPED_MAX {
            return Err(Error::connection(Code::ExcessiveLoad, "too many frames without effect"));
        }
        Ok(())
    }
}

/// Takes the rest of a payload from `chunk`, as far as it has arrived. More than `usize::MAX` bytes never have.
pub(crate) fn take(left: &mut u64, chunk: &mut Bytes) -> Bytes {
    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(chunk.len());
    *left -= count as u64;
    chunk.split_to(count)
}

/// Collects a payload of a known length. The buffer grows as bytes arrive, not by the announced length.
#[derive(Clone, Debug)]
pub(crate) struct Payload {
    left: u64,
    arrived: BytesMut,
}

impl Payload {
    pub(crate) fn new(length: u64) -> Self {
        Self { left: length, arrived: BytesMut::new() }
    }

    /// Takes bytes from `chunk`. Returns the payload when it is complete; it is a slice of `chunk` if that has all of it.
    pub(crate) fn read(&mut self, chunk: &mut Bytes) -> Option<Bytes> {
        let part = take(&mut self.left, chunk);
        if self.left == 0 && self.arrived.is_empty() {
            return Some(part);
        }
        self.arrived.extend_from_slice(&part);
        (self.left == 0).then(|| self.arrived.split().freeze())
    }
}

/// A step of a request stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The encoded field section of the request, for [`section::request`](crate::section::request).
    Headers(Bytes),
    /// The request's HEADERS is longer than the limit. Its payload is skipped; the caller answers with 431 and reads no
    /// further.
    HeadersTooLarge,
    /// A part of the body, not empty.
    Data(Bytes),
    /// The encoded field section behind the body, for [`section::trailers`](crate::section::trailers).
    Trailers(Bytes),
    /// The trailers are longer than the limit. Their payload is skipped.
    TrailersTooLarge,
}

/// Decodes a request stream. There is one for each stream.
#[derive(Clone, Debug)]
pub struct FrameDecoder {
    section_max: usize,
    phase: Phase,
    state: State,
    idle: Idle,
}

/// The frames that may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// HEADERS.
    Start,
    /// DATA, or HEADERS with trailers.
    Body,
    /// Unknown frames alone, behind the trailers.
    End,
    /// DATA alone, after a CONNECT (RFC 9114, 4.4).
    Tunnel,
}

#[derive(Clone, Debug)]
enum State {
    Head(HeadReader),
    Section(Payload),
    Data { left: u64 },
    Skip { left: u64 },
}

impl State {
    fn head() -> Self {
        Self::Head(HeadReader::default())
    }
}

impl FrameDecoder {
    /// Returns a decoder at the beginning of a stream. HEADERS with more than `section_max` encoded bytes are too large.
    /// Give the limit of the decoded section: encoding makes no sensible section longer.
    #[must_use]
    pub fn new(section_max: usize) -> Self {
        Self { section_max, phase: Phase::Start, state: State::head(), idle: Idle::default() }
    }

    /// Takes bytes from `chunk` up to the next event. After `None`, `chunk` is empty.
    ///
    /// # Errors
    /// For frames that are invalid or not permitted. The decoder must not be used again.
    pub fn decode(&mut self, chunk: &mut Bytes) -> Result<Option<Event>, Error> {
        loop {
            match &mut self.state {
                State::Head(reader) => {
                    let Some(head) = reader.read(chunk) else { return Ok(None) };
                    if let Some(event) = self.begin(head)? {
                        return Ok(Some(event));
                    }
                }
                State::Section(payload) => {
                    let Some(section) = payload.read(chunk) else { return Ok(None) };
                    self.state = State::head();
                    return Ok(Some(match self.phase {
                        Phase::End => Event::Trailers(section),
                        Phase::Start | Phase::Body | Phase::Tunnel => Event::Headers(section),
                    }));
                }
                State::Data { left } => {
                    let data = take(left, chunk);
                    if *left == 0 {
                        self.state = State::head();
                    }
                    return Ok((!data.is_empty()).then_some(Event::Data(data)));
                }
                State::Skip { left } => {
                    let _skipped = take(left, chunk);
                    if *left > 0 {
                        return Ok(None);
                    }
                    self.state = State::head();
                }
            }
        }
    }

    /// Begins the frame of `head`.
    fn begin(&mut self, head: Head) -> Result<Option<Event>, Error> {
        let unexpected = |reason| Err(Error::connection(Code::FrameUnexpected, reason));
        let Head { kind, length } = head;
        match kind {
            DATA => match self.phase {
                Phase::Start => return unexpected("DATA before HEADERS"),
                Phase::End => return unexpected("DATA after trailers"),
                Phase::Body | Phase::Tunnel if length == 0 => self.idle.count(0)?,
                Phase::Body | Phase::Tunnel => {
                    self.idle = Idle::default();
                    self.state = State::Data { left: length };
                }
            },
            HEADERS => {
                let (next, too_large) = match self.phase {
                    Phase::Start => (Phase::Body, Event::HeadersTooLarge),
                    Phase::Body => (Phase::End, Event::TrailersTooLarge),
                    Phase::End => return unexpected("HEADERS after trailers"),
                    Phase::Tunnel => return unexpected("HEADERS in a tunnel"),
                };
                self.phase = next;
                if length > self.section_max as u64 {
                    self.state = State::Skip { left: length };
                    return Ok(Some(too_large));
                }
                self.state = State::Section(Payload::new(length));
            }
            PUSH_PROMISE => return unexpected("PUSH_PROMISE of a client"),
            CANCEL_PUSH | SETTINGS | GOAWAY | MAX_PUSH_ID | PRIORITY_UPDATE_REQUEST | PRIORITY_UPDATE_PUSH => {
                return unexpected("a frame of control streams on a request stream");
            }
            kind if is_of_http2(kind) => return unexpected("a frame of HTTP/2"),
            _ => {
                self.idle.count(length)?;
                self.state = State::Skip { left: length };
            }
        }
        Ok(None)
    }

    /// Makes the rest of the stream a tunnel, in which HEADERS are not permitted. Call it for each CONNECT that is
    /// accepted.
    pub fn tunnel(&mut self) {
        self.phase = Phase::Tunnel;
    }

    /// Returns the number of bytes of an incomplete section that are kept, for limits of memory.
    #[must_use]
    pub fn buffered(&self) -> usize {
        match &self.state {
            State::Section(payload) => payload.arrived.len(),
            State::Head(_) | State::Data { .. } | State::Skip { .. } => 0,
        }
    }

    /// Checks that the stream may end here. Call it when the peer has finished the stream, not when it has reset it.
    ///
    /// # Errors
    /// `H3_FRAME_ERROR` within a frame; `H3_REQUEST_INCOMPLETE` before HEADERS.
    pub fn finish(&self) -> Result<(), Error> {
        match &self.state {
            State::Head(reader) if reader.is_empty() => {}
            _ => return Err(Error::connection(Code::FrameError, "the stream ends within a frame")),
        }
        match self.phase {
            Phase::Start => Err(Error::stream(Code::RequestIncomplete, "the stream ends before HEADERS")),
            Phase::Body | Phase::End | Phase::Tunnel => Ok(()),
        }
    }
}
