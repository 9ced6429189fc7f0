//! The copy of a request body for a mirror, bounded while the mirror is slower than the client.

use std::{
    cell::RefCell,
    collections::VecDeque,
    mem,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::upstream::{BoxError, Outgoing};

/// Returns both ends of the copy of a body. `length` is the length that the copy will have.
pub(crate) fn pair(length: SizeHint) -> (BodyCopy, CopiedBody) {
    let backlog = Rc::new(RefCell::new(MirrorBacklog::default()));
    (BodyCopy(Rc::clone(&backlog)), CopiedBody { backlog, length })
}

/// Queue from a request's body to its mirror.
#[derive(Debug, Default)]
struct MirrorBacklog {
    frames: VecDeque<Bytes>,
    /// Cost of the queued frames, in bytes.
    bytes: usize,
    /// Whether the sender has paused since the latest frame.
    paused: bool,
    state: BacklogState,
    waker: Option<Waker>,
}

/// Sending end of a backlog: receives a copy of the body.
#[derive(Debug)]
pub(crate) struct BodyCopy(Rc<RefCell<MirrorBacklog>>);

/// Receiving end of a backlog, as a body.
pub(crate) struct CopiedBody {
    backlog: Rc<RefCell<MirrorBacklog>>,
    length: SizeHint,
}

impl BodyCopy {
    /// Queues `data` for the mirror.
    pub(crate) fn push(&self, data: &Bytes) {
        let mut backlog = self.0.borrow_mut();
        // The receiving end is dropped when the exchange is over.
        if backlog.state != BacklogState::Open || Rc::strong_count(&self.0) == 1 || data.is_empty() {
            return;
        }
        let cost = data.len() + FRAME_COST;
        if !backlog.frames.is_empty() && backlog.bytes + cost > BACKLOG_MAX {
            backlog.state = BacklogState::Cut;
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
        let is_long = backlog.state == BacklogState::Open && backlog.bytes >= BACKLOG_MAX / 4;
        is_long && !mem::replace(&mut backlog.paused, true)
    }

    /// Marks the body as complete.
    pub(crate) fn end(&self) {
        self.0.borrow_mut().become_state(BacklogState::Ended);
    }
}

/// Truncates the copy if the body is dropped before its end.
impl Drop for BodyCopy {
    fn drop(&mut self) {
        self.0.borrow_mut().become_state(BacklogState::Cut);
    }
}

/// An empty body.
impl Default for CopiedBody {
    fn default() -> Self {
        let (copy, copied) = pair(SizeHint::with_exact(0));
        copy.end();
        copied
    }
}

impl MirrorBacklog {
    fn become_state(&mut self, state: BacklogState) {
        if self.state == BacklogState::Open {
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
            BacklogState::Open => {
                backlog.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            BacklogState::Ended => Poll::Ready(None),
            BacklogState::Cut => Poll::Ready(Some(Err(CutOff.into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        let backlog = self.backlog.borrow();
        backlog.frames.is_empty() && backlog.state == BacklogState::Ended
    }

    /// The hint is only used before the first frame.
    fn size_hint(&self) -> SizeHint {
        self.length
    }
}

impl Outgoing for CopiedBody {}

/// Bytes of one body that may be queued for a mirror. A frame beyond this cuts the mirror off, unless the queue is
/// empty.
const BACKLOG_MAX: usize = 256 * 1024;

/// Bookkeeping overhead of a queued frame, in bytes.
const FRAME_COST: usize = 128;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BacklogState {
    #[default]
    Open,
    /// The body is complete.
    Ended,
    /// The body was truncated; no more frames will come.
    Cut,
}

#[derive(Debug, thiserror::Error)]
#[error("the body is incomplete")]
struct CutOff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_a_backlog_includes_the_cost_of_frames() {
        for (length, expect) in
            [(1, BACKLOG_MAX / (1 + FRAME_COST)), (64 * 1024, 3), (BACKLOG_MAX, 1), (2 * BACKLOG_MAX, 1)]
        {
            let backlog = Rc::new(RefCell::new(MirrorBacklog::default()));
            let copy = BodyCopy(Rc::clone(&backlog));
            let data = Bytes::from(vec![0; length]);
            let mut kept = 0;
            while backlog.borrow().state == BacklogState::Open {
                kept = backlog.borrow().frames.len();
                copy.push(&data);
            }
            assert_eq!((kept, backlog.borrow().state), (expect, BacklogState::Cut), "{length}");
        }
    }
}
