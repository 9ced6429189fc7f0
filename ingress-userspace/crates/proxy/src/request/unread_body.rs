//! The unread rest of a request's body after the response. The rest is forwarded if the pod reads it, and else read and
//! discarded, so that the connection can serve the next request. Bytes and time are bounded; a rest beyond the bounds
//! ends with its connection, or its stream. The connection's task owns all of this.

use std::{
    mem,
    pin::Pin,
    rc::{Rc, Weak},
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::{task::JoinSet, time::timeout};

use crate::{
    Shared,
    downstream::conn::Conn,
    request::{client_body::ClientBody, request_body::RequestBody},
    upstream::{self, BoxError},
};

/// Most bytes of a rest. A client may send as many to any pod that takes them, so the bound does not save the proxy
/// work: it ends uploads that a closed connection would stop earlier.
pub(crate) const REST_MAX: u64 = 64 * 1024 * 1024;
/// Longest time for reading a rest, and longest silence of the client meanwhile: nginx's `lingering_time` and
/// `lingering_timeout`.
const TIME_MAX: Duration = Duration::from_secs(30);
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// The body of a client's request. On drop, the unread part is handed over to the connection.
#[derive(Debug)]
pub(crate) struct UnreadBody {
    /// `None` if no more bytes will come.
    incoming: Option<ClientBody>,
    conn: Weak<Conn>,
}

/// The rest of a body that is handed over to a connection.
pub(crate) enum BodyRemainder {
    /// The rest is unwanted.
    Body(ClientBody),
    /// The pod has answered, keeps its connection, and may read on.
    Upload(upstream::RequestRemainder<RequestBody>),
}

/// Unread bodies handed over to a connection whose task has not begun to read them.
#[derive(Default)]
pub(crate) struct Left {
    rests: Vec<BodyRemainder>,
    /// A rest was too long to be read.
    is_cut: bool,
}

/// Unread bodies that a connection's task is reading.
#[derive(Default)]
pub(crate) struct UnreadBodies(Option<JoinSet<()>>);

// === impl UnreadBody ===

impl UnreadBody {
    pub(crate) fn new(conn: &Rc<Conn>, incoming: ClientBody) -> Self {
        let incoming = (!incoming.is_end_stream()).then_some(incoming);
        Self { incoming, conn: Rc::downgrade(conn) }
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(&mut *incoming).poll_frame(cx));
        let goes_on = matches!(&frame, Some(Ok(frame)) if frame.is_data()) && !incoming.is_end_stream();
        if !goes_on {
            self.incoming = None;
        }
        Poll::Ready(frame)
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.incoming.is_none()
    }

    /// Returns the coarse clock of the worker.
    pub(crate) fn now(&self) -> Option<Instant> {
        self.conn.upgrade().map(|conn| conn.worker.now())
    }

    /// Counts the body among those below the minimum rate.
    pub(crate) fn came_too_slowly(&self) {
        if let Some(conn) = self.conn.upgrade() {
            conn.worker.shared.stats.slow_bodies.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or(SizeHint::with_exact(0), ClientBody::size_hint)
    }
}

impl Drop for UnreadBody {
    fn drop(&mut self) {
        if let Some(incoming) = self.incoming.take()
            && let Some(conn) = self.conn.upgrade()
        {
            conn.leave(BodyRemainder::Body(incoming));
        }
    }
}

// === impl RequestRemainder ===

impl BodyRemainder {
    fn is_too_long(&self) -> bool {
        let length = match self {
            Self::Body(incoming) => incoming.size_hint().lower(),
            Self::Upload(rest) => rest.length(),
        };
        length > REST_MAX
    }

    /// Reads the rest in a task of its own, because a connection of HTTP/3 has none here. The client of a rest beyond the
    /// bounds is told to stop sending, which some browsers take for a failed request.
    pub(crate) fn read_apart(self, shared: &Arc<Shared>) {
        let shared = Arc::clone(shared);
        if self.is_too_long() {
            shared.stats.request_bodies_cut.fetch_add(1, Relaxed);
            return;
        }
        tokio::task::spawn_local(async move {
            if !self.read().await {
                shared.stats.request_bodies_cut.fetch_add(1, Relaxed);
            }
        });
    }

    /// Returns whether the rest was read to its end, or continues as another rest.
    async fn read(self) -> bool {
        match self {
            Self::Body(incoming) => timeout(TIME_MAX, discard(incoming)).await.unwrap_or(false),
            Self::Upload(rest) => {
                // The part that the pod does not take is handed over again.
                drop(timeout(TIME_MAX, rest.send(SILENCE_MAX)).await);
                true
            }
        }
    }
}

/// Returns whether the body was read to its end, or its client is gone.
async fn discard(mut body: ClientBody) -> bool {
    let mut left = REST_MAX;
    loop {
        match timeout(SILENCE_MAX, body.frame()).await {
            Err(_elapsed) => return false,
            Ok(None | Some(Err(_))) => return true,
            Ok(Some(Ok(frame))) => match left.checked_sub(frame.data_ref().map_or(0, Bytes::len) as u64) {
                Some(rest) => left = rest,
                None => return false,
            },
        }
    }
}

// === impl Left ===

impl Left {
    /// Adds `rest`, or returns it if it is too long to be read.
    pub(crate) fn add(&mut self, rest: BodyRemainder) -> Option<BodyRemainder> {
        if rest.is_too_long() {
            self.is_cut = true;
            return Some(rest);
        }
        self.rests.push(rest);
        None
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rests.is_empty()
    }

    pub(crate) fn take(&mut self) -> Vec<BodyRemainder> {
        mem::take(&mut self.rests)
    }

    /// Returns whether an HTTP/1 connection must end with the answer to `request` because of the rest of the request's
    /// body. `response` are the answer's fields.
    pub(crate) fn ends(&self, request: &HeaderMap, response: &HeaderMap) -> bool {
        // A client that waits for a 100 need not send its body after another answer (RFC 9110, 10.1.1).
        let is_unsure = || request.contains_key(header::EXPECT) || response.contains_key(header::CONNECTION);
        self.is_cut || (!self.rests.is_empty() && is_unsure())
    }
}

// === impl UnreadBodies ===

impl UnreadBodies {
    /// Starts reading the rests handed over to `conn`. Returns whether any rest is being read.
    pub(crate) fn poll(&mut self, conn: &Conn, cx: &mut Context<'_>) -> bool {
        // Called at every poll of the connection, and few connections ever have a rest.
        let is_any_left = conn.left().is_some_and(|left| !left.is_empty());
        if !is_any_left && self.0.is_none() {
            return false;
        }
        let tasks = self.0.get_or_insert_default();
        for rest in conn.take_unread_bodies() {
            let shared = Arc::clone(&conn.worker.shared);
            // Counted by the task: a rest that is given up ends the connection, and its set is not polled again.
            tasks.spawn_local(async move {
                if !rest.read().await {
                    shared.stats.request_bodies_cut.fetch_add(1, Relaxed);
                }
            });
        }
        while let Poll::Ready(Some(_ended)) = tasks.poll_join_next(cx) {}
        let is_reading = !tasks.is_empty();
        if !is_reading {
            self.0 = None;
        }
        is_reading
    }
}
