//! An open connection of a client. `park` is its task, `open` opens it, `http_server` implements HTTP on it, and
//! `request` answers its requests.

use std::{
    cell::{Cell, OnceCell, RefCell},
    net::SocketAddr,
    rc::{Rc, Weak},
    task::{Context, Waker},
};

use ingress_model::{HostId, Settings};

use crate::{
    downstream::{
        h2_backlog::Backlog, h2_stalled_frames::StalledFrames, progress::Progress, response_splice::ResponseSplice,
        tunnel::Tunnel, upload_splice::UploadSplice, warm::IdleState,
    },
    http::client_address::Peer,
    observe::counters::Tally,
    request::{in_flight::InFlight, unread_body::Left},
    server::worker::Worker,
    tls::client_certificates,
};
pub(crate) use streams::Serve;

use state::{CompactAddress, ConnProtocol, HandshakeState, Spawned};

mod bodies;
mod ends;
mod flows;
mod handshake;
mod memory;
mod state;
mod streams;

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
    /// Allocated for HTTP/2 and HTTP/3, and for plain connections that had a large body; about 160 bytes, which remain allocated
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
    /// The connection of QUIC, which has this one as its context.
    quic: RefCell<Weak<ingress_quic::Peer>>,
    /// The address in the flow table, if the client of HTTP/3 no longer has that of its handshake.
    moved: Cell<Option<CompactAddress>>,
    /// Bytes of request bodies that are buffered until pods get them.
    kept: Cell<usize>,
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

// === impl Conn ===

impl Conn {
    /// Returns the maximum size of a request head in bytes.
    pub(crate) fn head_max(&self) -> usize {
        self.settings.request_head_max.unwrap_or(self.worker.options.head_max)
    }

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

    /// Enters the connection in the kernel's flow table if packets of clients are limited, so that packets with a
    /// forged source address are not charged to its client. This takes a system call, which connections without such a
    /// limit do not make.
    pub(crate) fn announce(&self) {
        if self.settings.client_limits.packets.per_second.is_some() {
            self.attribute(HostId::UNATTRIBUTED);
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
            self.attribute(host);
        }
        let tally = Tally::begin(self.worker.shared.counters.cell(host));
        let stream = self.stream();
        InFlight::new(Rc::clone(self), host, tally, stream)
    }

    fn extras(&self) -> &Extras {
        self.extras.get_or_init(Box::default)
    }

    /// Makes the order stricter; it is never relaxed. Returns whether it has changed.
    pub(crate) fn order(&self, order: Order) -> bool {
        let is_stricter = order > self.order.get();
        if is_stricter {
            self.order.set(order);
            match (self.quic(), order) {
                (Some(peer), Order::Close) => peer.close(),
                (Some(peer), _) => peer.finish(),
                (None, _) => self.wake(),
            }
        }
        is_stricter
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

    fn wake(&self) {
        let waker = self.waker.take();
        if let Some(waker) = &waker {
            waker.wake_by_ref();
        }
        self.waker.set(waker);
    }

    /// Stores the task's waker, unless it is the same one as before.
    pub(crate) fn listen(&self, cx: &Context<'_>) {
        let known = self.waker.take().filter(|known| known.will_wake(cx.waker()));
        self.waker.set(known.or_else(|| Some(cx.waker().clone())));
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.leave_flows();
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
