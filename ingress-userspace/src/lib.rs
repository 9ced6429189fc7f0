//! xdp-ingress: a Kubernetes ingress controller with a data path that begins in the kernel.
//!
//! ```text
//! packet   NIC → XDP (address, port, count, choose worker) → sk_lookup → worker's listener
//! request  accept → TLS (SNI) → hyper → route → filters → pick endpoint → forward → per-host counters
//! control  source → Cluster → translate → RouteTable → compile → publish (one atomic swap)
//! ```
//!
//! `control`, `proxy` and `datapath` are features, so that the compiler keeps them apart. They only share [`ingress_model`],
//! and `app.rs` of the binary is the only file that sees all three. See ARCHITECTURE.md for an overview.
#![deny(unsafe_code)]

#[cfg(feature = "control")]
#[forbid(unsafe_code)]
pub mod control;
#[cfg(feature = "proxy")]
#[forbid(unsafe_code)]
pub mod proxy;
#[forbid(unsafe_code)]
mod random;
