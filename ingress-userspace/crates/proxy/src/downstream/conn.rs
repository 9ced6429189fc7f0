//! An open connection of a client. `park` is its task, `open` opens it, `http_server` implements HTTP on it, and
//! `request` answers its requests.

use std::{
    cell::{Cell, OnceCell, Ref, RefCell},
    net::{IpAddr, SocketAddr},
    rc::{Rc, Weak},
    sync::atomic::Ordering::Relaxed,
    task::{Context, Waker},
    time::Instant,
};

use tokio::task::{self, AbortHandle};

use ingress_model::{HostId, ProxyVersion, Settings};

use crate::{
    downstream::{
        buffer_size::PIECE,
        h2_backlog::Backlog,
        h2_slow_start::UnreadBytes,
        h2_stalled_frames::{StalledFrames, StalledStream},
        progress::Progress,
        proxy_protocol::{Header, ProxyHeader},
        response_splice::ResponseSplice,
        tunnel::Tunnel,
        upload_splice::UploadSplice,
        warm::IdleState,
    },
    http::client_address::Peer,
    limits::violations::Violation,
    observe::counters::Tally,
    request::{
        in_flight::InFlight,
        unread_body::{BodyRemainder, Left},
    },
    server::{
        eviction::{self, Keeper, MemoryLoad},
        flow_table::FlowTable,
        worker::Worker,
    },
    tls::client_certificates,
};

/// State of a connection, shared by its requests, its byte stream and its worker. Every idle connection has one, so
/// rarely needed state is stored elsewhere.
pub(crate) struct Conn {
    pub(crate) worker: Rc<Worker>,
    remote: CompactAddress,
    local: CompactAddress,
    pub(crate) secure: bool,
    peer: OnceCell<Peer>,
    /// Source and destination from a PROXY protocol header. Boxed so that other connections do not carry its size.
    ends: OnceCell<Box<(SocketAddr, SocketAddr)>>,
    /// The client's certificate from the handshake.
    pub(crate) shown: client_certificates::ClientCertificateState,
    pub(crate) progress: Progress,
    /// The settings of the snapshot that was current when the connection was accepted.
    pub(crate) settings: Rc<Settings>,
    protocol: Cell<ConnProtocol>,
    handshake: Cell<HandshakeState>,
    /// The tunnel that starts after the 101 that hyper is about to send.
    tunnel: Cell<Option<Box<Tunnel>>>,
    /// Allocated for HTTP/2, and for plain connections that had a large body; about 150 bytes, which remain allocated
    /// if the connection becomes idle afterwards.
    extras: OnceCell<Box<Extras>>,
    /// Host of the latest request, as entered in the flow table.
    host: Cell<Option<HostId>>,
    /// HTTP/1 heads that were read, but with requests that have not begun yet.
    heads: Cell<u16>,
    order: Cell<Order>,
    pub(crate) idle_state: Cell<IdleState>,
    /// Set by the connection's task, so that an order wakes the task.
    waker: Cell<Option<Waker>>,
}

/// A [`SocketAddr`] without the fields for link-local addresses, in two thirds of its size.
#[derive(Clone, Copy)]
struct CompactAddress {
    ip: IpAddr,
    port: u16,
}

/// State that few connections need.
#[derive(Default)]
struct Extras {
    stalled_frames: StalledFrames,
    backlog: Rc<Backlog>,
    /// Tasks of streams before their request begins, and of tunnels before they begin to copy.
    spawned: RefCell<Vec<Spawned>>,
    response_splice: ResponseSplice,
    /// The upload splice of the request with the latest head.
    upload_splice: RefCell<Weak<UploadSplice>>,
    left: RefCell<Left>,
    /// Bytes of request bodies that are buffered until pods get them.
    kept: Cell<usize>,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnProtocol {
    Http1,
    /// HTTP/2 before the first request.
    NewHttp2,
    Http2,
}

/// A task that hyper spawned.
struct Spawned {
    /// The task that polled hyper at that time.
    by: Option<task::Id>,
    task: AbortHandle,
}

/// The state of a WebSocket handshake on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandshakeState {
    None,
    /// Its head was read; the following bytes wait for the response.
    Asked,
    /// The request turned out to be an ordinary one, or its response is not a 101.
    Declined,
}

/// The worker's instruction to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
    Serve,
    /// Close after the requests in flight.
    Finish,
    /// Close now.
    Close,
}

impl Conn {
    /// Creates the state. Addresses are made canonical: the v4-mapped ones of a dual-stack socket become IPv4.
    pub(crate) fn new(worker: Rc<Worker>, remote: SocketAddr, local: SocketAddr, secure: bool) -> Rc<Self> {
        Rc::new(Self {
            shown: client_certificates::ClientCertificateState::default(),
            progress: Progress::new(worker.now()),
            settings: worker.settings(),
            protocol: Cell::new(ConnProtocol::Http1),
            handshake: Cell::new(HandshakeState::None),
            tunnel: Cell::new(None),
            extras: OnceCell::new(),
            peer: OnceCell::new(),
            ends: OnceCell::new(),
            worker,
            remote: CompactAddress::canonical(remote),
            local: CompactAddress::canonical(local),
            secure,
            host: Cell::new(None),
            heads: Cell::new(0),
            order: Cell::new(Order::Serve),
            idle_state: Cell::new(IdleState::Cold),
            waker: Cell::new(None),
        })
    }

    /// Returns the address that the connection comes from.
    pub(crate) fn remote(&self) -> SocketAddr {
        self.remote.socket()
    }

    /// Returns the address that the connection was made to.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local.socket()
    }

    /// Returns the peer: from the PROXY protocol header if there is one, and otherwise from the socket.
    pub(crate) fn peer(&self) -> &Peer {
        self.peer.get_or_init(|| Peer::new(self.remote().ip(), self.secure, self.local().port()))
    }

    /// Sets the peer from a PROXY protocol header with `source` and `destination`. Returns `false` if the peer was
    /// already set or used.
    pub(crate) fn meet(&self, source: SocketAddr, destination: SocketAddr) -> bool {
        let peer = Peer::proxied(source.ip(), self.secure, destination.port());
        self.peer.set(peer).is_ok() && self.ends.set(Box::new((source, destination))).is_ok()
    }

    /// Records a violation by the peer, if violations escalate and the peer is a client, not a proxy.
    pub(crate) fn offend(&self, violation: Violation) {
        let (settings, peer) = (self.worker.settings(), self.remote().ip());
        let Some(escalation) = settings.escalation.as_ref().filter(|asked| violation.counts(asked)) else { return };
        // Trusted proxies of the settings when the connection began, and of the current ones.
        let may_speak = self.settings.trust.may_speak(peer) || settings.trust.may_speak(peer);
        if self.ends.get().is_none() && !may_speak {
            self.worker.shared.violations.note(violation, peer, escalation, self.worker.clock());
        }
    }

    /// Returns the PROXY protocol header for a connection to an endpoint on behalf of `client`. The port of a client
    /// that a trusted proxy has named is unknown.
    pub(crate) fn proxy_header(&self, version: ProxyVersion, client: IpAddr) -> ProxyHeader {
        let (source, destination) = self.ends.get().map_or((self.remote(), self.local()), |ends| **ends);
        let source = if source.ip() == client { source } else { SocketAddr::new(client, 0) };
        ProxyHeader { version, header: Header::Proxied { source, destination } }
    }

    /// Enters the connection in the kernel's flow table if packets of clients are limited, so that packets with a
    /// forged source address are not charged to its client. This takes a system call, which connections without such a
    /// limit do not make.
    pub(crate) fn announce(&self) {
        if self.settings.client_limits.packets.per_second.is_some()
            && let Some(flows) = self.flows()
        {
            self.host.set(Some(HostId::UNATTRIBUTED));
            flows.insert(self.remote(), self.local(), HostId::UNATTRIBUTED);
        }
    }

    /// Begins a request for `host`: counts it, and attributes the connection's packets to the host in the flow table.
    pub(crate) fn begin(self: &Rc<Self>, host: HostId) -> InFlight {
        self.progress.begin_request();
        if self.idle_state.get() == IdleState::Warm {
            self.idle_state.set(IdleState::Used);
        }
        if self.protocol.get() == ConnProtocol::NewHttp2 {
            self.protocol.set(ConnProtocol::Http2);
            if !self.worker.keeps_alive() {
                self.order(Order::Finish);
            }
        }
        // Without an entry, the packets count for host 0 already.
        if self.host.get().unwrap_or(HostId::UNATTRIBUTED) != host {
            self.host.set(Some(host));
            if let Some(flows) = self.flows() {
                flows.insert(self.remote(), self.local(), host);
            }
        }
        let tally = Tally::begin(self.worker.shared.counters.cell(host));
        let stream = self.stream();
        InFlight::new(Rc::clone(self), host, tally, stream)
    }

    /// Returns a future that waits until an HTTP/2 request may begin, or `None` if it may begin now: see
    /// [`crate::downstream::h2_slow_start`].
    #[inline]
    pub(crate) fn turn(self: &Rc<Self>) -> Option<impl Future<Output = ()> + use<>> {
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

    /// Returns the number of requests that have begun, or are about to.
    fn under_way(&self) -> u32 {
        let spawned = u32::try_from(self.extras().spawned.borrow().len()).unwrap_or(u32::MAX);
        self.progress.active().saturating_add(spawned.saturating_sub(self.backlog().start.waiting()))
    }

    fn unread(&self) -> UnreadBytes {
        match (self.backlog().is_full(), self.progress.is_blocked()) {
            (false, _) => UnreadBytes::Little,
            (true, false) => UnreadBytes::Much,
            (true, true) => UnreadBytes::All,
        }
    }

    /// Records the end of a request; `whole` means with a complete response.
    pub(crate) fn end_request(&self, whole: bool) {
        self.progress.end_request(self.worker.now());
        if self.is_http2() {
            self.backlog().start.ended(whole);
        }
    }

    /// Returns the stream that belongs to the current task.
    fn stream(&self) -> StalledStream {
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

    fn extras(&self) -> &Extras {
        self.extras.get_or_init(Box::default)
    }

    /// Returns the response frames that wait for the client, if it may have streams.
    pub(crate) fn stalled_frames(&self) -> Option<&StalledFrames> {
        self.extras.get().map(|extras| &extras.stalled_frames)
    }

    /// Returns the bytes queued within HTTP/2 for the client.
    pub(crate) fn backlog(&self) -> &Rc<Backlog> {
        &self.extras().backlog
    }

    /// Adds the memory held for its client to `keepers`; called once in each round of [`eviction`]. If the client reads
    /// but ignores some streams, those are added individually, and only they are reset.
    pub(crate) fn weigh<'c>(&'c self, now: Instant, keepers: &mut Vec<(MemoryLoad, Keeper<&'c Self>)>) {
        let is_blocked = self.progress.blocked(now) >= Some(eviction::PERIOD);
        if !self.is_http2() {
            let bytes = if self.progress.is_blocked() { PIECE } else { 0 } + self.kept();
            keepers.push((MemoryLoad { bytes, stuck: is_blocked }, Keeper::Connection(self)));
            return;
        }
        let backlog = self.backlog();
        let is_stuck = backlog.is_stuck();
        let is_any_open = backlog.look(eviction::STREAM_LOOKS, |bytes, stream| {
            // A reset would wait behind the bytes that the connection holds.
            if !is_blocked {
                keepers.push((MemoryLoad { bytes: bytes + eviction::STREAM, stuck: true }, Keeper::Stream(stream)));
            }
        });
        // Responses that h2 holds completely can only be dropped together with the connection.
        let stuck = is_stuck && (is_blocked || !is_any_open);
        keepers.push((MemoryLoad { bytes: backlog.held() + self.kept(), stuck }, Keeper::Connection(self)));
    }

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

    fn kept(&self) -> usize {
        self.extras.get().map_or(0, |extras| extras.kept.get())
    }

    pub(crate) fn take_unread_bodies(&self) -> Vec<BodyRemainder> {
        self.extras.get().map_or_else(Vec::new, |extras| extras.left.borrow_mut().take())
    }

    /// Returns the rests of bodies of answered requests, if there ever were any.
    pub(crate) fn left(&self) -> Option<Ref<'_, Left>> {
        self.extras.get().map(|extras| extras.left.borrow())
    }

    /// Makes the order stricter; it is never relaxed. Returns whether it has changed.
    pub(crate) fn order(&self, order: Order) -> bool {
        let is_stricter = order > self.order.get();
        if is_stricter {
            self.order.set(order);
            self.wake();
        }
        is_stricter
    }

    /// Switches to HTTP/2.
    pub(crate) fn becomes_http2(&self) {
        self.protocol.set(ConnProtocol::NewHttp2);
    }

    pub(crate) fn is_http2(&self) -> bool {
        self.protocol.get() != ConnProtocol::Http1
    }

    /// Returns whether the connection is HTTP/2 and has made a request.
    pub(crate) fn is_begun_http2(&self) -> bool {
        self.protocol.get() == ConnProtocol::Http2
    }

    pub(crate) fn ordered(&self) -> Order {
        self.order.get()
    }

    /// Returns whether the connection is HTTP/1 between two requests, so that only the next request or its end can
    /// follow.
    pub(crate) fn is_parkable(&self) -> bool {
        self.progress.is_parkable()
            && self.protocol.get() == ConnProtocol::Http1
            && self.handshake.get() == HandshakeState::None
            && self.order.get() == Order::Serve
    }

    /// Requests that the connection is parked if it is still idle when its task runs.
    pub(crate) fn evict(&self) {
        self.idle_state.set(IdleState::Evicted);
        self.wake();
    }

    /// Returns whether the connection is to be parked, now that its task has no more work.
    pub(crate) fn is_to_be_parked(self: &Rc<Self>) -> bool {
        let rests = self.is_parkable();
        if rests {
            self.worker.warm.became_idle(self, self.worker.options.warm_max);
        }
        if self.idle_state.get() != IdleState::Evicted {
            return false;
        }
        self.idle_state.set(IdleState::Cold);
        rests
    }

    /// Records that the head of a WebSocket handshake was read.
    pub(crate) fn handshake(&self) {
        self.handshake.set(HandshakeState::Asked);
    }

    /// Returns whether a WebSocket handshake waits for its response. Earlier requests on the connection may still be in
    /// flight.
    pub(crate) fn is_asked_handshake(&self) -> bool {
        self.handshake.get() == HandshakeState::Asked
    }

    /// Declines the handshake, which gets a response like any other request.
    pub(crate) fn decline(&self) {
        self.handshake.set(HandshakeState::Declined);
        self.wake();
    }

    /// Returns whether the handshake was declined, and clears that state.
    pub(crate) fn take_declined(&self) -> bool {
        let declined = self.handshake.get() == HandshakeState::Declined;
        if declined {
            self.handshake.set(HandshakeState::None);
        }
        declined
    }

    /// Turns the connection into a tunnel after the next response that hyper sends.
    pub(crate) fn switch(&self, tunnel: Tunnel) {
        self.tunnel.set(Some(Box::new(tunnel)));
    }

    pub(crate) fn take_tunnel(&self) -> Option<Box<Tunnel>> {
        self.tunnel.take()
    }

    fn wake(&self) {
        let waker = self.waker.take();
        if let Some(waker) = &waker {
            waker.wake_by_ref();
        }
        self.waker.set(waker);
    }

    fn flows(&self) -> Option<&dyn FlowTable> {
        self.worker.shared.flows.as_deref()
    }

    /// Stores the task's waker, unless it is the same one as before.
    pub(crate) fn listen(&self, cx: &Context<'_>) {
        let known = self.waker.take().filter(|known| known.will_wake(cx.waker()));
        self.waker.set(known.or_else(|| Some(cx.waker().clone())));
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        if self.host.get().is_some()
            && let Some(flows) = self.flows()
        {
            flows.remove(self.remote(), self.local());
        }
    }
}

impl CompactAddress {
    const fn canonical(address: SocketAddr) -> Self {
        Self { ip: address.ip().to_canonical(), port: address.port() }
    }

    const fn socket(self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_connection_is_small() {
        // With the counts of its `Rc`, 224 bytes, which is a size class of the allocator.
        assert!(size_of::<Conn>() <= 208, "{} bytes", size_of::<Conn>());
    }
}
