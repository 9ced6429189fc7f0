//! Cost of the pure parts: rule lookup (`find`), translation and compilation of a change (`change`), and filters
//! (`filter`). No data is sent or received here. Whole requests are measured by `benches/filters.rs` and `cargo xtask
//! bench`, whole changes by `cargo xtask bench routes`.
//!
//! `cargo bench --bench pure` measures all of it in some minutes, `-- find` only benches with that in their name. The
//! output shows differences to the previous run; `-- --save-baseline NAME`, and later `-- --baseline NAME`, compare
//! with another one. As part of the tests (`cargo test --benches`) each bench runs once with few hosts, and its
//! assertions must hold.

use std::{env, time::Duration};

use criterion::{Criterion, criterion_group, criterion_main};

mod change;
mod filter;
mod find;
#[path = "../pipeline/mod.rs"]
mod pipeline;

criterion_group! {
    name = benches;
    // The benches are many and short: less than the usual times (3 s, 5 s) and resamples (100,000) is enough.
    config = Criterion::default()
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3))
        .nresamples(10_000)
        .without_plots();
    targets = find::bench, change::bench, filter::bench
}
criterion_main!(benches);

/// Numbers of hosts, as powers of ten.
fn counts() -> &'static [usize] {
    if env::args().any(|argument| argument == "--bench") { &[100, 10_000, 100_000] } else { &[100] }
}

/// Returns a number below `count`, far from that of the previous turn. In `count` turns each number occurs once,
/// because the step is coprime to ten.
fn scattered(turn: usize, count: usize) -> usize {
    turn * 7919 % count
}
