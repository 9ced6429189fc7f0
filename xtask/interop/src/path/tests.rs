use std::net::UdpSocket;
use std::time::{Duration, Instant};

use super::*;

const SHORT: u8 = 0x40;
const LONG: u8 = 0xc0;

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// Starts a path without delay and queue to a new socket.
fn start(fault: Fault, number: u8) -> (Path, UdpSocket) {
    let server = socket();
    let plan = Plan { delay: Duration::ZERO, rate: None, fault };
    (Path::start(server.local_addr().unwrap(), plan, number, 1).unwrap(), server)
}

/// Sends a datagram, and waits for its answer of the same length. Returns the client's address, as the server saw it.
fn turn(path: &Path, server: &UdpSocket, client: &UdpSocket, datagram: &[u8]) -> SocketAddr {
    turn_at(path.ports[0], server, client, datagram)
}

fn turn_at(port: SocketAddr, server: &UdpSocket, client: &UdpSocket, datagram: &[u8]) -> SocketAddr {
    let mut buffer = [0; 2_000];
    client.send_to(datagram, port).unwrap();
    let (length, seen) = server.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], datagram);
    server.send_to(datagram, seen).unwrap();
    assert_eq!(client.recv(&mut buffer).unwrap(), length);
    seen
}

/// Waits until `is_so` holds for the path's counts.
fn wait_for(path: &Path, is_so: impl Fn(&Counts) -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is_so(&path.counts.lock().unwrap()) {
        assert!(Instant::now() < end, "{:?}", path.counts);
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn clients_have_addresses_of_their_own_and_datagrams_are_late() {
    let server = socket();
    let plan = Plan { delay: Duration::from_millis(50), rate: Some(RATE), fault: Fault::None };
    let path = Path::start(server.local_addr().unwrap(), plan, 101, 2).unwrap();
    let begun = Instant::now();
    let seen = [0, 1].map(|at| turn_at(path.ports[at], &server, &socket(), &[LONG; 100]));
    assert!(begun.elapsed() >= Duration::from_millis(200));
    assert_ne!(seen[0], seen[1]);
    assert_eq!(seen[0].ip(), Ipv4Addr::new(127, 0, 101, 2));
    let counts = path.end().unwrap();
    assert_eq!((counts.connections, counts.hit_of_all()), (2, (0, 4)));
}

#[test]
fn lost_datagrams_are_counted() {
    let (path, server) = start(Fault::Loss(30), 102);
    let client = socket();
    for _ in 0..100 {
        client.send_to(&[SHORT; 10], path.ports[0]).unwrap();
        client.send_to(&[LONG; 10], path.ports[0]).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    server.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let came = std::iter::from_fn(|| server.recv(&mut [0; 20]).ok()).count() as u64;
    let counts = path.end().unwrap();
    let Tally { all, hit, hit_in_handshake, .. } = counts.to_server;
    assert_eq!((all, came + hit), (200, 200));
    assert!(hit > 30 && hit_in_handshake > 10 && hit_in_handshake < hit, "{counts:?}");
}

#[test]
fn corrupted_datagrams_arrive() {
    let (path, server) = start(Fault::Corruption(100), 103);
    socket().send_to(&[LONG; 100], path.ports[0]).unwrap();
    let mut buffer = [0; 200];
    assert_eq!(server.recv(&mut buffer).unwrap(), 100);
    assert_eq!(buffer[..100].iter().map(|byte| (byte ^ LONG).count_ones()).sum::<u32>(), 1);
    assert_eq!(path.end().unwrap().to_server.hit_in_handshake, 1);
}

#[test]
fn the_address_changes_and_counts_once_it_is_proven() {
    let (path, server) = start(Fault::Rebinding { every: 4, keeps_address: false }, 104);
    let client = socket();
    let seen: Vec<SocketAddr> = (0..9).map(|_| turn(&path, &server, &client, &[SHORT; 100])).collect();
    let addresses = [2, 3, 4].map(|last| Ipv4Addr::new(127, 0, 104, last));
    assert_eq!([seen[0].ip(), seen[4].ip(), seen[8].ip()], addresses);
    // What comes to the address before is lost.
    server.send_to(&[SHORT; 7], seen[0]).unwrap();
    for _ in 0..3 {
        // The first exceeds the limit, the second may be a probe, and the third shows that the address is proven.
        assert_eq!(path.counts.lock().unwrap().proven, 0);
        server.send_to(&[SHORT; 1_000], seen[8]).unwrap();
        assert_eq!(client.recv(&mut [0; 2_000]).unwrap(), 1_000);
    }
    let counts = path.end().unwrap();
    assert_eq!((counts.moves, counts.proven, counts.to_client.hit), (2, 1, 1), "{counts:?}");
    // Without delay, a client may prove its address at once.
    assert!(!counts.is_over_limit, "{counts:?}");
}

#[test]
fn a_server_cannot_have_a_proof_of_a_new_address_within_a_round_trip() {
    for (wait, number, expected) in [(0, 111, true), (450, 112, false)] {
        let server = socket();
        let fault = Fault::Rebinding { every: 1, keeps_address: false };
        let plan = Plan { delay: Duration::from_millis(200), rate: None, fault };
        let (path, client) = (Path::start(server.local_addr().unwrap(), plan, number, 1).unwrap(), socket());
        turn(&path, &server, &client, &[SHORT; 100]);
        client.send_to(&[SHORT; 100], path.ports[0]).unwrap();
        let (_, seen) = server.recv_from(&mut [0; 200]).unwrap();
        assert_eq!(seen.ip(), Ipv4Addr::new(127, 0, number, 3));
        thread::sleep(Duration::from_millis(wait));
        for length in [300, 1, 1] {
            server.send_to(&vec![SHORT; length], seen).unwrap();
        }
        wait_for(&path, |counts| counts.proven == 1);
        let counts = path.end().unwrap();
        assert_eq!((counts.proven, counts.is_over_limit), (1, expected), "{counts:?}");
    }
}

#[test]
fn datagrams_beyond_the_queue_are_counted() {
    let server = socket();
    // A datagram takes 8 seconds.
    let plan = Plan { delay: Duration::ZERO, rate: Some(1_000), fault: Fault::None };
    let (path, client) = (Path::start(server.local_addr().unwrap(), plan, 113, 1).unwrap(), socket());
    for _ in 0..30 {
        client.send_to(&[SHORT; 1_000], path.ports[0]).unwrap();
    }
    wait_for(&path, |counts| counts.to_server.all == 30);
    assert_eq!(path.end().unwrap().to_server.overflowed, 5);
}

#[test]
fn a_path_that_cannot_go_on_is_an_error() {
    let (path, server) = start(Fault::Rebinding { every: 1, keeps_address: false }, 114);
    let client = socket();
    for _ in 0..253 {
        turn(&path, &server, &client, &[SHORT; 10]);
    }
    client.send_to(&[SHORT; 10], path.ports[0]).unwrap();
    let (_, seen) = server.recv_from(&mut [0; 20]).unwrap();
    assert_eq!(seen.ip(), Ipv4Addr::new(127, 0, 114, 255));
    server.send_to(&[SHORT; 10], seen).unwrap();
    client.recv(&mut [0; 20]).unwrap();
    client.send_to(&[SHORT; 10], path.ports[0]).unwrap();
    while !path.thread.is_finished() {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(format!("{:#}", path.end().unwrap_err()).contains("more often"));
}

#[test]
fn the_port_alone_changes_and_counts_once_the_server_answers() {
    let (path, server) = start(Fault::Rebinding { every: 4, keeps_address: true }, 110);
    let client = socket();
    let seen: Vec<SocketAddr> = (0..8).map(|_| turn(&path, &server, &client, &[SHORT; 100])).collect();
    assert!(seen.iter().all(|address| address.ip() == Ipv4Addr::new(127, 0, 110, 2)), "{seen:?}");
    assert!(seen[0] == seen[3] && seen[3] != seen[4] && seen[4] == seen[7], "{seen:?}");
    // The second change waits for the client.
    let counts = path.end().unwrap();
    assert_eq!((counts.moves, counts.answered), (1, 1), "{counts:?}");
}

#[test]
fn a_client_with_nothing_to_send_stays_reachable() {
    let (path, server) = start(Fault::Rebinding { every: 1, keeps_address: true }, 115);
    let client = socket();
    let seen = turn(&path, &server, &client, &[SHORT; 100]);
    for _ in 0..3 {
        server.send_to(&[SHORT; 100], seen).unwrap();
        assert_eq!(client.recv(&mut [0; 200]).unwrap(), 100);
    }
    assert_eq!(path.end().unwrap().moves, 0);
}

#[test]
fn a_blackhole_ends() {
    let (path, server) = start(Fault::Blackhole { after: 1, lasts: Duration::from_millis(200) }, 105);
    let client = socket();
    turn(&path, &server, &client, &[LONG; 100]);
    client.send_to(&[SHORT; 10], path.ports[0]).unwrap();
    wait_for(&path, |counts| counts.to_server.hit == 1);
    thread::sleep(Duration::from_millis(400));
    turn(&path, &server, &client, &[SHORT; 20]);
    assert_eq!(path.end().unwrap().to_server.hit, 1);
}

#[test]
fn the_limit_holds_until_a_handshake_packet_comes() {
    let (path, server) = start(Fault::ClientLoss(2), 106);
    let client = socket();
    let seen = turn(&path, &server, &client, &[LONG; 100]);
    server.send_to(&[LONG; 150], seen).unwrap();
    client.recv(&mut [0; 200]).unwrap();
    for length in [20, 30] {
        client.send_to(&vec![SHORT; length], path.ports[0]).unwrap();
    }
    let mut handshake = vec![0xe0, 0, 0, 0, 1, 0, 0, 1, 0];
    handshake.resize(50, 0);
    turn(&path, &server, &client, &handshake);
    server.send_to(&[SHORT; 1_000], seen).unwrap();
    client.recv(&mut [0; 2_000]).unwrap();
    let counts = path.end().unwrap();
    assert_eq!((counts.to_server.hit, counts.unproven, counts.is_over_limit), (2, Some((100, 250)), false));

    let (path, server) = start(Fault::ClientLoss(2), 107);
    let seen = turn(&path, &server, &client, &[LONG; 100]);
    server.send_to(&[LONG; 201], seen).unwrap();
    client.recv(&mut [0; 300]).unwrap();
    assert!(path.end().unwrap().is_over_limit);
}

#[test]
fn a_client_that_goes_on_from_another_port_needs_no_handshake_there() {
    let (path, server) = start(Fault::None, 115);
    let client = socket();
    let seen = turn(&path, &server, &client, &[SHORT; 10]);
    server.send_to(&[SHORT; 1_000], seen).unwrap();
    client.recv(&mut [0; 2_000]).unwrap();
    let counts = path.end().unwrap();
    assert_eq!((counts.connections, counts.is_over_limit), (0, false), "{counts:?}");
}

#[test]
fn marks_pass_only_on_the_path_that_keeps_them() {
    for (fault, number, expected) in [(Fault::KeepsEcn, 108, true), (Fault::None, 109, false)] {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (near, far) = [(); 2].map(|()| Socket::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap()).into();
            let plan = Plan { delay: Duration::ZERO, rate: None, fault };
            let path = Path::start(far.address().unwrap(), plan, number, 1).unwrap();
            near.send(path.ports[0], Some(quinn_udp::EcnCodepoint::Ect0), &[SHORT; 100]).await;
            let mut buffer = vec![0; 65_535];
            let meta = far.receive(&mut buffer).await.unwrap();
            assert_eq!(meta.ecn == Some(quinn_udp::EcnCodepoint::Ect0), expected, "{fault:?}");
            assert_eq!(path.end().unwrap().to_server.marked, 1);
        });
    }
}
