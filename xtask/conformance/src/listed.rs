//! `failing.txt`: the tests of the suite that fail still, one name a line, in order. A run is compared with it, so that
//! the list can only shrink unnoticed, never grow.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::output::{Verdict, Verdicts};
use xtask_tools::workspace;

/// The list, relative to the work tree.
pub(super) const FILE: &str = "xtask/conformance/failing.txt";

/// The tests in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed(BTreeSet<String>);

/// How a run differs from the list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Differences<'a> {
    /// Tests that did not pass although the list lacks them.
    pub(super) worse: Vec<&'a str>,
    /// Tests that passed although they are in the list.
    pub(super) better: Vec<&'a str>,
}

// === impl Listed ===

impl Listed {
    /// Reads the list. `tests` are the names of all tests of the suite.
    ///
    /// # Errors
    /// Fails if the file cannot be read, is not in order, or has a name that no test has.
    pub(super) fn read(tests: &BTreeSet<String>) -> Result<Self> {
        let path = path();
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
        Self::parse(&text, tests).with_context(|| format!("in `{FILE}`"))
    }

    pub(super) fn parse(text: &str, tests: &BTreeSet<String>) -> Result<Self> {
        let lines: Vec<&str> = text.lines().collect();
        if let Some(name) = lines.iter().find(|name| !tests.contains(**name)) {
            anyhow::bail!("the suite has no test `{name}`; remove this line");
        }
        ensure!(lines.is_sorted_by(|a, b| a < b), "the names are not in order, or one is there twice");
        Ok(Self(lines.into_iter().map(str::to_owned).collect()))
    }

    /// Returns `true` if the list has this test.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// Returns the number of tests in the list.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Compares the `chosen` tests of a run with the list. A test without a verdict has not passed.
    pub(super) fn compare<'a>(&self, chosen: &'a BTreeSet<String>, verdicts: &Verdicts) -> Differences<'a> {
        let mut differences = Differences::default();
        for name in chosen {
            match (passed(name, verdicts), self.has(name)) {
                (true, true) => differences.better.push(name),
                (false, false) => differences.worse.push(name),
                _ => {}
            }
        }
        differences
    }

    /// Returns the list as it is after a run of the `chosen` tests.
    pub(super) fn after(&self, chosen: &BTreeSet<String>, verdicts: &Verdicts) -> Self {
        let failed = chosen.iter().filter(|name| !passed(name, verdicts));
        let kept = self.0.iter().filter(|name| !chosen.contains(*name));
        Self(failed.chain(kept).cloned().collect())
    }

    /// Writes the list.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(super) fn write(&self) -> Result<()> {
        let text: String = self.0.iter().map(|name| format!("{name}\n")).collect();
        fs::write(path(), text).with_context(|| format!("cannot write `{FILE}`"))
    }
}

/// Returns `true` if the test passed. One that was skipped or not reached did not.
pub(super) fn passed(name: &str, verdicts: &Verdicts) -> bool {
    verdicts.get(name) == Some(&Verdict::Passed)
}

fn path() -> PathBuf {
    workspace::root().join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn verdicts(of: &[(&str, Verdict)]) -> Verdicts {
        of.iter().map(|(name, verdict)| ((*name).to_owned(), *verdict)).collect()
    }

    #[test]
    fn a_wrong_list_is_refused() {
        let tests = set(&["A", "B", "C"]);
        assert_eq!(Listed::parse("A\nC\n", &tests).unwrap().len(), 2);
        assert_eq!(Listed::parse("", &tests).unwrap().len(), 0);
        for (text, part) in
            [("B\nA\n", "order"), ("A\nA\n", "twice"), ("A\nX\n", "no test `X`"), ("A\n\nB\n", "no test ``")]
        {
            let error = Listed::parse(text, &tests).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn every_difference_is_told() {
        let listed = Listed(set(&["Fails", "Mended", "Later"]));
        let chosen = set(&["Fails", "Mended", "Works", "Broken", "Skipped", "Missing"]);
        let run = verdicts(&[
            ("Fails", Verdict::Failed),
            ("Mended", Verdict::Passed),
            ("Works", Verdict::Passed),
            ("Broken", Verdict::Failed),
            ("Skipped", Verdict::Skipped),
        ]);
        let Differences { worse, better } = listed.compare(&chosen, &run);
        assert_eq!((worse, better), (vec!["Broken", "Missing", "Skipped"], vec!["Mended"]));
        assert_eq!(listed.after(&chosen, &run), Listed(set(&["Broken", "Fails", "Later", "Missing", "Skipped"])));
    }
}
