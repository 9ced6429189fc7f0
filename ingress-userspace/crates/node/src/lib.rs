//! The process of xdp-ingress on a node: its command line, `run`, which puts control, proxy and datapath together, and
//! the commands that read the pins or the process of a node.
//!
//! It takes no part in a request. So it is a crate of its own, which releases compile for size (`[profile.release.package]`
//! of the workspace). The program of `ingress-userspace` is [`main`] and an allocator.
#![forbid(unsafe_code)]

mod commands;
mod config;
mod daemon;
mod node;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};
use ingress_cli::{
    check, configuration,
    palette::{self, Palette, Tone},
    program, shadow,
};
use ingress_control::migration::Flag;
use nix::sys::{
    prctl,
    resource::{Resource, getrlimit, setrlimit},
};

use crate::{
    commands::{clients, debug, deny, migrate, probe, status, top, unload},
    config::{
        cli::{self, Cli, Command, foreign},
        settings::{RunSettings, SettingsError},
    },
    daemon::{privileges, telemetry},
};

/// Does what the command line says, and returns the exit code.
pub fn main() -> ExitCode {
    let arguments = foreign::without_empty(std::env::args_os());
    let matches = cli::command().color(palette::of_help()).get_matches_from(arguments);
    let foreign_flags = matches.subcommand_matches("run").map(foreign::given).unwrap_or_default();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match dispatch(cli.command, &foreign_flags) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{}", Palette::of_stderr().paint(Tone::Error, &format!("xdp-ingress: {error:#}")));
            // Contradictory options are wrong usage, like unknown ones, for which clap exits with 2.
            if error.is::<SettingsError>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

fn dispatch(command: Command, foreign_flags: &[&'static Flag]) -> anyhow::Result<ExitCode> {
    match command {
        Command::Routes(args) => return configuration::routes(*args),
        Command::Problems(args) => return configuration::problems(*args),
        Command::Certs(args) => return configuration::certs(*args),
        Command::Explain(args) => return configuration::explain(*args),
        Command::Check(args) => return check::check(*args),
        Command::Shadow(args) => return shadow::shadow(&args),
        Command::Debug(command) => debug::run(command),
        Command::Version(args) => program::version(args),
        Command::Completion(args) => program::completion(args, Cli::command()),
        Command::Man(args) => program::man(&args, Cli::command()),
        Command::Run(args) => {
            // Runs before any possible key is read.
            privileges::hide_memory()?;
            let settings = RunSettings::resolve(*args)?;
            telemetry::init(&settings.log, settings.log_format)?;
            foreign::report(foreign_flags);
            ingress_panics::install();
            raise_descriptor_limit();
            refuse_huge_pages();
            daemon::run(settings)
        }
        Command::Probe(args) => Ok(probe::run(args)?),
        Command::Deny(command) => return deny::run(command),
        Command::Migrate(command) => return migrate::run(command),
        Command::Clients(args) => clients::run(args),
        Command::Top(args) => top::run(args),
        Command::Status(args) => return status::run(args),
        Command::Unload(args) => unload::run(args),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Raises the soft limit of descriptors to the hard one. A proxy needs two per request in flight; the usual soft limit
/// of 1,024 is a relic of select(2).
fn raise_descriptor_limit() {
    let raised =
        getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit of file descriptors; raise `ulimit -n`, or few connections fit");
    }
}

/// Asks for memory in pages of 4 KiB only. In pages of 2 MiB, which the kernel otherwise gives where it can, a table of
/// 5,000 routes takes 40 % more memory, and requests take the same CPU (ADR 0033).
fn refuse_huge_pages() {
    if let Err(error) = prctl::set_thp_disable(true) {
        tracing::info!(%error, "the kernel may use transparent huge pages; the process takes more memory with them");
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::prctl;

    #[test]
    fn the_process_refuses_huge_pages() {
        // The parent may have refused them, too.
        prctl::set_thp_disable(false).unwrap();
        super::refuse_huge_pages();
        assert!(prctl::get_thp_disable().unwrap());
    }
}
