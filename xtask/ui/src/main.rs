//! The program of the lane `ui` of `cargo xtask test`, which the door starts.

use std::process::ExitCode;

use clap::Subcommand;
use xtask_tools::command_line;
use xtask_ui::lane;

#[derive(Debug, Subcommand)]
enum Command {
    /// Test the dashboard in a browser
    Lane {
        /// Arguments for the test programs
        #[arg(last = true)]
        pass_on: Vec<String>,
    },
}

fn main() -> ExitCode {
    command_line::run("Look at the dashboard of xdp-ingress", |Command::Lane { pass_on }| lane::run(&pass_on))
}
