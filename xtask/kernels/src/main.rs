//! The command line of `cargo xtask kernels`, which the door starts, and of the lane `kernels` of its tests.

use std::process::ExitCode;

use clap::Subcommand;
use xtask_tools::command_line;
use xtask_tools::summary::Outcome;

#[derive(Debug, Subcommand)]
enum Command {
    #[command(after_help = xtask_kernels::AFTER_HELP)]
    Kernels(xtask_kernels::Args),
    /// Boot one kernel, with the program that other tests have built
    Lane,
}

fn main() -> ExitCode {
    command_line::run("Boot other kernels", |command| match &command {
        Command::Kernels(args) => xtask_kernels::run(args).map(|()| Outcome::Passed),
        Command::Lane if xtask_kernels::can_boot() => xtask_kernels::short().map(|()| Outcome::Passed),
        Command::Lane => Ok(Outcome::Skipped("machines are x86-64, for which this one does not build".to_owned())),
    })
}
