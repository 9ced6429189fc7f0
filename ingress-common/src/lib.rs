//! The kernel–user ABI of xdp-ingress: the contents of the BPF maps, byte for byte, and the meaning of each value.
//!
//! Every struct here is `repr(C)`, made of integers with explicit padding, and has its size asserted at compile time.
//! Enums, `bool` and `Option` never cross the boundary. The kernel programs and userspace compile the same file, so a
//! layout cannot drift between them. [`map::LAYOUT`] names the layout as a whole and is part of the pin path, so that
//! two versions never share a map.
//!
//! This crate contains only pure functions that both sides must agree on ([`steer`]), and no other logic.
#![no_std]

pub mod counters;
pub mod denial;
pub mod flow;
pub mod limit;
pub mod map;
pub mod quic;
pub mod share;
pub mod sizes;
pub mod steer;
pub mod syn_cookies;
mod text;

pub use counters::{HostL7, HostL7Cell, HostNet, NicNet, Requests, StatusClass, Total, Traffic};
pub use denial::{DenialKey, DenialReason, DenialValue};
pub use flow::{Flow, FlowKey, HostName, RawHostId};
pub use limit::{Bucket, ClientEntry, ClientKey, LimitBuckets};
#[cfg(not(target_arch = "bpf"))]
pub use quic::QuicCell;
pub use quic::QuicState;
pub use share::Share;
pub use steer::{
    Alive, DenyKey4, DenyKey6, DenyRule, DenyVerdict, Handoff, HandoffEntry, Move, MoveKey, Nic, NicMac, NodeAddr,
    PortKey, PortRule, WorkerCell, WorkerLoad,
};
pub use syn_cookies::{SynCookies, SynFlood, SynStamp};

#[cfg(feature = "user")]
mod pod;
