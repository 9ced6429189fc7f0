//! The command line of the lane `gateway` of the tests, which the door starts.

use std::process::ExitCode;

use clap::Subcommand;
use xtask_conformance::lane;
use xtask_tools::command_line;

#[derive(Debug, Subcommand)]
enum Command {
    #[command(after_help = lane::AFTER_HELP)]
    Lane(lane::Args),
}

fn main() -> ExitCode {
    command_line::run("Run the conformance tests of Gateway API", |Command::Lane(args)| lane::run(&args))
}
