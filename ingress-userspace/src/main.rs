//! The `xdp-ingress` binary: the crate `ingress-node`, and the allocator for all crates.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use mimalloc::MiMalloc;

#[cfg(not(panic = "unwind"))]
compile_error!("a panic would end every connection of the node; see `ingress_panics`");

/// mimalloc needs half the instructions of the C library's allocator on the request path. The free lists of the latter
/// are too short for the requests in flight on a worker (ADR 0033).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    ingress_node::main()
}
