//! The beginning and the end of connections: Retry, half-open connections, idle ones, and changed addresses.

use std::{
    cell::RefCell,
    net::UdpSocket,
    rc::Rc,
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Duration,
};

use bytes::Bytes;
use http::Method;
use ingress_quic::{Held, Ids as _, Limits, Peer, Pressure};
use quinn::{ConnectionError, VarInt};
use tokio::time::timeout;

use crate::{
    errors::{good, headers},
    support::{
        Plain, Server, bind, connect, connect_raw, connect_to, exchange, first_packets, get, options, pattern, post,
        request, run, start, start_with, until,
    },
};

/// Sends the first packet of a handshake that is never continued.
pub(crate) fn half_open(server: &Server) -> UdpSocket {
    let socket = bind();
    for packet in first_packets(server) {
        socket.send_to(&packet, server.address).expect("sent");
    }
    socket
}

pub(crate) fn close_code(error: ConnectionError) -> VarInt {
    match error {
        ConnectionError::ApplicationClosed(close) => close.error_code,
        other => panic!("{other}"),
    }
}

#[test]
fn clients_prove_their_address_when_many_are_half_open() {
    run(async {
        let server = start(Limits { half_open_max: 8, ..Limits::default() });
        let counters = server.handle.counters();
        let client = connect(&server).await;
        assert_eq!((counters.retried.get(), counters.accepted.get()), (0, 1));
        until(|| counters.half_open.get() == 0).await;
        let _sockets = [half_open(&server), half_open(&server)];
        until(|| counters.half_open.get() == 2).await;
        let other = connect(&server).await;
        assert_eq!((counters.retried.get(), counters.accepted.get()), (1, 4));
        for client in [&client, &other] {
            assert_eq!(get(client, "/size/9").await.expect("a response").body, pattern(9));
        }
        assert_eq!(counters.half_open.get(), 2);
    });
}

#[test]
fn a_worker_under_pressure_asks_for_proof() {
    run(async {
        let (mut options, certificate) = options(bind(), 0, Limits::default());
        options.pressure = Box::new(|_| Pressure::Prove);
        let server = start_with((options, certificate));
        let client = connect(&server).await;
        assert_eq!(server.handle.counters().retried.get(), 1);
        assert_eq!(get(&client, "/size/9").await.expect("a response").body, pattern(9));
    });
}

#[test]
fn handshakes_that_do_not_end_are_dropped() {
    run(async {
        let server = start(Limits { handshake_timeout: Duration::from_millis(20), ..Limits::default() });
        let _socket = half_open(&server);
        let counters = server.handle.counters();
        until(|| counters.accepted.get() == 1 && counters.half_open.get() == 0).await;
        until(|| counters.open.get() == 0).await;
    });
}

#[test]
fn connections_without_requests_are_closed() {
    run(async {
        let server = start(Limits { keep_alive: Duration::from_millis(50), ..Limits::default() });
        let (_endpoint, quic) = connect_raw(&server).await;
        assert_eq!(close_code(quic.closed().await), VarInt::from_u32(0x100));
        until(|| server.handle.counters().open.get() == 0).await;
    });
}

#[test]
fn connections_outlive_the_address_of_their_client() {
    run(async {
        let server = start(Limits::default());
        let client = connect(&server).await;
        let first = client.endpoint.local_addr().expect("an address");
        for change in 1..=3 {
            let got = post(&client, "/echo/", pattern(100_000)).await.expect("a response");
            assert!(got.body == pattern(100_000));
            client.endpoint.rebind(bind()).expect("another socket");
            assert_eq!(get(&client, "/size/9").await.expect("a response").body, pattern(9));
            let now = client.endpoint.local_addr().expect("an address");
            let seen = server.seen.peers.borrow().last().cloned().expect("a request");
            assert_eq!((seen.0, seen.1), (first, now), "the handshake's address stays");
            assert_eq!(server.handle.counters().migrated.get(), change);
        }
        assert_eq!(server.handle.counters().accepted.get(), 1);
    });
}

/// Starts a server, whose first client is returned when it has connected.
fn start_with_peers() -> (Server, impl Fn() -> Rc<Peer>) {
    let peers = Rc::<RefCell<Vec<Rc<Peer>>>>::default();
    let (mut options, certificate) = options(bind(), 0, Limits::default());
    let known = Rc::clone(&peers);
    options.opened = Box::new(move |peer| {
        known.borrow_mut().push(Rc::clone(peer));
        Some(Rc::new(()))
    });
    (start_with((options, certificate)), move || Rc::clone(&peers.borrow()[0]))
}

#[test]
fn a_client_that_acknowledges_nothing_holds_its_response() {
    const LENGTH: usize = 1_000_000;
    run(async {
        let (server, peer) = start_with_peers();
        let (address, certificate) = (server.address, server.certificate.clone());
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (end, ended) = mpsc::channel::<()>();
        // Its thread stops after the first bytes, and so does the client.
        let client = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let _kept = runtime.block_on(async {
                let (endpoint, quic) = connect_to(address, &certificate).await;
                let (mut sender, mut receiver) = quic.open_bi().await.expect("a stream");
                let path = format!("/later/{LENGTH}");
                sender.write_all(&headers(&good(&path))).await.expect("written");
                let mut received = Vec::new();
                while !received.ends_with(b"first") {
                    let chunk = receiver.read_chunk(usize::MAX, true).await.expect("open").expect("a response");
                    received.extend_from_slice(&chunk.bytes);
                }
                (endpoint, quic, sender, receiver)
            });
            begun.send(()).expect("awaited");
            let _ended = ended.recv();
        });
        has_begun.await.expect("it begins");
        server.seen.is_open.set(true);
        let peer = peer();
        until(|| {
            let Held { bytes, is_stuck } = peer.look();
            bytes > LENGTH && is_stuck
        })
        .await;
        end.send(()).expect("awaited");
        client.join().expect("no panic");
    });
}

/// Work of a client in a thread of its own, which stands still after it and sends nothing.
enum Step {
    /// Receive so many bytes in all.
    Receive(usize),
    /// Tell the server that it wants no more.
    Stop,
}

/// Bytes of a response that the server completes at once, and that do not fit in its first congestion windows.
const TAIL: usize = 1_000_000;

/// Starts a client that has asked for [`TAIL`] bytes and stands still at the first of them. Each step is answered when
/// it is done.
fn stand_still(server: &Server) -> (mpsc::Sender<Step>, tokio::sync::mpsc::UnboundedReceiver<()>, JoinHandle<()>) {
    let (address, certificate) = (server.address, server.certificate.clone());
    let (steps, to_do) = mpsc::channel();
    let (done, is_done) = tokio::sync::mpsc::unbounded_channel();
    let client = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let mut received = 0;
        let (_endpoint, quic, _sender, mut receiver) = runtime.block_on(async {
            let (endpoint, quic) = connect_to(address, &certificate).await;
            let (mut sender, receiver) = quic.open_bi().await.expect("a stream");
            sender.write_all(&headers(&good(&format!("/size/{TAIL}")))).await.expect("written");
            (endpoint, quic, sender, receiver)
        });
        let mut step = Step::Receive(1);
        loop {
            runtime.block_on(async {
                match step {
                    Step::Receive(count) => {
                        while received < count {
                            let chunk = receiver.read_chunk(usize::MAX, true).await.expect("open").expect("more");
                            received += chunk.bytes.len();
                        }
                    }
                    Step::Stop => {
                        receiver.stop(VarInt::from_u32(0x10c)).expect("open");
                        while quic.stats().frame_tx.stop_sending == 0 {
                            tokio::task::yield_now().await;
                        }
                    }
                }
            });
            done.send(()).expect("awaited");
            let Ok(next) = to_do.recv() else { return };
            step = next;
        }
    });
    (steps, is_done, client)
}

#[test]
fn a_client_that_receives_the_end_of_a_response_slowly_is_not_stuck() {
    run(async {
        let (server, peer) = start_with_peers();
        let (steps, mut is_done, client) = stand_still(&server);
        is_done.recv().await.expect("the first bytes");
        until(|| server.seen.given.get() == TAIL).await;
        let peer = peer();
        let _baseline = peer.look();
        let mut is_seen = false;
        // A step may end with bytes that came before it.
        for part in 1..=20 {
            steps.send(Step::Receive(part * (TAIL / 25))).expect("it lives");
            is_done.recv().await.expect("done");
            let Held { bytes, is_stuck } = peer.look();
            is_seen |= bytes > 0 && !is_stuck;
        }
        assert!(is_seen, "it takes its response");
        drop(steps);
        client.join().expect("no panic");
    });
}

#[test]
fn a_stopped_response_gives_its_window_back() {
    run(async {
        let (server, peer) = start_with_peers();
        let (steps, mut is_done, client) = stand_still(&server);
        is_done.recv().await.expect("the first bytes");
        until(|| server.seen.given.get() == TAIL).await;
        let peer = peer();
        assert!(peer.look().bytes > 0, "the client has not received all");
        steps.send(Step::Stop).expect("it lives");
        is_done.recv().await.expect("done");
        // Long before the connection ends by its idle time-out.
        timeout(Duration::from_secs(10), until(|| peer.look().bytes == 0)).await.expect("the bytes are given back");
        drop(steps);
        client.join().expect("no panic");
    });
}

#[test]
fn an_open_response_that_is_acknowledged_is_not_held() {
    run(async {
        let (server, peer) = start_with_peers();
        let client = connect(&server).await;
        let mut stream = client
            .requests
            .clone()
            .send_request(request(Method::GET, "/later/1", Bytes::new()).map(|_| ()))
            .await
            .expect("sent");
        stream.recv_response().await.expect("a response");
        stream.recv_data().await.expect("data").expect("data");
        let (peer, looks) = (peer(), RefCell::new(0));
        // Twenty looks in a row, of which none may find anything.
        until(|| {
            let mut looks = looks.borrow_mut();
            *looks = if peer.look().bytes == 0 { *looks + 1 } else { 0 };
            *looks == 20
        })
        .await;
    });
}

#[test]
fn new_certificates_are_for_new_connections() {
    run(async {
        let mut server = start(Limits::default());
        let old = connect(&server).await;
        let (made, certificate) = options(bind(), 0, Limits::default());
        server.handle.configure(made.tls, Limits::default()).expect("a configuration");
        server.certificate = certificate;
        let new = connect(&server).await;
        for client in [&old, &new] {
            let asked = request(Method::GET, "/size/9", Bytes::new());
            assert_eq!(exchange(client, asked).await.expect("a response").body, pattern(9));
        }
    });
}

#[test]
fn clients_of_a_process_that_has_ended_are_reset() {
    run(async {
        let server = start(Limits::default());
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
        // A packet as a client sends it, for an ID of a process without a life.
        let packet = [&[0x40][..], &Plain(64).issue([1; 7]), &[5; 100]].concat();
        socket.send_to(&packet, server.address).await.expect("sent");
        let mut reset = [0; 2_000];
        let (length, from) = socket.recv_from(&mut reset).await.expect("an answer");
        assert_eq!(from, server.address);
        assert!((21..packet.len()).contains(&length), "{length}");
        // The same ID has the same token. A second reset needs some time after the first.
        tokio::time::sleep(Duration::from_millis(5)).await;
        socket.send_to(&packet, server.address).await.expect("sent");
        let mut again = [0; 2_000];
        let other = socket.recv(&mut again).await.expect("an answer");
        assert_eq!(reset[length - 16..length], again[other - 16..other]);
    });
}
