//! NAT that forgets: a relay of datagrams between clients and the product, on loopback. Each client has a port of its own
//! towards the product, and gets another one amid its connection. No client needs to know of it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context as _, Result};
use tokio::net::UdpSocket;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Largest datagram in bytes.
const LARGEST: usize = 65_535;

/// A path to the product, until dropped.
#[derive(Debug)]
pub(crate) struct Relay {
    /// Where clients find the product.
    pub(crate) address: SocketAddr,
    moves: Arc<AtomicUsize>,
    /// Its end is that of the path.
    _open: oneshot::Sender<()>,
}

/// The path of one client.
struct Path {
    far: Arc<UdpSocket>,
    /// Datagrams since the last change, in both directions.
    passed: Arc<AtomicUsize>,
    back: JoinHandle<()>,
    /// Former sockets: they stay open, so that datagrams for them are lost without a word, as by NAT.
    former: Vec<Arc<UdpSocket>>,
}

// === impl Relay ===

impl Relay {
    /// Starts a path to `server`. It changes the port of a client after each `every` datagrams, in both directions
    /// together.
    ///
    /// # Errors
    /// Fails without a socket.
    pub(crate) fn start(server: SocketAddr, every: usize) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let near = runtime.block_on(open()).context("no socket for the relay")?;
        let address = near.local_addr()?;
        let moves = Arc::new(AtomicUsize::new(0));
        let (open, closed) = oneshot::channel();
        let carried = carry(Arc::new(near), server, every, Arc::clone(&moves));
        thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    // Without sockets, clients fail, and say so.
                    _failed = carried => {}
                    _dropped = closed => {}
                }
            });
        });
        Ok(Self { address, moves, _open: open })
    }

    /// Returns the number of changed ports at which the server has answered since.
    pub(crate) fn moves(&self) -> usize {
        self.moves.load(Ordering::Relaxed)
    }
}

// === impl Path ===

impl Path {
    async fn open(server: SocketAddr, near: &Arc<UdpSocket>, client: SocketAddr) -> io::Result<Self> {
        let (far, passed) = (Arc::new(open().await?), Arc::new(AtomicUsize::new(0)));
        far.connect(server).await?;
        let back = tokio::spawn(carry_back(Arc::clone(&far), Arc::clone(near), client, Arc::clone(&passed), None));
        Ok(Self { far, passed, back, former: Vec::new() })
    }

    /// Gives the client another port. `moves` counts it once the server has answered there.
    async fn change_port(
        &mut self,
        server: SocketAddr,
        near: &Arc<UdpSocket>,
        client: SocketAddr,
        moves: &Arc<AtomicUsize>,
    ) -> io::Result<()> {
        let far = Arc::new(open().await?);
        far.connect(server).await?;
        self.back.abort();
        self.passed.store(0, Ordering::Relaxed);
        let (socket, passed) = (Arc::clone(&far), Arc::clone(&self.passed));
        self.back = tokio::spawn(carry_back(socket, Arc::clone(near), client, passed, Some(Arc::clone(moves))));
        self.former.push(std::mem::replace(&mut self.far, far));
        Ok(())
    }
}

async fn open() -> io::Result<UdpSocket> {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await
}

async fn carry(near: Arc<UdpSocket>, server: SocketAddr, every: usize, moves: Arc<AtomicUsize>) -> io::Result<()> {
    let (mut paths, mut buffer) = (HashMap::new(), vec![0; LARGEST]);
    loop {
        let (length, client) = near.recv_from(&mut buffer).await?;
        let path = match paths.entry(client) {
            Entry::Occupied(path) => path.into_mut(),
            Entry::Vacant(place) => place.insert(Path::open(server, &near, client).await?),
        };
        if path.passed.fetch_add(1, Ordering::Relaxed) >= every {
            path.change_port(server, &near, client, &moves).await?;
        }
        // An error is that of an earlier datagram, which is lost, as on a real path.
        let _sent = path.far.send(&buffer[..length]).await;
    }
}

/// Carries what the server sends to one port, and counts the port once in `moves`.
async fn carry_back(
    far: Arc<UdpSocket>,
    near: Arc<UdpSocket>,
    client: SocketAddr,
    passed: Arc<AtomicUsize>,
    mut moves: Option<Arc<AtomicUsize>>,
) {
    let mut buffer = vec![0; LARGEST];
    // An error is that of the server's end, after which nothing comes.
    while let Ok(length) = far.recv(&mut buffer).await {
        passed.fetch_add(1, Ordering::Relaxed);
        if let Some(moves) = moves.take() {
            moves.fetch_add(1, Ordering::Relaxed);
        }
        let _sent = near.send_to(&buffer[..length], client).await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;

    fn socket() -> UdpSocket {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket
    }

    #[test]
    fn the_server_sees_another_port_and_answers_there() {
        let (server, client, mut buffer) = (socket(), socket(), [0; 8]);
        let relay = Relay::start(server.local_addr().unwrap(), 4).unwrap();
        let mut ports = Vec::new();
        for number in 0..8_u8 {
            client.send_to(&[number], relay.address).unwrap();
            let (length, port) = server.recv_from(&mut buffer).unwrap();
            assert_eq!((length, buffer[0]), (1, number));
            server.send_to(&[number, 1], port).unwrap();
            assert_eq!(client.recv(&mut buffer).unwrap(), 2);
            ports.push(port);
        }
        let mut different = ports.clone();
        different.dedup();
        assert!(different.len() > 1, "{ports:?}");
        assert_eq!(relay.moves(), different.len() - 1, "{ports:?}");
        // What comes to a former port is lost.
        server.send_to(&[9], ports[0]).unwrap();
        server.send_to(&[7, 7, 7], *ports.last().unwrap()).unwrap();
        assert_eq!(client.recv(&mut buffer).unwrap(), 3);
    }

    #[test]
    fn clients_have_ports_of_their_own() {
        let (server, mut buffer) = (socket(), [0; 8]);
        let relay = Relay::start(server.local_addr().unwrap(), 100).unwrap();
        let clients = [socket(), socket()];
        let mut ports = Vec::new();
        for (client, name) in clients.iter().zip([[1], [2]]) {
            client.send_to(&name, relay.address).unwrap();
            let (length, port) = server.recv_from(&mut buffer).unwrap();
            server.send_to(&buffer[..length], port).unwrap();
            assert_eq!((client.recv(&mut buffer).unwrap(), &buffer[..1]), (1, &name[..]));
            ports.push(port);
        }
        assert_ne!(ports[0], ports[1]);
        assert_eq!(relay.moves(), 0);
    }
}
