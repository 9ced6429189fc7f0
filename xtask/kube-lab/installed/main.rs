//! The product as installed, in a real Kubernetes of two nodes (`xtask_kube_lab`), with a client outside of it.
//!
//! `cargo xtask test cluster` creates the cluster, builds the images and installs them by the scripts that VMs use. The
//! tests here find all that and skip loudly where it is missing (`REQUIRE_KUBE=1` makes that an error). Each test has a
//! Kubernetes namespace of its own. Tests that change shared state hold the stage alone.
#![allow(clippy::panic, clippy::print_stdout, reason = "helpers of tests may fail a test and print its figures")]

mod api_access;
mod changes;
mod chart_values;
mod class;
mod conformance;
mod events;
mod faults;
mod gateway;
mod namespaces;
mod objects;
mod packaging;
mod pins;
mod plugin;
mod quick_start;
mod rbac;
mod reader;
mod release;
mod scale;
mod services;
mod stage;
mod status;
mod troubleshooting;
mod watches;
