//! A request's task: the service's future, and then the response, which is written as fast as the client takes it.

use std::{
    error::Error,
    future::poll_fn,
    pin::{Pin, pin},
    rc::Rc,
    task::Poll,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use ingress_http3::{Code, response};
use quinn_proto::StreamId;
use tokio::time::timeout;

use crate::{
    body::RequestBody,
    conn::{Conn, Gone},
    shared::Peer,
};

/// Ends the request's stream when the task ends: by a reset if the response is not complete.
struct Ending {
    conn: Rc<Conn>,
    id: StreamId,
    code: Code,
    is_complete: bool,
}

impl Drop for Ending {
    fn drop(&mut self) {
        if self.is_complete {
            self.conn.finish(self.id);
        } else {
            self.conn.abandon(self.id, self.code);
        }
    }
}

/// The reason why a response is not complete.
enum Failure {
    /// The service's body failed, or the response cannot be sent by HTTP/3.
    Service,
    /// The client takes nothing for too long.
    Slow,
    /// The stream has ended.
    Gone,
}

impl From<Gone> for Failure {
    fn from(Gone: Gone) -> Self {
        Self::Gone
    }
}

/// Answers `request` on the stream `id` of `conn`.
///
/// Returns a box, because tokio copies a task's future whole several times. The future is made in its place: a copy would
/// have a kilobyte of state that nothing has written yet.
#[inline(always)]
pub(crate) fn respond<S, F, B>(
    conn: Rc<Conn>,
    id: StreamId,
    request: Request<RequestBody>,
    service: Rc<S>,
) -> Pin<Box<impl Future<Output = ()>>>
where
    S: Fn(Request<RequestBody>, Rc<Peer>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data: Into<Bytes>, Error: Into<Box<dyn Error>>>,
{
    let place = Box::new_uninit();
    let respond = async move {
        let mut ending = Ending { conn: Rc::clone(&conn), id, code: Code::InternalError, is_complete: false };
        let mut out = BytesMut::new();
        // The fields are gone before the body is awaited, and so the task is smaller.
        let begun = {
            let response = service(request, Rc::clone(&conn.peer)).await;
            out.reserve(256);
            response::head(response.status(), response.headers(), &mut out).map(|()| response.into_body())
        };
        let sent = match begun {
            Ok(body) => send(&conn, id, out, pin!(body)).await,
            Err(_status_101) => Err(Failure::Service),
        };
        match sent {
            Ok(()) => ending.is_complete = true,
            Err(Failure::Service | Failure::Gone) => {}
            Err(Failure::Slow) => ending.code = Code::ExcessiveLoad,
        }
    };
    Box::into_pin(Box::write(place, respond))
}

/// Sends `out` and the body after it.
async fn send<B: Body<Data: Into<Bytes>, Error: Into<Box<dyn Error>>>>(
    conn: &Conn,
    id: StreamId,
    mut out: BytesMut,
    mut body: Pin<&mut B>,
) -> Result<(), Failure> {
    while !body.is_end_stream() {
        // A body that is ready goes out together with the head, which waits for no other.
        let next = poll_fn(|cx| match body.as_mut().poll_frame(cx) {
            Poll::Pending if !out.is_empty() => Poll::Ready(Next::Later),
            Poll::Pending => Poll::Pending,
            Poll::Ready(frame) => Poll::Ready(Next::of(frame)),
        });
        let data = match next.await {
            Next::Data(data) if data.is_empty() => continue,
            Next::Data(data) => data,
            Next::Later => Bytes::new(),
            Next::Trailers(trailers) => {
                response::trailers(&trailers, &mut out);
                break;
            }
            Next::Unknown => continue,
            Next::End => break,
            Next::Failed => return Err(Failure::Service),
        };
        if !data.is_empty() {
            response::data_head(data.len() as u64, &mut out);
        }
        write(conn, id, [out.split().freeze(), data]).await?;
    }
    write(conn, id, [out.freeze(), Bytes::new()]).await
}

/// The next part of a response's body.
enum Next {
    Data(Bytes),
    Trailers(HeaderMap),
    /// A frame that HTTP does not have.
    Unknown,
    /// The body is not ready, and the head is not sent.
    Later,
    End,
    /// The reason is logged.
    Failed,
}

impl Next {
    fn of<D: Into<Bytes>, E: Into<Box<dyn Error>>>(frame: Option<Result<Frame<D>, E>>) -> Self {
        match frame.map(|frame| frame.map(|frame| frame.into_data().map_err(Frame::into_trailers))) {
            Some(Ok(Ok(data))) => Self::Data(data.into()),
            Some(Ok(Err(Ok(trailers)))) => Self::Trailers(trailers),
            Some(Ok(Err(Err(_unknown)))) => Self::Unknown,
            Some(Err(error)) => {
                tracing::debug!(error = &*error.into(), "a response of HTTP/3 breaks off");
                Self::Failed
            }
            None => Self::End,
        }
    }
}

/// Writes all of `chunks`, without copying.
async fn write(conn: &Conn, id: StreamId, mut chunks: [Bytes; 2]) -> Result<(), Failure> {
    loop {
        let mut left = &mut chunks[..];
        while left.first().is_some_and(Bytes::is_empty) {
            left = &mut left[1..];
        }
        if left.last().is_some_and(Bytes::is_empty) {
            left = &mut left[..1];
        }
        if left.is_empty() {
            return Ok(());
        }
        // The timer is only made if the client has to be waited for. Its box keeps it out of the state of each task.
        match poll_fn(|cx| Poll::Ready(conn.poll_write(cx, id, left))).await {
            Poll::Ready(written) => written?,
            Poll::Pending => {
                let waited = poll_fn(|cx| conn.poll_write(cx, id, left));
                Box::pin(timeout(conn.with(|state| state.limits.send_timeout), waited))
                    .await
                    .map_err(|_elapsed| Failure::Slow)??;
            }
        }
    }
}
