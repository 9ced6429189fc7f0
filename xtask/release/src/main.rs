//! The command line of `cargo xtask release`, which the door starts.

use std::process::ExitCode;

use clap::Subcommand;
use xtask_tools::command_line;
use xtask_tools::summary::Outcome;

#[derive(Debug, Subcommand)]
enum Command {
    #[command(after_help = xtask_release::AFTER_HELP)]
    Release(xtask_release::Args),
}

fn main() -> ExitCode {
    command_line::run("Make a release of xdp-ingress", |Command::Release(args)| {
        xtask_release::run(&args).map(|()| Outcome::Passed)
    })
}
