//! The protocol of a connection, and the streams of HTTP/2 on it: which of them may begin, and the tasks behind them.

use std::{net::IpAddr, pin::Pin, rc::Rc, sync::atomic::Ordering::Relaxed};

use futures_util::future::Either;
use tokio::task::{self, AbortHandle};

use super::{
    Conn,
    state::{ConnProtocol, Spawned},
};
use crate::{
    downstream::{
        h1_framing::ScanPosition,
        h2_backlog::Backlog,
        h2_slow_start::UnreadBytes,
        h2_stalled_frames::{StalledFrames, StalledStream},
    },
    server::eviction,
};

/// A request that can be served.
///
/// `serve` must always be inlined, so that its future is made in its place. A closure cannot be: the compiler shares one
/// between its callers, and copies the future that it returns.
pub(crate) trait Serve {
    type Response;

    fn serve(self, conn: Rc<Conn>) -> impl Future<Output = Self::Response>;
}

/// Counts a request that waits for its turn, until it is dropped.
struct WaitingRequest<'c>(&'c Conn);

impl<'c> WaitingRequest<'c> {
    fn of(conn: &'c Conn) -> Self {
        conn.worker.shared.stats.waiting.fetch_add(1, Relaxed);
        Self(conn)
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.0.worker.shared.stats.waiting.fetch_sub(1, Relaxed);
    }
}

impl Conn {
    /// Returns a future that waits until a request of HTTP/2 or HTTP/3 may begin, or `None` if it may begin now: see
    /// [`crate::downstream::h2_slow_start`].
    #[inline]
    fn turn(self: &Rc<Self>) -> Option<impl Future<Output = ()> + use<>> {
        if self.backlog().start.is_open(self.under_way()) {
            return None;
        }
        // Streams that ended while they waited never began.
        self.extras().spawned.borrow_mut().retain(|spawned| !spawned.task.is_finished());
        if self.backlog().start.is_open(self.under_way()) {
            return None;
        }
        let conn = Rc::clone(self);
        Some(async move {
            let _waits = WaitingRequest::of(&conn);
            conn.backlog().start.turn(&conn.worker.pacer, || conn.under_way(), || conn.unread()).await;
        })
    }

    /// Serves a request when it may begin.
    ///
    /// The future is made in a box, because hyper and tokio move a stream's task several times before it begins: some 3 KB
    /// of state. A request that waits for its turn does not hold that state yet.
    #[inline(always)]
    pub(crate) fn in_turn<R: Serve>(self: Rc<Self>, request: R) -> impl Future<Output = R::Response> {
        match self.turn() {
            None => Either::Left(pin_new(|| request.serve(self))),
            Some(turn) => Either::Right(Box::pin(async move {
                turn.await;
                Box::pin(request.serve(self)).await
            })),
        }
    }

    /// Returns the number of requests that have begun, or are about to.
    fn under_way(&self) -> u32 {
        let spawned = u32::try_from(self.extras().spawned.borrow().len()).unwrap_or(u32::MAX);
        self.progress.active().saturating_add(spawned.saturating_sub(self.backlog().start.waiting()))
    }

    fn unread(&self) -> UnreadBytes {
        if self.is_http3() {
            return match self.quic().and_then(|peer| peer.blocked()) {
                None => UnreadBytes::Little,
                Some(blocked) if blocked < eviction::PERIOD => UnreadBytes::Much,
                Some(_) => UnreadBytes::All,
            };
        }
        match (self.backlog().is_full(), self.progress.is_blocked()) {
            (false, _) => UnreadBytes::Little,
            (true, false) => UnreadBytes::Much,
            (true, true) => UnreadBytes::All,
        }
    }

    /// Records the end of a request; `whole` means with a complete response.
    pub(crate) fn end_request(&self, whole: bool) {
        self.progress.end_request(self.worker.now());
        if self.protocol.get() != ConnProtocol::Http1 {
            // A response that ends while the client takes nothing is with QUIC alone.
            let is_taken = whole && !(self.is_http3() && self.unread() == UnreadBytes::All);
            self.backlog().start.ended(is_taken);
        }
    }

    /// Returns the stream that belongs to the current task.
    pub(super) fn stream(&self) -> StalledStream {
        if !self.is_http2() {
            return StalledStream::None;
        }
        let mut spawned = self.extras().spawned.borrow_mut();
        let own = task::try_id().and_then(|id| spawned.iter().position(|spawned| spawned.task.id() == id));
        own.map_or(StalledStream::None, |own| StalledStream::Open(spawned.swap_remove(own).task))
    }

    /// Returns the task that sends a tunnel's bytes to the client. It was spawned by the task of the stream that
    /// requested the tunnel.
    pub(crate) fn take_spawned_by(&self, stream: task::Id) -> Option<AbortHandle> {
        let mut spawned = self.extras().spawned.borrow_mut();
        let found = spawned.iter().position(|spawned| spawned.by == Some(stream))?;
        Some(spawned.swap_remove(found).task)
    }

    /// Records a `task` that hyper spawned for a stream, or for a tunnel on it.
    pub(crate) fn spawned(&self, task: AbortHandle) {
        self.extras().spawned.borrow_mut().push(Spawned { by: task::try_id(), task });
    }

    /// Returns the response frames that wait for the client, if it may have streams.
    pub(crate) fn stalled_frames(&self) -> Option<&StalledFrames> {
        self.extras.get().map(|extras| &extras.stalled_frames)
    }

    /// Returns the bytes queued within HTTP/2 for the client.
    pub(crate) fn backlog(&self) -> &Rc<Backlog> {
        &self.extras().backlog
    }

    /// Switches to HTTP/2.
    pub(crate) fn becomes_http2(&self) {
        self.protocol.set(ConnProtocol::NewHttp2);
    }

    pub(crate) fn is_http2(&self) -> bool {
        matches!(self.protocol.get(), ConnProtocol::NewHttp2 | ConnProtocol::Http2)
    }

    /// Makes this a connection of HTTP/3 of `peer`, which has its streams.
    pub(crate) fn becomes_http3(&self, peer: &Rc<ingress_quic::Peer>) {
        self.protocol.set(ConnProtocol::Http3);
        // QUIC has the time-outs of heads.
        self.progress.read(ScanPosition::Between, self.worker.now());
        *self.extras().quic.borrow_mut() = Rc::downgrade(peer);
        // Packets of the handshake may have come from several addresses.
        self.moves_to(peer.current());
    }

    pub(crate) fn is_http3(&self) -> bool {
        self.protocol.get() == ConnProtocol::Http3
    }

    /// Returns the part of an HTTP/3 connection in QUIC, while that is open.
    pub(super) fn quic(&self) -> Option<Rc<ingress_quic::Peer>> {
        self.extras.get()?.quic.borrow().upgrade()
    }

    /// Returns the address that a client of HTTP/3 uses now, if it is not the one of its handshake. It may be forged, so
    /// it may only be the reason to refuse a request.
    #[inline]
    pub(crate) fn moved(&self) -> Option<IpAddr> {
        if !self.is_http3() {
            return None;
        }
        let current = self.quic()?.current().ip().to_canonical();
        (current != self.remote().ip()).then_some(current)
    }

    /// Returns whether the connection is HTTP/2 and has made a request.
    pub(crate) fn is_begun_http2(&self) -> bool {
        self.protocol.get() == ConnProtocol::Http2
    }
}

/// Makes a future in its box. `Box::pin` makes it on the stack and copies it whole, with state that nothing has written
/// yet, because the allocation is between the two.
#[inline(always)]
fn pin_new<F>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    let place = Box::new_uninit();
    Box::into_pin(Box::write(place, make()))
}
