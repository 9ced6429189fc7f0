//! The command line of `cargo xtask image`, which the door starts.

use std::process::ExitCode;

use clap::Subcommand;
use xtask_tools::command_line;
use xtask_tools::summary::Outcome;

#[derive(Debug, Subcommand)]
enum Command {
    #[command(after_help = xtask_image::AFTER_HELP)]
    Image(xtask_image::Args),
}

fn main() -> ExitCode {
    command_line::run("Make the images of xdp-ingress", |Command::Image(args)| {
        xtask_image::run(&args).map(|()| Outcome::Passed)
    })
}
