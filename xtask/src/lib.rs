//! The lanes of `cargo xtask test`. The other commands are in crates below this one.
//! This crate is not part of the product.
#![allow(clippy::print_stdout, reason = "a command-line tool talks on its standard output")]

pub mod test_lanes;
