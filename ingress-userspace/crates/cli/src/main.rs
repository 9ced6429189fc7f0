//! `kubectl-xdp_ingress`, which kubectl runs as `kubectl xdp-ingress`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ingress_cli::plugin::main()
}
