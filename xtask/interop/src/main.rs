//! The lane `interop` of the tests, which the door starts.

use std::process::ExitCode;

use clap::Subcommand;
use xtask_interop::lane;
use xtask_tools::command_line;

#[derive(Debug, Subcommand)]
enum Command {
    #[command(after_help = lane::AFTER_HELP)]
    Lane(lane::Args),
}

fn main() -> ExitCode {
    command_line::run("Ask xdp-ingress by HTTP/3 with clients from elsewhere", |command| match command {
        Command::Lane(args) => lane::run(&args),
    })
}
