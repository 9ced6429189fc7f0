//! Runs `cargo test`, and repeats failed tests once where that is asked for: a test that fails beside others and passes
//! alone is flaky, which is a defect of the test. It is reported, but it does not take a whole run of CI with it.

use std::io::{BufRead as _, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::summary::Outcome;
use crate::{process, progress};

/// Variable of the environment that asks for repeats; `.ci/run` sets it.
const REPEAT: &str = "REPEAT_FAILED_TESTS";
/// Most tests that are repeated. More failures at once have a common cause.
const REPEATED_MAX: usize = 3;

/// Runs the `cargo test` that `cargo` returns, with `harness` as the arguments of the test programs. If
/// `REPEAT_FAILED_TESTS` is set and at most three tests fail, these run once more, one at a time.
///
/// # Errors
/// Fails if a test fails, and again alone, or if the tests do not compile or do not end.
pub fn run(cargo: impl Fn() -> Command, harness: &[&str]) -> Result<Outcome> {
    if process::is_required(REPEAT) {
        return repeating(cargo, harness, &mut std::io::stdout());
    }
    process::run(&mut shown(cargo(), harness)).map(|()| Outcome::Passed)
}

fn repeating(cargo: impl Fn() -> Command, harness: &[&str], out: &mut impl Write) -> Result<Outcome> {
    let mut first = shown(cargo(), harness);
    let (succeeded, failed) = observed(&mut first, out)?;
    if succeeded {
        return Ok(Outcome::Passed);
    }
    let first = process::show(&first);
    if failed.is_empty() || failed.len() > REPEATED_MAX {
        bail!("`{first}` failed");
    }
    progress::warn(&format!("tests failed and run once more, alone: {}", failed.join(", ")));
    let flags = harness.iter().copied().filter(|argument| argument.starts_with("--"));
    let names = failed.iter().map(String::as_str);
    let alone: Vec<&str> = flags.chain(["--test-threads=1", "--exact"]).chain(names).collect();
    process::run(&mut shown(cargo(), &alone))
        .with_context(|| format!("`{first}` failed, and its failed tests alone"))?;
    Ok(Outcome::Flaky(failed.join(", ")))
}

/// Adds the arguments of the test programs to the command, and shows it.
fn shown(mut cargo: Command, harness: &[&str]) -> Command {
    if !harness.is_empty() {
        cargo.arg("--").args(harness);
    }
    progress::note(&format!("$ {}", process::show(&cargo)));
    cargo
}

/// Runs a command, and passes its standard output on to `out`. Returns whether it succeeded, and the tests that failed.
fn observed(command: &mut Command, out: &mut impl Write) -> Result<(bool, Vec<String>)> {
    let shown = process::show(command);
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start `{shown}`"))?;
    let mut failures = Failures::default();
    let mut output = BufReader::new(child.stdout.take().context("the output is not piped")?);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line)? > 0 {
        out.write_all(&line)?;
        out.flush()?;
        failures.read(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
    Ok((child.wait()?.success(), failures.names))
}

/// The names in the list `failures:` at the end of each test program.
#[derive(Debug, Default)]
struct Failures {
    is_listed: bool,
    names: Vec<String>,
}

impl Failures {
    fn read(&mut self, line: &str) {
        match line.strip_prefix("    ") {
            Some(name) if self.is_listed && !name.starts_with(' ') => {
                if !self.names.iter().any(|known| known == name) {
                    self.names.push(name.to_owned());
                }
            }
            _ => self.is_listed = line == "failures:",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of a test program of which two tests fail.
    const OUTPUT: &str = "running 3 tests\ntest a::fits ... ok\ntest a::breaks ... FAILED\ntest b ... FAILED\n\n\
        successes:\n\nsuccesses:\n    a::fits\n\nfailures:\n\n---- a::breaks stdout ----\n    indented\npanicked\n\n\
        failures:\n    a::breaks\n    b\n\ntest result: FAILED. 1 passed; 2 failed\n";

    #[test]
    fn names_of_failed_tests_are_read() {
        let mut failures = Failures::default();
        OUTPUT.lines().for_each(|line| failures.read(line));
        assert_eq!(failures.names, ["a::breaks", "b"]);
    }

    /// Returns a program that fails with the list of `failed` tests, and ends with `alone` if it gets their names.
    fn tests(failed: &str, alone: u8) -> Command {
        let script =
            format!("case \"$*\" in *--exact*) exit {alone};; esac; printf 'failures:\\n{failed}\\n'; exit 101");
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]);
        command
    }

    #[test]
    fn failed_tests_run_once_more() {
        let out = &mut Vec::new();
        let flaky = repeating(|| tests("    a::slow", 0), &["--show-output", "a"], out).unwrap();
        assert_eq!(flaky, Outcome::Flaky("a::slow".to_owned()));
        assert!(repeating(|| tests("    a::slow", 101), &[], out).is_err());
        assert!(repeating(|| tests("", 0), &[], out).is_err(), "a failure without names is none of a test");
        assert!(repeating(|| tests("    a\\n    b\\n    c\\n    d", 0), &[], out).is_err(), "too many failed");
        assert_eq!(repeating(|| Command::new("true"), &[], out).unwrap(), Outcome::Passed);
    }

    #[test]
    fn commands_are_observed() {
        let (succeeded, failed) = observed(Command::new("printf").arg(OUTPUT), &mut Vec::new()).unwrap();
        assert_eq!((succeeded, failed.len()), (true, 2));
        let (succeeded, failed) = observed(&mut Command::new("false"), &mut Vec::new()).unwrap();
        assert_eq!((succeeded, failed.len()), (false, 0));
    }
}
