//! The request being sent: head, framing and body, as far as the socket accepts them. It does not read.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, Bytes};
use http::{HeaderMap, Method};
use http_body::{Body, Frame};
use http_body_util::{Empty, Full};

use super::{
    BoxError, Connection, ExchangeLimits, TimeoutPhase,
    buffer::TextBuffer,
    error::TransferError,
    framing::{CHUNK_END, LAST_CHUNK_END, write_chunk_size},
    head,
};
use crate::l4::pipe::Pipe;

/// The body of a request on its way to an endpoint.
pub trait Outgoing: Body<Data = Bytes, Error: Into<BoxError>> + Unpin {
    /// Returns the next part, as a frame or in a pipe. `poll_frame` returns the same bytes as frames only.
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<BodyPart, Self::Error>>> {
        Pin::new(self).poll_frame(cx).map(|frame| frame.map(|frame| frame.map(BodyPart::Frame)))
    }

    /// Takes back one of its own pipes, which is now empty.
    fn take_back(&mut self, _empty: Pipe) {}
}

/// A part of a body.
#[derive(Debug)]
pub enum BodyPart {
    Frame(Frame<Bytes>),
    /// Bytes of the body in a pipe.
    Pipe(Pipe),
}

pub(super) struct RequestUpload<B> {
    /// Kept until a response has begun, even when the whole body was read: see [`RequestUpload::unsent`].
    body: B,
    framing: RequestFraming,
    /// Whether the whole body was read.
    complete: bool,
    /// Whether any part of the body was read.
    taken: bool,
    /// Whether the kernel accepted any byte.
    pub(super) written: bool,
    // The bytes to be sent next, in this order: head or chunk size, data, line ends; or head, pipe.
    text: TextBuffer,
    text_sent: usize,
    data: Bytes,
    tail: &'static [u8],
    pipe: Option<Pipe>,
}

/// The framing of the request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestFraming {
    None,
    /// Bytes still to come.
    Length(u64),
    Chunked,
}

/// The progress of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    /// The kernel has accepted the whole request.
    Finished,
    /// The socket accepts no more bytes for now.
    Blocked,
    /// The body has no more bytes for now.
    Starved,
}

#[derive(Debug)]
pub(super) enum SendError {
    /// The socket failed; reading shows how the connection ended.
    Write,
    Body(BoxError),
}

/// A body with another length than announced.
#[derive(Debug, thiserror::Error)]
#[error("request body is {0} than its announced length")]
struct WrongLength(&'static str);

impl Outgoing for Full<Bytes> {}

impl Outgoing for Empty<Bytes> {}

impl<B: Outgoing> RequestUpload<B> {
    /// Creates the upload. `write_head` appends the head without the framing fields and the empty line.
    pub(super) fn new(method: &Method, write_head: impl FnOnce(&mut Vec<u8>), body: B) -> Self {
        let mut text = TextBuffer::take();
        write_head(&mut text);
        let framing = RequestFraming::of(method, &body);
        framing.write(&mut text);
        let complete = matches!(framing, RequestFraming::None | RequestFraming::Length(0));
        let (data, tail): (_, &[u8]) = (Bytes::new(), &[]);
        Self { body, framing, complete, taken: false, written: false, text, text_sent: 0, data, tail, pipe: None }
    }

    /// Returns the body, if no part of it was read.
    pub(super) fn unsent(self) -> Option<B> {
        (!self.taken).then_some(self.body)
    }

    /// Returns the minimum number of body bytes still to come.
    pub(super) fn to_come(&self) -> u64 {
        self.body.size_hint().lower()
    }

    /// Sends as much of the available body as the socket accepts.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, connection: &mut Connection) -> Result<Sending, SendError> {
        loop {
            // The body is polled before the head is sent, so that both go out together, unless the next part is in a
            // pipe.
            if !self.complete && self.data.is_empty() && self.tail.is_empty() && self.pipe.is_none() {
                self.load(cx, connection.is_plain())?;
            }
            if self.text.is_empty() && self.data.is_empty() && self.tail.is_empty() {
                if let Some(pipe) = self.pipe.take() {
                    match self.poll_drain(cx, connection, pipe) {
                        Poll::Pending => return Ok(Sending::Blocked),
                        Poll::Ready(drained) => drained?,
                    }
                    continue;
                }
                return match connection.poll_flush(cx) {
                    Poll::Pending => Ok(Sending::Blocked),
                    Poll::Ready(Err(_)) => Err(SendError::Write),
                    Poll::Ready(Ok(())) => Ok(if self.complete { Sending::Finished } else { Sending::Starved }),
                };
            }
            let text = self.text.get(self.text_sent..).unwrap_or_default();
            let parts = [IoSlice::new(text), IoSlice::new(&self.data), IoSlice::new(self.tail)];
            // Empty slices between others cost nothing; with neither data nor tail, only the text is written.
            let parts = if self.data.is_empty() && self.tail.is_empty() { &parts[..1] } else { &parts[..] };
            match connection.poll_write(cx, parts) {
                Poll::Pending => return Ok(Sending::Blocked),
                Poll::Ready(Ok(0) | Err(_)) => return Err(SendError::Write),
                Poll::Ready(Ok(written)) => self.advance(written),
            }
        }
    }

    /// Writes as many bytes of `pipe` as the socket accepts. The pipe is kept until it is empty.
    fn poll_drain(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut Connection,
        mut pipe: Pipe,
    ) -> Poll<Result<(), SendError>> {
        let drained = connection.poll_drain(cx, &mut pipe);
        self.written |= matches!(drained, Poll::Ready(Ok(1..)));
        if matches!(drained, Poll::Ready(Ok(0) | Err(_))) {
            // The pipe is dropped at once, because the response may last for long.
            return Poll::Ready(Err(SendError::Write));
        }
        if pipe.is_empty() {
            self.body.take_back(pipe);
        } else {
            self.pipe = Some(pipe);
        }
        drained.map(|_drained| Ok(()))
    }

    /// Reads the next part of the body, if available, for sending. Parts are read as pipes only if the connection
    /// `is_plain`.
    fn load(&mut self, cx: &mut Context<'_>, is_plain: bool) -> Result<(), SendError> {
        loop {
            let part = match self.framing {
                RequestFraming::Length(_) if is_plain => self.body.poll_part(cx),
                _ => Pin::new(&mut self.body).poll_frame(cx).map(|frame| frame.map(|frame| frame.map(BodyPart::Frame))),
            };
            let part = match part {
                Poll::Pending => return Ok(()),
                Poll::Ready(None) => return self.finish(None),
                Poll::Ready(Some(Err(error))) => return Err(SendError::Body(error.into())),
                Poll::Ready(Some(Ok(part))) => part,
            };
            self.taken = true;
            let frame = match part {
                BodyPart::Frame(frame) => frame,
                BodyPart::Pipe(pipe) => {
                    self.announced(pipe.held())?;
                    self.pipe = Some(pipe);
                    return Ok(());
                }
            };
            match frame.into_data() {
                // An empty chunk would end the body.
                Ok(data) if data.is_empty() => {}
                Ok(data) => return self.append(data),
                Err(other) => {
                    if let Ok(trailers) = other.into_trailers() {
                        return self.finish(Some(&trailers));
                    }
                }
            }
        }
    }

    fn append(&mut self, data: Bytes) -> Result<(), SendError> {
        match self.framing {
            RequestFraming::None => {}
            RequestFraming::Length(_) => {
                self.announced(data.len())?;
                self.data = data;
            }
            RequestFraming::Chunked => {
                write_chunk_size(&mut self.text, data.len());
                self.complete = self.body.is_end_stream();
                self.tail = if self.complete { LAST_CHUNK_END } else { CHUNK_END };
                self.data = data;
            }
        }
        Ok(())
    }

    /// Subtracts `length` from the announced length that remains.
    fn announced(&mut self, length: usize) -> Result<(), SendError> {
        if let RequestFraming::Length(left) = &mut self.framing {
            *left = left.checked_sub(length as u64).ok_or_else(|| wrong_length("longer"))?;
            self.complete = *left == 0;
        }
        Ok(())
    }

    /// Ends the body.
    fn finish(&mut self, trailers: Option<&HeaderMap>) -> Result<(), SendError> {
        self.complete = true;
        match self.framing {
            RequestFraming::Length(1..) => return Err(wrong_length("shorter")),
            RequestFraming::None | RequestFraming::Length(0) => {}
            RequestFraming::Chunked => {
                self.text.extend_from_slice(b"0\r\n");
                for (name, value) in trailers.into_iter().flatten().filter(|(name, _)| head::is_trailer(name)) {
                    head::write_header(&mut self.text, name, value);
                }
                self.text.extend_from_slice(b"\r\n");
            }
        }
        Ok(())
    }

    fn advance(&mut self, mut written: usize) {
        self.written = true;
        let text = written.min(self.text.len() - self.text_sent);
        self.text_sent += text;
        written -= text;
        if self.text_sent == self.text.len() {
            self.text_sent = 0;
            if self.complete {
                // Only buffered data follows, so the next exchange can have the text buffer.
                self.text = TextBuffer::default();
            } else {
                self.text.clear();
            }
        }
        let data = written.min(self.data.len());
        self.data.advance(data);
        written -= data;
        if self.data.is_empty() {
            // Frees the memory as well.
            self.data = Bytes::new();
        }
        self.tail = self.tail.get(written..).unwrap_or_default();
    }
}

// === impl Sending ===

impl Sending {
    /// Returns the timeout of the current wait and its error. `waiting` is the next step of an endpoint that has the
    /// whole request.
    pub(super) fn limit(self, limits: &ExchangeLimits, waiting: TimeoutPhase) -> (Duration, TransferError) {
        match self {
            Self::Blocked => (limits.send_timeout, TransferError::Timeout(TimeoutPhase::Send)),
            Self::Finished => (limits.read_timeout, TransferError::Timeout(waiting)),
            Self::Starved => (limits.client_timeout, TransferError::Starved),
        }
    }
}

// === impl RequestFraming ===

impl RequestFraming {
    fn of<B: Body>(method: &Method, body: &B) -> Self {
        match body.size_hint().exact() {
            _ if body.is_end_stream() => Self::empty(method),
            Some(0) => Self::empty(method),
            Some(length) => Self::Length(length),
            None => Self::Chunked,
        }
    }

    /// For an empty body, methods that expect one send `content-length: 0` (RFC 9110, section 8.6).
    fn empty(method: &Method) -> Self {
        if matches!(*method, Method::POST | Method::PUT | Method::PATCH) { Self::Length(0) } else { Self::None }
    }

    /// Appends the framing fields and the end of the head.
    fn write(self, out: &mut Vec<u8>) {
        use io::Write as _;
        let written = match self {
            Self::None => out.write_all(b"\r\n"),
            Self::Length(length) => write!(out, "content-length: {length}\r\n\r\n"),
            Self::Chunked => out.write_all(b"transfer-encoding: chunked\r\n\r\n"),
        };
        debug_assert!(written.is_ok(), "writing to memory does not fail");
    }
}

fn wrong_length(how: &'static str) -> SendError {
    SendError::Body(Box::new(WrongLength(how)))
}
