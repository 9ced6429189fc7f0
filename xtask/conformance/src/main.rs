//! The command line of the lane `gateway` of the tests, and of `cargo xtask ingress-conformance`, which the door starts.

use std::process::ExitCode;

use clap::Subcommand;
use xtask_conformance::{ingress, lane};
use xtask_tools::command_line;

#[derive(Debug, Subcommand)]
enum Command {
    #[command(after_help = lane::AFTER_HELP)]
    Lane(lane::Args),
    #[command(after_help = ingress::AFTER_HELP)]
    IngressConformance(ingress::Args),
}

fn main() -> ExitCode {
    command_line::run("Run the conformance tests of Gateway API, or those for Ingress", |command| match command {
        Command::Lane(args) => lane::run(&args),
        Command::IngressConformance(args) => ingress::run(&args),
    })
}
