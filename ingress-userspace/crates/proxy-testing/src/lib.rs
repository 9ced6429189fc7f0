//! A proxy to test, scripted origins, a scripted client, and a builder of route tables. For tests alone.
#![allow(clippy::panic, clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::{
    cell::Cell,
    thread,
    time::{Duration, Instant},
};

mod client;
pub mod free_ports;
mod message;
mod origin;
pub mod pki;
mod proxy;
mod table;
pub mod tls;
pub mod ws;

pub use client::{Client, Response};
pub use origin::{Origin, Peer, serve_connections};
pub use proxy::{Proxy, STREAMS};
pub use table::Table;

/// Longest wait for any condition. Only a failing test waits that long.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// Waits until `condition` holds.
pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "waited too long until {what}");
        thread::park_timeout(Duration::from_millis(1));
    }
}

/// The same on a runtime, with its other tasks running meanwhile.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "waited too long until {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until `value` has begun to grow and then stays the same for a while.
pub fn wait_settled(what: &str, value: impl Fn() -> u64) {
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
