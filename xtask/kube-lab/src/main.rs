//! The command line of `cargo xtask cluster`, which the door starts, and of the lane `cluster` of its tests.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask_kube_lab::lane;
use xtask_tools::summary::{Outcome, ended};

/// Run a real Kubernetes
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(after_help = xtask_kube_lab::AFTER_HELP)]
    Cluster(xtask_kube_lab::Args),
    /// Install the product in a cluster and test it there
    Lane {
        /// Arguments for the test programs
        #[arg(last = true)]
        pass_on: Vec<String>,
    },
}

fn main() -> ExitCode {
    ended(match &Cli::parse().command {
        Command::Cluster(args) => xtask_kube_lab::run(args).map(|()| Outcome::Passed),
        Command::Lane { pass_on } => lane::run(pass_on),
    })
}
