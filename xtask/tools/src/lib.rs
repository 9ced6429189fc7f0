//! Basics of the tooling: its command lines, programs that run with a time-out and progress, tables of results, and the paths of the work
//! tree. This crate is not part of the product.
#![allow(clippy::print_stdout, reason = "a command-line tool talks on its standard output")]

pub mod cargo_test;
pub mod command_line;
pub mod process;
pub mod progress;
pub mod published;
pub mod summary;
pub mod workspace;

use std::{
    io,
    net::{Ipv4Addr, TcpListener},
};

/// Returns ports of 127.0.0.1 that were free at the same time, for programs that listen on ports given to them.
///
/// # Errors
/// Fails if the kernel has no free port left.
pub fn free_ports<const N: usize>() -> io::Result<[u16; N]> {
    let mut listeners = Vec::with_capacity(N);
    for _ in 0..N {
        listeners.push(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
    }
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}
