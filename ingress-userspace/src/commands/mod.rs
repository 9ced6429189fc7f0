//! The commands that inspect or change a node from outside of the serving process: `top`, `status`, `clients`, `deny`,
//! `probe`, and `unload`. All but `probe` work on the pinned maps, so they need no running process.

pub(crate) mod arguments;
pub(crate) mod clients;
pub(crate) mod deny;
mod print;
pub(crate) mod probe;
mod reading;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod unload;
