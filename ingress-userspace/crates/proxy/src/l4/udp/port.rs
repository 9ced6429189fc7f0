//! A UDP port on one worker: assigns datagrams to sessions, and sessions to endpoints.

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, hash_map::Entry},
    convert::Infallible,
    io,
    net::{SocketAddr, UdpSocket},
    rc::Rc,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    task::AbortHandle,
    time::{Instant, interval, sleep, sleep_until},
};

use ingress_model::{StreamPort, Transport};

use super::{
    DATAGRAM_MAX, DatagramStats, Dropped,
    session::UdpSession,
    socket::{DatagramAddresses, PortSocket},
};
use crate::{
    l4::udp::common::UdpCommon,
    listeners::ServedStream,
    server::{memory::Pressure, worker::Worker},
    snapshot::Snapshot,
    upstream::{
        ConnectError,
        balance::{Choice, Picked, Tried, UpstreamState, hash},
    },
};

/// Datagrams handled in one go before other tasks on the worker get a turn.
const BATCH: usize = 32;
/// Interval at which a port looks for a new configuration while no datagram arrives.
const LOOK: Duration = Duration::from_secs(1);
/// Pause after a receive error, which is unlikely to clear up at once.
const PAUSE: Duration = Duration::from_millis(10);

pub(super) struct UdpPort {
    worker: Rc<Worker>,
    common: Rc<UdpCommon>,
    number: u16,
    socket: PortSocket,
    /// The upstream of the port in the snapshot of `generation`.
    upstream: RefCell<Option<Arc<UpstreamState>>>,
    generation: Cell<u64>,
    /// Whether a Gateway has a listener at this port in the snapshot of `generation`.
    has_listeners: Cell<bool>,
    sessions: RefCell<HashMap<DatagramAddresses, OpenSession>>,
    /// Dropped after `socket`.
    _held: oneshot::Sender<Infallible>,
}

/// An open session; dropping this value ends it.
struct OpenSession {
    session: Rc<UdpSession>,
    /// The task that forwards responses to the client.
    task: AbortHandle,
    _counted: CountedSession,
}

/// Counts a session until it is dropped.
struct CountedSession(Rc<Worker>, Rc<UdpCommon>);

/// Serves a port until it is dropped, which also ends the sessions of the port.
pub(super) struct ServedPort(Rc<UdpPort>);

impl UdpPort {
    /// Creates the port. To be called on the worker's own thread.
    pub(super) fn new(
        worker: &Rc<Worker>,
        common: &Rc<UdpCommon>,
        number: u16,
        socket: UdpSocket,
        held: oneshot::Sender<Infallible>,
    ) -> io::Result<Rc<Self>> {
        if common.buffer.borrow().is_empty() {
            common.buffer.replace(vec![0; DATAGRAM_MAX].into());
        }
        Ok(Rc::new(Self {
            worker: Rc::clone(worker),
            common: Rc::clone(common),
            number,
            socket: PortSocket::new(socket)?,
            upstream: RefCell::default(),
            generation: Cell::new(0),
            has_listeners: Cell::new(false),
            sessions: RefCell::default(),
            _held: held,
        }))
    }

    /// Returns whether any session waits for a response.
    pub(super) fn awaits_answers(&self) -> bool {
        let settings = self.worker.settings();
        self.sessions.borrow().values().any(|open| open.session.exchange.awaits_answers(&settings.streams))
    }

    fn stats(&self) -> &DatagramStats {
        &self.worker.shared.stats.datagrams
    }

    /// Receives the queued datagrams of clients, up to [`BATCH`]. Fails if the socket does.
    fn take(self: &Rc<Self>) -> io::Result<()> {
        self.reconcile();
        for _ in 0..BATCH {
            let mut buffer = self.common.buffer.borrow_mut();
            let (length, client) = match self.socket.try_receive(&mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let passed = client.ok_or(Dropped::Client).and_then(|client| self.pass(client, &buffer[..length]));
            match passed {
                Ok(()) => drop(self.stats().to_pods.fetch_add(1, Relaxed)),
                Err(why) => self.stats().drop(why),
            }
        }
        Ok(())
    }

    /// Sends a datagram to the endpoint of its client.
    fn pass(self: &Rc<Self>, client: DatagramAddresses, datagram: &[u8]) -> Result<(), Dropped> {
        for _ in 0..2 {
            let known = self.sessions.borrow().get(&client).map(|open| Rc::clone(&open.session));
            let session = known.map_or_else(|| self.begin(client), Ok)?;
            match session.try_send(datagram) {
                Ok(()) => {
                    session.exchange.ask();
                    return Ok(());
                }
                // The error belongs to an earlier datagram that the endpoint refused; this one has not been sent.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => self.refused(&client, &session),
                Err(_) => return Err(Dropped::Pod),
            }
        }
        Err(Dropped::NoEndpoint)
    }

    /// Opens a session to the endpoint chosen for `client`.
    fn begin(self: &Rc<Self>, client: DatagramAddresses) -> Result<Rc<UdpSession>, Dropped> {
        let max = self.worker.settings().streams.sessions_max.get() as usize;
        if self.common.sessions.get() >= max || self.worker.shared.pressure() >= Pressure::Scarce {
            return Err(Dropped::Sessions);
        }
        let upstream = self.choose(&client).ok_or(Dropped::NoEndpoint)?;
        let choice = Choice::Hash(hash(&client.key()));
        let picked = upstream.pick(choice, || self.worker.now_ms(), &mut Tried::up_to(1)).ok_or(Dropped::NoEndpoint)?;
        let session = match UdpSession::open(picked.address(), Arc::clone(&upstream)) {
            Ok(session) => Rc::new(session),
            Err(error) => {
                // Lack of resources on this node is not a failure of the endpoint.
                if matches!(ConnectError::new(picked.address(), error), ConnectError::Exhausted { .. }) {
                    return Err(Dropped::Sessions);
                }
                picked.failed(self.worker.now_ms());
                return Err(Dropped::NoEndpoint);
            }
        };
        let task = tokio::task::spawn_local(Rc::clone(self).answer(client, Rc::clone(&session))).abort_handle();
        let counted = CountedSession::new(&self.worker, &self.common);
        let open = OpenSession { session: Rc::clone(&session), task, _counted: counted };
        self.sessions.borrow_mut().insert(client, open);
        Ok(session)
    }

    /// Forwards responses to the client until the session times out.
    async fn answer(self: Rc<Self>, client: DatagramAddresses, session: Rc<UdpSession>) {
        loop {
            let deadline = session.exchange.deadline(&self.worker.settings().streams);
            tokio::select! {
                biased;
                ready = session.receivable() => {
                    if ready.is_err() || self.bring(&client, &session).await.is_err() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                () = sleep_until(deadline) => {
                    if session.exchange.deadline(&self.worker.settings().streams) <= Instant::now() {
                        break;
                    }
                }
            }
        }
        self.end(&client, &session);
    }

    /// Sends the queued responses, up to [`BATCH`], to `client`.
    async fn bring(&self, client: &DatagramAddresses, session: &Rc<UdpSession>) -> io::Result<()> {
        for _ in 0..BATCH {
            let unsent = {
                let mut buffer = self.common.buffer.borrow_mut();
                let length = match session.try_receive(&mut buffer) {
                    Ok(length) => length,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                    Err(error) => {
                        if error.kind() == io::ErrorKind::ConnectionRefused {
                            self.refused(client, session);
                        }
                        return Err(error);
                    }
                };
                if session.exchange.answer() {
                    self.judge(session, |picked| picked.succeeded());
                }
                match self.socket.try_send(client, &buffer[..length]) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(buffer[..length].to_vec()),
                    sent => {
                        self.sent(&sent);
                        None
                    }
                }
            };
            if let Some(datagram) = unsent {
                self.sent(&self.socket.send(client, &datagram).await);
            }
        }
        Ok(())
    }

    fn sent(&self, sent: &io::Result<()>) {
        match sent {
            Ok(()) => drop(self.stats().to_clients.fetch_add(1, Relaxed)),
            Err(_) => self.stats().drop(Dropped::Client),
        }
    }

    /// Marks the endpoint as failed, because no socket is open there, and ends the session.
    fn refused(&self, client: &DatagramAddresses, session: &Rc<UdpSession>) {
        self.judge(session, |picked| picked.failed(self.worker.now_ms()));
        self.end(client, session);
    }

    fn judge(&self, session: &UdpSession, verdict: impl FnOnce(Picked<'_>)) {
        if let Some(picked) = session.upstream.borrow().at(session.endpoint) {
            verdict(picked);
        }
    }

    /// Removes `session`, if it is still the session of the client.
    fn end(&self, client: &DatagramAddresses, session: &Rc<UdpSession>) {
        if let Entry::Occupied(entry) = self.sessions.borrow_mut().entry(*client)
            && Rc::ptr_eq(&entry.get().session, session)
        {
            entry.remove();
        }
    }

    /// Applies a new snapshot: ends sessions with endpoints that are no longer configured and keeps the others.
    fn reconcile(&self) {
        let snapshot = self.worker.snapshot();
        if self.generation.replace(snapshot.generation) == snapshot.generation {
            return;
        }
        let port = StreamPort { transport: Transport::Udp, number: self.number };
        let upstream = snapshot.stream(port).map(|(_, upstream)| Arc::clone(upstream));
        let before = self.upstream.replace(upstream.clone());
        let is_same = before.as_ref().map(Arc::as_ptr) == upstream.as_ref().map(Arc::as_ptr);
        let has_listeners = snapshot.listeners.has_port(port);
        if !self.has_listeners.replace(has_listeners) && is_same && !has_listeners {
            return;
        }
        self.sessions.borrow_mut().retain(|client, OpenSession { session, .. }| {
            let upstream = match self.route(&snapshot, client) {
                Some(stream) => stream.keeps(&session.upstream.borrow(), &snapshot),
                None => upstream.clone(),
            };
            let upstream = upstream.filter(|upstream| upstream.at(session.endpoint).is_some());
            upstream.map(|upstream| session.upstream.replace(upstream)).is_some()
        });
    }

    /// Returns the upstream for a new session of `client`.
    fn choose(&self, client: &DatagramAddresses) -> Option<Arc<UpstreamState>> {
        let snapshot = self.worker.snapshot();
        match self.route(&snapshot, client) {
            Some(stream) => {
                let id = stream.shares.as_ref()?.choose()?.target.ok()?;
                snapshot.shared_upstream(id).cloned()
            }
            None => self.upstream.borrow().clone(),
        }
    }

    /// Returns the route of a Gateway's listener at the address that `client` sent to.
    fn route<'s>(&self, snapshot: &'s Snapshot, client: &DatagramAddresses) -> Option<&'s ServedStream> {
        if !self.has_listeners.get() {
            return None;
        }
        snapshot.listeners.datagrams_at(SocketAddr::new(client.local(), self.number))
    }
}

// === impl ServedPort ===

impl ServedPort {
    pub(super) fn new(port: Rc<UdpPort>) -> Self {
        Self(port)
    }

    pub(super) async fn run(self) {
        let Self(port) = &self;
        let mut look = interval(LOOK);
        loop {
            tokio::select! {
                ready = port.socket.readable() => {
                    if let Err(error) = ready.and_then(|()| port.take()) {
                        tracing::debug!(port = port.number, %error, "cannot receive datagrams now");
                        sleep(PAUSE).await;
                    }
                    tokio::task::yield_now().await;
                }
                _ = look.tick() => port.reconcile(),
            }
        }
    }
}

impl Drop for ServedPort {
    fn drop(&mut self) {
        // The tasks of the sessions hold the port, so this breaks the reference cycle.
        self.0.sessions.take();
    }
}

// === impl OpenSession ===

impl Drop for OpenSession {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// === impl CountedSession ===

impl CountedSession {
    fn new(worker: &Rc<Worker>, common: &Rc<UdpCommon>) -> Self {
        common.sessions.update(|count| count + 1);
        worker.shared.stats.datagrams.sessions.fetch_add(1, Relaxed);
        Self(Rc::clone(worker), Rc::clone(common))
    }
}

impl Drop for CountedSession {
    fn drop(&mut self) {
        let Self(worker, common) = self;
        common.sessions.update(|count| count - 1);
        worker.shared.stats.datagrams.sessions.fetch_sub(1, Relaxed);
    }
}
