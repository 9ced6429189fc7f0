//! Requests over bad paths: loss, reordering, duplicates, corruption, small packets, and NAT that forgets ports.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use ingress_quic::Limits;

use crate::{
    relay::{Faults, Relay},
    support::{
        Client, Server, bind, client_config, exchange, get, http3, options, pattern, post, request, run, start_with,
        until,
    },
};

/// Smallest payload that QUIC needs (RFC 9000, 14).
const SMALLEST: usize = 1200;

const CLEAN: Faults = Faults { lost: 0, late: 0, doubled: 0, flipped: 0, largest: None };

/// Starts a server that gets packets with broken connection IDs: those of other workers are dropped.
fn start() -> Server {
    let (mut made, certificate) = options(bind(), 0, Limits::default());
    made.forward = Box::new(|_worker, _datagram| ());
    start_with((made, certificate))
}

/// Connects by a path. The client sends a packet at least ten times a second, so the server hears of a new port.
async fn connect_by(server: &Server, path: SocketAddr) -> Client {
    let mut config = client_config(&server.certificate);
    let mut transport = quinn::TransportConfig::default();
    transport.keep_alive_interval(Some(Duration::from_millis(100)));
    config.transport_config(Arc::new(transport));
    let endpoint = quinn::Endpoint::client(([127, 0, 0, 1], 0).into()).expect("an endpoint");
    let connecting = endpoint.connect_with(config, path, "localhost").expect("an address");
    let quic = connecting.await.expect("a connection");
    http3((endpoint, quic)).await
}

/// Sends requests of all shapes, and compares every byte of the responses.
async fn ask_all(client: &Client) {
    let got = get(client, "/size/300000").await.expect("a response");
    assert_eq!(got.head.status(), StatusCode::OK);
    assert!(got.body == pattern(300_000));
    client.quic.force_key_update();
    let got = post(client, "/echo/", pattern(100_000)).await.expect("a response");
    assert!(got.body == pattern(100_000));
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "42".parse().expect("a value"));
    let mut asked = request(Method::POST, "/echo/", Bytes::from_static(b"body"));
    asked.extensions_mut().insert(trailers.clone());
    assert_eq!(exchange(client, asked).await.expect("a response").trailers, Some(trailers));
    let small = async |of: usize| {
        for number in 0..10 {
            let length = of * 100 + number;
            let got = get(client, &format!("/size/{length}")).await.expect("a response");
            assert_eq!(got.body, pattern(length));
        }
    };
    tokio::join!(small(0), small(1), small(2), small(3));
}

/// Serves several clients over paths with `faults`, and returns how many datagrams met one of them.
fn serve_over(faults: Faults) -> u64 {
    let mut met = 0;
    run(async {
        let server = start();
        for seed in 0..4 {
            let relay = Relay::start(server.address, faults, seed).await;
            ask_all(&connect_by(&server, relay.address).await).await;
            let each = relay.met();
            met += each.lost.get() + each.late.get() + each.doubled.get() + each.flipped.get() + each.too_large.get();
        }
        let counters = server.handle.counters();
        assert_eq!((counters.cancelled.get(), counters.panics.get()), (0, 0));
        assert_eq!(counters.connected.get(), 4);
    });
    met
}

#[test]
fn lost_datagrams_are_sent_again() {
    assert!(serve_over(Faults { lost: 5, ..CLEAN }) > 0);
}

#[test]
fn datagrams_may_come_in_any_order() {
    assert!(serve_over(Faults { late: 25, ..CLEAN }) > 0);
}

#[test]
fn doubled_datagrams_count_once() {
    assert!(serve_over(Faults { doubled: 25, ..CLEAN }) > 0);
}

#[test]
fn corrupt_datagrams_are_lost_ones() {
    assert!(serve_over(Faults { flipped: 5, ..CLEAN }) > 0);
}

#[test]
fn the_smallest_path_is_enough() {
    // The larger ones were tried, and never needed.
    assert!(serve_over(Faults { largest: Some(SMALLEST), ..CLEAN }) > 0);
}

#[test]
fn all_faults_may_come_together() {
    let faults = Faults { lost: 3, late: 10, doubled: 10, flipped: 3, largest: Some(SMALLEST) };
    assert!(serve_over(faults) > 0);
}

#[test]
fn a_path_may_become_narrow() {
    run(async {
        let server = start();
        let relay = Relay::start(server.address, CLEAN, 0).await;
        let client = connect_by(&server, relay.address).await;
        // Both sides find that longer packets pass.
        ask_all(&client).await;
        until(|| client.quic.stats().path.current_mtu > 1400).await;
        relay.narrow(SMALLEST);
        ask_all(&client).await;
        assert!(relay.met().too_large.get() > 0);
    });
}

#[test]
fn connections_outlive_a_nat_that_forgets_ports() {
    for (faults, seed) in [(CLEAN, 0), (Faults { lost: 5, ..CLEAN }, 1)] {
        run(async {
            const LENGTH: usize = 3 * 1024 * 1024;
            let server = start();
            let relay = Relay::start(server.address, faults, seed).await;
            let client = connect_by(&server, relay.address).await;
            for change in 0..8 {
                let got = post(&client, "/echo/", pattern(20_000)).await.expect("a response");
                assert!(got.body == pattern(20_000), "{change}");
                relay.change_port().await;
            }
            // Amid a response.
            let change = async {
                for part in 1..=3 {
                    until(|| server.seen.given.get() > LENGTH / 4 * part).await;
                    relay.change_port().await;
                }
            };
            let path = format!("/size/{LENGTH}");
            let (got, ()) = tokio::join!(get(&client, &path), change);
            assert!(got.expect("a response").body == pattern(LENGTH));
            let counters = server.handle.counters();
            assert_eq!((counters.connected.get(), counters.panics.get()), (1, 0));
            assert!(counters.migrated.get() >= 8, "{}", counters.migrated.get());
            // Requests name the address of the handshake, and know the current one.
            let peers = server.seen.peers.borrow();
            assert!(peers.iter().all(|(at_handshake, ..)| *at_handshake == peers[0].0));
            assert!(peers.iter().any(|(at_handshake, current, _)| current != at_handshake));
        });
    }
}
