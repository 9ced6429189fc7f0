//! The kernel programs under the verifier: frames in, verdicts and counters out; the deny list; limits of clients; the
//! choice of a worker; adoption, capacity, sweep, unload; interfaces that come and go.
//!
//! Each test has its own thread with its own network and mount namespace and its own BPF file system, so that no state
//! outlives it. Needs root; without, every test says so loudly and passes, unless `REQUIRE_KERNEL=1`.
#![allow(
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests fail the test, and a skip and the figures are for people to read"
)]

mod adopt;
mod announce;
mod denials;
mod deny;
mod drops;
mod figures;
mod frames;
mod handoffs;
mod hidden;
mod hosts;
mod left_behind;
mod left_behind_traffic;
mod limits;
mod lookup;
mod measure;
mod moves;
mod nics;
mod packets;
mod pinned;
mod pool;
mod quic;
mod quic_checks;
mod quic_ends;
mod rewrite;
mod sandbox;
mod share;
mod spoofed;
mod syn_choices;
mod syn_clients;
mod syn_cookies;
mod syn_cost;
mod tc_out;
mod verdicts;
mod workers;
