//! What a connection of a client is, while it is open. `park` is its task, `open` opens it, `speak` speaks HTTP on it,
//! and `serve` answers its requests.

use std::{
    cell::{Cell, OnceCell, Ref, RefCell},
    net::{IpAddr, SocketAddr},
    rc::{Rc, Weak},
    task::{Context, Waker},
    time::Instant,
};

use tokio::task::{self, AbortHandle};

use crate::model::{HostId, ProxyVersion, Settings};

use super::{
    backlog::Backlog,
    client::Peer,
    client_certificates,
    counters::Tally,
    in_flight::InFlight,
    intake::Intake,
    offence::Offence,
    offers::{Offers, Stream},
    piped::Piped,
    progress::Progress,
    proxy_protocol::{Header, Introduction},
    relief,
    rest::{Left, Rest},
    shared::FlowTable,
    speak::PIECE,
    tunnel::Tunnel,
    warm::Warmth,
    worker::Worker,
};

/// What a connection is, for its requests, its byte stream and its worker. Each that is parked has one, so that what
/// few need is kept elsewhere.
pub(super) struct Conn {
    pub(super) worker: Rc<Worker>,
    remote: Address,
    local: Address,
    pub(super) secure: bool,
    peer: OnceCell<Peer>,
    /// Where the peer's connection came from and went to, if a header of the PROXY protocol has told. Boxed, so that
    /// other connections do not carry its size.
    ends: OnceCell<Box<(SocketAddr, SocketAddr)>>,
    /// What its client showed in the handshake.
    pub(super) shown: client_certificates::Client,
    pub(super) progress: Progress,
    /// Of the snapshot that was current when it was accepted.
    pub(super) settings: Rc<Settings>,
    protocol: Cell<Protocol>,
    handshake: Cell<Handshake>,
    /// What follows the 101 that hyper is about to send.
    tunnel: Cell<Option<Box<Tunnel>>>,
    /// Of HTTP/2, and of those that had a large body in the clear; about 150 bytes, which stay with one that is
    /// parked after that.
    extras: OnceCell<Box<Extras>>,
    /// Host of the latest request, as entered in the flow table.
    host: Cell<Option<HostId>>,
    /// Heads of HTTP/1 that were read and whose requests did not begin yet.
    heads: Cell<u16>,
    order: Cell<Order>,
    pub(super) warmth: Cell<Warmth>,
    /// Set by the connection's task, so that an order wakes it.
    waker: Cell<Option<Waker>>,
}

/// A [`SocketAddr`] without what only addresses of links have, in two thirds of its size.
#[derive(Clone, Copy)]
struct Address {
    ip: IpAddr,
    port: u16,
}

/// What few connections need.
#[derive(Default)]
struct Extras {
    offers: Offers,
    backlog: Rc<Backlog>,
    /// Tasks of streams whose request, and of tunnels whose copying, has not begun.
    spawned: RefCell<Vec<Spawned>>,
    piped: Piped,
    /// Of the request whose head was read last.
    intake: RefCell<Weak<Intake>>,
    left: RefCell<Left>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http1,
    /// No request has come yet.
    NewHttp2,
    Http2,
}

/// A task that hyper made.
struct Spawned {
    /// The task that hyper was polled by.
    by: Option<task::Id>,
    task: AbortHandle,
}

/// A WebSocket handshake, as its bytes look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handshake {
    None,
    /// Its head was read; what follows waits for its answer.
    Asked,
    /// It is an ordinary request after all, or its answer is no 101.
    Declined,
}

/// What the worker wants of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    Serve,
    /// End after the requests in flight.
    Finish,
    /// End now.
    Close,
}

impl Conn {
    /// Addresses are canonical here: v4-mapped ones, which a dual-stack socket has, become IPv4.
    pub(super) fn new(worker: Rc<Worker>, remote: SocketAddr, local: SocketAddr, secure: bool) -> Rc<Self> {
        Rc::new(Self {
            shown: client_certificates::Client::default(),
            progress: Progress::new(worker.now()),
            settings: worker.settings(),
            protocol: Cell::new(Protocol::Http1),
            handshake: Cell::new(Handshake::None),
            tunnel: Cell::new(None),
            extras: OnceCell::new(),
            peer: OnceCell::new(),
            ends: OnceCell::new(),
            worker,
            remote: Address::canonical(remote),
            local: Address::canonical(local),
            secure,
            host: Cell::new(None),
            heads: Cell::new(0),
            order: Cell::new(Order::Serve),
            warmth: Cell::new(Warmth::Cold),
            waker: Cell::new(None),
        })
    }

    /// Where it comes from.
    pub(super) fn remote(&self) -> SocketAddr {
        self.remote.socket()
    }

    /// Where it came to.
    pub(super) fn local(&self) -> SocketAddr {
        self.local.socket()
    }

    /// Who is at the other end; the socket tells, where no header of the PROXY protocol has.
    pub(super) fn peer(&self) -> &Peer {
        self.peer.get_or_init(|| Peer::new(self.remote().ip(), self.secure, self.local().port()))
    }

    /// A header of the PROXY protocol says who is: whoever came from `source` to `destination`. Whether nobody has
    /// asked before.
    pub(super) fn meet(&self, source: SocketAddr, destination: SocketAddr) -> bool {
        let peer = Peer::proxied(source.ip(), self.secure, destination.port());
        self.peer.set(peer).is_ok() && self.ends.set(Box::new((source, destination))).is_ok()
    }

    /// Its peer did what counts against it, if refusals escalate and it is a client that speaks for itself alone.
    pub(super) fn offend(&self, offence: Offence) {
        let (settings, peer) = (self.worker.settings(), self.remote().ip());
        let Some(escalation) = settings.escalation.as_ref().filter(|asked| offence.counts(asked)) else { return };
        // As it was when the connection began, and as it is.
        let may_speak = self.settings.trust.may_speak(peer) || settings.trust.may_speak(peer);
        if self.ends.get().is_none() && !may_speak {
            self.worker.shared.offences.note(offence, peer, escalation, self.worker.clock());
        }
    }

    /// What a connection to an endpoint begins with that is for `client`. Of one that a hop has named, nobody knows the
    /// port.
    pub(super) fn introduction(&self, version: ProxyVersion, client: IpAddr) -> Introduction {
        let (source, destination) = self.ends.get().map_or((self.remote(), self.local()), |ends| **ends);
        let source = if source.ip() == client { source } else { SocketAddr::new(client, 0) };
        Introduction { version, header: Header::Proxied { source, destination } }
    }

    /// Begins a request for `host`: counts it and tells the kernel whose packets the connection's are.
    pub(super) fn begin(self: &Rc<Self>, host: HostId) -> InFlight {
        self.progress.begin_request();
        if self.warmth.get() == Warmth::Warm {
            self.warmth.set(Warmth::Used);
        }
        if self.protocol.get() == Protocol::NewHttp2 {
            self.protocol.set(Protocol::Http2);
            if !self.worker.keeps_alive() {
                self.order(Order::Finish);
            }
        }
        // Without an entry the packets count for host 0 already.
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

    /// The stream whose task this is.
    fn stream(&self) -> Stream {
        if !self.is_http2() {
            return Stream::None;
        }
        let mut spawned = self.extras().spawned.borrow_mut();
        let own = task::try_id().and_then(|id| spawned.iter().position(|spawned| spawned.task.id() == id));
        own.map_or(Stream::None, |own| Stream::Open(spawned.swap_remove(own).task))
    }

    /// The task that sends what a tunnel has for the client: that of the stream on which it was asked for made it.
    pub(super) fn take_spawned_by(&self, stream: task::Id) -> Option<AbortHandle> {
        let mut spawned = self.extras().spawned.borrow_mut();
        let found = spawned.iter().position(|spawned| spawned.by == Some(stream))?;
        Some(spawned.swap_remove(found).task)
    }

    /// hyper made `task`, for a stream or what a tunnel has for it.
    pub(super) fn spawned(&self, task: AbortHandle) {
        self.extras().spawned.borrow_mut().push(Spawned { by: task::try_id(), task });
    }

    fn extras(&self) -> &Extras {
        self.extras.get_or_init(Box::default)
    }

    /// Frames of responses that wait for the client, if it may have streams.
    pub(super) fn offers(&self) -> Option<&Offers> {
        self.extras.get().map(|extras| &extras.offers)
    }

    /// What waits within HTTP/2 for the client.
    pub(super) fn backlog(&self) -> &Rc<Backlog> {
        &self.extras().backlog
    }

    /// What it keeps for its client, to be asked once in each round of [`super::relief`].
    pub(super) fn load(&self, now: Instant) -> relief::Load {
        if self.is_http2() {
            let backlog = self.backlog();
            return relief::Load { bytes: backlog.held(), stuck: backlog.is_stuck() };
        }
        let blocked = self.progress.blocked(now);
        relief::Load { bytes: if blocked.is_some() { PIECE } else { 0 }, stuck: blocked >= Some(relief::PERIOD) }
    }

    /// Whether bytes may go to its client, or come from it, through a pipe: hyper gets what is on the socket, and the
    /// socket what hyper gives out, as it is.
    pub(super) fn takes_pipes(&self) -> bool {
        !self.secure && !self.is_http2()
    }

    /// What goes to its client through a pipe.
    pub(super) fn piped(&self) -> &Piped {
        &self.extras().piped
    }

    /// The same, if there is something in the pipe.
    pub(super) fn filled(&self) -> Option<&Piped> {
        self.extras.get().map(|extras| &extras.piped).filter(|piped| !piped.is_empty())
    }

    /// Whether hyper, which waits, may have something to do that it does not look for by itself.
    ///
    /// Where its own flush makes the room that a body was told to wait for, hyper 1.12 asks the body once more, flushes
    /// and returns: it sees neither that there is room again nor, should the response have ended, that it holds the
    /// next request. Nothing else lets a body that waits go on within one poll.
    ///
    /// And a body whose turn is over waits though there is room, which nobody else would tell it of.
    pub(super) fn is_to_be_polled_again(&self) -> bool {
        self.extras.get().is_some_and(|extras| extras.piped.take_awaited())
    }

    /// So many heads of HTTP/1 have ended, and with the first of them the body before it.
    pub(super) fn heads_read(&self, count: u32) {
        let count = u16::try_from(count).unwrap_or(u16::MAX);
        self.heads.set(self.heads.get().saturating_add(count));
        self.close_intake();
    }

    /// A request of HTTP/1 begins: that of the first head among those that were read.
    pub(super) fn take_head(&self) {
        // More than it can count it never counts down.
        let heads = self.heads.get();
        if heads != u16::MAX {
            self.heads.set(heads.saturating_sub(1));
        }
    }

    /// That of the request that began last, until the next head is read. `None` if one was read already: what comes
    /// next is not that body's.
    pub(super) fn new_intake(&self) -> Option<Rc<Intake>> {
        if !self.takes_pipes() || self.heads.get() != 0 {
            return None;
        }
        let intake = Rc::default();
        *self.extras().intake.borrow_mut() = Rc::downgrade(&intake);
        Some(intake)
    }

    /// That of the body that is being read, if it has room.
    pub(super) fn intake(&self) -> Option<Rc<Intake>> {
        self.extras.get()?.intake.borrow().upgrade().filter(|intake| intake.has_room())
    }

    /// What comes next goes through no pipe.
    pub(super) fn close_intake(&self) {
        if let Some(extras) = self.extras.get() {
            *extras.intake.borrow_mut() = Weak::new();
        }
    }

    /// A request was answered, and this is what its client still sends. What is too long is not read.
    pub(super) fn leave(&self, rest: Rest) {
        let too_long = self.extras().left.borrow_mut().add(rest);
        drop(too_long);
        self.wake();
    }

    pub(super) fn take_rests(&self) -> Vec<Rest> {
        self.extras.get().map_or_else(Vec::new, |extras| extras.left.borrow_mut().take())
    }

    /// What is left of bodies of answered requests, if anything ever was.
    pub(super) fn left(&self) -> Option<Ref<'_, Left>> {
        self.extras.get().map(|extras| extras.left.borrow())
    }

    /// Orders only ever become stricter. Whether this one is.
    pub(super) fn order(&self, order: Order) -> bool {
        let is_stricter = order > self.order.get();
        if is_stricter {
            self.order.set(order);
            self.wake();
        }
        is_stricter
    }

    /// HTTP/2 is spoken from here on.
    pub(super) fn becomes_http2(&self) {
        self.protocol.set(Protocol::NewHttp2);
    }

    pub(super) fn is_http2(&self) -> bool {
        self.protocol.get() != Protocol::Http1
    }

    /// Whether it is HTTP/2 and has made a request.
    pub(super) fn is_begun_http2(&self) -> bool {
        self.protocol.get() == Protocol::Http2
    }

    pub(super) fn ordered(&self) -> Order {
        self.order.get()
    }

    /// Whether it is HTTP/1 between two requests, and nothing but the bytes of the next one, or its end, is to be
    /// expected.
    pub(super) fn is_resting(&self) -> bool {
        self.progress.is_resting()
            && self.protocol.get() == Protocol::Http1
            && self.handshake.get() == Handshake::None
            && self.order.get() == Order::Serve
    }

    /// It is to be parked if it still rests when its task has woken up.
    pub(super) fn call(&self) {
        self.warmth.set(Warmth::Called);
        self.wake();
    }

    /// Whether it is to be parked, now that its task has done what there was to do.
    pub(super) fn is_to_be_parked(self: &Rc<Self>) -> bool {
        let rests = self.is_resting();
        if rests {
            self.worker.warm.rests(self, self.worker.options.warm_max);
        }
        if self.warmth.get() != Warmth::Called {
            return false;
        }
        self.warmth.set(Warmth::Cold);
        rests
    }

    /// The head of a WebSocket handshake was read.
    pub(super) fn handshake(&self) {
        self.handshake.set(Handshake::Asked);
    }

    /// Whether a WebSocket handshake waits for its answer. Requests before it on the connection may still be under way.
    pub(super) fn is_asked_handshake(&self) -> bool {
        self.handshake.get() == Handshake::Asked
    }

    /// The handshake gets an answer like any other request.
    pub(super) fn decline(&self) {
        self.handshake.set(Handshake::Declined);
        self.wake();
    }

    /// Whether the handshake was declined; said once.
    pub(super) fn take_declined(&self) -> bool {
        let declined = self.handshake.get() == Handshake::Declined;
        if declined {
            self.handshake.set(Handshake::None);
        }
        declined
    }

    /// After the answer that hyper sends next, the connection is a tunnel.
    pub(super) fn switch(&self, tunnel: Tunnel) {
        self.tunnel.set(Some(Box::new(tunnel)));
    }

    pub(super) fn take_tunnel(&self) -> Option<Box<Tunnel>> {
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

    /// Keeps the task's waker; a task that is polled by the same executor keeps the same one.
    pub(super) fn listen(&self, cx: &Context<'_>) {
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

impl Address {
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
    fn what_every_connection_has_is_little() {
        assert!(size_of::<Conn>() <= 200, "{} bytes", size_of::<Conn>());
    }
}
