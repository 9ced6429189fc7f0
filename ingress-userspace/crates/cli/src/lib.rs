//! Commands of xdp-ingress that need neither its kernel part nor its proxy, as a library.
//!
//! ```text
//! options ──> configuration ──> tables, JSON, YAML ──> print
//!                  ▲
//!                  └── a process, a directory or a cluster
//! ```
//!
//! The node binary offers them beside its own commands. Counters (`reading`, `top`) are shown here, and read elsewhere.
#![forbid(unsafe_code)]

pub mod configuration;
pub mod counters;
pub mod options;
pub mod print;
pub mod program;
pub mod reading;
pub mod top;

/// Exit code of commands that have found what `--exit-code` asks about.
pub const FINDINGS: u8 = 3;
