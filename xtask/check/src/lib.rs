//! `cargo xtask check`: all checks of the sources that do not run them; `cargo xtask docs` and `cargo xtask fuzz`.
//! A check changes no file; where a tool can repair a finding, the message names the command.
#![allow(clippy::print_stdout, reason = "a command-line tool talks on its standard output")]

mod advisories;
mod deny;
pub mod fuzz;
mod licence;
mod lock_file;
mod loops;
pub mod monitoring;
mod packaging;
mod pages;
mod prose;
mod security;
pub mod site;
mod terms;
mod walls;

use std::process::Command;

use anyhow::{Context, Result};

use xtask_setup::Purpose;
use xtask_setup::build;
use xtask_tools::summary::{Outcome, Summary};
use xtask_tools::{process, progress, workspace};

/// Text below the options in `check --help`.
pub const AFTER_HELP: &str = "\
Checks: format (rustfmt), lints (clippy, warnings are errors), fuzz targets (they compile), walls (each crate knows
only those of our crates that it may, and pure modules name no IO crate), loops (few files of a crate import each
other), kernel programs (they build for BPF), docs (rustdoc, warnings are errors), dependencies (deny.toml: licences,
sources, banned crates, one TLS crypto provider), spelling (typos), prose (lengths of sentences and clauses without a
noun, by page), pages (links lead to files and headings, docs/SUMMARY.md has every page, the chart has the named
values, each error response is explained, search terms have a heading), advisories (the lock files against the
snapshot in advisories.toml, offline), security (each row of docs/security.md names a test that exists), monitoring
(alerts, runbooks and dashboards name metrics that exist, and have tests), packaging (the manifests and the chart of
deploy/ render and say the same, the schema refuses mistakes; needs Go, see setup --help).

Examples:
  cargo xtask check
  cargo xtask check --only format --only spelling";

/// Check format, lints, walls between crates, docs, dependencies and spelling
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Do only this check; repeatable
    #[arg(long, value_name = "CHECK")]
    only: Vec<Check>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Check {
    Format,
    Spelling,
    Prose,
    Pages,
    Dependencies,
    Advisories,
    Security,
    Monitoring,
    Packaging,
    Walls,
    Loops,
    KernelPrograms,
    Lints,
    FuzzTargets,
    Docs,
}

/// Runs `cargo xtask check`.
///
/// # Errors
/// Fails if a check fails or a tool is missing.
pub fn run(args: &Args) -> Result<()> {
    let all = <Check as clap::ValueEnum>::value_variants();
    let mut summary = Summary::default();
    for check in if args.only.is_empty() { all } else { &args.only } {
        summary.step(check.name(), || check.run());
    }
    summary.finish("cargo xtask check")
}

impl Check {
    fn name(self) -> &'static str {
        match self {
            Self::Format => "format",
            Self::Spelling => "spelling",
            Self::Prose => "prose",
            Self::Pages => "pages",
            Self::Dependencies => "dependencies",
            Self::Advisories => "advisories",
            Self::Security => "security",
            Self::Monitoring => "monitoring",
            Self::Packaging => "packaging",
            Self::Walls => "walls",
            Self::Loops => "loops",
            Self::KernelPrograms => "kernel programs",
            Self::Lints => "lints",
            Self::FuzzTargets => "fuzz targets",
            Self::Docs => "docs",
        }
    }

    fn run(self) -> Result<Outcome> {
        match self {
            Self::Format => {
                // Without this flag rustfmt colours its output even in a file.
                let colour = if progress::colours() { "always" } else { "never" };
                process::run(build::cargo().args(["fmt", "--all", "--check", "--", "--color", colour]))
                    .context("`cargo fmt --all` repairs it")?;
            }
            Self::Spelling => spelling()?,
            Self::Prose => prose::run()?,
            Self::Pages => pages::run()?,
            Self::Dependencies => deny::run()?,
            Self::Advisories => advisories::run()?,
            Self::Security => security::run()?,
            Self::Monitoring => monitoring::run()?,
            Self::Packaging => return packaging::run(),
            Self::Walls => walls::run()?,
            Self::Loops => loops::run()?,
            Self::KernelPrograms => build::kernel_programs()?,
            Self::Lints => {
                let clippy = ["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"];
                process::run(build::cargo().args(clippy))?;
            }
            Self::FuzzTargets => {
                // The fuzz crate is outside the workspace, so no other check covers it; built with its own lock file.
                let manifest = "ingress-userspace/fuzz/Cargo.toml";
                let mut check = build::cargo();
                check.args(["check", "--locked", "--manifest-path", manifest]);
                check.env("CARGO_TARGET_DIR", workspace::target_dir());
                // Linking is not needed; with any path in this variable, libFuzzer itself, which is C++, is not built.
                process::run(check.env("CUSTOM_LIBFUZZER_PATH", "./libfuzzer.a"))?;
            }
            Self::Docs => {
                let mut doc = build::cargo();
                doc.args(["doc", "--workspace", "--no-deps", "--quiet"]).env("RUSTDOCFLAGS", "--deny warnings");
                process::run(&mut doc)?;
            }
        }
        Ok(Outcome::Passed)
    }
}

fn spelling() -> Result<()> {
    xtask_setup::ensure(Purpose::Check)?;
    let mut typos = Command::new(xtask_setup::spell_checker()?);
    typos.current_dir(workspace::root()).args(["--config", ".typos.toml"]);
    process::run(&mut typos).context("words that are right belong into `.typos.toml`")
}
