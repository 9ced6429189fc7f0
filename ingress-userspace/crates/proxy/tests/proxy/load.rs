//! The load that a worker publishes: a connection counts from its acceptance to its end, independent of its use.

use std::{any::Any, sync::atomic::Ordering::Relaxed, time::Duration};

use ingress_model::Settings;
use ingress_proxy::Options;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    drain::drain,
    frames::{HEADERS, NONE, PREFACE, Raw, SETTINGS, frame, get},
};
use ingress_proxy_testing::tls::{config, connect};
use ingress_proxy_testing::ws;
use ingress_proxy_testing::{Origin, Proxy, Table, wait_until};

/// A pod that answers requests, and takes WebSockets.
fn pod() -> Origin {
    Origin::start(|peer| {
        while let Some((head, _)) = peer.request() {
            if head.contains("\r\nupgrade: websocket\r\n") {
                peer.send(ws::SWITCH);
                return peer.until_closed();
            }
            peer.answer("pod");
        }
    })
}

fn wait_held(proxy: &Proxy, count: u64) {
    wait_until(&format!("{count} are held"), || proxy.load().open == count);
}

#[tokio::test]
async fn every_connection_counts_until_it_ends() {
    let origin = pod();
    let options = Options { warm_max: 0, ..Options::default() };
    let proxy = Proxy::start_with(&Table::default().host("a.test", &[origin.address]), &options, None);
    wait_held(&proxy, 0);
    let fresh = proxy.client();
    wait_held(&proxy, 1);
    let mut parked = proxy.client();
    assert_eq!(parked.get("a.test", "/").text(), "pod");
    wait_until("both are parked", || proxy.shared.stats().parked == 2);
    assert_eq!(proxy.load().open, 2);
    let mut websocket = proxy.client();
    websocket.send(ws::handshake());
    assert!(websocket.head().expect("a head").starts_with("http/1.1 101 "));
    assert_eq!(proxy.load().open, 3);
    let mut clear = Raw::begun(&proxy, &[]);
    clear.send(&get(1));
    clear.until(HEADERS);
    assert_eq!(proxy.load().open, 4);
    let secure = connect(&proxy, &config(&["http/1.1"]), "a.test").await;
    assert_eq!(proxy.load().open, 5);
    let mut multiplexed = connect(&proxy, &config(&["h2"]), "a.test").await;
    let beginning = [PREFACE, &frame(SETTINGS, NONE, 0, &[])].concat();
    multiplexed.write_all(&beginning).await.expect("sent");
    multiplexed.read_exact(&mut [0; 9]).await.expect("a frame");
    assert_eq!(proxy.load().open, 6);

    let connections: [Box<dyn Any>; 6] = [
        Box::new(fresh),
        Box::new(parked),
        Box::new(websocket),
        Box::new(clear),
        Box::new(secure),
        Box::new(multiplexed),
    ];
    for (connection, left) in connections.into_iter().zip((0..6).rev()) {
        drop(connection);
        wait_held(&proxy, left);
    }
}

#[test]
fn a_stopped_worker_is_absent() {
    let origin = pod();
    let mut proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let _client = proxy.client();
    wait_held(&proxy, 1);
    assert_eq!(drain(&mut proxy, Duration::ZERO).join().expect("drained").cut, 1);
    assert_eq!(proxy.load().connections(), None);
}

#[test]
fn chosen_connections_are_settled_on_arrival_or_timeout() {
    // The worker ticks every 10 ms.
    let settings = Settings { stall_timeout: Duration::from_millis(40), ..Settings::default() };
    let proxy = Proxy::start(&Table::default().settings(settings));
    wait_held(&proxy, 0);
    proxy.workers[0].chosen.fetch_add(3, Relaxed);
    let _client = proxy.client();
    wait_until("one has come and two have not", || proxy.load().connections() == Some(1));
    assert_eq!(proxy.load().settled, 3);
}
