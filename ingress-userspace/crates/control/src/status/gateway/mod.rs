//! Statuses of the Gateway API: conditions, listeners and addresses, as translated. This module derives no status. It
//! also keeps the Services of Gateways, if asked to, and finds what conditions tell as events.
//!
//! ```text
//! Translation.statuses ─┐
//!             addresses ┼─> plan ── patch ──> writer ──> …/status
//!   objects as they are │    ^                   │
//!    answers of `nodes` ┘    └──── attempts <────┘
//! ```
//!
//! Lists with keys, such as the conditions of a Gateway, are written by server-side apply, which leaves the entries of
//! other writers alone. The lists of routes and policies have no keys, and several controllers share them. Apply would
//! erase the entries of others, so these lists are changed by a JSON merge patch of the list alone, which the server
//! refuses if the object has changed since it was read. A replacement of the object (PUT) would need a verb more, and
//! would drop fields of the status that this release does not know.

mod addresses;
mod attempts;
mod bearer;
mod conditions;
mod infrastructure;
mod nodes;
mod patch;
mod plan;
mod refusals;
mod shared_list;
mod writer;

pub(super) use infrastructure::keep as keep_services;
pub(super) use nodes::answer;
pub(super) use writer::{bears_status, clear, keep};

#[cfg(test)]
mod tests;
