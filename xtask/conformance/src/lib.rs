//! The conformance tests that Gateway API and Kubernetes publish, against the product in a real Kubernetes
//! (`xtask_kube_lab`), from a client outside of it.
//!
//! ```text
//! suite ── the test program, custom resources and names of tests, built from `suite/go.mod` into the cache
//! echo ── the pods' image, built from `echo/go.mod`
//! install ── custom resources, images and the product (`product/`) in the cluster
//! run ── the program in the client's network ── output ── a verdict for each test
//! lane ── all of this in order; every test must pass
//! ingress ── the same for the tests for Ingress, with sources that the user names or Go fetches
//! ```
#![allow(clippy::print_stdout, reason = "a command-line tool talks on its standard output")]

mod echo;
pub mod ingress;
mod install;
pub mod lane;
mod output;
mod run;
mod suite;
