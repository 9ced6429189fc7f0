//! `ingress_quic`: which socket gets a packet, while clients change their ports and processes follow each other.
//! Datagrams over loopback; sk_reuseport has no test run.

use std::{
    io::{ErrorKind, Write as _},
    net::{SocketAddr, UdpSocket},
    os::fd::AsFd as _,
    thread,
    time::{Duration, Instant},
};

use ingress_common::{
    Total,
    flow::PROTO_UDP,
    quic::{ConnectionId, Issuer},
    steer::{PORT_COUNT_ONLY, PORT_QUIC},
};
use ingress_datapath::{Datapath, Options, Quic, QuicKey, SteeredPort};
use rustix::pipe::{SpliceFlags, splice};

use crate::sandbox::{Sandbox, sandboxed};

pub(crate) const PORT: u16 = 4433;
pub(crate) const V4: &str = "127.0.0.1:4433";
const V6: &str = "[::1]:4433";

/// A process with one socket per worker.
pub(crate) struct Process {
    pub(crate) quic: Quic,
    pub(crate) sockets: Vec<UdpSocket>,
    /// Last, as the mark of the process's life goes with it.
    pub(crate) datapath: Datapath,
}

impl Process {
    /// Starts a process beside those that run. New connections do not come to it yet.
    pub(crate) fn start(sandbox: &Sandbox, workers: usize) -> Self {
        Self::start_with(&sandbox.options(&[]), workers)
    }

    /// Does the same with these options.
    pub(crate) fn start_with(options: &Options, workers: usize) -> Self {
        let datapath = Datapath::open(options).expect("opens");
        let quic = datapath.quic().expect("the kernel takes the program");
        quic.use_key(QuicKey::Kept { otherwise: [0x1234, 0x5678] }).expect("a key");
        let sockets: Vec<UdpSocket> = (0..workers).map(|_| bound()).collect();
        let descriptors: Vec<_> = sockets.iter().map(|socket| socket.as_fd()).collect();
        quic.open(&datapath, &descriptors).expect("sockets");
        Self { quic, sockets, datapath }
    }

    /// Makes this process the owner, as a start and a roll-back do.
    pub(crate) fn own(&self) {
        self.own_with(PORT_COUNT_ONLY | PORT_QUIC);
    }

    /// Makes this process the owner, with these flags of the port.
    pub(crate) fn own_with(&self, flags: u16) {
        let workers = u32::try_from(self.sockets.len()).expect("few");
        let port = SteeredPort { port: PORT, proto: PROTO_UDP, first_slot: 0, workers, flags, rewritten: None };
        self.datapath.take_over_with(ingress_datapath::Claim::Any, || self.datapath.set_ports(&[port])).expect("owns");
    }

    /// Returns an ID of one of the workers.
    pub(crate) fn id(&self, worker: u8, nonce: u8) -> ConnectionId {
        self.quic.cell().issue([nonce; 7], Issuer::new(self.epoch(), worker))
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.datapath.report().epoch
    }

    /// Returns the epoch of the process that issued an ID and has sockets.
    pub(crate) fn living(&self, id: &ConnectionId) -> Option<u32> {
        let cell = self.quic.cell();
        cell.living(cell.open(id).expect("an ID of this node"))
    }
}

fn bound() -> UdpSocket {
    let socket = socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::DGRAM, None).expect("a socket");
    socket.set_only_v6(false).expect("both families");
    socket.set_reuse_port(true).expect("a group");
    socket.set_nonblocking(true).expect("polled");
    socket.bind(&SocketAddr::new([0_u16; 8].into(), PORT).into()).expect("bound");
    socket.into()
}

/// Returns a datagram with a short header.
pub(crate) fn short(id: ConnectionId) -> Vec<u8> {
    [&[0x40][..], &id, &[0; 24]].concat()
}

/// Returns a datagram of version 1 with a long header of this first byte.
pub(crate) fn long(first: u8, id: &[u8]) -> Vec<u8> {
    let length = u8::try_from(id.len()).expect("short");
    let mut packet = [&[first, 0, 0, 0, 1, length][..], id].concat();
    packet.resize(1200, 0);
    packet
}

/// Sends a datagram from a new port.
pub(crate) fn send(to: &str, datagram: &[u8]) -> UdpSocket {
    let to: SocketAddr = to.parse().expect("an address");
    let client = UdpSocket::bind(SocketAddr::new(if to.is_ipv4() { [127, 0, 0, 1].into() } else { to.ip() }, 0));
    let client = client.expect("a client");
    client.send_to(datagram, to).expect("sent");
    client
}

/// Waits for the datagram, and returns the process and the worker that got it.
#[track_caller]
pub(crate) fn taken_by(processes: &[&Process], datagram: &[u8]) -> (usize, usize) {
    let end = Instant::now() + Duration::from_secs(60);
    let mut buffer = [0; 2048];
    loop {
        for (process, Process { sockets, .. }) in processes.iter().enumerate() {
            for (worker, socket) in sockets.iter().enumerate() {
                match socket.recv(&mut buffer) {
                    Ok(length) => {
                        assert_eq!(&buffer[..length], datagram);
                        return (process, worker);
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
        }
        assert!(Instant::now() < end, "the datagram reached no socket");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the events by ID, new, noted, gone, other, unchosen.
pub(crate) fn events(datapath: &Datapath) -> [u64; 6] {
    let totals = datapath.totals().expect("totals");
    let events =
        [Total::QuicById, Total::QuicNew, Total::QuicNoted, Total::QuicGone, Total::QuicOther, Total::QuicUnchosen];
    events.map(|event| totals.get(event).packets)
}

#[test]
fn ids_reach_their_worker_in_their_process_from_any_address() {
    sandboxed(|sandbox| {
        let (first, second) = (Process::start(sandbox, 3), Process::start(sandbox, 2));
        second.own();
        let both = [&first, &second];
        for to in [V4, V6] {
            for (process, workers) in [(0, 3), (1, 2)] {
                for worker in 0..workers {
                    let id = both[process].id(worker, worker);
                    // Version 1: Initial after a Retry, Handshake.
                    for datagram in [short(id), long(0xc0, &id), long(0xe0, &id)] {
                        send(to, &datagram);
                        assert_eq!(taken_by(&both, &datagram), (process, usize::from(worker)), "{to}");
                    }
                }
            }
        }
        assert_eq!(events(&second.datapath), [30, 0, 0, 0, 0, 0]);
        for (datagram, event) in [(short([7; 16]), 4), (vec![0x40], 4), (vec![], 4), (long(0xe0, &[7; 8]), 4)] {
            let before = events(&second.datapath);
            send(V4, &datagram);
            assert_eq!(taken_by(&both, &datagram).0, 1, "the owner gets what is unknown");
            assert_eq!(events(&second.datapath)[event], before[event] + 1);
        }
        assert_eq!(second.living(&second.id(1, 0)), Some(second.epoch()));
        assert_eq!(second.living(&first.id(2, 0)), Some(first.epoch()));
        assert_eq!(second.quic.cell().open(&[0x0f; 16]), None);
    });
}

/// Sends a datagram whose bytes are in pages beside the first buffer of the packet, as of `sendfile(2)`.
fn send_from_pages(to: &str, datagram: &[u8]) {
    let client = UdpSocket::bind(SocketAddr::new([127, 0, 0, 1].into(), 0)).expect("a client");
    client.connect(to).expect("connected");
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    writer.write_all(datagram).expect("written");
    let sent = splice(&reader, None, &client, None, datagram.len(), SpliceFlags::empty()).expect("sent");
    assert_eq!(sent, datagram.len());
}

#[test]
fn packets_of_several_buffers_are_read_as_well() {
    sandboxed(|sandbox| {
        let process = Process::start(sandbox, 3);
        process.own();
        for worker in 0..3 {
            let id = process.id(worker, worker);
            for datagram in [short(id), long(0xe0, &id)] {
                send_from_pages(V4, &datagram);
                assert_eq!(taken_by(&[&process], &datagram), (0, usize::from(worker)));
            }
        }
        assert_eq!(events(&process.datapath), [6, 0, 0, 0, 0, 0]);
    });
}

#[test]
fn connections_outlive_ten_updates_and_roll_backs_while_clients_change_their_ports() {
    sandboxed(|sandbox| {
        /// Processes that run at one time.
        const TOGETHER: usize = 4;
        const CLIENTS: u8 = 32;
        let mut processes: Vec<Process> = Vec::new();
        let (mut sent, mut begun) = (0, 0);
        for generation in 0..=10_u8 {
            let workers = 1 + usize::from(generation) % 3;
            if processes.len() == TOGETHER {
                processes.remove(0);
            }
            processes.push(Process::start(sandbox, workers));
            let newest = processes.len() - 1;
            // Update, roll-back, update again.
            for owner in [newest, newest.saturating_sub(1), newest] {
                processes[owner].own();
                let all: Vec<&Process> = processes.iter().collect();
                for (number, process) in all.iter().enumerate() {
                    for client in 0..CLIENTS {
                        let worker = usize::from(client) % process.sockets.len();
                        let datagram = short(process.id(u8::try_from(worker).expect("few"), client));
                        let to = if client % 2 == 0 { V4 } else { V6 };
                        send(to, &datagram);
                        assert_eq!(taken_by(&all, &datagram), (number, worker), "generation {generation}");
                        sent += 1;
                    }
                }
                begun += 1;
                let initial = long(0xc0, &[&[generation; 8][..], &[begun; 8]].concat());
                send(V4, &initial);
                assert_eq!(taken_by(&all, &initial).0, owner, "generation {generation}");
            }
        }
        let newest = processes.last().expect("some");
        assert_eq!(events(&newest.datapath), [sent, u64::from(begun), 0, 0, 0, 0]);
        println!("{sent} packets with IDs in 10 updates and 10 roll-backs, each from a new port: 0 at a wrong socket");
    });
}
