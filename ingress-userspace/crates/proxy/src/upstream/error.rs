//! Errors of upstream connections and exchanges. Their conversion to a status is in `proxy::request::error`.

use std::{fmt, io, net::SocketAddr};

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The reason why connecting failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("no connection to `{address}` in time")]
    Timeout { address: SocketAddr },
    #[error("`{address}` refused the connection")]
    Refused { address: SocketAddr },
    /// This node lacks resources for a connection: descriptors, memory or ports. The endpoint is not to blame.
    #[error(
        "no resources for a connection to `{address}` (raise the limit of open files, or widen the range of local ports)"
    )]
    Exhausted { address: SocketAddr, source: io::Error },
    #[error("no TLS connection to `{address}`")]
    Tls { address: SocketAddr, source: BoxError },
    #[error("cannot connect to `{address}`")]
    Io { address: SocketAddr, source: io::Error },
}

/// An exchange without a response head, with the facts needed to decide on a retry (RFC 9110, section 9.2.2; RFC 9112,
/// section 9.3.1).
///
/// A request that was not `written` may be retried regardless of its method. A `written` one may be retried if its
/// method is idempotent. Both need `unsent`, and hardly ever more than one retry.
pub struct ExchangeFailure<B> {
    pub error: ExchangeError,
    /// The request's body, if no part of it was taken and no byte of a response has arrived.
    pub unsent: Option<B>,
    /// Whether the connection had served a request before; an upstream may close an idle connection at any time.
    pub reused: bool,
    /// Whether the kernel accepted any byte of the request.
    pub written: bool,
}

/// The reason why an exchange returned no response head.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    #[error("upstream closed the connection before any byte of its response")]
    Closed,
    #[error("upstream reset the connection")]
    Reset,
    /// An HTTP/2 stream was reset after the endpoint may have begun to process it, or, due to a bug, an attempt had no
    /// body to send.
    #[error("upstream reset the stream")]
    Aborted,
    #[error("upstream took too long {what}")]
    Timeout { what: TimeoutPhase },
    #[error("upstream sent a malformed response")]
    Malformed(#[source] Malformed),
    #[error("upstream sent a response head over the limit")]
    HeadTooLarge,
    /// The client's connection failed, not the upstream's.
    #[error("request body broke off")]
    RequestBody(#[source] BoxError),
    /// The client sent no more of the body in time.
    #[error("request body did not continue in time")]
    Starved,
    #[error("connection to the upstream failed")]
    Io(#[source] io::Error),
}

/// The reason why a response body is incomplete. The bytes forwarded so far are not the whole body, so the client's
/// connection must not end regularly.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("upstream closed the connection before the end of its response")]
    Truncated,
    #[error("upstream reset the connection before the end of its response")]
    Reset,
    #[error("upstream took too long {what}")]
    Timeout { what: TimeoutPhase },
    #[error("upstream sent a malformed response body")]
    Malformed(#[source] Malformed),
    /// The client's connection failed, not the upstream's.
    #[error("request body broke off")]
    RequestBody(#[source] BoxError),
    /// The client sent no more of the body in time.
    #[error("request body did not continue in time")]
    Starved,
    #[error("connection to the upstream failed")]
    Io(#[source] io::Error),
}

/// The action of the upstream that timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimeoutPhase {
    Send,
    Head,
    Body,
}

/// The violation of RFC 9112 in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Malformed {
    #[error("status line is not `HTTP/1.x` and a status of 100 to 999")]
    StatusLine,
    #[error("header field is not a token, a colon and visible text on one line")]
    Header,
    #[error("a line of the head does not end in CRLF")]
    LineEnd,
    #[error("connection closed within the head")]
    TruncatedHead,
    #[error("`content-length` is not a single decimal number")]
    ContentLength,
    #[error("`transfer-encoding` is not a single `chunked` on HTTP/1.1")]
    TransferEncoding,
    #[error("both `content-length` and `transfer-encoding` are present")]
    BothLengths,
    #[error("switches protocols though no upgrade was asked for")]
    SwitchingProtocols,
    #[error("switches protocols otherwise than the handshake calls for")]
    Upgrade,
    #[error("too many interim responses")]
    TooManyInterim,
    #[error("chunk size is not a hexadecimal number below 2^64 and the end of a line")]
    ChunkSize,
    #[error("chunk extension is too long or holds a control character")]
    ChunkExtension,
    #[error("chunk is not followed by CRLF")]
    ChunkEnd,
    #[error("trailer section is too long or not made of header fields")]
    Trailer,
    #[error("the endpoint's reply is not HTTP/2")]
    Http2,
}

/// The reason why a transfer stopped, before it is assigned to the head or the body of the response.
#[derive(Debug)]
pub(super) enum TransferError {
    Timeout(TimeoutPhase),
    RequestBody(BoxError),
    Starved,
    Read(io::Error),
}

impl From<TransferError> for ExchangeError {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::Timeout(what) => Self::Timeout { what },
            TransferError::RequestBody(source) => Self::RequestBody(source),
            TransferError::Starved => Self::Starved,
            TransferError::Read(error) if is_reset(&error) => Self::Reset,
            TransferError::Read(error) => Self::Io(error),
        }
    }
}

impl From<TransferError> for BodyError {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::Timeout(what) => Self::Timeout { what },
            TransferError::RequestBody(source) => Self::RequestBody(source),
            TransferError::Starved => Self::Starved,
            TransferError::Read(error) if is_reset(&error) => Self::Reset,
            TransferError::Read(error) => Self::Io(error),
        }
    }
}

impl<B> fmt::Debug for ExchangeFailure<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { error, unsent, reused, written } = self;
        f.debug_struct("Failure")
            .field("error", error)
            .field("unsent", &unsent.is_some())
            .field("reused", reused)
            .field("written", written)
            .finish()
    }
}

impl<B> std::error::Error for ExchangeFailure<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<B> fmt::Display for ExchangeFailure<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { error: _, unsent, reused, written } = self;
        let connection = if *reused { "reused" } else { "new" };
        let sent = if *written { "sent at least in part" } else { "not sent" };
        let body = if unsent.is_some() { "untouched" } else { "begun" };
        write!(f, "no response on a {connection} connection: request {sent}, its body {body}")
    }
}

impl fmt::Display for TimeoutPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "to take the request",
            Self::Head => "to send a response head",
            Self::Body => "to send more of the response body",
        })
    }
}

impl ConnectError {
    /// Classifies the error `source` of connecting to `address`.
    pub(crate) fn new(address: SocketAddr, source: io::Error) -> Self {
        use libc::{EADDRNOTAVAIL, EAGAIN, EMFILE, ENFILE, ENOBUFS, ENOMEM};
        match source.raw_os_error() {
            // Without a free port, connect(2) fails with EADDRNOTAVAIL for TCP, and with EAGAIN for UDP.
            Some(EMFILE | ENFILE | EADDRNOTAVAIL | EAGAIN | ENOBUFS | ENOMEM) => Self::Exhausted { address, source },
            Some(libc::ECONNREFUSED) => Self::Refused { address },
            Some(libc::ETIMEDOUT) => Self::Timeout { address },
            _ => Self::Io { address, source },
        }
    }
}

fn is_reset(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    matches!(error.kind(), ConnectionReset | ConnectionAborted | BrokenPipe)
}
