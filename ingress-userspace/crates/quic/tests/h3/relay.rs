//! A path with faults: a relay of datagrams between one client and the server. It needs no rights and no `netem`.
//! Faults follow a fixed sequence of random numbers; which datagram meets which fault still depends on the timing.

use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    rc::Rc,
    time::Duration,
};

use tokio::{
    net::UdpSocket,
    sync::Notify,
    task::{JoinHandle, spawn_local},
};

/// Time by which a late datagram comes behind the ones that follow it.
const DELAY: Duration = Duration::from_millis(3);

/// The faults of a path, in both directions. The numbers are per cent of the datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    pub(crate) lost: u64,
    pub(crate) late: u64,
    pub(crate) doubled: u64,
    /// Datagrams with one bit turned over.
    pub(crate) flipped: u64,
    /// Largest payload that passes, in bytes; none for any.
    pub(crate) largest: Option<usize>,
}

/// Datagrams that met a fault.
#[derive(Debug, Default)]
pub(crate) struct Met {
    pub(crate) lost: Cell<u64>,
    pub(crate) late: Cell<u64>,
    pub(crate) doubled: Cell<u64>,
    pub(crate) flipped: Cell<u64>,
    pub(crate) too_large: Cell<u64>,
}

/// The relay, until dropped.
pub(crate) struct Relay {
    /// Where the client finds the server.
    pub(crate) address: SocketAddr,
    path: Rc<Path>,
    tasks: [JoinHandle<()>; 2],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ToServer,
    ToClient,
}

struct Path {
    faults: Cell<Faults>,
    met: Met,
    random: Cell<u64>,
    server: SocketAddr,
    client: Cell<Option<SocketAddr>>,
    /// The socket that the client knows.
    near: UdpSocket,
    /// The socket that the server sees as the client.
    far: RefCell<Rc<UdpSocket>>,
    moved: Notify,
    /// Datagrams for the server that are kept back, if they are.
    held: RefCell<Option<Vec<Vec<u8>>>>,
}

// === impl Relay ===

impl Relay {
    /// Starts a path to `server`.
    pub(crate) async fn start(server: SocketAddr, faults: Faults, seed: u64) -> Self {
        let near = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
        let address = near.local_addr().expect("an address");
        let path = Rc::new(Path {
            faults: Cell::new(faults),
            met: Met::default(),
            random: Cell::new(seed),
            server,
            client: Cell::new(None),
            near,
            far: RefCell::new(Rc::new(UdpSocket::bind("127.0.0.1:0").await.expect("a socket"))),
            moved: Notify::new(),
            held: RefCell::default(),
        });
        let tasks = [spawn_local(Rc::clone(&path).carry_to_server()), spawn_local(Rc::clone(&path).carry_to_client())];
        Self { address, path, tasks }
    }

    /// Forgets the client's port, as NAT does: the server sees a new one, and packets for the old one are lost.
    pub(crate) async fn change_port(&self) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
        self.path.far.replace(Rc::new(socket));
        self.path.moved.notify_one();
    }

    /// Lets no longer payload pass from now on.
    pub(crate) fn narrow(&self, largest: usize) {
        self.path.faults.update(|faults| Faults { largest: Some(largest), ..faults });
    }

    /// Keeps datagrams for the server back.
    pub(crate) fn hold(&self) {
        self.path.held.replace(Some(Vec::new()));
    }

    /// Number of datagrams that are kept back.
    pub(crate) fn held(&self) -> usize {
        self.path.held.borrow().as_ref().map_or(0, Vec::len)
    }

    /// Sends them now, and keeps no more back.
    pub(crate) fn release(&self) {
        let held = self.path.held.take().unwrap_or_default();
        held.iter().for_each(|datagram| self.path.send(datagram, Way::ToServer));
    }

    pub(crate) fn met(&self) -> &Met {
        &self.path.met
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

// === impl Path ===

impl Path {
    async fn carry_to_server(self: Rc<Self>) {
        let mut buffer = vec![0; 65_536];
        loop {
            let (length, client) = self.near.recv_from(&mut buffer).await.expect("a datagram of the client");
            self.client.set(Some(client));
            self.pass(&buffer[..length], Way::ToServer);
        }
    }

    async fn carry_to_client(self: Rc<Self>) {
        let mut buffer = vec![0; 65_536];
        loop {
            let far = Rc::clone(&self.far.borrow());
            tokio::select! {
                received = far.recv(&mut buffer) => {
                    self.pass(&buffer[..received.expect("a datagram of the server")], Way::ToClient);
                }
                () = self.moved.notified() => {}
            }
        }
    }

    fn pass(self: &Rc<Self>, datagram: &[u8], way: Way) {
        if way == Way::ToServer
            && let Some(held) = &mut *self.held.borrow_mut()
        {
            return held.push(datagram.to_vec());
        }
        let (faults, met) = (self.faults.get(), &self.met);
        if faults.largest.is_some_and(|largest| datagram.len() > largest) {
            return met.too_large.update(|count| count + 1);
        }
        if self.is_one_of(faults.lost) {
            return met.lost.update(|count| count + 1);
        }
        let mut datagram = datagram.to_vec();
        if self.is_one_of(faults.flipped) {
            met.flipped.update(|count| count + 1);
            let bit = usize::try_from(self.draw(datagram.len() as u64 * 8)).expect("an index");
            datagram[bit / 8] ^= 1 << (bit % 8);
        }
        if self.is_one_of(faults.doubled) {
            met.doubled.update(|count| count + 1);
            self.send(&datagram, way);
        }
        if !self.is_one_of(faults.late) {
            return self.send(&datagram, way);
        }
        met.late.update(|count| count + 1);
        let path = Rc::clone(self);
        spawn_local(async move {
            tokio::time::sleep(DELAY).await;
            path.send(&datagram, way);
        });
    }

    /// Sends a datagram; it is lost if the socket is full, as on a real path.
    fn send(&self, datagram: &[u8], way: Way) {
        let _sent = match (way, self.client.get()) {
            (Way::ToServer, _) => self.far.borrow().try_send_to(datagram, self.server),
            (Way::ToClient, Some(client)) => self.near.try_send_to(datagram, client),
            (Way::ToClient, None) => return,
        };
    }

    fn is_one_of(&self, per_cent: u64) -> bool {
        per_cent > 0 && self.draw(100) < per_cent
    }

    /// Returns a number below `end`, by SplitMix64.
    fn draw(&self, end: u64) -> u64 {
        self.random.update(|state| state.wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut mixed = self.random.get();
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}
