//! The sockets of a path, and what happens between them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket as StdSocket};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::Counts;
use super::fate::{Direction, Fault, Link, Plan};
use super::packet;

/// Most bytes that a socket returns at once.
const LARGEST: usize = 65_535;
/// Seed of all paths.
const SEED: u64 = 0x5eed;
/// Bytes that a server may send for each received one, before the client's address is proven (RFC 9000, 8.1).
const FACTOR: usize = 3;
/// Datagrams to a new address that may begin beyond the limit: quinn-proto probes the MTU there without regard to it.
const PROBES: u64 = 1;

/// A socket that says how datagrams are marked.
#[derive(Debug)]
pub(super) struct Socket {
    io: UdpSocket,
    state: UdpSocketState,
}

/// A task of the relay. Its error or panic ends the path.
type Task = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// All connections of a path.
struct Relay {
    server: SocketAddr,
    plan: Plan,
    number: u8,
    counts: Arc<Mutex<Counts>>,
    tasks: UnboundedSender<Task>,
    /// Number of connections so far.
    flows: Cell<u64>,
}

/// The path of one connection, by the port of its client.
struct Flow {
    client: SocketAddr,
    server: SocketAddr,
    plan: Plan,
    number: u8,
    near: Rc<Socket>,
    counts: Arc<Mutex<Counts>>,
    tasks: UnboundedSender<Task>,
    upstream: RefCell<Rc<Upstream>>,
    links: [RefCell<Link>; 2],
    queues: [UnboundedSender<Queued>; 2],
    /// Datagrams that the client has got.
    got: Cell<u64>,
    dark_until: Cell<Option<Instant>>,
    /// Datagrams of the client that will be lost, once the server has answered.
    to_lose: Cell<u64>,
    is_proven: Cell<bool>,
}

/// The client's socket, as the server sees it.
struct Upstream {
    socket: Socket,
    /// Changes of the address or port before this one.
    move_number: u8,
    /// Bytes that the server got from here, and sent to here.
    received: Cell<usize>,
    sent: Cell<usize>,
    /// Time when the server got the first datagram from here.
    first: Cell<Option<Instant>>,
    /// Datagrams that the server began to send here beyond the limit.
    beyond: Cell<u64>,
}

/// A datagram on its way.
struct Queued {
    due: Instant,
    ecn: Option<EcnCodepoint>,
    proves: bool,
    datagram: Vec<u8>,
}

// === impl Socket ===

impl Socket {
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = StdSocket::bind(address)?;
        let state = UdpSocketState::new((&socket).into())?;
        socket.set_nonblocking(true)?;
        Ok(Self { io: UdpSocket::from_std(socket)?, state })
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    /// Receives datagrams of one sender, all of the same length but the last.
    pub(super) async fn receive(&self, buffer: &mut [u8]) -> io::Result<RecvMeta> {
        let mut meta = [RecvMeta::default()];
        let receive = || self.state.recv((&self.io).into(), &mut [IoSliceMut::new(buffer)], &mut meta);
        self.io.async_io(Interest::READABLE, receive).await?;
        let [meta] = meta;
        Ok(meta)
    }

    /// Sends a datagram. An error is its loss, as on a real path.
    pub(super) async fn send(&self, destination: SocketAddr, ecn: Option<EcnCodepoint>, contents: &[u8]) {
        let transmit = Transmit { destination, ecn, contents, segment_size: None, src_ip: None };
        let _sent = self.io.async_io(Interest::WRITABLE, || self.state.try_send((&self.io).into(), &transmit)).await;
    }
}

// === impl Relay ===

/// Carries datagrams between `ports` and `server`, without end.
///
/// # Errors
/// Fails if a socket fails, no further one can be opened, or a task panics.
pub(super) async fn run(
    server: SocketAddr,
    plan: Plan,
    number: u8,
    counts: Arc<Mutex<Counts>>,
    ports: Vec<Socket>,
) -> io::Result<()> {
    let (tasks, mut begun) = mpsc::unbounded_channel::<Task>();
    let relay = Rc::new(Relay { server, plan, number, counts, tasks, flows: Cell::new(0) });
    let mut running = JoinSet::new();
    for near in ports {
        running.spawn_local(Rc::clone(&relay).carry(Rc::new(near)));
    }
    loop {
        tokio::select! {
            Some(task) = begun.recv() => { running.spawn_local(task); }
            Some(ended) = running.join_next() => ended??,
        }
    }
}

impl Relay {
    async fn carry(self: Rc<Self>, near: Rc<Socket>) -> io::Result<()> {
        let (mut flows, mut buffer) = (HashMap::new(), vec![0; LARGEST]);
        loop {
            let meta = near.receive(&mut buffer).await?;
            for datagram in buffer[..meta.len].chunks(meta.stride.max(1)) {
                let flow: &mut Rc<Flow> = match flows.entry(meta.addr) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => {
                        let is_connection = packet::is_of_handshake(datagram);
                        lock(&self.counts).begins(is_connection);
                        new.insert(self.flow(meta.addr, &near, is_connection)?)
                    }
                };
                flow.pass(datagram, meta.ecn, Direction::ToServer);
            }
        }
    }

    fn flow(&self, client: SocketAddr, near: &Rc<Socket>, is_connection: bool) -> io::Result<Rc<Flow>> {
        let Self { server, plan, number, .. } = *self;
        let seed = SEED + u64::from(number);
        let connection = self.flows.replace(self.flows.get() + 1);
        let link = |direction| RefCell::new(Link::new(seed, connection, direction));
        let (to_server, for_server) = mpsc::unbounded_channel();
        let (to_client, for_client) = mpsc::unbounded_channel();
        let upstream = Rc::new(Upstream::bind(number, 0, 0)?);
        let flow = Rc::new(Flow {
            client,
            server,
            plan,
            number,
            near: Rc::clone(near),
            counts: Arc::clone(&self.counts),
            tasks: self.tasks.clone(),
            upstream: RefCell::new(Rc::clone(&upstream)),
            links: [link(Direction::ToServer), link(Direction::ToClient)],
            queues: [to_server, to_client],
            got: Cell::new(0),
            dark_until: Cell::new(None),
            to_lose: Cell::new(0),
            // A client that goes on from another port has no further handshake.
            is_proven: Cell::new(!is_connection),
        });
        begin(&self.tasks, Rc::clone(&flow).carry_back(upstream));
        begin(&self.tasks, Rc::clone(&flow).deliver_to_server(for_server));
        begin(&self.tasks, Rc::clone(&flow).deliver_to_client(for_client));
        Ok(flow)
    }
}

fn begin(tasks: &UnboundedSender<Task>, task: impl Future<Output = io::Result<()>> + 'static) {
    // The other end lives as long as the relay.
    let _sent = tasks.send(Box::pin(task));
}

// === impl Flow ===

impl Flow {
    /// Takes what the server sends to `upstream`. It is lost if the client has another address by now, as NAT does.
    async fn carry_back(self: Rc<Self>, upstream: Rc<Upstream>) -> io::Result<()> {
        let mut buffer = vec![0; LARGEST];
        loop {
            let meta = upstream.socket.receive(&mut buffer).await?;
            for datagram in buffer[..meta.len].chunks(meta.stride.max(1)) {
                self.note_sent(&upstream, datagram.len());
                if upstream.move_number == self.upstream.borrow().move_number {
                    self.pass(datagram, meta.ecn, Direction::ToClient);
                } else {
                    let tally = &mut lock(&self.counts).to_client;
                    tally.all += 1;
                    tally.hit += 1;
                }
            }
        }
    }

    /// Compares what the server sent with what it got. At a new address, the proof takes a round trip: a server that
    /// goes on beyond the limit earlier has none. The last datagram and [`PROBES`] may exceed it there.
    fn note_sent(&self, upstream: &Upstream, length: usize) {
        let (received, before) = (upstream.received.get(), upstream.sent.get());
        let (limit, sent) = (FACTOR * received, before + length);
        upstream.sent.set(sent);
        let mut counts = lock(&self.counts);
        counts.answered += u64::from(upstream.move_number > 0 && before == 0);
        if upstream.move_number == 0 {
            if !self.is_proven.get() {
                counts.unproven = Some((received, sent));
                counts.is_over_limit |= sent > limit;
            }
        } else if before >= limit && upstream.beyond.replace(upstream.beyond.get() + 1) == PROBES {
            counts.proven += 1;
            counts.is_over_limit |= upstream.first.get().is_none_or(|first| first.elapsed() < 2 * self.plan.delay);
        }
    }

    /// Changes the address or port of the client if it is time. The client's next datagram follows, and tells the server.
    /// If the client had nothing to send, no server could reach it any more.
    fn change_address(self: &Rc<Self>) -> io::Result<()> {
        let Fault::Rebinding { every, keeps_address } = self.plan.fault else { return Ok(()) };
        let before = self.upstream.borrow().move_number;
        if self.got.get() < every * (u64::from(before) + 1) {
            return Ok(());
        }
        let move_number = before.checked_add(1).ok_or_else(too_many)?;
        let host = if keeps_address { 0 } else { move_number };
        let upstream = Rc::new(Upstream::bind(self.number, host, move_number)?);
        self.upstream.replace(Rc::clone(&upstream));
        lock(&self.counts).moves += 1;
        begin(&self.tasks, Rc::clone(self).carry_back(upstream));
        Ok(())
    }

    /// Sends a datagram on its way, if it is not lost.
    fn pass(&self, datagram: &[u8], ecn: Option<EcnCodepoint>, direction: Direction) {
        let now = Instant::now();
        let mut link = self.links[direction as usize].borrow_mut();
        let mut counts = lock(&self.counts);
        let tally = counts.tally(direction);
        tally.all += 1;
        let is_marked = ecn == Some(EcnCodepoint::Ect0);
        tally.marked += u64::from(is_marked);
        tally.marked_to_the_end = if is_marked { tally.marked_to_the_end + 1 } else { 0 };
        let mut datagram = datagram.to_vec();
        let is_hit = match self.plan.fault {
            Fault::Loss(per_cent) | Fault::Corruption(per_cent) => link.is_hit(per_cent),
            Fault::Blackhole { after, lasts } => {
                if self.got.get() >= after && self.dark_until.get().is_none() {
                    self.dark_until.set(Some(now + lasts));
                }
                self.dark_until.get().is_some_and(|end| now < end)
            }
            Fault::ClientLoss(_) => direction == Direction::ToServer && self.to_lose.get() > 0,
            Fault::None | Fault::Rebinding { .. } | Fault::KeepsEcn => false,
        };
        let mut proves = direction == Direction::ToServer && packet::has_handshake_packet(&datagram);
        if is_hit {
            tally.hit += 1;
            tally.hit_in_handshake += u64::from(packet::is_of_handshake(&datagram));
            self.to_lose.update(|count| count.saturating_sub(1));
            if !matches!(self.plan.fault, Fault::Corruption(_)) {
                return;
            }
            link.corrupt(&mut datagram);
            proves = false;
        }
        if direction == Direction::ToClient
            && self.got.replace(self.got.get() + 1) == 0
            && let Fault::ClientLoss(count) = self.plan.fault
        {
            self.to_lose.set(count);
        }
        let Some(due) = link.arrival(now, datagram.len(), &self.plan) else {
            tally.overflowed += 1;
            return;
        };
        let ecn = ecn.filter(|_| self.plan.fault == Fault::KeepsEcn);
        // The other end lives as long as this one.
        let _sent = self.queues[direction as usize].send(Queued { due, ecn, proves, datagram });
    }

    async fn deliver_to_server(self: Rc<Self>, mut queue: UnboundedReceiver<Queued>) -> io::Result<()> {
        while let Some(queued) = queue.recv().await {
            sleep_until(queued.due.into()).await;
            lock(&self.counts).is_late(queued.due.elapsed());
            self.change_address()?;
            let upstream = Rc::clone(&self.upstream.borrow());
            // Before the server has it, so that the answer finds it counted.
            upstream.received.update(|received| received + queued.datagram.len());
            upstream.first.update(|first| first.or_else(|| Some(Instant::now())));
            if queued.proves {
                self.is_proven.set(true);
            }
            upstream.socket.send(self.server, queued.ecn, &queued.datagram).await;
        }
        Ok(())
    }

    async fn deliver_to_client(self: Rc<Self>, mut queue: UnboundedReceiver<Queued>) -> io::Result<()> {
        while let Some(queued) = queue.recv().await {
            sleep_until(queued.due.into()).await;
            {
                let mut counts = lock(&self.counts);
                counts.is_late(queued.due.elapsed());
                counts.arrives(queued.datagram.len(), packet::is_of_handshake(&queued.datagram));
            }
            self.near.send(self.client, queued.ecn, &queued.datagram).await;
        }
        Ok(())
    }
}

// === impl Upstream ===

impl Upstream {
    /// Opens a port that is another one than all before, since those stay open.
    fn bind(path: u8, host: u8, move_number: u8) -> io::Result<Self> {
        let address = Ipv4Addr::new(127, 0, path, host.checked_add(2).ok_or_else(too_many)?);
        let socket = Socket::bind((address, 0).into())?;
        let (received, sent, first, beyond) = Default::default();
        Ok(Self { socket, move_number, received, sent, first, beyond })
    }
}

fn too_many() -> io::Error {
    io::Error::other("a client cannot change its address more often")
}

fn lock(counts: &Mutex<Counts>) -> MutexGuard<'_, Counts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}
