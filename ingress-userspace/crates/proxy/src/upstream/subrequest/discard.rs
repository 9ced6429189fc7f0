//! Reads the rest of a response that nobody needs, so that its connection can be reused.

use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use http_body_util::BodyExt as _;
use tokio::time::timeout;

/// Longest rest that is read, in bytes.
const REST_MAX: usize = 64 * 1024;
/// Longest time for reading it.
const REST_TIME: Duration = Duration::from_millis(100);

/// Reads a discarded body to its end if little remains. Otherwise the connection is closed.
pub(crate) async fn discard<B: Body<Data = Bytes> + Unpin>(mut body: B) {
    let read = async {
        let mut left = REST_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                Some(rest) => left = rest,
                None => break,
            }
        }
    };
    if timeout(REST_TIME, read).await.is_err() {
        tracing::debug!("the remaining response body takes too long");
    }
}

/// Does the same in a task of its own, which the worker does not wait for.
pub(super) fn in_background<B: Body<Data = Bytes> + Unpin + 'static>(body: B) {
    if !body.is_end_stream() {
        tokio::task::spawn_local(discard(body));
    }
}
