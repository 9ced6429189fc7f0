//! The product as a process, on real links with real XDP: laws about steering, counting, restarts, changes, interfaces
//! and faults.
//!
//! Each test builds its own network (`ingress_lab`) and removes it. They need root and a kernel from 5.9 on, those of
//! `rewrite` 5.18. Without root or sk_lookup they are skipped loudly, and `REQUIRE_KERNEL=1` makes that an error. Run
//! them one after the other (`--test-threads=1`) when the printed figures matter.
#![allow(clippy::panic, clippy::print_stdout, reason = "helpers of tests may fail a test and print its figures")]

mod balance;
mod changes;
mod combinations;
mod deny;
mod earlier;
mod escalation;
mod faults;
mod fragments;
mod full;
mod gateway_addresses;
mod gateway_listeners;
mod gateway_moves;
mod generation;
mod handover;
mod health;
mod http3;
mod http3_client;
mod http3_flood;
mod http3_release;
mod inputs;
mod inspect;
mod leaving;
mod lifecycle;
mod limits;
mod names;
mod net;
mod nics;
mod offload;
mod pins;
mod rewrite;
mod shift;
mod steering;
mod syn_cookies;
mod tcp_services;
mod transmit;
mod udp_services;
