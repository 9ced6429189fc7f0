//! The request's body between us and hyper's task that sends it: shared, so that a request that was not begun can be
//! taken back, and that it shows who is waited for.

use std::{
    cell::{OnceCell, RefCell},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::{task::AbortHandle, time::Instant};

use crate::proxy::upstream::{BoxError, head, upload::Sending};

/// hyper's end.
pub(super) struct Upload<B>(Rc<RefCell<State<B>>>);

/// Our end. Dropping it breaks off a body that has not ended, wherever it waits.
pub(super) struct Handle<B>(Rc<RefCell<State<B>>>);

struct State<B> {
    /// None once it was taken back or given up.
    body: Option<B>,
    /// A frame was taken from it.
    taken: bool,
    sending: Sending,
    /// When `sending` was last seen to change.
    latest: Instant,
    error: Option<BoxError>,
    task: Option<Rc<Task>>,
    tasks: Tasks,
}

/// The task that sends an upload, once there is one. A body that waits for the endpoint's window is not polled, so that
/// ending its task is the only way to end its stream.
type Task = OnceCell<AbortHandle>;

/// Brings uploads and hyper's tasks together: hyper polls a body once before it makes the task that goes on with it,
/// and the next one it makes then is that. For a body that needed no task it is the one that waits for the response, in
/// which nobody is interested either once the upload is dropped.
#[derive(Clone, Default)]
pub(super) struct Tasks(Rc<RefCell<Option<Rc<Task>>>>);

/// What hyper is told when the body fails; the reason is kept for us.
#[derive(Debug, thiserror::Error)]
#[error("the request body was given up")]
pub(super) struct GivenUp;

// === impl Handle ===

impl<B: Body> Handle<B> {
    /// `tasks` of the connection that will send it.
    pub(super) fn new(body: B, tasks: Tasks) -> Self {
        let sending = if body.is_end_stream() { Sending::Finished } else { Sending::Blocked };
        let latest = Instant::now();
        Self(Rc::new(RefCell::new(State {
            body: Some(body),
            taken: false,
            sending,
            latest,
            error: None,
            task: None,
            tasks,
        })))
    }

    pub(super) fn upload(&self) -> Upload<B> {
        Upload(Rc::clone(&self.0))
    }
}

impl<B> Handle<B> {
    /// How far sending has come, and since when.
    pub(super) fn state(&self) -> (Sending, Instant) {
        let state = self.0.borrow();
        (state.sending, state.latest)
    }

    /// Why the client's body broke off, if that is what happened.
    pub(super) fn take_error(&self) -> Option<BoxError> {
        self.0.borrow_mut().error.take()
    }

    /// The body, if nothing was taken from it.
    pub(super) fn reclaim(&self) -> Option<B> {
        let mut state = self.0.borrow_mut();
        let body = state.body.take();
        body.filter(|_| !state.taken)
    }
}

impl<B> Drop for Handle<B> {
    fn drop(&mut self) {
        let (body, task) = {
            let mut state = self.0.borrow_mut();
            (state.body.take(), state.task.take())
        };
        // Outside the borrow: what it does at its end is not ours to know.
        drop(body);
        if let Some(task) = task.as_ref().and_then(|task| task.get()) {
            task.abort();
        }
    }
}

// === impl Tasks ===

impl Tasks {
    pub(super) fn begun(&self, handle: AbortHandle) {
        if let Some(task) = self.0.take() {
            task.get_or_init(|| handle);
        }
    }
}

// === impl Upload ===

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin> Body for Upload<B> {
    type Data = Bytes;
    type Error = GivenUp;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, GivenUp>>> {
        let mut state = self.0.borrow_mut();
        let State { body, taken, sending, latest, error, task, tasks } = &mut *state;
        if task.is_none() {
            tasks.0.replace(Some(Rc::clone(task.insert(Rc::default()))));
        }
        let Some(body) = body else {
            let ended = *sending == Sending::Finished;
            return Poll::Ready((!ended).then_some(Err(GivenUp)));
        };
        let frame = Pin::new(&mut *body).poll_frame(cx);
        // hyper asks only while the endpoint grants room: between two answers it is the endpoint that is waited for.
        *sending = match &frame {
            Poll::Pending => Sending::Starved,
            Poll::Ready(None) => Sending::Finished,
            Poll::Ready(Some(_)) if body.is_end_stream() => Sending::Finished,
            Poll::Ready(Some(_)) => Sending::Blocked,
        };
        *latest = Instant::now();
        match frame {
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(Err(cause))) => {
                *error = Some(cause.into());
                *sending = Sending::Blocked;
                Poll::Ready(Some(Err(GivenUp)))
            }
            Poll::Ready(Some(Ok(mut frame))) => {
                *taken = true;
                if let Some(trailers) = frame.trailers_mut() {
                    *sending = Sending::Finished;
                    head::retain_trailers(trailers);
                }
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let state = self.0.borrow();
        state.sending == Sending::Finished || state.body.as_ref().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.borrow().body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}
