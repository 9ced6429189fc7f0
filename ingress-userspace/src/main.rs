//! The `xdp-ingress` binary: reads the command line and hands over.
#![forbid(unsafe_code)]

mod admin;
mod app;
mod config;
mod node;
mod telemetry;

use std::process::ExitCode;

use clap::Parser;
use ingress_userspace::datapath;

use crate::config::{
    cli::{Cli, Command, UnloadArgs},
    settings::Settings,
};

fn main() -> ExitCode {
    match dispatch(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xdp-ingress: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Run(args) => {
            let settings = Settings::resolve(*args)?;
            telemetry::init(&settings.log, settings.log_format)?;
            app::run(settings)
        }
        Command::Unload(UnloadArgs { bpffs }) => {
            let removed = datapath::unload(&bpffs)?;
            if removed.is_empty() {
                eprintln!("nothing of xdp-ingress is pinned under {}", bpffs.display());
            }
            for pin in removed {
                eprintln!("removed {pin}");
            }
            Ok(())
        }
    }
}
