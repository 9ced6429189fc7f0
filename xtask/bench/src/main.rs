//! The command line of `cargo xtask bench`, `profile` and `soak`, which the door starts, and of the training that a
//! guided build starts.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use xtask_bench::{profile, soak};
use xtask_tools::command_line;
use xtask_tools::summary::Outcome;

/// A faster allocator leaves more of the machine to the programs that are measured, above all beside the load of HTTP/3.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Subcommand)]
enum Command {
    Bench(xtask_bench::Args),
    Profile(profile::Args),
    Soak(soak::Args),
    /// Run the load of all cases on a build that counts its branches
    Train {
        /// The build
        binary: PathBuf,
    },
}

fn main() -> ExitCode {
    command_line::run("Measure xdp-ingress", |command| {
        match &command {
            Command::Bench(args) => xtask_bench::run(args),
            Command::Profile(args) => profile::run(args),
            Command::Soak(args) => soak::run(args),
            Command::Train { binary } => xtask_bench::train(binary),
        }
        .map(|()| Outcome::Passed)
    })
}
