//! The command line of `cargo xtask cluster`, which the door starts, and of the lane `cluster` of its tests.

use std::process::ExitCode;

use clap::Subcommand;
use xtask_kube_lab::lane;
use xtask_tools::command_line;
use xtask_tools::summary::Outcome;

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
    command_line::run("Run a real Kubernetes", |command| match &command {
        Command::Cluster(args) => xtask_kube_lab::run(args).map(|()| Outcome::Passed),
        Command::Lane { pass_on } => lane::run(pass_on),
    })
}
