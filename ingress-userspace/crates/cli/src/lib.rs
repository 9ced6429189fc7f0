//! Commands of xdp-ingress that need neither its kernel part nor its proxy.
//!
//! ```text
//! options ──> configuration ──> tables, JSON, YAML ──> print
//!                  ▲
//!                  ├── a process, a directory or a cluster
//!                  └── plugin: the pods of a cluster, by port-forward
//! ```
//!
//! The node binary has these commands beside its own, and `kubectl-xdp_ingress` those of [`plugin`]. Counters (`reading`,
//! `top`) are shown here; the node binary reads them from the kernel's maps, and the plugin from the API of the pods.
#![forbid(unsafe_code)]

pub mod bundle;
pub mod check;
pub mod configuration;
pub mod counters;
pub mod duration;
pub mod gateway;
pub mod migrate;
pub mod options;
pub mod palette;
#[cfg(feature = "plugin")]
pub mod plugin;
pub mod print;
pub mod program;
pub mod reading;
pub mod shadow;
pub mod table;
pub mod top;

/// Exit code of commands that have found what `--exit-code` asks about.
pub const FINDINGS: u8 = 3;
