//! The upload splice: moves bytes of a request's body from the client's socket through a pipe, without reading them.
//!
//! ```text
//! client's socket ─────────── splice ──▶ pipe ────────────────────────────── splice ──▶ endpoint's socket
//!                └▶ wire                   ╎ instead of as many bytes                   ▲
//!                     as many zeros ──▶ hyper ──▶ request's body ──────────▶ upload ────┘
//! ```
//!
//! Between the two, hyper implements HTTP/1 and reads into its own memory. `wire` therefore moves the received bytes
//! into a pipe, and gives hyper the same number of zeros as a *placeholder*. The consumer of the body gets the pipe
//! instead of them.
//!
//! Zeros are not recognizable by themselves, so a placeholder is recognized by its position: the number of body bytes
//! still to come from its first byte on. `wire` knows this number because it tracks the framing itself, and the body
//! knows it from the bytes that hyper returned. If the pipe holds bytes and the two disagree, the request fails. An
//! upload splice belongs to one request: it is created when the request begins, and `wire` fills it only until it has
//! read the next head.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use crate::{
    downstream::conn::Conn,
    l4::pipe::{Pipe, Pipes, WORTHWHILE},
};

/// The pipe behind a client, for the body of one request. It has the lifetime of that body.
#[derive(Debug, Default)]
pub(crate) struct UploadSplice {
    filled: RefCell<Option<Filled>>,
    /// Whether the consumer of the body accepts pipes.
    is_open: Cell<bool>,
}

#[derive(Debug)]
struct Filled {
    pipe: Pipe,
    /// Bytes of the body from the first one in the pipe to the end of the body.
    left: u64,
}

/// The end of the upload splice that belongs to the request's body.
#[derive(Debug)]
pub(crate) struct Tap {
    upload_splice: Rc<UploadSplice>,
    pipes: Pipes,
}

/// The error for bytes from hyper that do not match the placeholders it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request body does not match the bytes in its pipe, which is a defect")]
pub(crate) struct Misplaced;

// === impl UploadSplice ===

impl UploadSplice {
    /// Returns whether a pipe may be put in.
    pub(crate) fn has_room(&self) -> bool {
        self.is_open.get() && self.filled.borrow().is_none()
    }

    /// Puts in the next bytes of a body with `left` bytes to come, including those in `pipe`. Requires
    /// [`Self::has_room`].
    pub(crate) fn put(&self, pipe: Pipe, left: u64) {
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
    /// Creates the tap for a body of `length` bytes of the latest request on `conn`. Returns `None` if the body is too
    /// short for a pipe, or no bytes can come through one.
    pub(crate) fn new(conn: &Conn, length: Option<u64>) -> Option<Self> {
        if length? < WORTHWHILE {
            return None;
        }
        Some(Self { upload_splice: conn.new_upload_splice()?, pipes: conn.worker.pipes.clone() })
    }

    /// Lets bytes come through pipes from now on.
    pub(crate) fn open(&self) {
        self.upload_splice.is_open.set(true);
    }

    /// Returns the pipe if the next `length` of the last `left` bytes are its placeholder, or `None` if they are real
    /// bytes.
    ///
    /// # Errors
    /// If they overlap the placeholder in any other way.
    pub(crate) fn take(&self, left: u64, length: usize) -> Result<Option<Pipe>, Misplaced> {
        self.upload_splice.take(left, length)
    }

    /// Keeps an empty pipe for reuse.
    pub(crate) fn give_back(&self, pipe: Pipe) {
        self.pipes.give_back(pipe);
    }
}

#[cfg(test)]
mod tests;
