//! Commands of xdp-ingress that need neither its kernel part nor its proxy.
//!
//! ```text
//! options ──> configuration ──> tables, JSON, YAML ──> print
//!                  ▲
//!                  └── a process, a directory or a cluster
//! ```
//!
//! The node binary has these commands beside its own. Counters (`reading`, `top`) are shown here, and read elsewhere.
#![forbid(unsafe_code)]

pub mod bundle;
pub mod configuration;
pub mod counters;
pub mod duration;
pub mod options;
pub mod palette;
pub mod print;
pub mod program;
pub mod reading;
pub mod table;
pub mod top;

/// Exit code of commands that have found what `--exit-code` asks about.
pub const FINDINGS: u8 = 3;
