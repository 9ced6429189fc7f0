//! The requests of a connection: their heads and bodies as they are read, their cancellation, and their end.

use std::{
    rc::Rc,
    task::{Poll, Waker},
    time::Instant,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, StatusCode};
use ingress_http3::{BodyLength, Code, Error, Event, FrameDecoder, Priority, Refusal, Scope, response, section};
use quinn_proto::{Chunks, ReadError, StreamId};
use tokio::task::AbortHandle;

use crate::{
    body::{BodyError, RequestBody},
    conn::{Conn, Part},
    connection::{GoAway, Stage, State, wire},
    shared::count,
};

/// A request and its response.
pub(crate) struct Exchange {
    decoder: FrameDecoder,
    /// Bytes that were received but not decoded.
    chunk: Bytes,
    receiving: Receiving,
    /// Whether the request has no body: its end has come with its head.
    ends_with_head: bool,
    /// The task, from the driver's turn on that begins it.
    pub(crate) task: Option<AbortHandle>,
    /// The task that waits for the body.
    reader: Option<Waker>,
    /// The task that waits until the stream takes bytes.
    pub(crate) writer: Option<Waker>,
    /// Number of the last write of the connection that was for this stream; 0 before the first.
    pub(crate) wrote: u64,
    /// Whether the response is complete, while the service still reads the request.
    is_answered: bool,
}

/// The part of the request that is awaited.
enum Receiving {
    Head,
    Body(BodyLength),
    /// The request was read to its end.
    Ended,
    /// We have stopped reading.
    Stopped,
}

/// The reason why a stream is read no further.
enum Failure {
    Error(Error),
    Reset(u64),
    Gone,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Exchange {
    /// Ends the task of a request whose stream is gone.
    pub(crate) fn cut(self) {
        let Self { task, reader, writer, .. } = self;
        if let Some(task) = task {
            task.abort();
        }
        // For a task that has ended its own stream.
        reader.into_iter().chain(writer).for_each(Waker::wake);
    }

    /// Returns the bytes of a head that has come in part.
    pub(crate) fn head_bytes(&self) -> usize {
        if self.awaits_head() { self.decoder.buffered() } else { 0 }
    }

    fn awaits_head(&self) -> bool {
        matches!(self.receiving, Receiving::Head)
    }

    /// Reads the next event from the chunks that have come.
    fn read(&mut self, chunks: &mut Chunks<'_>) -> Result<Option<Option<Event>>, Failure> {
        loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => self.chunk = chunk.bytes,
                Ok(None) => {
                    self.decoder.finish()?;
                    return Ok(Some(None));
                }
                Err(ReadError::Blocked) => return Ok(None),
                Err(ReadError::Reset(code)) => return Err(Failure::Reset(code.into_inner())),
            }
            let Some(event) = self.decoder.decode(&mut self.chunk)? else { continue };
            if matches!(event, Event::Headers(_)) && self.chunk.is_empty() {
                match chunks.next(usize::MAX) {
                    Ok(Some(chunk)) => self.chunk = chunk.bytes,
                    Ok(None) => self.ends_with_head = true,
                    // A reset would have come in place of the head.
                    Err(_blocked) => {}
                }
            }
            return Ok(Some(Some(event)));
        }
    }

    /// Whether the client has sent all that we read.
    fn is_read(&self) -> bool {
        matches!(self.receiving, Receiving::Ended | Receiving::Stopped)
    }
}

impl State {
    /// Takes a stream that the client has opened for a request.
    pub(crate) fn open_request(&mut self, id: StreamId, conn: &Rc<Conn>, now: Instant) {
        self.next_request = self.next_request.max(id.index() + 1);
        if matches!(self.goaway, GoAway::At(end) if id.index() >= end) || self.stage != Stage::Serving {
            self.reset(id, Code::RequestRejected);
            return self.draw_reset(now);
        }
        let exchange = Exchange {
            decoder: FrameDecoder::new(self.limits.section_max),
            chunk: Bytes::new(),
            receiving: Receiving::Head,
            ends_with_head: false,
            task: None,
            reader: None,
            writer: None,
            wrote: 0,
            is_answered: false,
        };
        self.requests.insert(id, exchange);
        self.read_head(id, conn, now);
        if self.awaits_head(id) {
            self.await_head(id, now);
        }
    }

    /// Gives the head of a request its deadline. Entries of heads that have come stay behind one that has not.
    fn await_head(&mut self, id: StreamId, now: Instant) {
        let Self { heads, requests, .. } = self;
        if heads.len() >= 2 * self.limits.streams_max as usize {
            heads.retain(|(_, id)| requests.get(id).is_some_and(Exchange::awaits_head));
        }
        heads.push_back((now, id));
    }

    /// Reacts to bytes, an end or a reset of a request's stream.
    pub(crate) fn readable(&mut self, id: StreamId, conn: &Rc<Conn>, now: Instant) {
        let Some(exchange) = self.requests.get_mut(&id) else { return };
        match exchange.receiving {
            Receiving::Head => self.read_head(id, conn, now),
            Receiving::Body(_) => {
                let reader = exchange.reader.take();
                // The service learns of it even if it does not read.
                if let Ok(Some(_code)) = self.quic.recv_stream(id).received_reset() {
                    self.cancelled(id, now);
                }
                if let Some(reader) = reader {
                    reader.wake();
                }
            }
            Receiving::Ended | Receiving::Stopped => {}
        }
    }

    /// Returns whether `id` awaits its head.
    pub(crate) fn awaits_head(&self, id: StreamId) -> bool {
        self.requests.get(&id).is_some_and(Exchange::awaits_head)
    }

    fn read_head(&mut self, id: StreamId, conn: &Rc<Conn>, now: Instant) {
        let mut has_changed = false;
        match self.next(id, &mut has_changed) {
            Ok(None) => self.has_partial_head = true,
            Ok(Some(Some(Event::Headers(encoded)))) => self.take_head(id, encoded, conn, now),
            // Anything else than headers and their excess is an error of the decoder.
            Ok(Some(_)) => self.answer(id, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, now),
            Err(Failure::Error(error)) => self.fail(id, error, now),
            Err(Failure::Reset(_) | Failure::Gone) => self.cancelled(id, now),
        }
    }

    fn take_head(&mut self, id: StreamId, encoded: Bytes, conn: &Rc<Conn>, now: Instant) {
        let limits = &self.limits;
        let section::Request { parts, protocol, length } =
            match section::request(encoded, limits.section_max, limits.connect_protocol) {
                Ok(request) => request,
                Err(Refusal::TooLarge) => return self.answer(id, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, now),
                Err(Refusal::Error(error)) => return self.fail(id, error, now),
            };
        self.allowance.add_request();
        let priority = Priority::of(&parts.headers);
        if priority != Priority::default() {
            self.set_priority(id, priority);
        }
        let left = length.left();
        let Some(exchange) = self.requests.get_mut(&id) else { return };
        if parts.method == Method::CONNECT {
            exchange.decoder.tunnel();
        }
        let body = if exchange.ends_with_head {
            exchange.receiving = Receiving::Ended;
            if let Err(error) = length.finish() {
                return self.fail(id, error, now);
            }
            RequestBody::default()
        } else {
            exchange.receiving = Receiving::Body(length);
            RequestBody::new(Rc::clone(conn), id, left)
        };
        let mut request = Request::from_parts(parts, body);
        if let Some(protocol) = protocol {
            request.extensions_mut().insert(crate::Protocol(protocol));
        }
        count(&self.shared.counters.requests);
        self.begun.push((id, request));
    }

    /// Reads the next event of a request's stream; `Some(None)` is the end. `has_changed` tells whether the client must
    /// hear that it may send more.
    fn next(&mut self, id: StreamId, has_changed: &mut bool) -> Result<Option<Option<Event>>, Failure> {
        let exchange = self.requests.get_mut(&id).ok_or(Failure::Gone)?;
        if let Some(event) = exchange.decoder.decode(&mut exchange.chunk)? {
            return Ok(Some(Some(event)));
        }
        let mut receiver = self.quic.recv_stream(id);
        let mut chunks = receiver.read(true).map_err(|_stopped_or_gone| Failure::Gone)?;
        let next = exchange.read(&mut chunks);
        *has_changed |= chunks.finalize().should_transmit();
        next
    }

    /// Reads the next part of a body, and whether the connection has something to send. Errors of the client end its
    /// stream or connection.
    pub(crate) fn read_body(
        &mut self,
        id: StreamId,
        now: Instant,
        waker: &Waker,
    ) -> (Poll<Result<Part, BodyError>>, bool) {
        let mut has_changed = false;
        let read = self.next(id, &mut has_changed).and_then(|event| self.take_event(id, event));
        let part = match read {
            Ok(Some(part)) => Ok(part),
            Ok(None) => {
                if let Some(exchange) = self.requests.get_mut(&id) {
                    exchange.reader = Some(waker.clone());
                }
                return (Poll::Pending, has_changed);
            }
            Err(Failure::Error(error)) => {
                self.fail(id, error, now);
                Err(BodyError::Malformed(error))
            }
            Err(Failure::Reset(code)) => {
                self.cancelled(id, now);
                Err(BodyError::Cancelled(code))
            }
            Err(Failure::Gone) => Err(BodyError::Gone),
        };
        let is_last = matches!(part, Ok(Part::End)) && self.end_answered(id, now);
        has_changed |= part.is_err() || is_last;
        (Poll::Ready(part), has_changed)
    }

    fn take_event(&mut self, id: StreamId, event: Option<Option<Event>>) -> Result<Option<Part>, Failure> {
        let Some(event) = event else { return Ok(None) };
        let section_max = self.limits.section_max;
        let exchange = self.requests.get_mut(&id).ok_or(Failure::Gone)?;
        let Receiving::Body(length) = &mut exchange.receiving else { return Err(Failure::Gone) };
        let too_large = Failure::Error(Error {
            scope: Scope::Stream,
            code: Code::ExcessiveLoad,
            reason: "the trailers are too large",
        });
        Ok(Some(match event {
            Some(Event::Data(data)) => {
                length.data(data.len())?;
                Part::Data(data)
            }
            Some(Event::Trailers(encoded)) => match section::trailers(encoded, section_max) {
                Ok(trailers) => Part::Trailers(trailers),
                Err(Refusal::TooLarge) => return Err(too_large),
                Err(Refusal::Error(error)) => return Err(error.into()),
            },
            Some(Event::TrailersTooLarge) => return Err(too_large),
            // The decoder returns a head only once.
            Some(Event::Headers(_) | Event::HeadersTooLarge) => return Err(Failure::Gone),
            None => {
                length.finish()?;
                exchange.receiving = Receiving::Ended;
                Part::End
            }
        }))
    }

    /// Answers a request that the service is not asked about.
    fn answer(&mut self, id: StreamId, status: StatusCode, now: Instant) {
        let headers = HeaderMap::from_iter([(http::header::CONTENT_LENGTH, 0.into())]);
        let mut out = BytesMut::new();
        let is_sent = response::head(status, &headers, &mut out).is_ok()
            && self.quic.send_stream(id).write(&out).is_ok_and(|count| count == out.len());
        if is_sent {
            self.finish(id, || now)
        } else {
            self.abandon(id, Code::ExcessiveLoad, now)
        }
        // No service has seen the request, so no limit of a service has.
        self.draw_reset(now);
    }

    /// Reacts to a client that no longer wants a response.
    pub(crate) fn cancelled(&mut self, id: StreamId, now: Instant) {
        let Some(Exchange { is_answered, .. }) = self.requests.get(&id) else { return };
        // A client may end an upload that was answered without reading it.
        let is_answered = *is_answered;
        self.abandon(id, Code::RequestCancelled, now);
        if !is_answered {
            count(&self.shared.counters.cancelled);
            self.draw_reset(now);
        }
    }

    /// Reacts to a client that stops a response. quinn-proto would keep the rest of a complete one, and count it against the
    /// window of all others.
    pub(crate) fn stopped(&mut self, id: StreamId, now: Instant) {
        if self.requests.get(&id).is_some_and(|exchange| !exchange.is_answered) {
            return self.cancelled(id, now);
        }
        // Fails for a stream that we have reset.
        if self.quic.send_stream(id).reset(wire(Code::RequestCancelled)).is_ok() {
            self.unacknowledged = self.unacknowledged.saturating_sub(1);
            self.finished += 1;
            self.note_idle(|| now);
        }
    }

    /// Stops reading a request whose body is dropped.
    pub(crate) fn drop_body(&mut self, id: StreamId, now: Instant) {
        self.stop_reading(id, now);
        self.end_answered(id, now);
    }

    /// Forgets a request that was answered and is read to its end. Returns whether there was one.
    fn end_answered(&mut self, id: StreamId, now: Instant) -> bool {
        let is_over = self.requests.get(&id).is_some_and(|exchange| exchange.is_answered && exchange.is_read());
        if is_over {
            self.requests.remove(&id);
            self.note_idle(|| now);
        }
        is_over
    }

    /// Stops reading a request. The client learns that its rest is not needed, unless it has already sent all.
    fn stop_reading(&mut self, id: StreamId, now: Instant) {
        if self.requests.get(&id).is_none_or(Exchange::is_read) {
            return;
        }
        let mut has_changed = false;
        let next = self.next(id, &mut has_changed);
        let is_end = matches!(next, Ok(Some(None)));
        if let Some(exchange) = self.requests.get_mut(&id) {
            exchange.receiving = if is_end { Receiving::Ended } else { Receiving::Stopped };
        }
        if let Err(Failure::Error(error @ Error { scope: Scope::Connection, .. })) = next {
            self.close(error.code, error.reason, now);
        } else if !is_end {
            // The client may have reset it.
            let _reset = self.quic.recv_stream(id).stop(wire(Code::NoError));
        }
    }

    /// Ends a request whose response is complete. Its client sends on until the service drops the body. `now` reads
    /// the clock, which few requests need.
    pub(crate) fn finish(&mut self, id: StreamId, now: impl Fn() -> Instant) {
        match self.requests.get_mut(&id) {
            Some(exchange) if matches!(exchange.receiving, Receiving::Body(_)) => {
                exchange.is_answered = true;
                exchange.task = None;
                self.unacknowledged += usize::from(self.quic.send_stream(id).finish().is_ok());
                return;
            }
            Some(exchange) if !exchange.is_read() => self.stop_reading(id, now()),
            _ => {}
        }
        if let Some(Exchange { reader, .. }) = self.requests.remove(&id) {
            // Another task may read the body, and learns that it is gone.
            reader.into_iter().for_each(Waker::wake);
            // The client may have stopped it.
            if self.quic.send_stream(id).finish().is_ok() {
                self.unacknowledged += 1;
            }
        }
        self.note_idle(now);
    }

    /// Ends a request without a complete response.
    pub(crate) fn abandon(&mut self, id: StreamId, code: Code, now: Instant) {
        if let Some(exchange) = self.requests.remove(&id) {
            let is_answered = exchange.is_answered;
            exchange.cut();
            if is_answered {
                // The end of the response stays as it is.
                let _ended = self.quic.recv_stream(id).stop(wire(code));
            } else {
                self.reset(id, code);
            }
            self.note_idle(|| now);
        }
    }

    /// Resets both directions of a stream, as far as they are open.
    fn reset(&mut self, id: StreamId, code: Code) {
        let _ended = self.quic.recv_stream(id).stop(wire(code));
        let _ended = self.quic.send_stream(id).reset(wire(code));
    }

    /// Notes the time, as `now` reads it, if no request is left.
    pub(crate) fn note_idle(&mut self, now: impl FnOnce() -> Instant) {
        if self.requests.is_empty() {
            self.idle_since = now();
        }
    }
}
