//! The end of a worker: requests in flight go on, and neither handshakes nor clients that are gone hold it.

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use ingress_quic::Limits;
use quinn::VarInt;
use tokio::time::timeout;

use crate::{
    lifetime::{close_code, half_open},
    relay::{Faults, Relay},
    support::{client_config, connect, connect_to, get, http3, pattern, post, run, start, until},
};

#[test]
fn a_drain_serves_what_is_in_flight() {
    run(async {
        let limits = Limits {
            drain_grace: Duration::from_millis(200),
            // A living client must answer within it, too.
            drain_idle: Duration::from_millis(300),
            ..Limits::default()
        };
        let server = start(limits);
        let client = Rc::new(connect(&server).await);
        let asked: Vec<_> = (0..10)
            .map(|number| {
                let client = Rc::clone(&client);
                tokio::task::spawn_local(async move { post(&client, "/gate/", pattern(number * 10_000)).await })
            })
            .collect();
        until(|| server.seen.begun.get() == 10).await;
        server.handle.drain(Duration::from_secs(50));
        // New clients are refused; requests in flight go on.
        let refused = quinn::Endpoint::client(([127, 0, 0, 1], 0).into()).expect("an endpoint");
        let connecting = refused.connect_with(client_config(&server.certificate), server.address, "localhost");
        assert!(connecting.expect("an address").await.is_err());
        server.seen.is_open.set(true);
        server.seen.gate.notify_one();
        for (number, task) in asked.into_iter().enumerate() {
            let got = task.await.expect("a task").expect("a response");
            assert!(got.body == pattern(number * 10_000), "{number}");
        }
        assert_eq!(close_code(client.quic.closed().await), VarInt::from_u32(0x100));
        server.task.await.expect("a task").expect("the driver ends");
    });
}

#[test]
fn a_drain_waits_for_no_handshake_beyond_its_deadline() {
    run(async {
        let server = start(Limits { handshake_timeout: Duration::from_secs(600), ..Limits::default() });
        let _socket = half_open(&server);
        until(|| server.handle.counters().half_open.get() == 1).await;
        server.handle.drain(Duration::ZERO);
        let ended = timeout(Duration::from_secs(60), server.task).await;
        ended.expect("before the handshake's own end").expect("a task").expect("the driver ends");
    });
}

#[test]
fn a_drain_ends_at_its_deadline() {
    run(async {
        let server = start(Limits::default());
        let client = connect(&server).await;
        let hanging = get(&client, "/hang/");
        let drained = async {
            until(|| server.seen.begun.get() == 1).await;
            server.handle.drain(Duration::ZERO);
            assert_eq!(close_code(client.quic.closed().await), VarInt::from_u32(0x100));
        };
        let (failed, ()) = tokio::join!(hanging, drained);
        failed.expect_err("no response");
        server.task.await.expect("a task").expect("the driver ends");
        assert_eq!(server.seen.ended.get(), 1);
    });
}

#[test]
fn a_client_that_is_gone_holds_no_drain_and_a_silent_one_keeps_its_request() {
    let millis = Duration::from_millis;
    // The last time is shorter than a client may delay its ACK.
    for (is_gone, drain_idle) in [(true, millis(300)), (false, millis(300)), (false, millis(10))] {
        run(async {
            let limits = Limits {
                drain_grace: millis(10),
                drain_idle,
                idle_timeout: Duration::from_secs(600),
                ..Limits::default()
            };
            let server = start(limits);
            let relay = Relay::start(server.address, Faults::default(), 1).await;
            let client = http3(connect_to(relay.address, &server.certificate).await).await;
            let path = if is_gone { "/hang/" } else { "/gate/" };
            let asked = post(&client, path, Bytes::new());
            let drained = async {
                until(|| server.seen.begun.get() == 1).await;
                if is_gone {
                    relay.hold();
                }
                let begun = Instant::now();
                server.handle.drain(Duration::from_secs(600));
                if is_gone {
                    let ended = timeout(Duration::from_secs(50), server.task).await;
                    ended.expect("long before the end of the drain").expect("a task").expect("the driver ends");
                    assert_eq!(server.seen.ended.get(), 1);
                    return;
                }
                // It has nothing to say, but answers.
                until(|| begun.elapsed() > millis(1_500)).await;
                assert_eq!((server.handle.counters().open.get(), server.seen.ended.get()), (1, 0));
                server.seen.is_open.set(true);
                server.seen.gate.notify_one();
            };
            let (got, ()) = tokio::join!(asked, drained);
            assert_eq!(got.map(|got| got.head.status().as_u16()).ok(), (!is_gone).then_some(200));
        });
    }
}

#[test]
fn a_worker_without_connections_drains_at_once() {
    run(async {
        let server = start(Limits::default());
        server.handle.drain(Duration::from_secs(50));
        server.task.await.expect("a task").expect("the driver ends");
    });
}
