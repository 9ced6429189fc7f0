//! Floods of first packets: open connections go on before them, each is counted, and new clients still get in.

use std::{
    cell::{Cell, RefCell},
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use ingress_quic::{Counters, Handle, Limits, Pressure};

use crate::{
    lifetime::half_open,
    relay::{Faults, Relay},
    support::{
        Server, bind, connect, connect_to, first_packets, get, http3, options, pattern, run, start, start_with, until,
    },
};

/// First packets in the socket at once: fewer than a default receive buffer holds, and than the driver receives in a turn.
const BURST: usize = 90;

/// Returns `count` first datagrams, of one connection each.
fn firsts(server: &Server, count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|_| first_packets(server).swap_remove(0)).collect()
}

/// First packets that the server has answered or dropped.
fn settled(counters: &Counters) -> u64 {
    let Counters { accepted, retried, refused, dropped, .. } = counters;
    [accepted, retried, refused, dropped].map(Cell::get).iter().sum()
}

#[test]
fn packets_of_open_connections_pass_first_packets() {
    run(async {
        // The requests that had begun when each first packet was looked at.
        let begun = Rc::new(RefCell::new(Vec::new()));
        let handle = Rc::new(RefCell::new(None::<Handle>));
        let (mut options, certificate) = options(bind(), 0, Limits { half_open_max: 8, ..Limits::default() });
        options.pressure = {
            let (begun, handle) = (Rc::clone(&begun), Rc::clone(&handle));
            Box::new(move |_first| {
                let requests = handle.borrow().as_ref().map_or(0, |handle| handle.counters().requests.get());
                begun.borrow_mut().push(requests);
                Pressure::None
            })
        };
        let server = start_with((options, certificate));
        handle.replace(Some(server.handle.clone()));
        let counters = server.handle.counters();
        let relay = Relay::start(server.address, Faults::default(), 1).await;
        let client = http3(connect_to(relay.address, &server.certificate).await).await;
        assert_eq!(get(&client, "/size/9").await.expect("a response").body, pattern(9));
        let (before, packets, socket) = (settled(counters), firsts(&server, BURST), bind());
        let seen = begun.borrow().len();
        relay.hold();
        let asked = async { get(&client, "/size/5000").await.expect("a response") };
        let flooded = async {
            until(|| relay.held() > 0).await;
            // The server has no turn meanwhile, so the request comes behind all of them.
            for packet in &packets {
                socket.send_to(packet, server.address).expect("sent");
            }
            relay.release();
        };
        let (got, ()) = tokio::join!(asked, flooded);
        assert_eq!(got.body, pattern(5000));
        until(|| settled(counters) - before == BURST as u64).await;
        let begun = &begun.borrow()[seen..];
        assert!(begun.iter().all(|requests| *requests == 2), "{begun:?}");
        assert_eq!(begun.len(), BURST, "there is room for all");
        assert_eq!(counters.dropped.get(), 0);
        assert!(counters.half_open.get() <= 2, "more must prove their addresses");
    });
}

#[test]
fn new_clients_get_in_and_open_ones_go_on_during_a_flood_of_forged_addresses() {
    const SOURCES: u8 = 200;
    run(async {
        let server = start(Limits { half_open_max: 32, ..Limits::default() });
        let counters = server.handle.counters();
        let open = connect(&server).await;
        let packets = firsts(&server, 300);
        let [stop, is_paced] = [false, true].map(|value| Arc::new(AtomicBool::new(value)));
        let sent = Arc::new(AtomicU64::new(0));
        let flood = {
            let (stop, is_paced, sent) = (Arc::clone(&stop), Arc::clone(&is_paced), Arc::clone(&sent));
            let address = server.address;
            thread::spawn(move || flood(&packets, address, SOURCES, &is_paced, &stop, &sent))
        };
        until(|| sent.load(Relaxed) > 300).await;
        for number in 0..3 {
            let client = connect(&server).await;
            for client in [&client, &open] {
                assert_eq!(get(client, "/size/5000").await.expect("a response").body, pattern(5000), "{number}");
            }
            assert!(counters.half_open.get() <= 8 + 1, "{number}: {}", counters.half_open.get());
        }
        // More than the worker can answer fill the room, and the open connection goes on beside them.
        is_paced.store(false, Relaxed);
        until(|| counters.retried.get() > 0 && counters.dropped.get() > 0).await;
        assert_eq!(get(&open, "/size/5000").await.expect("a response").body, pattern(5000));
        stop.store(true, Relaxed);
        flood.join().expect("no panic");
        let [retried, dropped] = [&counters.retried, &counters.dropped].map(Cell::get);
        let sent = sent.load(Relaxed);
        println!("{sent} sent, {retried} answered by Retry, {dropped} dropped");
        // The clients above have some, too.
        assert!(settled(counters) <= sent + 10, "each counts once");
        assert_eq!(counters.panics.get(), 0);
    });
}

#[test]
fn clients_get_in_while_forged_packets_hold_the_share_of_their_network() {
    run(async {
        let limits = Limits { half_open_max: 64, handshake_timeout: Duration::from_secs(600), ..Limits::default() };
        let server = start(limits);
        let counters = server.handle.counters();
        // Anyone can send these with the address of the client.
        let _sockets: Vec<_> = (0..8).map(|_| half_open(&server)).collect();
        until(|| counters.half_open.get() == 8).await;
        let client = connect(&server).await;
        assert_eq!(get(&client, "/size/9").await.expect("a response").body, pattern(9));
        assert!(counters.retried.get() > 0, "the client had to prove its address");
        assert_eq!((counters.refused.get(), counters.half_open.get()), (0, 8));
    });
}

/// Sends first packets of some sources until `stop`; with pauses if `is_paced`.
fn flood(packets: &[Vec<u8>], to: SocketAddr, sources: u8, is_paced: &AtomicBool, stop: &AtomicBool, sent: &AtomicU64) {
    let source = |last| UdpSocket::bind((Ipv4Addr::new(127, 0, 1, last), 0)).expect("all of 127/8 are ours");
    let sockets: Vec<_> = (1..=sources).map(source).collect();
    for (number, packet) in packets.iter().cycle().enumerate() {
        if stop.load(Relaxed) {
            return;
        }
        // Full queues lose datagrams.
        let _lost = sockets[number % sockets.len()].send_to(packet, to);
        sent.fetch_add(1, Relaxed);
        if number % 10 == 9 && is_paced.load(Relaxed) {
            thread::sleep(Duration::from_millis(4));
        }
    }
}

#[test]
fn the_configuration_of_an_address_is_made_once() {
    run(async {
        let made = Rc::new(Cell::new(0));
        let (mut options, certificate) = options(bind(), 0, Limits::default());
        let tls = options.tls.clone();
        options.tls_at = Box::new(|first| Some((first.local?, 443).into()));
        options.tls_of = {
            let (made, tls) = (Rc::clone(&made), tls.clone());
            Box::new(move |address| {
                assert_eq!(address, (Ipv4Addr::LOCALHOST, 443).into());
                made.set(made.get() + 1);
                tls.clone()
            })
        };
        let server = start_with((options, certificate));
        for expected in [1, 2] {
            for _ in 0..3 {
                let client = connect(&server).await;
                assert_eq!(get(&client, "/size/9").await.expect("a response").body, pattern(9));
            }
            assert_eq!(made.get(), expected);
            // Limits are part of it.
            server.handle.configure(tls.clone(), Limits::default()).expect("as before");
        }
    });
}
