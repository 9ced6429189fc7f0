//! Translations of whole clusters: the cases beside this file, objects that are too large, and laws that hold for any
//! cluster.
#![allow(clippy::panic, reason = "helpers of tests may fail a test")]

mod bounds;
mod case;
mod changes;
mod feud;
mod gateway_bad_input;
mod gateway_laws;
mod gateway_match_conflicts;
mod gateway_migration;
mod gateway_objects;
mod gateway_protection;
mod golden;
mod laws;
mod objects;
mod selection;
mod sharing;
