//! The pure half of the kernel programs: reads headers and decides. It uses no maps, no helpers and no contexts.
//!
//! ```text
//! frame ── parse ──> Segment ── decide, choose (ask a Node) ──> Decision ── receive.rs, tc_out.rs ──> counters, handoffs
//!            │                    └─ limit (of a client) ──> Draws ── client_limits.rs ──> clients
//!            └─────> Quoted, Place ── checksum ── rewrite.rs ──> frame
//! frame ── announce ──> Question ── neighbours.rs ──> frame
//! Segment ── forward (ask a Forwarder) ──> Ethernet addresses ── sockets.rs ──> frame
//! SYN ── syn_answer ──> SYN-ACK ── syn_cookies.rs ──> frame
//! datagram ── quic (ask a Node) ──> Destination ── reuseport.rs ──> socket, counters, handoffs
//! ```
//!
//! The same code runs under the verifier, where [`parse::Frame`] is a pair of packet pointers and [`node_facts::Node`]
//! the maps, and on the host in unit tests, where they are a slice and a struct.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod announce;
pub mod checksum;
mod choose;
pub mod decide;
pub mod forward;
pub mod limit;
pub mod node_facts;
pub mod parse;
pub mod quic;
pub mod share;
pub mod syn_answer;
