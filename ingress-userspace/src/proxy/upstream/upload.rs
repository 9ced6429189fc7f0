//! The request on its way out: head, framing and body, sent as far as the socket takes it. It does not read.

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
    BoxError, Connection, Limits, Waiting,
    buffer::TextBuffer,
    error::TransferError,
    framing::{CHUNK_END, LAST_CHUNK_END, write_chunk_size},
    head,
};
use crate::proxy::pipe::Pipe;

/// The body of a request on its way to an endpoint.
pub trait Outgoing: Body<Data = Bytes, Error: Into<BoxError>> + Unpin {
    /// What comes next, as a frame or in a pipe. `poll_frame` gives the same as frames alone.
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Self::Error>>> {
        Pin::new(self).poll_frame(cx).map(|frame| frame.map(|frame| frame.map(Part::Frame)))
    }

    /// Takes back a pipe of its own that is empty by now.
    fn take_back(&mut self, _empty: Pipe) {}
}

/// What a body gives out.
#[derive(Debug)]
pub enum Part {
    Frame(Frame<Bytes>),
    /// Bytes of the body.
    Piped(Pipe),
}

pub(super) struct Upload<B> {
    /// Kept, even when nothing is wanted from it, until a response has begun: see [`Upload::unsent`].
    body: B,
    framing: Framing,
    /// Nothing more is wanted from the body.
    complete: bool,
    /// Something was taken from the body.
    taken: bool,
    /// Any byte was accepted by the kernel.
    pub(super) written: bool,
    // What goes out next, in this order: head or chunk size, data, line ends; or head, pipe.
    text: TextBuffer,
    text_sent: usize,
    data: Bytes,
    tail: &'static [u8],
    pipe: Option<Pipe>,
}

/// How the request's body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    None,
    /// Bytes still to come.
    Length(u64),
    Chunked,
}

/// How far sending has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    /// The whole request was accepted by the kernel.
    Finished,
    /// The socket takes nothing more for now.
    Blocked,
    /// The body has nothing more for now.
    Starved,
}

#[derive(Debug)]
pub(super) enum SendError {
    /// The socket takes no more; reading tells how the connection ended.
    Write,
    Body(BoxError),
}

/// A body that is not as long as it said.
#[derive(Debug, thiserror::Error)]
#[error("request body is {0} than its announced length")]
struct WrongLength(&'static str);

impl Outgoing for Full<Bytes> {}

impl Outgoing for Empty<Bytes> {}

impl<B: Outgoing> Upload<B> {
    /// A request whose head, but for framing fields and the empty line, `write_head` appends.
    pub(super) fn new(method: &Method, write_head: impl FnOnce(&mut Vec<u8>), body: B) -> Self {
        let mut text = TextBuffer::take();
        write_head(&mut text);
        let framing = Framing::of(method, &body);
        framing.write(&mut text);
        let complete = matches!(framing, Framing::None | Framing::Length(0));
        let (data, tail): (_, &[u8]) = (Bytes::new(), &[]);
        Self { body, framing, complete, taken: false, written: false, text, text_sent: 0, data, tail, pipe: None }
    }

    /// The body, if nothing was taken from it.
    pub(super) fn unsent(self) -> Option<B> {
        (!self.taken).then_some(self.body)
    }

    /// Bytes of the body that are still to come, at least.
    pub(super) fn to_come(&self) -> u64 {
        self.body.size_hint().lower()
    }

    /// Sends what the socket takes of what the body gives.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, connection: &mut Connection) -> Result<Sending, SendError> {
        loop {
            // Asked before the head goes out, so that both go out together, unless what comes is in a pipe.
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
            // Empty parts between others cost nothing; a body without framing is one part.
            let parts = if self.data.is_empty() && self.tail.is_empty() { &parts[..1] } else { &parts[..] };
            match connection.poll_write(cx, parts) {
                Poll::Pending => return Ok(Sending::Blocked),
                Poll::Ready(Ok(0) | Err(_)) => return Err(SendError::Write),
                Poll::Ready(Ok(written)) => self.advance(written),
            }
        }
    }

    /// Hands on what the socket takes of what is in `pipe`, which stays in line until it is empty.
    fn poll_drain(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut Connection,
        mut pipe: Pipe,
    ) -> Poll<Result<(), SendError>> {
        let drained = connection.poll_drain(cx, &mut pipe);
        self.written |= matches!(drained, Poll::Ready(Ok(1..)));
        if matches!(drained, Poll::Ready(Ok(0) | Err(_))) {
            // The pipe is of no use any more, however long the answer goes on.
            return Poll::Ready(Err(SendError::Write));
        }
        if pipe.is_empty() {
            self.body.take_back(pipe);
        } else {
            self.pipe = Some(pipe);
        }
        drained.map(|_drained| Ok(()))
    }

    /// Takes the next part of the body, if it has one, and puts it in line: a pipe only if the connection `is_plain`.
    fn load(&mut self, cx: &mut Context<'_>, is_plain: bool) -> Result<(), SendError> {
        loop {
            let part = match self.framing {
                Framing::Length(_) if is_plain => self.body.poll_part(cx),
                _ => Pin::new(&mut self.body).poll_frame(cx).map(|frame| frame.map(|frame| frame.map(Part::Frame))),
            };
            let part = match part {
                Poll::Pending => return Ok(()),
                Poll::Ready(None) => return self.finish(None),
                Poll::Ready(Some(Err(error))) => return Err(SendError::Body(error.into())),
                Poll::Ready(Some(Ok(part))) => part,
            };
            self.taken = true;
            let frame = match part {
                Part::Frame(frame) => frame,
                Part::Piped(pipe) => {
                    self.announced(pipe.held())?;
                    self.pipe = Some(pipe);
                    return Ok(());
                }
            };
            match frame.into_data() {
                // A chunk without data would end the body.
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
            Framing::None => {}
            Framing::Length(_) => {
                self.announced(data.len())?;
                self.data = data;
            }
            Framing::Chunked => {
                write_chunk_size(&mut self.text, data.len());
                self.complete = self.body.is_end_stream();
                self.tail = if self.complete { LAST_CHUNK_END } else { CHUNK_END };
                self.data = data;
            }
        }
        Ok(())
    }

    /// So many bytes of those that the head has announced are in line.
    fn announced(&mut self, length: usize) -> Result<(), SendError> {
        if let Framing::Length(left) = &mut self.framing {
            *left = left.checked_sub(length as u64).ok_or_else(|| wrong_length("longer"))?;
            self.complete = *left == 0;
        }
        Ok(())
    }

    /// The body has ended.
    fn finish(&mut self, trailers: Option<&HeaderMap>) -> Result<(), SendError> {
        self.complete = true;
        match self.framing {
            Framing::Length(1..) => return Err(wrong_length("shorter")),
            Framing::None | Framing::Length(0) => {}
            Framing::Chunked => {
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
                // Nothing follows the data in line: the next exchange can have it.
                self.text = TextBuffer::default();
            } else {
                self.text.clear();
            }
        }
        let data = written.min(self.data.len());
        self.data.advance(data);
        written -= data;
        if self.data.is_empty() {
            // Lets go of the memory as well.
            self.data = Bytes::new();
        }
        self.tail = self.tail.get(written..).unwrap_or_default();
    }
}

// === impl Sending ===

impl Sending {
    /// How long whoever is waited for may take, and what it is if that is too long. `waiting` is what an endpoint that
    /// has the whole request owes.
    pub(super) fn limit(self, limits: &Limits, waiting: Waiting) -> (Duration, TransferError) {
        match self {
            Self::Blocked => (limits.send_timeout, TransferError::Timeout(Waiting::Send)),
            Self::Finished => (limits.read_timeout, TransferError::Timeout(waiting)),
            Self::Starved => (limits.client_timeout, TransferError::Starved),
        }
    }
}

// === impl Framing ===

impl Framing {
    fn of<B: Body>(method: &Method, body: &B) -> Self {
        match body.size_hint().exact() {
            _ if body.is_end_stream() => Self::empty(method),
            Some(0) => Self::empty(method),
            Some(length) => Self::Length(length),
            None => Self::Chunked,
        }
    }

    /// Methods that expect a body say that there is none (RFC 9110, 8.6).
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
