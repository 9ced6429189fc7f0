//! What goes to a client through a pipe: bytes of a response that nobody here looks at.
//!
//! ```text
//! upstream's socket ── splice ──▶ pipe ─────────────────── splice ──▶ client's socket
//!                                   ╎ as many bytes                   ▲
//!                       body ──▶ stand-in ──▶ hyper ──▶ wire ─────────┘
//! ```
//!
//! hyper does what HTTP/1 asks for between the two, and its frames are bytes. So it gets a *stand-in*: a slice, as long
//! as what the pipe holds, of an array whose own bytes mean nothing and never leave. `wire`, by which hyper writes,
//! knows a stand-in by its address, and moves what is in the pipe in its place.
//!
//! That rests on hyper queueing what it is given in place of copying it, which it does for streams that take several
//! slices at once. Nothing else is believed: while there is something in the pipe, each write must end with the
//! stand-in for all of it and have no other, or it does not take place. A copy would have another address, so that it
//! costs the connection, and no client gets a byte of it.

use std::{
    cell::{Cell, RefCell},
    io::{self, IoSlice},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use tokio::net::TcpStream;

use super::pipe::{CAPACITY, Pipe, Pipes, TURN};

/// What stand-ins are slices of. Nobody reads it.
static STAND_IN: [u8; CAPACITY] = [0; CAPACITY];

/// The pipe in front of a client, while there is something in it.
#[derive(Default)]
pub(super) struct Piped {
    pipe: RefCell<Option<Pipe>>,
    /// A body was told to wait for room, and nobody was told of any since.
    awaited: Cell<bool>,
    /// Bytes that went to the client in this turn of its connection.
    moved: Cell<usize>,
}

impl Piped {
    pub(super) fn is_empty(&self) -> bool {
        self.pipe.borrow().is_none()
    }

    /// Ready when something can be put in, in this turn of the connection; who is told to wait is to be asked again
    /// when [`Self::take_awaited`] says so.
    pub(super) fn poll_room(&self) -> Poll<()> {
        if self.is_empty() && self.moved.get() < TURN {
            return Poll::Ready(());
        }
        self.awaited.set(true);
        Poll::Pending
    }

    /// Ends a turn of the connection. Whether somebody was told to wait and there is room by now, even if they have
    /// asked again since; said once.
    pub(super) fn take_awaited(&self) -> bool {
        self.moved.set(0);
        self.is_empty() && self.awaited.take()
    }

    /// Puts in what `pipe` holds, which is something, where there is room. The stand-in for it.
    pub(super) fn put(&self, pipe: Pipe) -> Bytes {
        let stand_in = Bytes::from_static(&STAND_IN[..pipe.held()]);
        debug_assert!(!pipe.is_empty() && self.is_empty(), "bytes in the pipe have one stand-in");
        *self.pipe.borrow_mut() = Some(pipe);
        stand_in
    }

    /// What of `slices` goes out before that which is in the pipe. `None` if they are not that and then the stand-in
    /// for all that is in the pipe.
    pub(super) fn before<'s, 'b>(&self, slices: &'s [IoSlice<'b>]) -> Option<&'s [IoSlice<'b>]> {
        let held = self.pipe.borrow().as_ref()?.held();
        let (last, before) = slices.split_last()?;
        let is_right = is_stand_in(last) && last.len() == held && !before.iter().any(|slice| is_stand_in(slice));
        is_right.then_some(before)
    }

    /// Moves on to `client` what it takes of what is in the pipe, which is something; how much. A pipe that is empty
    /// goes back to `pipes`.
    pub(super) fn poll_drain(
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

/// Whether `slice` is one of a stand-in, whatever of that is left.
fn is_stand_in(slice: &[u8]) -> bool {
    STAND_IN.as_ptr_range().contains(&slice.as_ptr())
}

#[cfg(test)]
pub(super) mod tests;
