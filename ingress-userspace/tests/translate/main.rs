//! Translations of whole clusters: those that are written down beside this file, what is too large for one, and laws
//! that hold for any.
#![cfg(feature = "control")]
#![allow(clippy::panic, reason = "helpers of tests may fail a test")]

mod bounds;
mod case;
mod changes;
mod golden;
mod laws;
mod objects;
