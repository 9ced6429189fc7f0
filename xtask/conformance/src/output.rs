//! The output of a Go test program with `-test.v`, line by line. It starts no program.

use std::collections::BTreeMap;
use std::time::Duration;

/// The test of the program, of which each test of the suite is a part.
const WHOLE: &str = "TestConformance/";

/// Result of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Passed,
    Failed,
    /// The program left the test out, for example because no feature for it is claimed.
    Skipped,
}

/// A test that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ended<'a> {
    pub(super) name: &'a str,
    pub(super) verdict: Verdict,
    pub(super) took: Duration,
}

/// An assertion that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failure {
    /// Full name of the test or of a part of it.
    test: String,
    text: String,
}

/// The assertions that failed in a run, in order. They are blocks of lines, as the assertions of testify print them.
#[derive(Debug, Default)]
pub(super) struct Failures {
    complete: Vec<Failure>,
    /// Text of a block that has not named its test yet.
    begun: Option<String>,
}

/// The verdicts of a run, by the names of the tests.
pub(super) type Verdicts = BTreeMap<String, Verdict>;

// === impl Verdict ===

impl Verdict {
    /// Returns the word for people.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::Skipped => "SKIPPED",
        }
    }
}

// === impl Failures ===

impl Failures {
    /// Takes the next line of the output.
    pub(super) fn take(&mut self, line: &str) {
        let line = line.trim();
        if let Some(text) = line.strip_prefix("Error:") {
            self.begun = Some(text.trim().to_owned());
        } else if let Some(test) = line.strip_prefix("Test:") {
            let failure = self.begun.take().map(|text| Failure { test: test.trim().to_owned(), text });
            self.complete.extend(failure);
        } else if let Some(text) = &mut self.begun {
            text.push(' ');
            text.push_str(line);
        } else if let (Some(text), Some(last)) = (line.strip_prefix("Messages:"), self.complete.last_mut()) {
            last.text = format!("{}: {}", text.trim(), last.text);
        }
    }

    /// Returns the failed assertions of a test of the suite and of its parts.
    pub(super) fn of(&self, name: &str) -> impl Iterator<Item = &str> {
        self.complete.iter().filter_map(move |failure| {
            let rest = failure.test.strip_prefix(WHOLE)?.strip_prefix(name)?;
            (rest.is_empty() || rest.starts_with('/')).then_some(failure.text.as_str())
        })
    }

    /// Returns the failed assertions outside of the tests: what the suite needs before its first test.
    pub(super) fn before_tests(&self) -> impl Iterator<Item = &str> {
        let whole = WHOLE.trim_end_matches('/');
        self.complete.iter().filter(move |failure| failure.test == whole).map(|failure| failure.text.as_str())
    }
}

/// Returns the test of the suite whose end a line reports: `--- PASS: TestConformance/NAME (1.23s)`. Parts of such a test
/// have a further slash in their name and do not count. A text of another program may be before it in the line.
pub(super) fn ended(line: &str) -> Option<Ended<'_>> {
    let (verdict, rest) = [("PASS", Verdict::Passed), ("FAIL", Verdict::Failed), ("SKIP", Verdict::Skipped)]
        .into_iter()
        .find_map(|(word, verdict)| Some((verdict, line.split_once(&format!("--- {word}: {WHOLE}"))?.1)))?;
    let (name, took) = rest.trim_end().split_once(" (")?;
    if name.contains('/') {
        return None;
    }
    let seconds = took.strip_suffix("s)")?.parse().ok()?;
    Some(Ended { name, verdict, took: Duration::try_from_secs_f64(seconds).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_assertions_belong_to_their_test() {
        let output = "\tError Trace:\ta.go:1\n\tError:      \tReceived unexpected error:\n\t            \tno features\n\
            \tTest:       \tTestConformance\n\tMessages:   \terror initializing\n\
            \tError:      \tNot equal\n\tTest:       \tTestConformance/A/part_1\n    x.go:1: Messages\n\
            \tError:      \tOther\n\tTest:       \tTestConformance/AB\n";
        let mut failures = Failures::default();
        output.lines().for_each(|line| failures.take(line));
        let before: Vec<_> = failures.before_tests().collect();
        assert_eq!(before, ["error initializing: Received unexpected error: no features"]);
        assert_eq!(failures.of("A").collect::<Vec<_>>(), ["Not equal"]);
        assert_eq!(failures.of("AB").collect::<Vec<_>>(), ["Other"]);
    }

    #[test]
    fn ends_of_tests_are_found_and_those_of_their_parts_are_not() {
        let check = |line: &str, expect: Option<(&str, Verdict, u64)>| {
            let found = ended(line).map(|Ended { name, verdict, took }| (name, verdict, took.as_millis() as u64));
            assert_eq!(found, expect, "{line}");
        };
        check(
            "    --- PASS: TestConformance/HTTPRouteWeight (1.25s)",
            Some(("HTTPRouteWeight", Verdict::Passed, 1250)),
        );
        check("\u{16}--- FAIL: TestConformance/UDPRoute (60.00s)\n", Some(("UDPRoute", Verdict::Failed, 60_000)));
        check(
            "WARNING: x--- SKIP: TestConformance/GRPCRouteWeight (0.00s)",
            Some(("GRPCRouteWeight", Verdict::Skipped, 0)),
        );
        check("        --- PASS: TestConformance/HTTPRouteWeight/Requests_should (1.00s)", None);
        check("--- FAIL: TestConformance (3.00s)", None);
        check("=== RUN   TestConformance/HTTPRouteWeight", None);
        check("--- PASS: TestConformance/HTTPRouteWeight", None);
    }
}
