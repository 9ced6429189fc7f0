//! What a client still sends of a request's body after its request was answered. The rest goes on to the pod if the pod
//! reads it, and else is read and discarded, so that the connection serves the next request. Bytes and time have bounds;
//! a rest beyond them ends with its connection, or its stream. The connection's task owns all of this.

use std::{
    mem,
    pin::Pin,
    rc::{Rc, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::{task::JoinSet, time::timeout};

use super::{body::RequestBody, conn::Conn, upstream};

/// Most bytes of a rest. A client may send as many to any pod that takes them, so the bound saves no work of ours: it
/// ends uploads that a closed connection would stop earlier.
pub(super) const REST_MAX: u64 = 64 * 1024 * 1024;
/// For how long a rest is read, and how long a client may be silent meanwhile: nginx's `lingering_time` and
/// `lingering_timeout`.
const TIME_MAX: Duration = Duration::from_secs(30);
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// The body of a client's request. What nobody has read of it when it is dropped is left to its connection.
#[derive(Debug)]
pub(super) struct Unread {
    /// `None` if there is nothing to come.
    incoming: Option<Incoming>,
    conn: Weak<Conn>,
}

/// What is left to a connection.
pub(super) enum Rest {
    /// Nobody wants it.
    Body(Incoming),
    /// The pod has answered, keeps its connection, and may read on.
    Upload(upstream::Rest<RequestBody>),
}

/// Rests that were left to a connection and that its task has not taken up.
#[derive(Default)]
pub(super) struct Left {
    rests: Vec<Rest>,
    /// One was too long to be read.
    is_cut: bool,
}

/// Rests that a connection's task has taken up.
#[derive(Default)]
pub(super) struct Rests(Option<JoinSet<()>>);

// === impl Unread ===

impl Unread {
    pub(super) fn new(conn: &Rc<Conn>, incoming: Incoming) -> Self {
        let incoming = (!incoming.is_end_stream()).then_some(incoming);
        Self { incoming, conn: Rc::downgrade(conn) }
    }

    pub(super) fn none() -> Self {
        Self { incoming: None, conn: Weak::new() }
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(&mut *incoming).poll_frame(cx));
        let goes_on = matches!(&frame, Some(Ok(frame)) if frame.is_data()) && !incoming.is_end_stream();
        if !goes_on {
            self.incoming = None;
        }
        Poll::Ready(frame)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.incoming.is_none()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or(SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        if let Some(incoming) = self.incoming.take()
            && let Some(conn) = self.conn.upgrade()
        {
            conn.leave(Rest::Body(incoming));
        }
    }
}

// === impl Rest ===

impl Rest {
    fn is_too_long(&self) -> bool {
        let length = match self {
            Self::Body(incoming) => incoming.size_hint().lower(),
            Self::Upload(rest) => rest.length(),
        };
        length > REST_MAX
    }

    async fn read(self) {
        let read = async {
            match self {
                Self::Body(incoming) => discard(incoming).await,
                Self::Upload(rest) => rest.send(SILENCE_MAX).await,
            }
        };
        if timeout(TIME_MAX, read).await.is_err() {
            tracing::debug!("the rest of a request's body takes too long");
        }
    }
}

async fn discard(mut body: Incoming) {
    let mut left = REST_MAX;
    while let Ok(Some(Ok(frame))) = timeout(SILENCE_MAX, body.frame()).await {
        match left.checked_sub(frame.data_ref().map_or(0, Bytes::len) as u64) {
            Some(rest) => left = rest,
            None => break,
        }
    }
}

// === impl Left ===

impl Left {
    /// Adds `rest`, or gives it back if it is too long to be read.
    pub(super) fn add(&mut self, rest: Rest) -> Option<Rest> {
        if rest.is_too_long() {
            self.is_cut = true;
            return Some(rest);
        }
        self.rests.push(rest);
        None
    }

    pub(super) fn take(&mut self) -> Vec<Rest> {
        mem::take(&mut self.rests)
    }

    /// Whether a connection of HTTP/1 ends with the answer to `request`, whose fields are `response`, because of what is
    /// left of the request's body.
    pub(super) fn ends(&self, request: &HeaderMap, response: &HeaderMap) -> bool {
        // A client that waits for a 100 need not send its body after another answer (RFC 9110, 10.1.1).
        let is_unsure = || request.contains_key(header::EXPECT) || response.contains_key(header::CONNECTION);
        self.is_cut || (!self.rests.is_empty() && is_unsure())
    }
}

// === impl Rests ===

impl Rests {
    /// Takes up what was left to `conn`. Whether any rest is being read.
    pub(super) fn poll(&mut self, conn: &Conn, cx: &mut Context<'_>) -> bool {
        let rests = conn.take_rests();
        if rests.is_empty() && self.0.is_none() {
            return false;
        }
        let tasks = self.0.get_or_insert_default();
        for rest in rests {
            tasks.spawn_local(rest.read());
        }
        while let Poll::Ready(Some(_ended)) = tasks.poll_join_next(cx) {}
        let is_reading = !tasks.is_empty();
        if !is_reading {
            self.0 = None;
        }
        is_reading
    }
}
