//! Errors of HTTP/3 and QPACK: their codes, and whether they end a stream or the connection.

use std::fmt;

/// Code of an error, for RESET_STREAM, STOP_SENDING and CONNECTION_CLOSE (RFC 9114, 8.1; RFC 9204, 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// `H3_NO_ERROR`: there is no error; the stream or connection is no longer needed.
    NoError,
    /// `H3_GENERAL_PROTOCOL_ERROR`: a violation without a code of its own.
    GeneralProtocolError,
    /// `H3_INTERNAL_ERROR`: the sender of the code failed.
    InternalError,
    /// `H3_STREAM_CREATION_ERROR`: the peer created a stream that it may not create.
    StreamCreationError,
    /// `H3_CLOSED_CRITICAL_STREAM`: a stream ended that the connection needs.
    ClosedCriticalStream,
    /// `H3_FRAME_UNEXPECTED`: a frame that is not permitted at this point or on this stream.
    FrameUnexpected,
    /// `H3_FRAME_ERROR`: a frame with an invalid layout or size.
    FrameError,
    /// `H3_EXCESSIVE_LOAD`: behaviour that may exhaust the receiver.
    ExcessiveLoad,
    /// `H3_ID_ERROR`: an identifier is used wrongly, such as a push ID above the limit.
    IdError,
    /// `H3_SETTINGS_ERROR`: an error in the payload of SETTINGS.
    SettingsError,
    /// `H3_MISSING_SETTINGS`: the control stream does not begin with SETTINGS.
    MissingSettings,
    /// `H3_REQUEST_REJECTED`: the request was not processed, and may be sent again.
    RequestRejected,
    /// `H3_REQUEST_CANCELLED`: request or response are no longer wanted.
    RequestCancelled,
    /// `H3_REQUEST_INCOMPLETE`: the stream ended before the request was complete.
    RequestIncomplete,
    /// `H3_MESSAGE_ERROR`: the message is malformed.
    MessageError,
    /// `H3_CONNECT_ERROR`: the connection behind a CONNECT failed.
    ConnectError,
    /// `H3_VERSION_FALLBACK`: the request needs HTTP/1.1.
    VersionFallback,
    /// `QPACK_DECOMPRESSION_FAILED`: a field section cannot be decoded.
    QpackDecompressionFailed,
    /// `QPACK_ENCODER_STREAM_ERROR`: an instruction of the peer's encoder is invalid.
    QpackEncoderStreamError,
    /// `QPACK_DECODER_STREAM_ERROR`: an instruction of the peer's decoder is invalid.
    QpackDecoderStreamError,
}

impl Code {
    /// Returns the number on the wire. It is below 2⁶², as QUIC requires.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.row().0
    }

    /// Returns the name in the RFC, such as `H3_NO_ERROR`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().1
    }

    const fn row(self) -> (u64, &'static str) {
        match self {
            Self::NoError => (0x100, "H3_NO_ERROR"),
            Self::GeneralProtocolError => (0x101, "H3_GENERAL_PROTOCOL_ERROR"),
            Self::InternalError => (0x102, "H3_INTERNAL_ERROR"),
            Self::StreamCreationError => (0x103, "H3_STREAM_CREATION_ERROR"),
            Self::ClosedCriticalStream => (0x104, "H3_CLOSED_CRITICAL_STREAM"),
            Self::FrameUnexpected => (0x105, "H3_FRAME_UNEXPECTED"),
            Self::FrameError => (0x106, "H3_FRAME_ERROR"),
            Self::ExcessiveLoad => (0x107, "H3_EXCESSIVE_LOAD"),
            Self::IdError => (0x108, "H3_ID_ERROR"),
            Self::SettingsError => (0x109, "H3_SETTINGS_ERROR"),
            Self::MissingSettings => (0x10a, "H3_MISSING_SETTINGS"),
            Self::RequestRejected => (0x10b, "H3_REQUEST_REJECTED"),
            Self::RequestCancelled => (0x10c, "H3_REQUEST_CANCELLED"),
            Self::RequestIncomplete => (0x10d, "H3_REQUEST_INCOMPLETE"),
            Self::MessageError => (0x10e, "H3_MESSAGE_ERROR"),
            Self::ConnectError => (0x10f, "H3_CONNECT_ERROR"),
            Self::VersionFallback => (0x110, "H3_VERSION_FALLBACK"),
            Self::QpackDecompressionFailed => (0x200, "QPACK_DECOMPRESSION_FAILED"),
            Self::QpackEncoderStreamError => (0x201, "QPACK_ENCODER_STREAM_ERROR"),
            Self::QpackDecoderStreamError => (0x202, "QPACK_DECODER_STREAM_ERROR"),
        }
    }
}

/// The extent of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The caller resets the stream and stops reading it. Other streams go on.
    Stream,
    /// The caller closes the connection.
    Connection,
}

/// A violation by the peer, or a message of ours that HTTP/3 cannot carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// Whether the stream or the connection ends.
    pub scope: Scope,
    /// The code for the peer.
    pub code: Code,
    /// The rule that was violated, as text for logs and for the reason of CONNECTION_CLOSE.
    pub reason: &'static str,
}

impl Error {
    pub(crate) const fn connection(code: Code, reason: &'static str) -> Self {
        Self { scope: Scope::Connection, code, reason }
    }

    pub(crate) const fn stream(code: Code, reason: &'static str) -> Self {
        Self { scope: Scope::Stream, code, reason }
    }

    /// A malformed message (RFC 9114, 4.1.2).
    pub(crate) const fn malformed(reason: &'static str) -> Self {
        Self::stream(Code::MessageError, reason)
    }

    /// An invalid field section (RFC 9204, 6).
    pub(crate) const fn decompression(reason: &'static str) -> Self {
        Self::connection(Code::QpackDecompressionFailed, reason)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.reason)
    }
}

impl std::error::Error for Error {}

/// The reason why a field section becomes no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The section is larger than the limit, but no rule is violated so far. A request is answered with 431. For
    /// trailers, the stream is reset with `H3_EXCESSIVE_LOAD`.
    TooLarge,
    /// The peer violated a rule.
    Error(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => f.write_str("field section is too large"),
            Self::Error(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Refusal {}
