//! The modules behind `cargo xtask`: preparing a machine, building, checking, testing, showing and measuring.
//! This crate is not part of the product.
#![allow(clippy::print_stdout, reason = "a command-line tool talks on its standard output")]

pub mod check;
pub mod fuzz;
pub mod test_lanes;
