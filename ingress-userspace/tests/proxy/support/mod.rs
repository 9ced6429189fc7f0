//! A proxy to test, scripted origins, a scripted client, and a builder of route tables.

use std::{
    cell::Cell,
    thread,
    time::{Duration, Instant},
};

mod client;
mod message;
mod origin;
mod proxy;
mod table;

pub(crate) use client::{Client, Response};
pub(crate) use origin::{Origin, Peer, serve_connections};
pub(crate) use proxy::{Proxy, STREAMS};
pub(crate) use table::Table;

/// Longest wait for any condition. Only a failing test waits that long.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// Waits until `condition` holds.
pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "waited too long until {what}");
        thread::park_timeout(Duration::from_millis(1));
    }
}

/// The same on a runtime, with its other tasks running meanwhile.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "waited too long until {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until `value` has begun to grow and then stays the same for a while.
pub(crate) fn wait_settled(what: &str, value: impl Fn() -> u64) {
    const WHILE: Duration = Duration::from_millis(200);
    let latest = Cell::new((0, Instant::now()));
    wait_until(what, || {
        let (before, since) = latest.get();
        let now = value();
        if now != before {
            latest.set((now, Instant::now()));
        }
        now != 0 && now == before && since.elapsed() >= WHILE
    });
}
