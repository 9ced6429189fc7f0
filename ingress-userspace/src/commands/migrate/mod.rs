//! `xdp-ingress migrate`: leaves another ingress controller step by step, and goes back.

pub(crate) mod arguments;
mod listeners;
mod shift;
mod watch;

use arguments::MigrateCommand;

/// Runs a command of the migration.
///
/// # Errors
/// Fails like the command.
pub(crate) fn run(command: MigrateCommand) -> anyhow::Result<()> {
    match command {
        MigrateCommand::Shift(args) => shift::run(args),
    }
}
