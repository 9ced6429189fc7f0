//! Datagrams on their way to the endpoint. Those of open connections are taken at once; first packets wait until open
//! connections had their turn, and are accepted, answered with Retry or refused.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use quinn_proto::{DatagramEvent, Incoming, ServerConfig, Transmit};

use super::{BATCHES, DATAGRAMS, Driver};
use crate::{
    admit::{Admission, FirstPacket, Load, Share, decide},
    amplification::{Arrival, Unproven},
    config::{self, ConfigError},
    conn::Conn,
    connection::State,
    firsts::{Class, Firsts, TURN, owner_of},
    ids::Owner,
    options::{TlsAt, TlsOf},
    shared::{Counters, Peer, count},
    socket::Datagram,
};

/// Addresses whose configuration is kept. A node has fewer.
const ADDRESSES: usize = 256;

/// Longest datagram that waits. First packets have some 1,200 to 1,500 bytes.
const LARGEST: usize = 2 * 1024;

/// The configurations of addresses with a TLS of their own, by address. Each is made once.
pub(super) struct ServersAt {
    pub(super) at: TlsAt,
    pub(super) tls_of: TlsOf,
    pub(super) made: HashMap<SocketAddr, Arc<ServerConfig>>,
}

/// The way that a datagram took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// The datagram began a connection, or completed its ClientHello, which is when TLS does its work.
    Begun,
    /// The datagram was of a connection.
    OfConnection,
    /// The datagram was answered without state, or dropped.
    Alone,
}

impl<S> Driver<S> {
    /// Receives some batches. Returns whether there may be more.
    pub(super) fn receive(&mut self, cx: &mut Context<'_>, now: Instant) -> io::Result<bool> {
        let mut taken = 0;
        for _ in 0..BATCHES {
            let Poll::Ready(ready) = self.socket.poll_readable(cx) else { return Ok(false) };
            ready?;
            let mut received = std::mem::take(&mut self.received);
            let Self { socket, ids, firsts, forward, shared, .. } = self;
            socket.receive(|datagram| {
                taken += 1;
                match owner_of(datagram.data, |id| ids.owner(id)) {
                    owner @ (Owner::Own | Owner::Unknown | Owner::Gone) => {
                        let is_of_node = datagram.local == Some(datagram.remote.ip());
                        match Class::of(datagram.data, owner, is_of_node) {
                            Class::Open => received.push(datagram.into_owned()),
                            _ if datagram.data.len() > LARGEST => count(&shared.counters.dropped),
                            class => keep(firsts, &shared.counters, class, datagram.remote, || datagram.into_owned()),
                        }
                    }
                    // It was steered here before its owner was known, or merged with packets for us.
                    Owner::Sibling(worker) => {
                        count(&shared.counters.foreign);
                        forward(worker, datagram.into_owned());
                    }
                    Owner::Elsewhere => count(&shared.counters.foreign),
                }
            })?;
            for datagram in received.drain(..) {
                self.take(datagram, now);
            }
            self.received = received;
            if taken >= DATAGRAMS {
                break;
            }
        }
        Ok(true)
    }

    /// Takes the datagrams that siblings have received for this worker.
    pub(super) fn take_injected(&mut self, now: Instant) {
        loop {
            let injected = self.shared.injected.borrow_mut().pop_front();
            let Some(datagram) = injected else { return };
            let owner = owner_of(&datagram.data, |id| self.ids.owner(id));
            match Class::of(&datagram.data, owner, datagram.local == Some(datagram.remote.ip())) {
                Class::Open => _ = self.take(datagram, now),
                _ if datagram.data.len() > LARGEST => count(&self.shared.counters.dropped),
                class => {
                    keep(&mut self.firsts, &self.shared.counters, class, datagram.remote, || datagram);
                }
            }
        }
    }

    /// Takes the first packets whose turn it is. Returns whether connections have begun or have packets.
    pub(super) fn take_firsts(&mut self, now: Instant) -> bool {
        let mut has_changed = false;
        if self.firsts.is_empty() {
            return false;
        }
        let begun = Instant::now();
        let mut at = begun;
        while self.firsts.due(at).is_some_and(|due| due <= at)
            && let Some((class, datagram)) = self.firsts.pop()
        {
            let taken = self.take(datagram, now);
            has_changed |= taken != Taken::Alone;
            let end = Instant::now();
            // Anyone may send the packet of a client again, which costs as much as the answer to a new one.
            let is_progress = taken == Taken::Begun || (taken == Taken::OfConnection && class == Class::Returning);
            if !is_progress {
                self.firsts.spend(end.saturating_duration_since(at));
            }
            at = end;
            if at.saturating_duration_since(begun) >= TURN {
                break;
            }
        }
        has_changed
    }

    /// Gives a datagram to the endpoint. A panic costs that datagram.
    fn take(&mut self, datagram: Datagram, now: Instant) -> Taken {
        let handled = catch_unwind(AssertUnwindSafe(|| {
            let Datagram { remote, local, ecn, data } = datagram;
            self.reply.clear();
            let arrival = Arrival::of(&data);
            match self.endpoint.handle(now, remote, local, ecn, data, &mut self.reply) {
                None => Taken::Alone,
                Some(DatagramEvent::NewConnection(incoming)) => self.admit(incoming, arrival, now),
                Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                    let Some(Some(conn)) = self.conns.get(handle.0) else { return Taken::OfConnection };
                    let is_begun = conn.with(|state| {
                        let lacked_hello = state.lacks_hello();
                        state.take(event, arrival, remote);
                        lacked_hello && !state.lacks_hello()
                    });
                    conn.mark_dirty();
                    if is_begun { Taken::Begun } else { Taken::OfConnection }
                }
                Some(DatagramEvent::Response(transmit)) => {
                    self.answer(&transmit);
                    Taken::Alone
                }
            }
        }));
        handled.unwrap_or_else(|_panic| {
            count(&self.shared.counters.panics);
            // That of a connection is dropped in its turn.
            self.conns.iter().flatten().filter(|conn| conn.is_broken()).for_each(|conn| conn.mark_dirty());
            Taken::Alone
        })
    }

    fn admit(&mut self, incoming: Incoming, arrival: Arrival, now: Instant) -> Taken {
        let (counters, half_open_max) = (&self.shared.counters, self.shared.limits.borrow().half_open_max);
        let first = FirstPacket {
            remote: incoming.remote_address(),
            local: incoming.local_ip(),
            is_validated: incoming.remote_address_validated(),
        };
        let load = Load {
            half_open: usize::try_from(counters.half_open.get()).unwrap_or(usize::MAX),
            of_share: self.shared.half_open_of(Share::of(first.remote.ip(), first.is_validated)),
            half_open_max,
            pressure: (self.pressure)(&first),
            draining: self.shared.drain.get().is_some(),
            validated: first.is_validated,
        };
        match decide(load) {
            Admission::Accept => return self.accept(incoming, &first, arrival, now),
            Admission::Retry => {
                count(&counters.retried);
                match self.endpoint.retry(incoming, &mut self.reply) {
                    Ok(transmit) => self.answer(&transmit),
                    Err(error) => self.endpoint.ignore(error.into_incoming()),
                }
            }
            Admission::Refuse => {
                count(&counters.refused);
                let transmit = self.endpoint.refuse(incoming, &mut self.reply);
                self.answer(&transmit);
            }
        }
        Taken::Alone
    }

    /// Returns the configuration for a client's first packet, if its address has one.
    fn server_at(&mut self, first: &FirstPacket) -> Option<Result<Arc<ServerConfig>, ConfigError>> {
        let ServersAt { at, tls_of, made } = &mut self.servers_at;
        let address = at(first)?;
        if let Some(server) = made.get(&address) {
            return Some(Ok(Arc::clone(server)));
        }
        let server = config::server(tls_of(address), &self.shared.keys, &self.shared.limits.borrow());
        if let Ok(server) = &server {
            if made.len() >= ADDRESSES {
                made.clear();
            }
            made.insert(address, Arc::clone(server));
        }
        Some(server)
    }

    fn accept(&mut self, incoming: Incoming, first: &FirstPacket, arrival: Arrival, now: Instant) -> Taken {
        let FirstPacket { remote, local, is_validated } = *first;
        let config = match self.server_at(first).transpose() {
            Ok(config) => config,
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "a connection of HTTP/3 is refused");
                count(&self.shared.counters.refused);
                let transmit = self.endpoint.refuse(incoming, &mut self.reply);
                self.answer(&transmit);
                return Taken::Alone;
            }
        };
        match self.endpoint.accept(incoming, now, &mut self.reply, config) {
            Ok((handle, quic)) => {
                let counters = &self.shared.counters;
                count(&counters.accepted);
                self.shared.begin_handshake(Share::of(remote.ip(), is_validated));
                count(&counters.open);
                let peer = Rc::new(Peer::new(remote, local));
                let unproven = (!is_validated).then(|| Unproven::new(arrival));
                let state = State::new(quic, Rc::clone(&self.shared), Rc::clone(&peer), unproven, now);
                let conn = Conn::new(handle.0, Rc::clone(&peer), Rc::clone(&self.shared), state);
                peer.belongs_to(&conn);
                conn.mark_dirty();
                if self.conns.len() <= handle.0 {
                    self.conns.resize(handle.0 + 1, None);
                }
                self.conns[handle.0] = Some(conn);
                Taken::Begun
            }
            // For instance, the name in a first packet is of no host.
            Err(error) => {
                count(&self.shared.counters.refused);
                if let Some(transmit) = error.response {
                    self.answer(&transmit);
                }
                Taken::Alone
            }
        }
    }

    /// Sends a packet that belongs to no connection. If the socket takes nothing, the client asks again.
    fn answer(&self, transmit: &Transmit) {
        let _lost = self.socket.send(transmit, &self.reply[..transmit.size]);
    }
}

/// Keeps a first packet until its turn, or drops it if too many wait.
fn keep(firsts: &mut Firsts, counters: &Counters, class: Class, remote: SocketAddr, make: impl FnOnce() -> Datagram) {
    if !firsts.push(class, remote.ip(), make) {
        count(&counters.dropped);
    }
}
