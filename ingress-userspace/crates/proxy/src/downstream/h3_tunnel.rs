//! A stream of HTTP/3 as a stream of bytes, for a tunnel: bytes from the body of the request, and bytes to that of the
//! response.

use std::{
    cell::RefCell,
    io::{self, ErrorKind},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker, ready},
};

use bytes::{Buf as _, Bytes, BytesMut};
use http_body::{Body as _, Frame};
use ingress_quic::{BodyError as BodyEnd, RequestBody};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::upstream::BodyError;

/// Bytes that wait for the client before the tunnel does.
const QUEUE_MAX: usize = 64 * 1024;

/// The client's side of a tunnel. If it is dropped before its end, the client's stream is reset.
pub(crate) struct TunnelStream {
    received: RequestBody,
    /// Received bytes that the tunnel has not read.
    rest: Bytes,
    queue: Rc<RefCell<Queue>>,
}

/// The bytes for the client, as the body of a response.
pub(crate) struct TunnelBody(Rc<RefCell<Queue>>);

/// Bytes on their way from the tunnel to the client.
#[derive(Default)]
struct Queue {
    bytes: BytesMut,
    end: Option<QueueEnd>,
    /// Waits for bytes or the end.
    reader: Option<Waker>,
    /// Waits for room.
    writer: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueEnd {
    /// All bytes were written.
    Whole,
    /// The tunnel broke off.
    Broken,
    /// The client's stream has ended.
    Unwanted,
}

/// Returns both sides of a stream with bytes from `received`.
pub(crate) fn pair(received: RequestBody) -> (TunnelStream, TunnelBody) {
    let queue = Rc::<RefCell<Queue>>::default();
    (TunnelStream { received, rest: Bytes::new(), queue: Rc::clone(&queue) }, TunnelBody(queue))
}

// === impl TunnelStream ===

impl AsyncRead for TunnelStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.rest.is_empty() {
            match ready!(Pin::new(&mut this.received).poll_frame(cx)) {
                None => return Poll::Ready(Ok(())),
                // The pod has closed, and nothing more can come from the client, which has left or has reset the stream.
                Some(Err(BodyEnd::Gone)) if this.queue.borrow().end == Some(QueueEnd::Whole) => {
                    return Poll::Ready(Ok(()));
                }
                Some(Err(error)) => return Poll::Ready(Err(io::Error::new(ErrorKind::ConnectionReset, error))),
                // A tunnel has no trailers.
                Some(Ok(frame)) => this.rest = frame.into_data().unwrap_or_default(),
            }
        }
        let count = this.rest.len().min(buf.remaining());
        buf.put_slice(&this.rest[..count]);
        this.rest.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TunnelStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut queue = self.queue.borrow_mut();
        if queue.end.is_some() {
            return Poll::Ready(Err(ErrorKind::BrokenPipe.into()));
        }
        let room = QUEUE_MAX.saturating_sub(queue.bytes.len());
        if room == 0 {
            queue.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let count = room.min(bytes.len());
        queue.bytes.extend_from_slice(&bytes[..count]);
        queue.wake_reader();
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.queue.borrow_mut().end(QueueEnd::Whole);
        Poll::Ready(Ok(()))
    }
}

impl Drop for TunnelStream {
    fn drop(&mut self) {
        self.queue.borrow_mut().end(QueueEnd::Broken);
    }
}

// === impl TunnelBody ===

impl TunnelBody {
    pub(crate) fn poll_frame(&self, cx: &Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut queue = self.0.borrow_mut();
        if !queue.bytes.is_empty() {
            let bytes = queue.bytes.split().freeze();
            if let Some(writer) = queue.writer.take() {
                writer.wake();
            }
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        match queue.end {
            Some(QueueEnd::Whole) => Poll::Ready(None),
            Some(QueueEnd::Broken | QueueEnd::Unwanted) => Poll::Ready(Some(Err(BodyError::Truncated))),
            None => {
                queue.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for TunnelBody {
    fn drop(&mut self) {
        let mut queue = self.0.borrow_mut();
        queue.end(QueueEnd::Unwanted);
        if let Some(writer) = queue.writer.take() {
            writer.wake();
        }
    }
}

// === impl Queue ===

impl Queue {
    fn end(&mut self, end: QueueEnd) {
        self.end.get_or_insert(end);
        self.wake_reader();
    }

    fn wake_reader(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}
