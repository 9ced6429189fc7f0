//! The command line of `cargo xtask`: declares the commands and passes each to the module that implements it.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::{bench, check, cluster, demo, fuzz, kernels, soak, test_lanes};
use xtask_image as image;
use xtask_setup::build;

const AFTER_HELP: &str = "\
Every command first makes sure that what it needs is installed (see `cargo xtask setup --help`).

Exit codes:
  0  everything asked for was done
  1  something failed; the last lines say what and what to do
  2  the command line was not understood

Examples:
  cargo xtask demo --once        # build everything and see it work
  cargo xtask check              # what CI checks before it tests
  cargo xtask test               # everything that can be tested on one machine
  cargo xtask test unit          # seconds, needs no privileges";

/// Build, test, show and measure xdp-ingress
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(after_help = xtask_setup::AFTER_HELP)]
    Setup(xtask_setup::Args),
    #[command(after_help = build::AFTER_HELP)]
    Build(build::Args),
    #[command(after_help = build::AFTER_HELP_EBPF)]
    BuildEbpf(build::EbpfArgs),
    #[command(after_help = check::AFTER_HELP)]
    Check(check::Args),
    #[command(after_help = test_lanes::AFTER_HELP)]
    Test(test_lanes::Args),
    /// Show xdp-ingress at work on this machine: namespaces, XDP, the proxy, real requests, per-host counts
    Demo(demo::Args),
    #[command(after_help = image::AFTER_HELP)]
    Image(image::Args),
    #[command(after_help = cluster::AFTER_HELP)]
    Cluster(cluster::Args),
    Bench(bench::Args),
    /// Run the load of all cases on a build that counts its branches
    #[command(hide = true)]
    Train {
        binary: std::path::PathBuf,
    },
    Profile(bench::profile::Args),
    Soak(soak::Args),
    Fuzz(fuzz::Args),
    #[command(after_help = kernels::AFTER_HELP)]
    Kernels(kernels::Args),
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    match &cli.command {
        Command::Setup(args) => xtask_setup::run(args),
        Command::Build(args) => build::run(args),
        Command::BuildEbpf(args) => build::run_ebpf(args),
        Command::Check(args) => check::run(args),
        Command::Test(args) => test_lanes::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Image(args) => image::run(args),
        Command::Cluster(args) => cluster::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Train { binary } => bench::train(binary),
        Command::Profile(args) => bench::profile::run(args),
        Command::Soak(args) => soak::run(args),
        Command::Fuzz(args) => fuzz::run(args),
        Command::Kernels(args) => kernels::run(args),
    }
}
