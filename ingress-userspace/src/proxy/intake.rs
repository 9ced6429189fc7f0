//! What comes from a client through a pipe: bytes of a request's body that nobody here looks at.
//!
//! ```text
//! client's socket ─────────── splice ──▶ pipe ────────────────────────────── splice ──▶ endpoint's socket
//!                └▶ wire                   ╎ instead of as many bytes                   ▲
//!                     as many zeros ──▶ hyper ──▶ request's body ──────────▶ upload ────┘
//! ```
//!
//! hyper does what HTTP/1 asks for between the two, and reads into memory of its own. So `wire` moves what has come into
//! a pipe and tells hyper of as many bytes, which are zeros: a *stand-in*. Whoever takes the body gets the pipe in their
//! place.
//!
//! Zeros look like any others, so that their place tells what they are: how many bytes of the body are still to come from
//! the first of them on. `wire` knows that by the framing, which it follows for itself, and the body by what hyper gave
//! out. Where there is something in the pipe and these disagree, the request fails. And an intake is one request's: it is
//! made when that begins, and `wire` fills it only until it has read the next head.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use super::{
    conn::Conn,
    pipe::{Pipe, Pipes, WORTHWHILE},
};

/// The pipe behind a client, for the body of one request. It lives as long as that.
#[derive(Debug, Default)]
pub(super) struct Intake {
    filled: RefCell<Option<Filled>>,
    /// Whoever takes the body takes pipes.
    is_open: Cell<bool>,
}

#[derive(Debug)]
struct Filled {
    pipe: Pipe,
    /// Bytes of the body from the pipe's first to the body's last.
    left: u64,
}

/// A request's body's end of its intake.
#[derive(Debug)]
pub(super) struct Tap {
    intake: Rc<Intake>,
    pipes: Pipes,
}

/// What hyper gave out is not what it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what came of the request's body is not what is in its pipe, which is a defect")]
pub(super) struct Misplaced;

// === impl Intake ===

impl Intake {
    /// Whether a pipe may be put in.
    pub(super) fn has_room(&self) -> bool {
        self.is_open.get() && self.filled.borrow().is_none()
    }

    /// Puts in what comes next of a body of which `left` bytes are to come, those in `pipe` among them, where there is
    /// room.
    pub(super) fn put(&self, pipe: Pipe, left: u64) {
        debug_assert!(self.has_room() && pipe.held() as u64 <= left, "{} of {left} bytes", pipe.held());
        *self.filled.borrow_mut() = Some(Filled { pipe, left });
    }

    fn take(&self, left: u64, length: usize) -> Result<Option<Pipe>, Misplaced> {
        let mut filled = self.filled.borrow_mut();
        let Some(Filled { pipe, left: from }) = &*filled else { return Ok(None) };
        match left.checked_sub(length as u64) {
            Some(rest) if rest >= *from => Ok(None),
            Some(_) if left == *from && length == pipe.held() => Ok(filled.take().map(|filled| filled.pipe)),
            _ => {
                tracing::error!(left, length, from, held = pipe.held(), "{Misplaced}; the request fails");
                Err(Misplaced)
            }
        }
    }
}

// === impl Tap ===

impl Tap {
    /// For a body of `length` bytes of the request that began last on `conn`, if pipes are worth it and there may be
    /// something to come.
    pub(super) fn new(conn: &Conn, length: Option<u64>) -> Option<Self> {
        if length? < WORTHWHILE {
            return None;
        }
        Some(Self { intake: conn.new_intake()?, pipes: conn.worker.pipes.clone() })
    }

    /// Lets bytes come through pipes from now on.
    pub(super) fn open(&self) {
        self.intake.is_open.set(true);
    }

    /// The pipe, if it is what the next `length` of the last `left` bytes stand for; `None` if they are the body's own.
    ///
    /// # Errors
    /// If neither is so.
    pub(super) fn take(&self, left: u64, length: usize) -> Result<Option<Pipe>, Misplaced> {
        self.intake.take(left, length)
    }

    /// Keeps a pipe that is empty for others.
    pub(super) fn give_back(&self, pipe: Pipe) {
        self.pipes.give_back(pipe);
    }
}

#[cfg(test)]
mod tests;
