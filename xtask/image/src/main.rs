//! The command line of `cargo xtask image`, which the door starts.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask_tools::summary::{Outcome, ended};

/// Make the images of xdp-ingress
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(after_help = xtask_image::AFTER_HELP)]
    Image(xtask_image::Args),
}

fn main() -> ExitCode {
    let Command::Image(args) = &Cli::parse().command;
    ended(xtask_image::run(args).map(|()| Outcome::Passed))
}
