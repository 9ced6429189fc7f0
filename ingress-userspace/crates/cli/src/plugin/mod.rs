//! `kubectl xdp-ingress`: the commands of a node, over all nodes of a cluster.
//!
//! ```text
//! kubeconfig ─▶ pods ─▶ fleet ─▶ /api/v1 of each pod ─▶ merge ─▶ configuration, top, status ─▶ print
//! ```
//!
//! `fleet` finds the pods of the DaemonSet and asks each of them through a port that the API server forwards, so that the
//! rights of the user decide. Nothing is written to the cluster.

mod arguments;
mod dashboard;
mod debug;
mod fleet;
mod logs;
mod merge;
mod pods;
mod status;
mod top;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{CommandFactory as _, FromArgMatches as _};
use ingress_inspect::{CertificateDocument, Explanation, ProblemDocument, RouteDocument, RouteFilter};

pub use arguments::Cli;
use arguments::{Command, DebugCommand, MigrateCommand};
use fleet::{Answered, Fleet, warn};
use merge::Merged;

use crate::{
    check,
    configuration::{self, Configuration},
    gateway, migrate,
    palette::{self, Tone},
    program, shadow,
};

/// Parses the command line of this process and runs its command. Returns the exit code of the process.
#[must_use]
pub fn main() -> ExitCode {
    let matches = Cli::command().color(palette::of_help()).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    dispatch(cli.command).unwrap_or_else(|error| {
        warn(format_args!("kubectl-xdp_ingress: {error:#}"), Tone::Error);
        ExitCode::FAILURE
    })
}

fn dispatch(command: Command) -> Result<ExitCode> {
    match command {
        Command::Completion(args) => program::completion(args, Cli::command())?,
        Command::Man(args) => program::man(&args, Cli::command())?,
        Command::Status(args) => {
            return with(args.installation.clone(), |fleet| status::run(fleet, &args));
        }
        Command::Version(args) => {
            return with(args.installation.clone(), |fleet| done(status::version(fleet, &args)));
        }
        Command::Top(args) => return with(args.installation.clone(), |fleet| done(top::run(fleet, args))),
        Command::Routes(args) => {
            return with(args.installation, |fleet| configuration::show_routes(fleet, args.selection, &args.output));
        }
        Command::Problems(args) => {
            return with(args.installation, |fleet| configuration::show_problems(fleet, &args.selection, &args.output));
        }
        Command::Certs(args) => {
            return with(args.installation, |fleet| {
                configuration::show_certificates(fleet, &args.selection, &args.output)
            });
        }
        Command::Explain(args) => {
            return with(args.installation, |fleet| configuration::show_explanation(fleet, &args.url, &args.output));
        }
        Command::Check(args) => return check::check(args),
        Command::Shadow(args) => return shadow::shadow(&args),
        Command::Migrate(MigrateCommand::Plan(args)) => return migrate::plan(&args),
        Command::Migrate(MigrateCommand::Values(args)) => return migrate::values(&args),
        Command::Migrate(MigrateCommand::Gateway(args)) => return gateway::gateway(*args),
        Command::Dashboard(args) => {
            return with(args.installation.clone(), |fleet| done(dashboard::run(fleet, &args)));
        }
        Command::Logs(args) => return with(args.installation.clone(), |fleet| done(logs::run(fleet, &args))),
        Command::Debug(command) => {
            let DebugCommand::Bundle(args) = &command;
            return with(args.installation.clone(), |fleet| done(debug::run(fleet, &command)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `command` on the pods of an installation. A pod without an answer makes it fail in the end.
fn with(
    installation: impl Into<arguments::InstallationArgs>,
    command: impl FnOnce(&Fleet) -> Result<ExitCode>,
) -> Result<ExitCode> {
    let fleet = Fleet::of(installation)?;
    let code = command(&fleet)?;
    Ok(if fleet.is_complete() { code } else { ExitCode::FAILURE })
}

fn done(result: Result<()>) -> Result<ExitCode> {
    result.map(|()| ExitCode::SUCCESS)
}

impl Configuration for Fleet {
    fn routes(&self, filter: &RouteFilter) -> Result<Vec<RouteDocument>> {
        let answers = self.list("routes", &configuration::parameters(filter))?;
        Ok(told(merge::routes(by_node(answers))))
    }

    fn problems(&self) -> Result<Vec<ProblemDocument>> {
        let answers = self.list("problems", &[])?;
        Ok(merge::problems(answers.into_iter().map(|(_, problems)| problems).collect()))
    }

    fn certificates(&self) -> Result<Vec<CertificateDocument>> {
        let answers = self.list("certificates", &[])?;
        Ok(merge::certificates(answers.into_iter().map(|(_, certificates)| certificates).collect()))
    }

    fn explain(&self, url: &str) -> Result<Explanation> {
        let answers = self.ask(async |mut connection| {
            let explanation = connection.one("explain", &[("url", url)]).await?;
            Ok(serde_json::from_value::<Explanation>(explanation)?)
        })?;
        merge::explanations(by_node(answers)).map(told).context("no pod has answered")
    }
}

fn by_node<T>(answers: Vec<Answered<T>>) -> Vec<(String, T)> {
    answers.into_iter().map(|(pod, answer)| (pod.node, answer)).collect()
}

/// Returns the merged answer, and tells what differs on standard error.
fn told<T>(Merged { value, difference }: Merged<T>) -> T {
    if let Some(difference) = difference {
        warn(format_args!("nodes differ: {difference}; see `--node`"), Tone::Warning);
    }
    value
}
