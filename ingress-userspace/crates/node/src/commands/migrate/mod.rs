//! `xdp-ingress migrate`: leaves another ingress controller step by step, and goes back.

pub(crate) mod arguments;
mod condition;
mod histogram;
mod latency;
mod listeners;
mod shift;
mod watch;

use std::process::ExitCode;

use arguments::MigrateCommand;
use ingress_cli::gateway::gateway;
use ingress_cli::migrate::{plan, values};

/// Runs a command of the migration.
///
/// # Errors
/// Fails like the command.
pub(crate) fn run(command: MigrateCommand) -> anyhow::Result<ExitCode> {
    match command {
        MigrateCommand::Plan(args) => plan(&args),
        MigrateCommand::Values(args) => values(&args),
        MigrateCommand::Shift(args) => shift::run(*args).map(|()| ExitCode::SUCCESS),
        MigrateCommand::Gateway(args) => gateway(*args),
    }
}
