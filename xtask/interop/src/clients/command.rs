//! Clients that are programs: their arguments are the server and the cases, and each case is a line of their output.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Context as _, Result};
use xtask_tools::process;

use super::{Case, Results};
use crate::stage::{NAME, Stage};

/// Runs the client against the server at `at`, and returns its output.
pub(super) fn said(command: &mut Command, stage: &Stage, at: SocketAddr, cases: &[Case]) -> Result<String> {
    command.args(["--address", &at.to_string(), "--name", NAME, "--roots"]).arg(&stage.roots);
    process::capture(command.args(cases.iter().map(Case::to_string)))
}

/// Reads lines such as `get ok` and `post reset with 0x102`.
pub(super) fn parse(said: &str, cases: &[Case]) -> Result<Results> {
    let of = |case: &Case| {
        let name = format!("{case} ");
        let result = said.lines().find_map(|line| line.strip_prefix(&name));
        let result = result.with_context(|| format!("the client said nothing about `{case}`:\n{said}"))?;
        Ok((*case, if result == "ok" { Ok(()) } else { Err(result.to_owned()) }))
    };
    cases.iter().map(of).collect()
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
