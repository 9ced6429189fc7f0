//! The parts of libFuzzer's output that are shown to users.

use std::collections::VecDeque;
use std::time::Duration;

pub(super) const HEAD: &str = "target                   executions     edges at start and end   grew last at";

/// Number of lines kept for the message about a target that broke.
const LAST_WORDS: usize = 30;

#[derive(Debug, Default)]
pub(super) struct Report {
    executions: u64,
    /// Edges covered by the inputs kept from earlier runs; `covered` includes the new ones.
    began_with: Option<u64>,
    covered: u64,
    /// Time at which the coverage last grew.
    grew: Duration,
    took: Duration,
    /// The file with the input that broke the target.
    pub(super) artifact: Option<String>,
    lines: VecDeque<String>,
}

// === impl Report ===

impl Report {
    /// Processes a line of output that was read at the time `at` since the start.
    pub(super) fn take(&mut self, line: &str, at: Duration) {
        self.took = at;
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |word: &str| words.iter().position(|found| *found == word).and_then(|index| words.get(index + 1));
        let number = |word: &str| after(word).and_then(|number| number.parse::<u64>().ok());
        if let Some(count) = words.first().and_then(|word| word.strip_prefix('#')).and_then(|count| count.parse().ok())
        {
            self.executions = self.executions.max(count);
            if let Some(covered) = number("cov:") {
                self.began_with.get_or_insert(covered);
                if words.get(1) == Some(&"INITED") {
                    self.began_with = Some(covered);
                } else if covered > self.covered {
                    self.grew = at;
                }
                self.covered = self.covered.max(covered);
            }
            return;
        }
        if let Some(count) = number("stat::number_of_executed_units:") {
            self.executions = self.executions.max(count);
        }
        if let Some((_, artifact)) = line.split_once("Test unit written to ") {
            self.artifact = Some(artifact.trim().to_owned());
        }
        if self.lines.len() == LAST_WORDS {
            self.lines.pop_front();
        }
        self.lines.push_back(line.to_owned());
    }

    pub(super) fn line(&self, target: &str) -> String {
        let Self { executions, began_with, covered, grew, took, artifact: _, lines: _ } = self;
        let began_with = began_with.unwrap_or_default();
        let rate = executions / took.as_secs().max(1);
        let grew = if covered > &began_with {
            format!("{} of {} s", grew.as_secs(), took.as_secs())
        } else {
            "never".to_owned()
        };
        format!("{target:20} {executions:>10} ({rate}/s) {began_with:>8} {covered:>8}   {grew}")
    }

    /// Returns the file with the input that exceeded the time limit, if one did.
    pub(super) fn timed_out_at(&self) -> Option<&str> {
        self.artifact.as_deref().filter(|artifact| artifact.contains("-timeout-"))
    }

    /// Returns the last lines of the target's output.
    pub(super) fn last_words(&self) -> String {
        self.lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(lines: &[(&str, u64)]) -> Report {
        let mut report = Report::default();
        lines.iter().for_each(|(line, second)| report.take(line, Duration::from_secs(*second)));
        report
    }

    #[test]
    fn executions_coverage_and_its_growth_are_read() {
        let report = report(&[
            ("INFO: Running with entropic power schedule (0xFF, 100).", 0),
            ("#2\tINITED cov: 40 ft: 50 corp: 1/1b exec/s: 0 rss: 40Mb", 0),
            ("#900\tNEW    cov: 55 ft: 80 corp: 2/9b lim: 4 exec/s: 900 rss: 41Mb L: 8/8 MS: 1 CrossOver-", 1),
            ("#1024\tpulse  cov: 55 ft: 80 corp: 2/9b lim: 4 exec/s: 900 rss: 41Mb", 4),
            ("#5000\tREDUCE cov: 55 ft: 80 corp: 2/9b lim: 4 exec/s: 900 rss: 41Mb", 7),
            ("#9000\tDONE   cov: 55 ft: 80 corp: 2/9b lim: 4 exec/s: 900 rss: 41Mb", 10),
            ("stat::number_of_executed_units: 9001", 10),
        ]);
        assert_eq!((report.executions, report.began_with, report.covered), (9001, Some(40), 55));
        assert_eq!((report.grew, report.took), (Duration::from_secs(1), Duration::from_secs(10)));
        let line = report.line("http2");
        assert!(line.contains("9001 (900/s)") && line.ends_with("1 of 10 s"), "{line}");
    }

    #[test]
    fn coverage_of_the_initial_corpus_is_no_growth() {
        let report = report(&[
            ("#30\tpulse  cov: 39 ft: 50 corp: 1/1b exec/s: 0 rss: 40Mb", 1),
            ("#64\tINITED cov: 40 ft: 50 corp: 1/1b exec/s: 0 rss: 40Mb", 2),
            ("#90\tDONE   cov: 40 ft: 50 corp: 1/1b exec/s: 0 rss: 40Mb", 10),
        ]);
        assert!(report.line("x").ends_with("never"), "{}", report.line("x"));
    }

    #[test]
    fn a_crashed_target_names_its_input() {
        let report = report(&[
            ("thread 'main' panicked at src/lib.rs:1:1:", 1),
            ("artifact_prefix='/t/x-'; Test unit written to /t/x-crash-1", 1),
        ]);
        assert_eq!(report.artifact.as_deref(), Some("/t/x-crash-1"));
        assert_eq!(report.timed_out_at(), None);
        assert!(report.last_words().contains("panicked"));
    }

    #[test]
    fn a_slow_input_is_told_from_others() {
        let report = report(&[("artifact_prefix='/t/x-'; Test unit written to /t/x-timeout-1", 21)]);
        assert_eq!(report.timed_out_at(), Some("/t/x-timeout-1"));
    }
}
