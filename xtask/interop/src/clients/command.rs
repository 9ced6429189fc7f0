//! Clients that are programs: their arguments are the server and the cases, and each case is a line of their output.

use std::fmt::Display;
use std::process::Command;

use anyhow::{Context as _, Result};
use xtask_tools::process;

use super::{Case, Host, Results};
use crate::stage::Stage;

/// Runs the client with names of cases or tasks, and returns its output.
pub(super) fn said(command: &mut Command, stage: &Stage, host: &Host, names: &[impl Display]) -> Result<String> {
    command.args(["--address", &host.at.to_string(), "--name", &host.name, "--roots"]).arg(&stage.roots);
    process::capture(command.args(names.iter().map(ToString::to_string)))
}

/// Reads lines such as `get ok` and `post reset with 0x102`.
pub(super) fn parse(said: &str, cases: &[Case]) -> Result<Results> {
    cases.iter().map(|case| Ok((*case, result(said, &case.to_string())?))).collect()
}

/// Reads the line about `name`.
pub(super) fn result(said: &str, name: &str) -> Result<Result<(), String>> {
    let start = format!("{name} ");
    let result = said.lines().find_map(|line| line.strip_prefix(&start));
    let result = result.with_context(|| format!("the client said nothing about `{name}`:\n{said}"))?;
    Ok(if result == "ok" { Ok(()) } else { Err(result.to_owned()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_needs_a_line() {
        let said = "get ok\npost reset with 0x102";
        let results = parse(said, &[Case::Post, Case::Get]).unwrap();
        assert_eq!(results, [(Case::Post, Err("reset with 0x102".to_owned())), (Case::Get, Ok(()))]);
        assert!(parse(said, &[Case::Keys]).is_err());
    }
}
