//! The product as it is installed, in a real Kubernetes of two nodes (`xtask::cluster`), asked by a client outside of
//! it.
//!
//! `cargo xtask test cluster` makes the cluster, builds the images and installs them by the scripts that VMs use; the
//! tests here find all that and skip loudly where it is missing (`REQUIRE_KUBE=1` makes that an error). Each test has a
//! Kubernetes namespace of its own. Tests that change what all share hold the stage alone.
#![allow(clippy::panic, clippy::print_stdout, reason = "helpers of tests may fail a test and print its figures")]

mod changes;
mod class;
mod conformance;
mod events;
mod faults;
mod objects;
mod packaging;
mod rbac;
mod scale;
mod services;
mod stage;
mod status;
