//! HTTP/3 with clients that share no code with the product: quic-go, aioquic, qh3, ngtcp2, libcurl, Chromium and Firefox.
//! The product runs without its kernel part on loopback, with a pod of this process. No root and no namespace is needed.
//!
//! ```text
//! lane ── clients (quic-go, aioquic, qh3, ngtcp2, curl, chromium, firefox) ──▶ stage (xdp-ingress) ──▶ pod
//!   │        └ command: a program with cases as arguments
//!   ├─ confirmed: cases that the product must confirm
//!   ├─ impaired: cases on a path with faults
//!   │        └ path: a relay between clients and stage; for `confirmed`, it is NAT
//!   ├─ half_open: handshakes that do not go on, so that the product sends Retry
//!   └─ report: a table of cases and clients
//! ```
#![allow(clippy::print_stdout, reason = "a command-line tool talks on its standard output")]

mod clients;
mod confirmed;
mod half_open;
mod impaired;
pub mod lane;
mod path;
mod pod;
mod report;
mod stage;
