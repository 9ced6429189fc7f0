//! The bodies of a connection's requests and responses: pipes that carry them, rests that are still to be read, and
//! bytes that are buffered.

use std::{
    cell::Ref,
    rc::{Rc, Weak},
    sync::atomic::Ordering::Relaxed,
};

use super::Conn;
use crate::{
    downstream::{response_splice::ResponseSplice, upload_splice::UploadSplice},
    request::unread_body::{BodyRemainder, Left},
};

impl Conn {
    /// Returns whether bytes may be spliced to or from its client. This requires that the bytes of the socket are those
    /// of hyper, without TLS or HTTP/2.
    pub(crate) fn takes_pipes(&self) -> bool {
        !self.secure && !self.is_http2()
    }

    /// Returns the bytes that go to its client through a pipe.
    pub(crate) fn response_splice(&self) -> &ResponseSplice {
        &self.extras().response_splice
    }

    /// Like [`response_splice`](Self::response_splice), if the pipe holds bytes.
    pub(crate) fn filled(&self) -> Option<&ResponseSplice> {
        self.extras.get().map(|extras| &extras.response_splice).filter(|response_splice| !response_splice.is_empty())
    }

    /// Returns whether hyper, which is pending, may have work that it does not detect itself.
    ///
    /// If its own flush makes the room that a body waits for, hyper 1.12 polls the body once more, flushes and returns.
    /// It notices neither that there is room again nor, if the response has ended, that it holds the next request. This
    /// is the only case in which a waiting body can continue within one poll.
    ///
    /// In addition, a body that has used up its turn waits although there is room, and no other event would wake it.
    pub(crate) fn is_to_be_polled_again(&self) -> bool {
        self.extras.get().is_some_and(|extras| extras.response_splice.take_awaited())
    }

    /// Records that `count` HTTP/1 heads have ended; the first of them also ends the body before it.
    pub(crate) fn heads_read(&self, count: u32) {
        let count = u16::try_from(count).unwrap_or(u16::MAX);
        self.heads.set(self.heads.get().saturating_add(count));
        self.close_upload_splice();
    }

    /// Records that an HTTP/1 request begins, with the earliest of the heads that were read.
    pub(crate) fn take_head(&self) {
        // A saturated count is never decremented.
        let heads = self.heads.get();
        if heads != u16::MAX {
            self.heads.set(heads.saturating_sub(1));
        }
    }

    /// Creates the upload splice of the latest request, which lasts until the next head is read. Returns `None` if that
    /// was read already, because the following bytes do not belong to this body.
    pub(crate) fn new_upload_splice(&self) -> Option<Rc<UploadSplice>> {
        if !self.takes_pipes() || self.heads.get() != 0 {
            return None;
        }
        let upload_splice = Rc::default();
        *self.extras().upload_splice.borrow_mut() = Rc::downgrade(&upload_splice);
        Some(upload_splice)
    }

    /// Returns the upload splice of the body being read, if it has room.
    pub(crate) fn upload_splice(&self) -> Option<Rc<UploadSplice>> {
        self.extras.get()?.upload_splice.borrow().upgrade().filter(|upload_splice| upload_splice.has_room())
    }

    /// Stops the upload splice: the following bytes go through no pipe.
    pub(crate) fn close_upload_splice(&self) {
        if let Some(extras) = self.extras.get() {
            *extras.upload_splice.borrow_mut() = Weak::new();
        }
    }

    /// Keeps the rest of a request that has been answered and that its client still sends. A rest that is too long is
    /// not read.
    pub(crate) fn leave(&self, rest: BodyRemainder) {
        if self.is_http3() {
            return rest.read_apart(&self.worker.shared);
        }
        let too_long = self.extras().left.borrow_mut().add(rest);
        if too_long.is_some() {
            self.worker.shared.stats.request_bodies_cut.fetch_add(1, Relaxed);
        }
        drop(too_long);
        self.wake();
    }

    /// Counts further bytes of a request's body as buffered.
    pub(crate) fn keep(&self, count: usize) {
        let kept = &self.extras().kept;
        kept.set(kept.get() + count);
    }

    /// Counts bytes as no longer buffered.
    pub(crate) fn let_go(&self, count: usize) {
        let kept = &self.extras().kept;
        kept.set(kept.get().saturating_sub(count));
    }

    pub(super) fn kept(&self) -> usize {
        self.extras.get().map_or(0, |extras| extras.kept.get())
    }

    pub(crate) fn take_unread_bodies(&self) -> Vec<BodyRemainder> {
        self.extras.get().map_or_else(Vec::new, |extras| extras.left.borrow_mut().take())
    }

    /// Returns the rests of bodies of answered requests, if there ever were any.
    pub(crate) fn left(&self) -> Option<Ref<'_, Left>> {
        self.extras.get().map(|extras| extras.left.borrow())
    }
}
