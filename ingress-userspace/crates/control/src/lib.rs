//! Reads Kubernetes objects and translates them into a route table. It is independent of the proxy and the kernel part,
//! and publishes nothing itself.
//!
//! ```text
//! source::manifests (files) ─┐                                        ┌─> RouteTable ────────┐
//!                            ├─ Batch ─> watch ─> Cluster ─ translate ┤                      ├─> publish(Translation)
//! source::kube (API server) ─┘                                        └─> Outcomes ──────────┘
//!                                           └─> status: addresses and events, back to the API server
//! ```
//!
//! [`run`] is the entry point; [`translate`](translate::translate) is its pure core. A problem with an object never
//! stops the translation: it becomes an [`Outcome`] that names the object, the reason and the remedy.
#![forbid(unsafe_code)]

pub mod access_review;
mod address_pool;
pub mod boolean;
pub mod change;
mod clock;
pub mod cluster;
mod contact;
mod controller_names;
mod error;
pub mod gateway;
mod hash;
pub mod held_secret;
pub mod migration;
pub mod namespace;
pub mod node_right;
mod object;
pub mod object_status;
mod options;
pub mod outcome;
pub mod reference_grant;
pub mod saved;
pub mod service;
pub mod slice;
pub mod source;
pub mod status;
pub mod translate;
mod verdict;
mod watch;
mod wire_object;

pub use address_pool::{AddressPool, InvalidPool};
pub use contact::Contact;
pub use error::SourceError;
pub use hash::fnv;
pub use ingress_model::duration;
pub use options::{Options, SourceConfig};
pub use outcome::{ObjectRef, Origin, Outcome, Reason, Severity};
pub use source::kube::KubernetesConfig;
pub use translate::{Classes, Translation};
pub use watch::run;

/// UDP port of the replicas among themselves: the leader asks others whether they serve an object, and announcers of
/// addresses speak to groups of their links. Firewalls need one rule for both. No UDP service or listener may have it.
pub const NODES_PORT: u16 = 9111;
