//! What the pure parts cost by themselves: to find a rule (`find`), to translate a change and compile it (`change`), and
//! to apply a filter (`filter`). Nothing here is sent or received: whole requests are `benches/filters.rs`' and
//! `cargo xtask bench`'s to measure, whole changes `cargo xtask bench routes`'.
//!
//! `cargo bench --bench pure` measures all of it in some minutes, `-- find` what has that in its name. It says what is
//! different from the run before; `-- --save-baseline NAME`, and later `-- --baseline NAME`, compare with another one. As
//! one of the tests (`cargo test --benches`) each bench runs once, among few hosts, and what it asserts must hold.
#![cfg(all(feature = "control", feature = "proxy"))]

use std::{env, time::Duration};

use criterion::{Criterion, criterion_group, criterion_main};

mod change;
mod filter;
mod find;
#[path = "../pipeline/mod.rs"]
mod pipeline;

criterion_group! {
    name = benches;
    // There are many of them and each is short: less than the usual time (3 s, 5 s) and resamples (100,000) is enough.
    config = Criterion::default()
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3))
        .nresamples(10_000)
        .without_plots();
    targets = find::bench, change::bench, filter::bench
}
criterion_main!(benches);

/// Among how many hosts: powers of ten.
fn counts() -> &'static [usize] {
    if env::args().any(|argument| argument == "--bench") { &[100, 10_000, 100_000] } else { &[100] }
}

/// A number below `count`, far from that of the turn before: `count` turns have each once, as the step is coprime to ten.
fn scattered(turn: usize, count: usize) -> usize {
    turn * 7919 % count
}
