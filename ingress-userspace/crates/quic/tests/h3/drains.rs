//! The end of a worker: requests in flight go on, and handshakes do not hold it.

use std::{rc::Rc, time::Duration};

use ingress_quic::Limits;
use quinn::VarInt;
use tokio::time::timeout;

use crate::{
    lifetime::{close_code, half_open},
    support::{client_config, connect, get, pattern, post, run, start, until},
};

#[test]
fn a_drain_serves_what_is_in_flight() {
    run(async {
        let limits = Limits {
            drain_grace: Duration::from_millis(200),
            drain_idle: Duration::from_millis(20),
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
fn a_worker_without_connections_drains_at_once() {
    run(async {
        let server = start(Limits::default());
        server.handle.drain(Duration::from_secs(50));
        server.task.await.expect("a task").expect("the driver ends");
    });
}
