//! The command line of a crate of the tooling. Each has the name of `cargo xtask`, which passes its own command line on.

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::summary::{Outcome, ended};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli<C: Subcommand> {
    #[command(subcommand)]
    command: C,
}

/// Parses the command line of this process and runs its command. `about` is the first line of the help.
///
/// Without a valid command, the process ends here, with the help or an error.
pub fn run<C: Subcommand>(about: &'static str, work: impl FnOnce(C) -> Result<Outcome>) -> ExitCode {
    let mut program = Cli::<C>::command().about(about);
    let parsed = Cli::from_arg_matches(&program.get_matches_mut());
    let Cli { command } = parsed.unwrap_or_else(|error| error.format(&mut program).exit());
    ended(work(command))
}
