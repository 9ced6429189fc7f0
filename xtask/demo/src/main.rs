//! The command line of `cargo xtask demo`, which the door starts, and of its question to this machine before the lane
//! `kernel` of the tests.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ingress_lab::capability;
use xtask_tools::summary::{Outcome, ended};

/// Show xdp-ingress at work
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show xdp-ingress at work on this machine: namespaces, XDP, the proxy, real requests, per-host counts
    Demo(xtask_demo::Args),
    /// Ask whether this machine has what the kernel part needs
    Capable {
        /// The command that needs it
        purpose: String,
    },
}

fn main() -> ExitCode {
    ended(match &Cli::parse().command {
        Command::Demo(args) => xtask_demo::run(args).map(|()| Outcome::Passed),
        Command::Capable { purpose } => capability::required_or_skip(purpose).map(|is_capable| {
            if is_capable { Outcome::Passed } else { Outcome::Skipped(format!("`{purpose}`, see above")) }
        }),
    })
}
