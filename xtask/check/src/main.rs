//! The command line of `cargo xtask check`, `cargo xtask docs` and `cargo xtask fuzz`, which the door starts.

use std::process::ExitCode;

use clap::Subcommand;
use xtask_check::{fuzz, monitoring, site};
use xtask_tools::command_line;
use xtask_tools::summary::Outcome;

#[derive(Debug, Subcommand)]
enum Command {
    #[command(after_help = xtask_check::AFTER_HELP)]
    Check(xtask_check::Args),
    #[command(after_help = site::AFTER_HELP)]
    Docs(site::Args),
    Fuzz(fuzz::Args),
    /// Run the lane `monitoring` of `cargo xtask test`
    #[command(hide = true)]
    Monitoring,
}

fn main() -> ExitCode {
    command_line::run("Check xdp-ingress", |command| match &command {
        Command::Check(args) => xtask_check::run(args).map(|()| Outcome::Passed),
        Command::Docs(args) => site::run(args).map(|()| Outcome::Passed),
        Command::Fuzz(args) => fuzz::run(args).map(|()| Outcome::Passed),
        Command::Monitoring => monitoring::lane(),
    })
}
