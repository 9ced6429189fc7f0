//! A connection as its requests see it: they read and write their streams through it, between two turns of the driver.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    task::{Context, Poll},
    time::Instant,
};

use bytes::Bytes;
use http::HeaderMap;
use ingress_http3::Code;
use quinn_proto::{StreamId, WriteError};
use tokio::task::AbortHandle;

use crate::{
    body::BodyError,
    connection::State,
    shared::{Peer, Shared, count},
};

/// A connection. Its requests share it with the driver.
pub(crate) struct Conn {
    /// The key of the connection in the driver's slab.
    pub(crate) key: usize,
    pub(crate) peer: Rc<Peer>,
    pub(crate) shared: Rc<Shared>,
    is_dirty: Cell<bool>,
    /// Whether a panic may have left `state` half changed.
    is_broken: Cell<bool>,
    state: RefCell<State>,
}

/// A part of a request's body.
#[derive(Debug)]
pub(crate) enum Part {
    Data(Bytes),
    Trailers(HeaderMap),
    End,
}

/// The stream takes no more bytes: it was reset, or the connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

/// Marks the connection as broken if a panic passes. A panic from before, of a task that ends, has passed nothing here.
struct BreaksOnPanic<'a>(&'a Cell<bool>);

impl Drop for BreaksOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set(true);
        }
    }
}

impl Conn {
    pub(crate) fn new(key: usize, peer: Rc<Peer>, shared: Rc<Shared>, state: State) -> Rc<Self> {
        Rc::new(Self {
            key,
            peer,
            shared,
            is_dirty: Cell::new(false),
            is_broken: Cell::new(false),
            state: RefCell::new(state),
        })
    }

    /// Runs `change` on the state. A panic in it breaks the connection.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.borrow_mut();
        let _breaks = (!std::thread::panicking()).then(|| BreaksOnPanic(&self.is_broken));
        change(&mut state)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken.get()
    }

    /// Ends the tasks of a connection that is dropped.
    pub(crate) fn end(&self) {
        // A panic in it has already cost the connection.
        let mut begun = Vec::new();
        if let Ok(mut state) = self.state.try_borrow_mut() {
            state.end();
            // Their bodies hold the connection.
            begun = std::mem::take(&mut state.begun);
        }
        drop(begun);
    }

    /// Asks for a turn.
    pub(crate) fn mark_dirty(&self) {
        if !self.is_dirty.replace(true) {
            self.shared.dirty.borrow_mut().push(self.key);
            self.shared.wake();
        }
    }

    /// Begins a turn. Changes from now on need another one.
    pub(crate) fn begin_turn(&self) {
        self.is_dirty.set(false);
    }

    /// Runs `look` on the state; `None` if that is in use, or broken.
    pub(crate) fn peek<R>(&self, look: impl FnOnce(&State) -> R) -> Option<R> {
        self.state.try_borrow().ok().filter(|_| !self.is_broken()).map(|state| look(&state))
    }

    /// Sets the task of a request.
    pub(crate) fn set_task(&self, id: StreamId, task: AbortHandle) {
        if self.is_broken() {
            return task.abort();
        }
        self.with(|state| match state.requests.get_mut(&id) {
            Some(exchange) => exchange.task = Some(task),
            None => task.abort(),
        });
    }

    /// Reads the next part of a request's body.
    pub(crate) fn poll_body(&self, cx: &mut Context<'_>, id: StreamId) -> Poll<Result<Part, BodyError>> {
        if self.is_broken() {
            return Poll::Ready(Err(BodyError::Gone));
        }
        let (part, has_changed) = self.with(|state| state.read_body(id, Instant::now(), cx.waker()));
        if has_changed {
            self.mark_dirty();
        }
        part
    }

    /// Stops reading a request whose rest is not needed.
    pub(crate) fn stop_reading(&self, id: StreamId) {
        if self.is_broken() {
            return;
        }
        self.with(|state| state.drop_body(id, Instant::now()));
        self.mark_dirty();
    }

    /// Writes bytes of a response, without copying. `chunks` keeps the rest.
    pub(crate) fn poll_write(&self, cx: &Context<'_>, id: StreamId, chunks: &mut [Bytes]) -> Poll<Result<(), Gone>> {
        if self.is_broken() {
            return Poll::Ready(Err(Gone));
        }
        let written = self.with(|state| {
            let exchange = state.requests.get_mut(&id).ok_or(WriteError::ClosedStream)?;
            let written = state.quic.send_stream(id).write_chunks(chunks);
            match written {
                Ok(ref written) => {
                    state.written = state.written.saturating_add(written.bytes);
                    state.writes += 1;
                    exchange.wrote = state.writes;
                }
                Err(WriteError::Blocked) => {
                    // A task that is polled without need has waited before.
                    if exchange.writer.replace(cx.waker().clone()).is_none() {
                        state.blocked_at = Instant::now();
                        state.may_have_writers.set(true);
                    }
                }
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => {}
            }
            written
        });
        match written {
            Ok(_written) => {
                self.mark_dirty();
                Poll::Ready(Ok(()))
            }
            Err(WriteError::Blocked) => {
                // The client may have to be told that we are blocked.
                self.mark_dirty();
                Poll::Pending
            }
            Err(WriteError::Stopped(_) | WriteError::ClosedStream) => Poll::Ready(Err(Gone)),
        }
    }

    /// Ends a response that is complete.
    pub(crate) fn finish(&self, id: StreamId) {
        if !self.is_broken() {
            self.with(|state| state.finish(id, Instant::now));
        }
        self.mark_dirty();
    }

    /// Ends a request that has no complete response; `code` tells the client why. Does nothing if it has ended.
    pub(crate) fn abandon(&self, id: StreamId, code: Code) {
        if std::thread::panicking() {
            count(&self.shared.counters.panics);
        }
        if self.is_broken() {
            return self.mark_dirty();
        }
        self.with(|state| state.abandon(id, code, Instant::now()));
        self.mark_dirty();
    }
}
