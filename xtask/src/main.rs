//! The command line of `cargo xtask`: declares the commands and passes each to the module that implements it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::process::{self, ExitCode};

use clap::{Parser, Subcommand};
use xtask::test_lanes;
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
    /// Check format, lints, walls between crates, docs, dependencies and spelling
    Check(Words),
    /// Build the site of the documentation, with search, into `target/book`
    Docs(Words),
    #[command(after_help = test_lanes::AFTER_HELP)]
    Test(test_lanes::Args),
    /// Show xdp-ingress at work on this machine: namespaces, XDP, the proxy, real requests, per-host counts
    Demo(Words),
    /// Make the product into a container image, without Docker, and the echo test server on demand
    Image(Words),
    /// Write images, chart, manifests, checksums, signatures and provenance into one directory, and push them
    Release(Words),
    /// Run a real Kubernetes on this machine, in namespaces
    Cluster(Words),
    /// Run the conformance tests for Ingress that Kubernetes publishes, in a real Kubernetes
    IngressConformance(Words),
    /// Measure the proxy beside nginx and haproxy, or with a subcommand something else
    Bench(Words),
    /// Count instructions and system calls per request, beside nginx
    Profile(Words),
    /// Test for faults that show only after hours, or with thousands of connections
    Soak(Words),
    /// Run the fuzz targets
    Fuzz(Words),
    /// Boot Debian's kernels in emulated machines and see the product steer there
    Kernels(Words),
    /// Take the pictures of the dashboard for the documentation
    Shots(Words),
    /// Measure the dashboard with 10,000 hosts
    UiFigures(Words),
}

/// Words for the program of another crate, which alone knows their meaning.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
struct Words {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

fn main() -> ExitCode {
    match run(&Cli::parse_from(help_last(env::args_os().collect()))) {
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
        Command::Check(_) | Command::Docs(_) | Command::Fuzz(_) => become_tool("xtask-check"),
        Command::Test(args) => test_lanes::run(args),
        Command::Demo(_) => become_tool("xtask-demo"),
        Command::Image(_) => become_tool("xtask-image"),
        Command::Release(_) => become_tool("xtask-release"),
        Command::Cluster(_) => become_tool("xtask-kube-lab"),
        Command::IngressConformance(_) => become_tool("xtask-conformance"),
        // Its help does not wait for an optimised build.
        Command::Bench(_) | Command::Profile(_) | Command::Soak(_) => {
            become_program(if asks_for_help() { build::tool("xtask-bench")? } else { build::load_tool("xtask-bench")? })
        }
        Command::Kernels(_) => become_tool("xtask-kernels"),
        Command::Shots(_) | Command::UiFigures(_) => become_tool("xtask-ui"),
    }
}

/// Returns whether the command line asks for help.
fn asks_for_help() -> bool {
    help_last(env::args_os().collect()).iter().any(|word| word == "--help" || word == "-h")
}

/// Writes `help COMMAND` as `COMMAND --help`, which the program of another crate understands.
fn help_last(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.len() > 2 && words[1] == OsStr::new("help") {
        words.remove(1);
        words.push("--help".into());
    }
    words
}

/// Builds `package`, a crate of the tooling, and gives this process to its program, with the same command line. So its
/// exit code is that of this process, and signals reach it.
fn become_tool(package: &str) -> anyhow::Result<()> {
    become_program(build::tool(package)?)
}

/// Gives this process to the program of `command`, with the same command line.
fn become_program(mut command: process::Command) -> anyhow::Result<()> {
    let words = help_last(env::args_os().collect());
    let error = command.args(words.iter().skip(1)).exec();
    let program = command.get_program().display();
    Err(anyhow::Error::new(error).context(format!("cannot start `{program}`")))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn arguments_of_other_programs_are_passed_through() {
        Cli::command().debug_assert();
        for (text, expect) in
            [("bench --help", "--help"), ("bench kernel --flood", "kernel --flood"), ("soak -h", "-h")]
        {
            let Ok(Cli { command: Command::Bench(found) | Command::Soak(found) }) =
                Cli::try_parse_from(words(&format!("xtask {text}")))
            else {
                unreachable!("`{text}` is understood")
            };
            assert_eq!(found.words, words(expect), "{text}");
        }
    }

    #[test]
    fn help_about_a_command_is_the_help_of_its_program() {
        for (text, expect) in
            [("x help bench kernel", "x bench kernel --help"), ("x help", "x help"), ("x a help", "x a help")]
        {
            assert_eq!(help_last(words(text)), words(expect), "{text}");
        }
    }
}
