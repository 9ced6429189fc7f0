//! Asks the other nodes whether they serve an object, and says so in its status.
//!
//! ```text
//!  leader                                          every replica
//!  plan ── judge ──> inquiry <── peers (pods)
//!    ^                 │  ^
//!    └── decided ──────┘  └── ask ══ datagrams ══> answer ── StatusInput
//! ```
//!
//! `inquiry` is pure: it knows the questions that are open, and decides. The leader asks only while something is
//! undecided or unconfirmed. A datagram has no right: it proves that its receiver is at the address to which the
//! question went, and no more (ADR 0061).

mod answer;
mod ask;
mod inquiry;
mod open;
mod pace;
mod queue;
mod served;
mod wire;

pub(in crate::status) use answer::answer;
pub(super) use ask::{SharedInquiry, ask_nodes};
pub(super) use served::{Knowledge, Need, is_served, need, with_served, with_shown};

#[cfg(test)]
pub(super) use inquiry::{BOUND, Inquiry};

#[cfg(test)]
mod tests;
