//! The command line of `cargo xtask demo`, which the door starts, and of its question to this machine before the lane
//! `kernel` of the tests.

use std::process::ExitCode;

use clap::Subcommand;
use ingress_lab::capability;
use xtask_tools::command_line;
use xtask_tools::summary::Outcome;

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
    command_line::run("Show xdp-ingress at work", |command| match &command {
        Command::Demo(args) => xtask_demo::run(args).map(|()| Outcome::Passed),
        Command::Capable { purpose } => capability::required_or_skip(purpose).map(|is_capable| {
            if is_capable { Outcome::Passed } else { Outcome::Skipped(format!("`{purpose}`, see above")) }
        }),
    })
}
