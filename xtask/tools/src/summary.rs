//! The table at the end of a command with several steps. All steps run in order even after a failure, so that one
//! failure does not hide the next.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::process;
use crate::progress::{self, Tone, paint};

/// Exit code of a program that could not run here and was allowed to skip; that of Automake's tests.
const SKIPPED: u8 = 77;
/// Exit code of a program of whose tests some passed only alone.
const FLAKY: u8 = 79;

/// Result of a step that did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The step succeeded.
    Passed,
    /// The step could not run here, for this reason.
    Skipped(String),
    /// These tests failed beside others, and passed alone.
    Flaky(String),
}

impl Outcome {
    /// Returns the outcome of two parts of a step. Flaky tests of both are named.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Passed, outcome) | (outcome, Self::Passed) => outcome,
            (Self::Flaky(one), Self::Flaky(other)) => Self::Flaky(format!("{one}, {other}")),
            (Self::Skipped(why), _) | (_, Self::Skipped(why)) => Self::Skipped(why),
        }
    }
}

/// Runs a step in another program, which ends with [`ended`] and says itself why it skips.
///
/// # Errors
/// Fails if the program cannot be started or fails.
pub fn step_of(command: &mut Command) -> Result<Outcome> {
    let shown = process::show(command);
    let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
    match status.code() {
        Some(0) => Ok(Outcome::Passed),
        Some(code) if code == i32::from(SKIPPED) => {
            Ok(Outcome::Skipped("this machine lacks a requirement, see above".to_owned()))
        }
        Some(code) if code == i32::from(FLAKY) => Ok(Outcome::Flaky("see above".to_owned())),
        _ => bail!("`{shown}` failed ({status})"),
    }
}

/// Returns the exit code for the result of a program; prints an error, or the reason to skip.
#[must_use]
pub fn ended(result: Result<Outcome>) -> ExitCode {
    match result {
        Ok(Outcome::Passed) => ExitCode::SUCCESS,
        Ok(Outcome::Skipped(why)) => {
            progress::warn(&format!("SKIPPED: {why}"));
            ExitCode::from(SKIPPED)
        }
        Ok(Outcome::Flaky(tests)) => {
            progress::warn(&format!("FLAKY: {tests}"));
            ExitCode::from(FLAKY)
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug)]
struct Row {
    name: String,
    result: Result<Outcome>,
    took: Duration,
}

/// The steps done so far.
#[derive(Debug, Default)]
pub struct Summary {
    rows: Vec<Row>,
}

impl Summary {
    /// Runs a step under a heading and records its result.
    pub fn step(&mut self, name: &str, step: impl FnOnce() -> Result<Outcome>) {
        progress::heading(name);
        let began = Instant::now();
        let result = step();
        if let Err(error) = &result {
            eprintln!("{} {error:#}", paint(Tone::Bad, "failed:"));
        }
        self.rows.push(Row { name: name.to_owned(), result, took: began.elapsed() });
    }

    /// Prints the table to standard output.
    ///
    /// # Errors
    /// Fails with the names of the steps that failed.
    pub fn finish(self, what: &str) -> Result<()> {
        println!("\n{}", self.table());
        let failed: Vec<&str> =
            self.rows.iter().filter(|row| row.result.is_err()).map(|row| row.name.as_str()).collect();
        if !failed.is_empty() {
            bail!("`{what}` failed in: {}", failed.join(", "));
        }
        Ok(())
    }

    fn table(&self) -> String {
        let width = self.rows.iter().map(|row| row.name.len()).max().unwrap_or_default();
        let line = |row: &Row| {
            let (tone, word, why) = match &row.result {
                Ok(Outcome::Passed) => (Tone::Good, "passed ", ""),
                Ok(Outcome::Skipped(why)) => (Tone::Warn, "SKIPPED", why.as_str()),
                Ok(Outcome::Flaky(tests)) => (Tone::Warn, "FLAKY  ", tests.as_str()),
                Err(_) => (Tone::Bad, "FAILED ", "see above"),
            };
            let text = format!("{:width$}  {}  {:7.1} s  {why}", row.name, paint(tone, word), row.took.as_secs_f64());
            text.trim_end().to_owned()
        };
        self.rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_fails_the_run_without_stopping_it() {
        let mut summary = Summary::default();
        summary.step("first", || bail!("broken"));
        summary.step("second", || Ok(Outcome::Skipped("no kernel".to_owned())));
        summary.step("third", || Ok(Outcome::Passed));
        let table = summary.table();
        let ends = ["FAILED", "SKIPPED", "passed"];
        assert!(table.lines().zip(ends).all(|(line, end)| line.contains(end)), "{table}");
        assert!(table.contains("no kernel"));
        assert_eq!(summary.finish("x").unwrap_err().to_string(), "`x` failed in: first");
    }

    #[test]
    fn flaky_tests_of_both_parts_are_named() {
        let flaky = |tests: &str| Outcome::Flaky(tests.to_owned());
        assert_eq!(flaky("a").and(Outcome::Passed).and(flaky("b")), flaky("a, b"));
        assert_eq!(Outcome::Passed.and(Outcome::Passed), Outcome::Passed);
        assert_eq!(flaky("a").and(Outcome::Skipped("why".to_owned())), Outcome::Skipped("why".to_owned()));
    }

    #[test]
    fn neither_a_skip_nor_a_flaky_test_is_a_failure() {
        let mut summary = Summary::default();
        summary.step("only", || Ok(Outcome::Skipped("no kernel".to_owned())));
        summary.step("other", || Ok(Outcome::Flaky("a::slow".to_owned())));
        assert!(summary.table().contains("FLAKY") && summary.table().contains("a::slow"));
        assert!(summary.finish("x").is_ok());
    }
}
