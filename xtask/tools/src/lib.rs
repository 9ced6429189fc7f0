//! Basics of the tooling: its command lines, programs that run with a time-out and progress, tables of results, and the paths of the work
//! tree. This crate is not part of the product.
#![allow(clippy::print_stdout, reason = "a command-line tool talks on its standard output")]

pub mod command_line;
pub mod process;
pub mod progress;
pub mod published;
pub mod summary;
pub mod workspace;
