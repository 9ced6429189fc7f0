//! The commands besides `run` that need the kernel part or a process of this node.
//!
//! - `top`, `status`, `clients`, `deny` and `unload` inspect or change a node by its pinned maps. They need no running
//!   process.
//! - `migrate` changes the share of the clients of a node in the same way.
//! - `probe` asks a process for its health.
//! - `debug` collects what a bug report needs.
//!
//! The commands about a configuration and about the program are in `ingress_cli`.

pub(crate) mod arguments;
pub(crate) mod clients;
pub(crate) mod debug;
pub(crate) mod deny;
pub(crate) mod migrate;
pub(crate) mod probe;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod unload;
