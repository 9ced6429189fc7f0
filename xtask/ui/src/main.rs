//! The command line of `cargo xtask shots` and `cargo xtask ui-figures`, which the door starts, and of the lane `ui` of
//! its tests.

use std::process::ExitCode;

use clap::Subcommand;
use xtask_tools::command_line;
use xtask_tools::summary::Outcome;
use xtask_ui::{figures, lane, shots};

#[derive(Debug, Subcommand)]
enum Command {
    #[command(after_help = shots::AFTER_HELP)]
    Shots(shots::Args),
    #[command(after_help = figures::AFTER_HELP)]
    UiFigures(figures::Args),
    /// Test the dashboard in a browser
    Lane {
        /// Arguments for the test programs
        #[arg(last = true)]
        pass_on: Vec<String>,
    },
}

fn main() -> ExitCode {
    command_line::run("Look at the dashboard of xdp-ingress", |command| match &command {
        Command::Shots(args) => shots::run(args).map(|()| Outcome::Passed),
        Command::UiFigures(args) => figures::run(args).map(|()| Outcome::Passed),
        Command::Lane { pass_on } => lane::run(pass_on),
    })
}
