//! `cargo xtask bench`, `profile` and `soak`: costs of the product, each measured beside those of others in the same rounds.
//!
//! ```text
//! proxy ── peers (the proxies, and the pod behind them) ┐
//!       ├─ load (wrk, h2load, http3, handshakes) ┐      ├─ report: ratios, verdicts ── record: docs/benchmarks.md
//!       └─ pace (a fixed rate) ──────── exchange ┴──────┘
//!            └ changes (routes, meanwhile)
//! routes, memory ── hosts (peers with many hosts, and their ways to receive changes)
//! kernel ── costs of the kernel part
//! profile ── instructions and system calls per request
//! subject ── the build of the product that is measured
//! training ── the load of all cases, to train a build
//! usage ── CPU time and memory of the measured processes
//! soak ── laws that only hours or thousands of connections break
//! ```
#![allow(clippy::print_stdout, reason = "a command-line tool talks on its standard output")]

mod case;
mod changes;
mod credentials;
mod exchange;
mod goal;
mod handshakes;
mod hosts;
mod http3;
mod kernel;
mod load;
mod machine;
mod memory;
mod network;
mod pace;
mod peers;
pub mod profile;
mod proxy;
mod record;
mod report;
mod routes;
pub mod soak;
mod subject;
mod training;
mod usage;

use self::case::Case;
pub use self::training::train;

/// Measure the proxy beside nginx and haproxy, or with a subcommand something else
#[derive(Debug, clap::Args)]
#[command(after_help = proxy::AFTER_HELP, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    scope: Option<Scope>,
    #[command(flatten)]
    proxy: proxy::Args,
}

/// Subject of the measurement; `proxy` by default.
#[derive(Debug, clap::Subcommand)]
enum Scope {
    Proxy(proxy::Args),
    Kernel(kernel::Args),
    Routes(routes::Args),
    Memory(memory::Args),
}

/// Runs the measurement and prints Markdown.
///
/// # Errors
/// Fails if a required program is unavailable, or a peer does not start.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.scope {
        None => proxy::run(&args.proxy),
        Some(Scope::Proxy(args)) => proxy::run(args),
        Some(Scope::Kernel(args)) => kernel::run(args),
        Some(Scope::Routes(args)) => routes::run(args),
        Some(Scope::Memory(args)) => memory::run(args),
    }
}

/// Parses these words as command-line arguments.
#[cfg(test)]
fn parsed<A: clap::Args>(words: &str) -> Result<A, clap::Error> {
    let command = A::augment_args(clap::Command::new("bench").no_binary_name(true));
    A::from_arg_matches(&command.try_get_matches_from(words.split_whitespace())?)
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, error::ErrorKind};

    use super::*;

    #[test]
    fn bench_measures_the_proxy_by_default() {
        Args::augment_args(Command::new("bench")).debug_assert();
        let scope = |words: &str| parsed::<Args>(words).map(|args| args.scope).ok();
        assert!(matches!(scope("--quick"), Some(None)));
        assert!(matches!(scope("proxy --quick"), Some(Some(Scope::Proxy(_)))));
        assert!(matches!(scope("kernel"), Some(Some(Scope::Kernel(_)))));
        assert!(matches!(scope("routes --quick"), Some(Some(Scope::Routes(_)))));
        assert!(matches!(scope("memory --quick"), Some(Some(Scope::Memory(_)))));
        assert!(scope("--quick kernel").is_none());
    }

    #[test]
    fn only_complete_runs_are_recorded() {
        let bench = Args::augment_args(Command::new("bench"));
        let profile = profile::Args::augment_args(Command::new("profile"));
        for (command, words, parts) in [
            (&bench, "bench", &["--quick", "--case h1", "--workers 2", "--peer nginx", "--binary other"][..]),
            (&bench, "bench proxy", &["--quick", "--case h1", "--workers 2", "--peer nginx", "--binary other"][..]),
            (&bench, "bench routes", &["--quick", "--routes 1000", "--peer nginx", "--binary other"][..]),
            (
                &bench,
                "bench memory",
                &[
                    "--quick",
                    "--peer nginx",
                    "--connections 100",
                    "--routes 100",
                    "--certificates 100",
                    "--binary other",
                ][..],
            ),
            (&bench, "bench kernel", &["--flood", "--binary other"][..]),
            (&profile, "profile", &["--case h1", "--peer nginx", "--requests 200", "--binary other"][..]),
        ] {
            let refused = |words: &str| {
                let understood = command.clone().try_get_matches_from(words.split(' '));
                understood.err().map(|error| error.kind())
            };
            let whole = format!("{words} --record");
            assert_eq!(refused(&whole), None, "{whole}");
            assert_eq!(refused(&format!("{whole} --pgo")), None, "{whole}");
            for part in parts {
                let words = format!("{whole} {part}");
                assert_eq!(refused(&words), Some(ErrorKind::ArgumentConflict), "{words}");
            }
        }
    }
}
