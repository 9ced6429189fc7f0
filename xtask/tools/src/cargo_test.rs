//! Runs `cargo test`, and repeats failed tests once where that is asked for: a test that fails beside others and passes
//! alone is flaky, which is a defect of the test. It is reported, but it does not take a whole run of CI with it. The
//! output of CI is long, so what failed tests printed can go to a file, too, which CI prints at its end.

use std::env;
use std::fs::OpenOptions;
use std::io::{self, BufRead as _, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::summary::Outcome;
use crate::{process, progress};

/// Variable of the environment that asks for repeats; `.ci/run` sets it.
const REPEAT: &str = "REPEAT_FAILED_TESTS";
/// Variable of the environment with the path of a file; what failed tests printed is appended to it.
const OUTPUT_FILE: &str = "FAILED_TESTS_FILE";
/// Most tests that are repeated. More failures at once have a common cause.
const REPEATED_MAX: usize = 3;
/// Bytes kept of what one failed test printed: the last ones, which tell the cause.
const KEPT_MAX: usize = 4 << 10;
/// Bytes kept of what all failed tests of a program printed.
const ALL_MAX: usize = 64 << 10;
/// Names of tests in an error.
const NAMES_MAX: usize = 10;

/// Runs the `cargo test` that `cargo` returns, with `harness` as the arguments of the test programs. If
/// `REPEAT_FAILED_TESTS` is set and at most three tests fail, these run once more, one at a time; if
/// `FAILED_TESTS_FILE` names a file, too, the output of the failed tests is appended to it.
///
/// # Errors
/// Fails if a test fails, and again alone, or if the tests do not compile or do not end.
pub fn run(cargo: impl Fn() -> Command, harness: &[&str]) -> Result<Outcome> {
    if process::is_required(REPEAT) {
        let mut failures = Failures::default();
        let outcome = repeating(cargo, harness, &mut failures, &mut io::stdout());
        if let Some(path) = env::var_os(OUTPUT_FILE).map(PathBuf::from)
            && let Err(error) = append(&path, &failures.output)
        {
            progress::warn(&format!("cannot write {}, the file of `{OUTPUT_FILE}`: {error}", path.display()));
        }
        return outcome;
    }
    process::run(&mut shown(cargo(), harness)).map(|()| Outcome::Passed)
}

fn append(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().append(true).create(true).open(path)?.write_all(text.as_bytes())
}

fn repeating(
    cargo: impl Fn() -> Command,
    harness: &[&str],
    failures: &mut Failures,
    out: &mut impl Write,
) -> Result<Outcome> {
    let mut first = shown(cargo(), harness);
    if observed(&mut first, failures, out)? {
        return Ok(Outcome::Passed);
    }
    let first = process::show(&first);
    let failed = std::mem::take(&mut failures.names);
    if failed.is_empty() || failed.len() > REPEATED_MAX {
        bail!("`{first}` failed: {}", named(&failed));
    }
    progress::warn(&format!("tests failed and run once more, alone: {}", failed.join(", ")));
    let flags = harness.iter().copied().filter(|argument| argument.starts_with("--"));
    let names = failed.iter().map(String::as_str);
    let alone: Vec<&str> = flags.chain(["--test-threads=1", "--exact"]).chain(names).collect();
    if !observed(&mut shown(cargo(), &alone), failures, out)? {
        bail!("`{first}` failed, and alone failed: {}", named(&failures.names));
    }
    Ok(Outcome::Flaky(failed.join(", ")))
}

/// Lists tests, or says that none is named: then the tests did not compile, or their program did not end by itself.
fn named(tests: &[String]) -> String {
    match tests.split_at_checked(NAMES_MAX) {
        Some((first, others @ [_, ..])) => format!("{} and {} more", first.join(", "), others.len()),
        _ if tests.is_empty() => "no test is named".to_owned(),
        _ => tests.join(", "),
    }
}

/// Adds the arguments of the test programs to the command, and shows it.
fn shown(mut cargo: Command, harness: &[&str]) -> Command {
    if !harness.is_empty() {
        cargo.arg("--").args(harness);
    }
    progress::note(&format!("$ {}", process::show(&cargo)));
    cargo
}

/// Runs a command, and passes its standard output on to `out`. Returns whether it succeeded; adds what failed.
fn observed(command: &mut Command, failures: &mut Failures, out: &mut impl Write) -> Result<bool> {
    let shown = process::show(command);
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start `{shown}`"))?;
    let mut output = BufReader::new(child.stdout.take().context("the output is not piped")?);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line)? > 0 {
        out.write_all(&line)?;
        out.flush()?;
        failures.read(&String::from_utf8_lossy(&line));
        line.clear();
    }
    failures.end_program();
    Ok(child.wait()?.success())
}

/// The tests that failed, from the output of test programs. A program ends with two sections `failures:` if a test
/// failed, what the failed tests printed and the list of their names, and with its result.
#[derive(Debug, Default)]
struct Failures {
    is_listed: bool,
    names: Vec<String>,
    /// Output of the failed tests of ended programs, cut off at limits.
    output: String,
    /// Output of the failed tests of the running program.
    printed: String,
}

impl Failures {
    fn read(&mut self, line: &str) {
        if line.starts_with("test result:") {
            self.end_program();
        } else if !self.printed.is_empty() || line.trim_end() == "failures:" {
            self.printed.push_str(line);
        }
        self.read_name(line.trim_end());
    }

    /// Keeps the end of what each failed test of a program printed, and the names.
    fn end_program(&mut self) {
        self.is_listed = false;
        let printed = std::mem::take(&mut self.printed);
        let before = self.output.len();
        let mut rest = printed.as_str();
        while !rest.is_empty() && self.output.len() < before + ALL_MAX {
            let next = rest[1..].find("\n---- ").or_else(|| rest[1..].find("\nfailures:\n"));
            let (section, others) = rest.split_at(next.map_or(rest.len(), |at| at + 2));
            let (title, text) = section.split_at(section.find('\n').map_or(section.len(), |at| at + 1));
            let last = text.ceil_char_boundary(text.len().saturating_sub(KEPT_MAX));
            self.output.push_str(title);
            if last > 0 {
                self.output.push_str("[the beginning is above]\n");
            }
            self.output.push_str(&text[last..]);
            rest = others;
        }
    }

    fn read_name(&mut self, line: &str) {
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

    fn read(output: &str) -> Failures {
        let mut failures = Failures::default();
        output.split_inclusive('\n').for_each(|line| failures.read(line));
        failures
    }

    #[test]
    fn names_of_failed_tests_are_read() {
        assert_eq!(read(OUTPUT).names, ["a::breaks", "b"]);
    }

    #[test]
    fn the_output_of_failed_tests_is_kept_up_to_a_limit() {
        let kept = |output: &str| read(output).output;
        let (_, section) = OUTPUT.split_once("fits\n\n").unwrap();
        let (section, _) = section.split_once("test result").unwrap();
        assert_eq!(kept(OUTPUT), section);
        assert_eq!(kept(&[OUTPUT, OUTPUT].concat()), [section, section].concat());
        let long = kept(&OUTPUT.replace("panicked", &format!("{}\npanicked", "é".repeat(KEPT_MAX))));
        assert!(long.contains("---- a::breaks stdout ----\n[the beginning is above]\n"), "{long}");
        assert!(long.ends_with("é\npanicked\n\nfailures:\n    a::breaks\n    b\n\n"), "{long}");
        assert!(long.len() < KEPT_MAX + 200, "{}", long.len());
    }

    /// Returns a program that fails with the list of `failed` tests, and ends with `alone` if it gets their names.
    fn tests(failed: &str, alone: u8) -> Command {
        let script =
            format!("printf 'failures:\\n{failed}\\n'; case \"$*\" in *--exact*) exit {alone};; esac; exit 101");
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]);
        command
    }

    #[test]
    fn failed_tests_run_once_more() {
        let repeating = |failed: &str, alone| {
            let mut failures = Failures::default();
            repeating(|| tests(failed, alone), &["--show-output", "a"], &mut failures, &mut Vec::new())
        };
        assert_eq!(repeating("    a::slow", 0).unwrap(), Outcome::Flaky("a::slow".to_owned()));
        let error = repeating("    a::slow", 101).unwrap_err().to_string();
        assert!(error.ends_with("alone failed: a::slow"), "{error}");
        let error = repeating("", 0).unwrap_err().to_string();
        assert!(error.ends_with("failed: no test is named"), "a failure without names is none of a test: {error}");
        let error = repeating("    a\\n    b\\n    c\\n    d", 0).unwrap_err().to_string();
        assert!(error.ends_with("failed: a, b, c, d"), "too many failed: {error}");
        let passing = || Command::new("true");
        let outcome = super::repeating(passing, &[], &mut Failures::default(), &mut Vec::new());
        assert_eq!(outcome.unwrap(), Outcome::Passed);
    }

    #[test]
    fn an_error_names_some_tests() {
        let tests = |count| named(&vec!["a".to_owned(); count]);
        assert_eq!(tests(0), "no test is named");
        assert_eq!(tests(10), ["a"; 10].join(", "));
        assert_eq!(tests(12), format!("{} and 2 more", tests(10)));
    }

    #[test]
    fn commands_are_observed() {
        let observed = |command: &mut Command| {
            let mut failures = Failures::default();
            let succeeded = observed(command, &mut failures, &mut Vec::new()).unwrap();
            (succeeded, failures.names.len(), failures.output.len())
        };
        assert_eq!(observed(Command::new("printf").arg("failures:\n    a\n")), (true, 1, 16), "it ends early");
        assert_eq!(observed(&mut Command::new("false")), (false, 0, 0));
    }
}
