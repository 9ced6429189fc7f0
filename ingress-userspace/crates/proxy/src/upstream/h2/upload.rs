//! The request body, shared between the exchange and hyper's task that sends it, so that an unsent body can be
//! reclaimed and the exchange can tell whether the client or the endpoint is late.

use std::{
    cell::{OnceCell, RefCell},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::{task::AbortHandle, time::Instant};

use crate::upstream::{BoxError, head, upload::Sending};

/// The end that hyper polls.
pub(super) struct Http2Upload<B>(Rc<RefCell<UploadState<B>>>);

/// The end of the exchange. Dropping it aborts a body that has not ended, whatever its task waits for.
pub(super) struct UploadHandle<B>(Rc<RefCell<UploadState<B>>>);

struct UploadState<B> {
    /// `None` once it was reclaimed or abandoned.
    body: Option<B>,
    /// Whether a frame was taken from it.
    taken: bool,
    sending: Sending,
    /// Time of the last change of `sending`.
    latest: Instant,
    error: Option<BoxError>,
    task: Option<Rc<Task>>,
    tasks: Tasks,
}

/// The task that sends an upload, once it exists. A body that waits for the endpoint's window is not polled, so
/// aborting its task is the only way to end its stream.
type Task = OnceCell<AbortHandle>;

/// Assigns hyper's tasks to uploads. hyper polls a body once before it spawns the task that continues with it, so the
/// next task spawned belongs to that body. If the body needed no task, the next task is the one that waits for the
/// response, which is not needed either once the upload is dropped.
#[derive(Clone, Default)]
pub(super) struct Tasks(Rc<RefCell<Option<Rc<Task>>>>);

/// The error that hyper gets when the body fails; the real one is kept for the exchange.
#[derive(Debug, thiserror::Error)]
#[error("the request body was given up")]
pub(super) struct GivenUp;

// === impl UploadHandle ===

impl<B: Body> UploadHandle<B> {
    /// Creates the handle; `tasks` belongs to the connection that will send the body.
    pub(super) fn new(body: B, tasks: Tasks) -> Self {
        let sending = if body.is_end_stream() { Sending::Finished } else { Sending::Blocked };
        let latest = Instant::now();
        Self(Rc::new(RefCell::new(UploadState {
            body: Some(body),
            taken: false,
            sending,
            latest,
            error: None,
            task: None,
            tasks,
        })))
    }

    pub(super) fn upload(&self) -> Http2Upload<B> {
        Http2Upload(Rc::clone(&self.0))
    }
}

impl<B> UploadHandle<B> {
    /// Returns the progress of sending, and the time of its last change.
    pub(super) fn state(&self) -> (Sending, Instant) {
        let state = self.0.borrow();
        (state.sending, state.latest)
    }

    /// Returns the error of the client's body, if it failed.
    pub(super) fn take_error(&self) -> Option<BoxError> {
        self.0.borrow_mut().error.take()
    }

    /// Returns the body, if no frame was taken from it.
    pub(super) fn reclaim(&self) -> Option<B> {
        let mut state = self.0.borrow_mut();
        let body = state.body.take();
        body.filter(|_| !state.taken)
    }
}

impl<B> Drop for UploadHandle<B> {
    fn drop(&mut self) {
        let (body, task) = {
            let mut state = self.0.borrow_mut();
            (state.body.take(), state.task.take())
        };
        // Dropped after the borrow has ended, because the destructor of the body is unknown code.
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

// === impl Http2Upload ===

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin> Body for Http2Upload<B> {
    type Data = Bytes;
    type Error = GivenUp;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, GivenUp>>> {
        let mut state = self.0.borrow_mut();
        let UploadState { body, taken, sending, latest, error, task, tasks } = &mut *state;
        if task.is_none() {
            tasks.0.replace(Some(Rc::clone(task.insert(Rc::default()))));
        }
        let Some(body) = body else {
            let ended = *sending == Sending::Finished;
            return Poll::Ready((!ended).then_some(Err(GivenUp)));
        };
        let frame = Pin::new(&mut *body).poll_frame(cx);
        // hyper polls the body only while the endpoint grants a window. Between two polls, the endpoint is late.
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
