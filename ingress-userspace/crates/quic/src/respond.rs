//! A request's task: the service's future, and then the response, which is written as fast as the client takes it.

use std::{future::poll_fn, pin::pin, rc::Rc, task::Poll};

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
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
pub(crate) async fn respond<S, F, B>(conn: Rc<Conn>, id: StreamId, request: Request<RequestBody>, service: Rc<S>)
where
    S: Fn(Request<RequestBody>, Rc<Peer>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes>,
{
    let mut ending = Ending { conn: Rc::clone(&conn), id, code: Code::InternalError, is_complete: false };
    let answer = service(request, Rc::clone(&conn.peer)).await;
    match send(&conn, id, answer).await {
        Ok(()) => ending.is_complete = true,
        Err(Failure::Service | Failure::Gone) => {}
        Err(Failure::Slow) => ending.code = Code::ExcessiveLoad,
    }
}

async fn send<B: Body<Data = Bytes>>(conn: &Conn, id: StreamId, answer: Response<B>) -> Result<(), Failure> {
    let (parts, body) = answer.into_parts();
    let mut body = pin!(body);
    let mut out = BytesMut::with_capacity(256);
    response::head(&parts, &mut out).map_err(|_status_101| Failure::Service)?;
    drop(parts);
    while !body.is_end_stream() {
        // A body that is ready goes out together with the head, which waits for no other.
        let frame = poll_fn(|cx| match body.as_mut().poll_frame(cx) {
            Poll::Pending if !out.is_empty() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
            Poll::Ready(frame) => Poll::Ready(Some(frame)),
        })
        .await;
        let Some(frame) = frame else {
            write(conn, id, [out.split().freeze(), Bytes::new()]).await?;
            continue;
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|_logged_by_the_service| Failure::Service)?;
        match frame.into_data().map_err(Frame::into_trailers) {
            Ok(data) if data.is_empty() => {}
            Ok(data) => {
                response::data_head(data.len() as u64, &mut out);
                write(conn, id, [out.split().freeze(), data]).await?;
            }
            Err(Ok(trailers)) => {
                response::trailers(&trailers, &mut out);
                break;
            }
            // HTTP has no other frames.
            Err(Err(_unknown)) => {}
        }
    }
    write(conn, id, [out.freeze(), Bytes::new()]).await
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
        // The timer is only made if the client has to be waited for.
        match poll_fn(|cx| Poll::Ready(conn.poll_write(cx, id, left))).await {
            Poll::Ready(written) => written?,
            Poll::Pending => {
                let waited = poll_fn(|cx| conn.poll_write(cx, id, left));
                timeout(conn.with(|state| state.limits.send_timeout), waited)
                    .await
                    .map_err(|_elapsed| Failure::Slow)??;
            }
        }
    }
}
