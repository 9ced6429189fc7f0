//! Request mirroring: sends a copy of a request to a second upstream and discards the response. The request itself
//! neither waits for its mirror nor fails with it. A mirror that falls behind its backlog is cut off and counted.

use std::{
    cell::RefCell,
    collections::VecDeque,
    mem,
    pin::Pin,
    rc::Rc,
    sync::atomic::Ordering::Relaxed,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::Method;
use http_body::{Body, Frame, SizeHint};

use ingress_model::route::{Subject, filter::Edits, template::render};
use ingress_model::{Mirror, Protocol, UpstreamKey};

use crate::{
    auth::{authenticate::RequestContext, ext_authz},
    http::path,
    request::body::{RequestBody, discard},
    server::worker::Worker,
    upstream::{
        self, BoxError, Limits, Outgoing, Target,
        balance::{Choice, Tried},
    },
};

/// Bytes of one body that may be queued for a mirror. A frame beyond this cuts the mirror off, unless the queue is
/// empty.
const BACKLOG_MAX: usize = 256 * 1024;

/// Bookkeeping overhead of a queued frame, in bytes.
const FRAME_COST: usize = 128;

/// Requests that one worker mirrors concurrently. The bound keeps a hanging mirror from taking more memory and
/// connections.
const RUNNING_MAX: u32 = 256;

/// Queue from a request's body to its mirror.
#[derive(Debug, Default)]
struct Backlog {
    frames: VecDeque<Bytes>,
    /// Cost of the queued frames, in bytes.
    bytes: usize,
    /// Whether the sender has paused since the latest frame.
    paused: bool,
    state: State,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    /// The body is complete.
    Ended,
    /// The body was truncated; no more frames will come.
    Cut,
}

/// Sending end of a backlog: receives a copy of the body.
#[derive(Debug)]
pub(crate) struct BodyCopy(Rc<RefCell<Backlog>>);

/// Receiving end of a backlog, as a body.
struct CopiedBody {
    backlog: Rc<RefCell<Backlog>>,
    length: SizeHint,
}

#[derive(Debug, thiserror::Error)]
#[error("the body is incomplete")]
struct CutOff;

/// Counts one mirrored request of a worker while it runs.
struct Running(Rc<Worker>);

/// Sends a copy of the request of `context` to `mirror`, concurrently with the request itself. `edits` are the changes
/// made for pods.
pub(crate) fn start(mirror: &Mirror, context: &RequestContext<'_>, edits: &Edits<'_>, body: &mut RequestBody) {
    let RequestContext { conn, snapshot, forwarding, subject, .. } = *context;
    let rendered = render(&mirror.target, subject, None);
    // nginx accepts `/$request_uri`, too.
    let rendered = rendered.strip_prefix('/').filter(|rest| rest.starts_with('/')).unwrap_or(&rendered);
    let target = ext_authz::target(rendered);
    let path = target.split_once('?').map_or(&*target, |(path, _)| path);
    // The client's part of the target must not lead to another path than the rule's.
    let is_normal = path::normalise(path).ok().as_deref() == Some(path);
    let Some(running) = Running::of(&conn.worker).filter(|_| is_normal) else {
        conn.worker.shared.stats.mirrors_cut.fetch_add(1, Relaxed);
        return;
    };
    let question = Subject { target: &target, ..*subject };
    let edits =
        Edits { target: None, host: Some(&mirror.host), found: edits.found.clone(), headers: edits.headers.clone() };
    let mut written = Vec::new();
    context.head(&question, &edits).write(&mut written);
    let backlog = Rc::new(RefCell::new(Backlog::default()));
    let length = if mirror.body { body.size_hint() } else { SizeHint::with_exact(0) };
    let copied = CopiedBody { backlog: Rc::clone(&backlog), length };
    if mirror.body && !body.is_end_stream() {
        body.copy_to(BodyCopy(backlog));
    } else {
        backlog.borrow_mut().state = State::Ended;
    }
    let (key, limits, method) = (mirror.upstream.clone(), snapshot.limits(forwarding), subject.method.clone());
    // The worker's runtime owns the task. Each wait of the exchange has a limit, and the worker does not wait for the
    // task.
    tokio::task::spawn_local(async move {
        if send(&running.0, &key, limits, &method, written, copied).await.is_none() {
            running.0.shared.stats.mirrors_cut.fetch_add(1, Relaxed);
        }
    });
}

/// Performs one exchange and discards the response. Returns `None` if it failed.
async fn send(
    worker: &Worker,
    key: &UpstreamKey,
    limits: Limits,
    method: &Method,
    head: Vec<u8>,
    mut body: CopiedBody,
) -> Option<()> {
    let snapshot = worker.snapshot();
    let upstream = snapshot.upstream(snapshot.upstream_id(key)?)?;
    let transport = match upstream.protocol() {
        Protocol::Http1 | Protocol::Https => upstream.transport(),
        Protocol::H2c | Protocol::H2 => return None,
    };
    let endpoint = upstream.pick(Choice::Next, || worker.now_ms(), &mut Tried::up_to(1))?;
    // There is no annotation for a PROXY header to a mirror.
    let target = Target { address: endpoint.address(), transport, proxy_header: None };
    let write = |out: &mut Vec<u8>| out.extend_from_slice(&head);
    if let Some(kept) = worker.pool.idle(target) {
        match upstream::exchange(kept, limits, method, write, body).await {
            Ok(response) => {
                discard(response.into_body()).await;
                return Some(());
            }
            // An endpoint may close an idle connection at any time, so another one is tried.
            Err(failure) => body = failure.unsent?,
        }
    }
    let connection = worker.pool.connect(target, limits.connect_timeout).await.ok()?;
    let response = upstream::exchange(connection, limits, method, write, body).await.ok()?;
    discard(response.into_body()).await;
    Some(())
}

// === impl BodyCopy ===

impl BodyCopy {
    /// Queues `data` for the mirror.
    pub(crate) fn push(&self, data: &Bytes) {
        let mut backlog = self.0.borrow_mut();
        // The receiving end is dropped when the exchange is over.
        if backlog.state != State::Open || Rc::strong_count(&self.0) == 1 || data.is_empty() {
            return;
        }
        let cost = data.len() + FRAME_COST;
        if !backlog.frames.is_empty() && backlog.bytes + cost > BACKLOG_MAX {
            backlog.state = State::Cut;
            (backlog.frames, backlog.bytes) = (VecDeque::new(), 0);
        } else {
            backlog.bytes += cost;
            backlog.paused = false;
            backlog.frames.push_back(data.clone());
        }
        backlog.wake();
    }

    /// Returns whether the sender should yield to the mirror before the next push. Both are tasks of one thread, and a
    /// body that arrives as fast as it is forwarded would starve the mirror. Returns `true` once per frame, so that a
    /// mirror that makes no use of the yield delays nothing.
    pub(crate) fn is_behind(&self) -> bool {
        let mut backlog = self.0.borrow_mut();
        let is_long = backlog.state == State::Open && backlog.bytes >= BACKLOG_MAX / 4;
        is_long && !mem::replace(&mut backlog.paused, true)
    }

    /// Marks the body as complete.
    pub(crate) fn end(&self) {
        self.0.borrow_mut().become_state(State::Ended);
    }
}

/// Truncates the copy if the body is dropped before its end.
impl Drop for BodyCopy {
    fn drop(&mut self) {
        self.0.borrow_mut().become_state(State::Cut);
    }
}

// === impl Backlog ===

impl Backlog {
    fn become_state(&mut self, state: State) {
        if self.state == State::Open {
            self.state = state;
            self.wake();
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

// === impl CopiedBody ===

impl Body for CopiedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut backlog = self.backlog.borrow_mut();
        if let Some(data) = backlog.frames.pop_front() {
            backlog.bytes -= data.len() + FRAME_COST;
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        match backlog.state {
            State::Open => {
                backlog.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            State::Ended => Poll::Ready(None),
            State::Cut => Poll::Ready(Some(Err(CutOff.into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        let backlog = self.backlog.borrow();
        backlog.frames.is_empty() && backlog.state == State::Ended
    }

    /// The hint is only used before the first frame.
    fn size_hint(&self) -> SizeHint {
        self.length
    }
}

impl Outgoing for CopiedBody {}

// === impl Running ===

impl Running {
    fn of(worker: &Rc<Worker>) -> Option<Self> {
        let running = worker.mirrors.get();
        (running < RUNNING_MAX).then(|| {
            worker.mirrors.set(running + 1);
            Self(Rc::clone(worker))
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.mirrors.set(self.0.mirrors.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backlog_is_bounded_by_what_its_frames_take() {
        for (length, expect) in
            [(1, BACKLOG_MAX / (1 + FRAME_COST)), (64 * 1024, 3), (BACKLOG_MAX, 1), (2 * BACKLOG_MAX, 1)]
        {
            let backlog = Rc::new(RefCell::new(Backlog::default()));
            let copy = BodyCopy(Rc::clone(&backlog));
            let data = Bytes::from(vec![0; length]);
            let mut kept = 0;
            while backlog.borrow().state == State::Open {
                kept = backlog.borrow().frames.len();
                copy.push(&data);
            }
            assert_eq!((kept, backlog.borrow().state), (expect, State::Cut), "{length}");
        }
    }
}
