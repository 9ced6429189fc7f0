//! The commands besides `run`.
//!
//! - `top`, `status`, `clients`, `deny` and `unload` inspect or change a node by its pinned maps. They need no running
//!   process.
//! - `probe` asks a process for its health.
//! - `routes`, `problems`, `certs` and `explain` are about a configuration, see [`configuration`].
//! - `version`, `completion` and `man` are about the program, see [`command_line`].

/// Exit code of commands that have found what `--exit-code` asks about.
pub(crate) const FINDINGS: u8 = 3;

pub(crate) mod arguments;
pub(crate) mod clients;
pub(crate) mod command_line;
pub(crate) mod configuration;
pub(crate) mod deny;
mod print;
pub(crate) mod probe;
mod reading;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod unload;
