//! The lane `ui`: starts the product with few hosts and with many, and lets cargo run the tests against both. Tests are
//! selected by target, not by name.

use anyhow::{Context, Result};
use xtask_setup::build::{self, Profile};
use xtask_tools::summary::Outcome;
use xtask_tools::{process, progress};

use crate::stage::{Hosts, PLAN, Stage};

/// Runs the lane. It is skipped where the browser cannot be had, unless `REQUIRE_UI` is set.
///
/// # Errors
/// Fails if something cannot be built or started, or a test fails.
pub fn run(pass_on: &[String]) -> Result<Outcome> {
    let tools = match xtask_setup::browser() {
        Ok(tools) => tools,
        Err(error) if process::is_required("REQUIRE_UI") => {
            return Err(error.context("`cargo xtask test ui` must run because `REQUIRE_UI=1` is set"));
        }
        Err(error) => return Ok(Outcome::Skipped(format!("the browser for the tests cannot be had here: {error:#}"))),
    };
    let binary = build::userspace(Profile::Dev)?;
    // Nothing else should take CPU while the products start.
    process::run(build::test(&["dashboard"]).args(["--no-run", "--quiet"]))?;
    let scratch = tempfile::tempdir().context("cannot make a directory for logs and manifests")?;
    let stage = Stage::start(&binary, &tools, scratch.path(), &[Hosts::Few, Hosts::Many])?;
    let mut cargo = build::test(&["dashboard"]);
    // One browser at a time: some tests have limits of time, and two cores serve the product and the browser.
    cargo.args(["--", "--test-threads=1", "--show-output"]).args(pass_on);
    cargo.env(PLAN, serde_json::to_string(&stage.plan)?);
    progress::note(&format!("$ {}", process::show(&cargo)));
    let result = process::run(&mut cargo);
    if result.is_err() {
        progress::warn(&format!("the logs end with:\n{}", stage.logs()));
    }
    result.map(|()| Outcome::Passed)
}
