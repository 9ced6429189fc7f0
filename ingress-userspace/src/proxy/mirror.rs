//! Sends requests a second time, to where nobody waits for an answer. Whatever happens there, the request itself
//! neither waits nor fails: a mirror that is slower than its backlog allows is cut off, and counted.

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

use crate::{
    model::{Mirror, Protocol, UpstreamKey},
    route::{Subject, filter::Edits, template::render},
};

use super::{
    authenticate::Asking,
    body::{RequestBody, discard},
    external, path,
    pick::{Choice, Tried},
    upstream::{self, BoxError, Limits, Outgoing, Target},
    worker::Worker,
};

/// Bytes of a body that wait for a mirror; what would be one more cuts it off, unless nothing else waits.
const BACKLOG_MAX: usize = 256 * 1024;

/// What a frame takes besides its bytes.
const FRAME_COST: usize = 128;

/// Requests that one worker mirrors at one time, so that a mirror that hangs takes no more memory and connections than
/// these.
const RUNNING_MAX: u32 = 256;

/// What a body leaves for the mirror.
#[derive(Debug, Default)]
struct Backlog {
    frames: VecDeque<Bytes>,
    /// What they take.
    bytes: usize,
    /// Whether the body has paused since the latest frame.
    paused: bool,
    state: State,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    /// All of it is there.
    Ended,
    /// What is there is not all, and more will not come.
    Cut,
}

/// The end of a backlog that a body is copied to.
#[derive(Debug)]
pub(super) struct BodyCopy(Rc<RefCell<Backlog>>);

/// The other one, as a body.
struct CopiedBody {
    backlog: Rc<RefCell<Backlog>>,
    length: SizeHint,
}

#[derive(Debug, thiserror::Error)]
#[error("the body is not whole")]
struct CutOff;

/// One of those that a worker mirrors now.
struct Running(Rc<Worker>);

/// Sends the request of `asking` to `mirror`, while and after it goes its own way. `edits` are what pods get.
pub(super) fn start(mirror: &Mirror, asking: &Asking<'_>, edits: &Edits<'_>, body: &mut RequestBody) {
    let Asking { conn, snapshot, forwarding, subject, .. } = *asking;
    let rendered = render(&mirror.target, subject, None);
    // `/$request_uri` is how nginx has it, too.
    let rendered = rendered.strip_prefix('/').filter(|rest| rest.starts_with('/')).unwrap_or(&rendered);
    let target = external::target(rendered);
    let path = target.split_once('?').map_or(&*target, |(path, _)| path);
    // What a client put into it must not lead elsewhere.
    let is_normal = path::normalise(path).ok().as_deref() == Some(path);
    let Some(running) = Running::of(&conn.worker).filter(|_| is_normal) else {
        conn.worker.shared.stats.mirrors_cut.fetch_add(1, Relaxed);
        return;
    };
    let question = Subject { target: &target, ..*subject };
    let edits =
        Edits { target: None, host: Some(&mirror.host), found: edits.found.clone(), headers: edits.headers.clone() };
    let mut written = Vec::new();
    asking.head(&question, &edits).write(&mut written);
    let backlog = Rc::new(RefCell::new(Backlog::default()));
    let length = if mirror.body { body.size_hint() } else { SizeHint::with_exact(0) };
    let copied = CopiedBody { backlog: Rc::clone(&backlog), length };
    if mirror.body && !body.is_end_stream() {
        body.copy_to(BodyCopy(backlog));
    } else {
        backlog.borrow_mut().state = State::Ended;
    }
    let (key, limits, method) = (mirror.upstream.clone(), snapshot.limits(forwarding), subject.method.clone());
    // The worker's runtime owns it; it ends with its exchange, each of whose waits has a limit, and the worker waits
    // for none.
    tokio::task::spawn_local(async move {
        if send(&running.0, &key, limits, &method, written, copied).await.is_none() {
            running.0.shared.stats.mirrors_cut.fetch_add(1, Relaxed);
        }
    });
}

/// One exchange, whose answer is dropped; `None` if there was none.
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
    // No annotation says of a mirror that it wants to know whose a connection is.
    let target = Target { address: endpoint.address(), transport, introduction: None };
    let write = |out: &mut Vec<u8>| out.extend_from_slice(&head);
    if let Some(kept) = worker.pool.idle(target) {
        match upstream::exchange(kept, limits, method, write, body).await {
            Ok(response) => {
                discard(response.into_body()).await;
                return Some(());
            }
            // Closing an idle connection is the endpoint's right.
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
    /// Leaves `data` for the mirror.
    pub(super) fn push(&self, data: &Bytes) {
        let mut backlog = self.0.borrow_mut();
        // Nobody takes it where the exchange is over.
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

    /// Whether the mirror should have a turn before more is pushed: both are tasks of one thread, and a body that comes
    /// as fast as it is taken would leave it none. Said once for each frame, so that a mirror that does not use it
    /// delays nothing.
    pub(super) fn is_behind(&self) -> bool {
        let mut backlog = self.0.borrow_mut();
        let is_long = backlog.state == State::Open && backlog.bytes >= BACKLOG_MAX / 4;
        is_long && !mem::replace(&mut backlog.paused, true)
    }

    /// All of the body was pushed.
    pub(super) fn end(&self) {
        self.0.borrow_mut().become_state(State::Ended);
    }
}

/// A body that goes away before its end was never whole.
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

    /// Asked before the first frame only.
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
