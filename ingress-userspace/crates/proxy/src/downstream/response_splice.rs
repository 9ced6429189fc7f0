//! Response bytes that reach a client through a pipe, without inspection by this process.
//!
//! ```text
//! upstream's socket ── splice ──▶ pipe ─────────────────── splice ──▶ client's socket
//!                                   ╎ as many bytes                   ▲
//!                       body ──▶ placeholder ──▶ hyper ──▶ wire ──────┘
//! ```
//!
//! hyper handles HTTP/1 between the two, and its frames are bytes. It therefore gets a *placeholder*: a slice, as long
//! as the content of the pipe, of an array that is never sent. `wire`, which hyper writes to, recognises a placeholder
//! by its address and splices the pipe's content in its place.
//!
//! The scheme relies on hyper queueing buffers rather than copying them, which it does for streams with vectored
//! writes. Nothing else is assumed: while the pipe holds bytes, each write must end with the one placeholder for all of
//! them, or the write fails. A copy would have another address, so it would cost the connection, and the client would
//! not get a byte of it.

use std::{
    cell::{Cell, RefCell},
    io::{self, IoSlice},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use tokio::net::TcpStream;

use crate::l4::pipe::{CAPACITY, Pipe, Pipes, TURN};

/// Backing array of the placeholders. It is never read.
static PLACEHOLDER: [u8; CAPACITY] = [0; CAPACITY];

/// The pipe in front of a client, while it has content.
#[derive(Default)]
pub(crate) struct ResponseSplice {
    pipe: RefCell<Option<Pipe>>,
    /// A body was told to wait for room and has not been woken since.
    awaited: Cell<bool>,
    /// Bytes sent to the client in this turn of its connection.
    moved: Cell<usize>,
}

impl ResponseSplice {
    pub(crate) fn is_empty(&self) -> bool {
        self.pipe.borrow().is_none()
    }

    /// Ready when bytes may be put in, in this turn of the connection. After `Pending`, the body must be polled again
    /// when [`Self::take_awaited`] returns `true`.
    pub(crate) fn poll_room(&self) -> Poll<()> {
        if self.is_empty() && self.moved.get() < TURN {
            return Poll::Ready(());
        }
        self.awaited.set(true);
        Poll::Pending
    }

    /// Ends a turn of the connection. Returns `true`, once, if a body was told to wait and there is room by now, even
    /// if the body has asked again since.
    pub(crate) fn take_awaited(&self) -> bool {
        self.moved.set(0);
        self.is_empty() && self.awaited.take()
    }

    /// Stores `pipe`, which is not empty, where there is room. Returns the placeholder for its content.
    pub(crate) fn put(&self, pipe: Pipe) -> Bytes {
        let placeholder = Bytes::from_static(&PLACEHOLDER[..pipe.held()]);
        debug_assert!(!pipe.is_empty() && self.is_empty(), "bytes in the pipe have one stand-in");
        *self.pipe.borrow_mut() = Some(pipe);
        placeholder
    }

    /// Returns the slices that precede the pipe's content. Returns `None` unless `slices` end with the placeholder for
    /// all of that content.
    pub(crate) fn before<'s, 'b>(&self, slices: &'s [IoSlice<'b>]) -> Option<&'s [IoSlice<'b>]> {
        let held = self.pipe.borrow().as_ref()?.held();
        let (last, before) = slices.split_last()?;
        let is_right = is_placeholder(last) && last.len() == held && !before.iter().any(|slice| is_placeholder(slice));
        is_right.then_some(before)
    }

    /// Moves the pipe's content to `client` as far as it accepts bytes, and returns their number. An emptied pipe goes
    /// back to `pipes`.
    pub(crate) fn poll_drain(
        &self,
        cx: &mut Context<'_>,
        client: &TcpStream,
        pipes: &Pipes,
    ) -> Poll<io::Result<usize>> {
        let mut held = self.pipe.borrow_mut();
        let Some(pipe) = &mut *held else { return Poll::Ready(Ok(0)) };
        let drained = ready!(pipe.poll_drain(cx, client))?;
        self.moved.set(self.moved.get() + drained);
        if pipe.is_empty()
            && let Some(pipe) = held.take()
        {
            pipes.give_back(pipe);
        }
        Poll::Ready(Ok(drained))
    }
}

/// Returns whether `slice` is a placeholder or the rest of one.
fn is_placeholder(slice: &[u8]) -> bool {
    PLACEHOLDER.as_ptr_range().contains(&slice.as_ptr())
}

#[cfg(test)]
pub(crate) mod tests;
