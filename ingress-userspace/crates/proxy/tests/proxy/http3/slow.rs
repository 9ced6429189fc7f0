//! Clients that read slowly, or nothing.

use std::{
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use bytes::{Buf as _, Bytes};
use http::Method;
use ingress_model::Settings;
use ingress_proxy::Options;
use ingress_proxy_testing::{Origin, Proxy, Table, until};
use tokio::net::UdpSocket;

use super::{Client, options, request, start};

fn get(path: &str) -> http::Request<()> {
    request(Method::GET, "a.test", path, Bytes::new()).map(|_| ())
}

/// Starts a link to `server` that delivers a packet to its client every few milliseconds. What waits for longer than the
/// socket has room is lost.
async fn slow_link(server: SocketAddr) -> SocketAddr {
    let bind = || UdpSocket::bind("127.0.0.1:0");
    let (front, back) = (Arc::new(bind().await.expect("a socket")), Arc::new(bind().await.expect("a socket")));
    back.connect(server).await.expect("connected");
    let address = front.local_addr().expect("an address");
    let client = Arc::new(OnceLock::new());
    tokio::spawn({
        let (front, back, client) = (Arc::clone(&front), Arc::clone(&back), Arc::clone(&client));
        async move {
            let mut packet = [0; 2_000];
            while let Ok((length, from)) = front.recv_from(&mut packet).await {
                client.get_or_init(|| from);
                let _lost = back.send(&packet[..length]).await;
            }
        }
    });
    tokio::spawn(async move {
        let mut packet = [0; 2_000];
        while let Ok(length) = back.recv(&mut packet).await {
            let Some(client) = client.get() else { continue };
            let _lost = front.send_to(&packet[..length], client).await;
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    });
    address
}

/// Starts a link to `server` that loses the server's packets for some time, from the client's first one on.
async fn lossy_link(server: SocketAddr, lasts: Duration) -> SocketAddr {
    let bind = || UdpSocket::bind("127.0.0.1:0");
    let (front, back) = (bind().await.expect("a socket"), bind().await.expect("a socket"));
    back.connect(server).await.expect("connected");
    let address = front.local_addr().expect("an address");
    tokio::spawn(async move {
        let (mut out, mut home, mut client) = ([0; 2_000], [0; 2_000], None);
        loop {
            tokio::select! {
                Ok((length, from)) = front.recv_from(&mut out) => {
                    client.get_or_insert_with(|| (from, Instant::now()));
                    let _lost = back.send(&out[..length]).await;
                }
                Ok(length) = back.recv(&mut home) => {
                    if let Some((client, since)) = client && since.elapsed() >= lasts {
                        let _lost = front.send_to(&home[..length], client).await;
                    }
                }
            }
        }
    });
    address
}

#[tokio::test]
async fn a_handshake_outlives_losses_for_longer_than_one_over_tcp_may_take() {
    let origin = Origin::answering("pod");
    let limit = Duration::from_millis(300);
    let options = Options { handshake_timeout: limit, ..options() };
    let proxy = Proxy::start_http3(&Table::default().host("a.test", &[origin.address]), &options, 1);
    let link = lossy_link(proxy.http3.expect("it serves HTTP/3"), 2 * limit).await;
    let begun = Instant::now();
    let client = Client::connect_at(link, "a.test").await;
    assert!(begun.elapsed() > 2 * limit, "nothing was lost");
    assert_eq!(client.get("a.test", "/").await.text(), "pod");
}

#[tokio::test]
async fn a_slow_client_gets_the_end_of_a_response_that_is_complete() {
    const LENGTH: usize = 1 << 20;
    let origin = Origin::start(|peer| {
        while peer.request().is_some() {
            peer.answer(&"x".repeat(LENGTH));
        }
    });
    let limit = Duration::from_secs(1);
    let settings = Settings { idle_timeout: limit, stall_timeout: limit, ..Settings::default() };
    let proxy = start(&Table::default().host("a.test", &[origin.address]).settings(settings));
    let client = Client::connect_at(slow_link(proxy.http3.expect("it serves HTTP/3")).await, "a.test").await;
    let begun = Instant::now();
    let mut stream = client.requests.clone().send_request(get("/")).await.expect("sent");
    stream.finish().await.expect("sent");
    stream.recv_response().await.expect("a response");
    let mut received = 0;
    while let Some(data) = stream.recv_data().await.expect("data") {
        received += data.remaining();
    }
    assert_eq!(received, LENGTH);
    assert!(begun.elapsed() > 2 * limit, "the link is too fast to show anything: {:?}", begun.elapsed());
    // Without anything to take, the limit holds.
    client.quic.closed().await;
    assert_eq!(proxy.shared.stats().timed_out, 0);
}

#[tokio::test]
async fn requests_of_a_client_that_reads_nothing_start_slowly() {
    const STREAMS: usize = 60;
    const LENGTH: usize = 400_000;
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let origin = Origin::start(move |peer| {
        while peer.request().is_some() {
            count.fetch_add(1, SeqCst);
            peer.answer(&"x".repeat(LENGTH));
        }
    });
    let proxy = start(&Table::default().host("a.test", &[origin.address]));
    let client = Client::connect_narrow(&proxy, "a.test", 64 * 1024).await;
    let mut streams = Vec::new();
    for number in 0..STREAMS {
        if number == 4 {
            until("these are asked", || asked.load(SeqCst) >= 4).await;
            // Longer than the silence after which a client counts as one that takes nothing.
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let mut stream = client.requests.clone().send_request(get("/")).await.expect("sent");
        stream.finish().await.expect("sent");
        streams.push(stream);
    }
    until("the window is used", || asked.load(SeqCst) >= 24).await;
    until("the others wait", || proxy.shared.stats().waiting > 0).await;
    // Longer than the interval at which requests begin for a client that reads.
    tokio::time::sleep(Duration::from_millis(800)).await;
    let begun = asked.load(SeqCst);
    assert!(begun <= 24, "{begun} are with the pod");
    let all: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            tokio::spawn(async move {
                stream.recv_response().await.expect("a response");
                let mut received = 0;
                while let Some(data) = stream.recv_data().await.expect("data") {
                    received += data.remaining();
                }
                received
            })
        })
        .collect();
    for received in all {
        assert_eq!(received.await.expect("no panic"), LENGTH);
    }
    assert_eq!(asked.load(SeqCst), STREAMS);
}
