//! The peer's unidirectional streams (RFC 9114, 6.2): control stream, QPACK streams, and others, which are ignored. It
//! also writes GOAWAY for our control stream.

use bytes::{Buf, BufMut, Bytes};

use crate::{
    error::{Code, Error},
    frame::{self, Head, HeadReader, Idle, Payload},
    settings::Settings,
    varint,
};

/// Type of control streams.
pub const CONTROL: u64 = 0x0;
/// Type of push streams, which only servers open.
pub const PUSH: u64 = 0x1;
/// Type of the streams with instructions of a QPACK encoder (RFC 9204, 4.2).
pub const QPACK_ENCODER: u64 = 0x2;
/// Type of the streams with instructions of a QPACK decoder (RFC 9204, 4.2).
pub const QPACK_DECODER: u64 = 0x3;

/// Largest payload of SETTINGS and PRIORITY_UPDATE, in bytes.
pub const PAYLOAD_MAX: u64 = 4 * 1024;

/// The set-instruction of a dynamic table of capacity 0, the only one that fits our settings (RFC 9204, 4.3.1).
const SET_CAPACITY_ZERO: u8 = 0x20;

/// Appends a GOAWAY: requests on the stream `id` and later ones were not processed. Each GOAWAY of a connection has the
/// same id or a smaller one (RFC 9114, 5.2).
pub fn write_goaway(id: u64, out: &mut impl BufMut) {
    let mut payload = Vec::with_capacity(8);
    varint::write(id, &mut payload);
    frame::write_head(frame::GOAWAY, payload.len() as u64, out);
    out.put_slice(&payload);
}

/// The state that the peer's unidirectional streams share. There is one for each connection.
#[derive(Clone, Debug, Default)]
pub struct PeerStreams {
    has_control: bool,
    has_encoder: bool,
    has_decoder: bool,
    has_settings: bool,
    goaway: Option<u64>,
    max_push: Option<u64>,
    idle: Idle,
}

impl PeerStreams {
    /// Returns whether the peer's SETTINGS has arrived.
    #[must_use]
    pub fn has_settings(&self) -> bool {
        self.has_settings
    }
}

/// A message of a unidirectional stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UniEvent {
    /// The peer's settings; once for each connection.
    Settings(Settings),
    /// The client accepts no push with this id or a later one (RFC 9114, 5.2). It probably leaves soon.
    GoAway(u64),
    /// The priority of the request on the stream `stream`, which may not have begun (RFC 9218, 7.1). Apply
    /// [`Priority::parse`](crate::Priority::parse) to the value. A stream beyond the limit of streams is `H3_ID_ERROR`,
    /// see [`beyond_limit`].
    PriorityUpdate {
        /// The id of the request's stream, which a client opened in both directions.
        stream: u64,
        /// The value of a `Priority` field.
        value: Bytes,
    },
    /// The stream has this unknown type. The caller may stop reading it, by STOP_SENDING with
    /// `H3_STREAM_CREATION_ERROR`; further bytes are dropped.
    Ignored(u64),
}

/// Returns the error of a PRIORITY_UPDATE for a stream that the peer may not yet open.
#[must_use]
pub fn beyond_limit() -> Error {
    Error::connection(Code::IdError, "PRIORITY_UPDATE for a stream beyond the limit")
}

/// Decodes one of the peer's unidirectional streams.
#[derive(Clone, Debug, Default)]
pub struct UniStream {
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Type(varint::Reader),
    Control(Control),
    Encoder,
    Decoder(Cancellation),
    Ignored,
}

impl Default for State {
    fn default() -> Self {
        Self::Type(varint::Reader::default())
    }
}

#[derive(Clone, Debug)]
enum Control {
    Head(HeadReader),
    Payload { kind: u64, payload: Payload },
    Skip { left: u64 },
}

impl UniStream {
    /// Takes bytes from `chunk` up to the next event. After `None`, `chunk` is empty. `peer` is that of the connection.
    ///
    /// # Errors
    /// For violations; all of them end the connection.
    pub fn decode(&mut self, peer: &mut PeerStreams, chunk: &mut Bytes) -> Result<Option<UniEvent>, Error> {
        loop {
            match &mut self.state {
                State::Type(reader) => {
                    let Some(kind) = reader.read(chunk) else { return Ok(None) };
                    self.state = open(kind, peer)?;
                    if matches!(self.state, State::Ignored) {
                        return Ok(Some(UniEvent::Ignored(kind)));
                    }
                }
                State::Control(control) => return control.decode(peer, chunk),
                State::Encoder => {
                    if chunk.iter().any(|byte| *byte != SET_CAPACITY_ZERO) {
                        let reason = "an instruction needs a dynamic table";
                        return Err(Error::connection(Code::QpackEncoderStreamError, reason));
                    }
                    chunk.clear();
                    return Ok(None);
                }
                State::Decoder(cancellation) => {
                    cancellation.decode(chunk)?;
                    return Ok(None);
                }
                State::Ignored => {
                    chunk.clear();
                    return Ok(None);
                }
            }
        }
    }

    /// Checks that the stream may end. Call it when the peer finishes or resets the stream.
    ///
    /// # Errors
    /// `H3_CLOSED_CRITICAL_STREAM` for control and QPACK streams.
    pub fn finish(&self) -> Result<(), Error> {
        match self.state {
            State::Control(_) | State::Encoder | State::Decoder(_) => {
                Err(Error::connection(Code::ClosedCriticalStream, "a critical stream ends"))
            }
            State::Type(_) | State::Ignored => Ok(()),
        }
    }
}

/// Returns the state of a new stream of type `kind`.
fn open(kind: u64, peer: &mut PeerStreams) -> Result<State, Error> {
    let (has_one, state) = match kind {
        CONTROL => (&mut peer.has_control, State::Control(Control::head())),
        QPACK_ENCODER => (&mut peer.has_encoder, State::Encoder),
        QPACK_DECODER => (&mut peer.has_decoder, State::Decoder(Cancellation::default())),
        PUSH => return Err(Error::connection(Code::StreamCreationError, "a push stream of a client")),
        _ => return Ok(State::Ignored),
    };
    if std::mem::replace(has_one, true) {
        return Err(Error::connection(Code::StreamCreationError, "a second control or QPACK stream"));
    }
    Ok(state)
}

// === the control stream ===

impl Control {
    fn head() -> Self {
        Self::Head(HeadReader::default())
    }

    fn decode(&mut self, peer: &mut PeerStreams, chunk: &mut Bytes) -> Result<Option<UniEvent>, Error> {
        loop {
            match self {
                Self::Head(reader) => {
                    let Some(head) = reader.read(chunk) else { return Ok(None) };
                    *self = Self::begin(head, peer)?;
                }
                Self::Payload { kind, payload } => {
                    let Some(bytes) = payload.read(chunk) else { return Ok(None) };
                    let event = received(*kind, bytes, peer)?;
                    *self = Self::head();
                    if event.is_some() {
                        return Ok(event);
                    }
                }
                Self::Skip { left } => {
                    let _skipped = frame::take(left, chunk);
                    if *left > 0 {
                        return Ok(None);
                    }
                    *self = Self::head();
                }
            }
        }
    }

    /// Begins the frame of `head`.
    fn begin(head: Head, peer: &mut PeerStreams) -> Result<Self, Error> {
        let unexpected = |reason| Err(Error::connection(Code::FrameUnexpected, reason));
        let Head { kind, length } = head;
        if !peer.has_settings && kind != frame::SETTINGS {
            return Err(Error::connection(Code::MissingSettings, "the control stream begins with another frame"));
        }
        let max = match kind {
            frame::SETTINGS if peer.has_settings => return unexpected("a second SETTINGS"),
            frame::SETTINGS | frame::PRIORITY_UPDATE_REQUEST | frame::PRIORITY_UPDATE_PUSH => PAYLOAD_MAX,
            frame::GOAWAY | frame::MAX_PUSH_ID | frame::CANCEL_PUSH if length > 8 => {
                return Err(Error::connection(Code::FrameError, "a frame is longer than its id"));
            }
            frame::GOAWAY | frame::MAX_PUSH_ID | frame::CANCEL_PUSH => 8,
            frame::DATA | frame::HEADERS | frame::PUSH_PROMISE => {
                return unexpected("a frame of request streams on the control stream");
            }
            kind if frame::is_of_http2(kind) => return unexpected("a frame of HTTP/2"),
            _ => {
                peer.idle.count(length)?;
                return Ok(Self::Skip { left: length });
            }
        };
        if length > max {
            return Err(Error::connection(Code::ExcessiveLoad, "a frame of the control stream is too long"));
        }
        Ok(Self::Payload { kind, payload: Payload::new(length) })
    }
}

/// Handles a complete frame of the control stream.
fn received(kind: u64, mut payload: Bytes, peer: &mut PeerStreams) -> Result<Option<UniEvent>, Error> {
    let wrong_id = |reason| Err(Error::connection(Code::IdError, reason));
    if kind == frame::SETTINGS {
        peer.has_settings = true;
        return Settings::parse(&payload).map(|settings| Some(UniEvent::Settings(settings)));
    }
    let truncated = Error::connection(Code::FrameError, "a frame ends within its id");
    let (id, length) = varint::read(&payload).ok_or(truncated)?;
    payload.advance(length);
    let is_update = matches!(kind, frame::PRIORITY_UPDATE_REQUEST | frame::PRIORITY_UPDATE_PUSH);
    if !is_update && !payload.is_empty() {
        return Err(Error::connection(Code::FrameError, "a frame is longer than its id"));
    }
    match kind {
        frame::GOAWAY if peer.goaway.is_some_and(|last| id > last) => wrong_id("the id of GOAWAY increases"),
        frame::GOAWAY => {
            peer.goaway = Some(id);
            peer.idle.count(0)?;
            Ok(Some(UniEvent::GoAway(id)))
        }
        frame::MAX_PUSH_ID if peer.max_push.is_some_and(|last| id < last) => wrong_id("MAX_PUSH_ID decreases"),
        frame::MAX_PUSH_ID => {
            peer.max_push = Some(id);
            peer.idle.count(0)?;
            Ok(None)
        }
        // We promise nothing, so no id of a push is known.
        frame::CANCEL_PUSH | frame::PRIORITY_UPDATE_PUSH => wrong_id("a push that was not promised"),
        // The two lowest bits tell client-initiated streams in both directions (RFC 9000, 2.1).
        _ if id & 0b11 != 0 => wrong_id("PRIORITY_UPDATE for a stream without a request"),
        _ => Ok(Some(UniEvent::PriorityUpdate { stream: id, value: payload })),
    }
}

// === the stream of the peer's decoder ===

/// Skips Stream Cancellation, the only instruction that a decoder without a dynamic table may send (RFC 9204, 4.4).
#[derive(Clone, Debug, Default)]
struct Cancellation {
    /// The stream's id so far, and the position of its next bits; `None` between instructions.
    part: Option<(u64, u32)>,
}

impl Cancellation {
    fn decode(&mut self, chunk: &mut Bytes) -> Result<(), Error> {
        let invalid = |reason| Error::connection(Code::QpackDecoderStreamError, reason);
        while !chunk.is_empty() {
            let byte = chunk.get_u8();
            self.part = match self.part {
                None if byte & 0xc0 != 0x40 => return Err(invalid("an instruction needs a dynamic table")),
                None if byte & 0x3f == 0x3f => Some((0x3f, 0)),
                None => None,
                // An id has at most 62 bits.
                Some((_, shift)) if shift > 56 => return Err(invalid("a stream id is too large")),
                Some((id, shift)) => {
                    let id = id + (u64::from(byte & 0x7f) << shift);
                    if id > varint::MAX {
                        return Err(invalid("a stream id is too large"));
                    }
                    (byte & 0x80 != 0).then_some((id, shift + 7))
                }
            };
        }
        Ok(())
    }
}
