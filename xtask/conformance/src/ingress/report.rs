//! The reports of the suite, in the JSON of Cucumber: one file for each feature. It starts no program.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Results of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) passed: usize,
    /// Name and first failed step of each other scenario.
    pub(super) failed: Vec<String>,
}

// === impl Counts ===

impl Counts {
    /// Reads the reports of these `features` in `dir`.
    ///
    /// # Errors
    /// Fails if the report of a feature is missing, cannot be read, or has no scenario.
    pub(super) fn read(dir: &Path, features: &[String]) -> Result<Self> {
        let mut counts = Self::default();
        for feature in features {
            let path = dir.join(format!("{feature}-report.json"));
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
            let report = serde_json::from_str(&text).with_context(|| format!("`{}` is no report", path.display()))?;
            let before = counts.passed + counts.failed.len();
            counts.add(&report);
            ensure!(counts.passed + counts.failed.len() > before, "`{}` has no scenario", path.display());
        }
        Ok(counts)
    }

    fn add(&mut self, report: &Value) {
        let scenarios = items(report).flat_map(|feature| items(&feature["elements"]));
        for scenario in scenarios {
            let mut steps = items(&scenario["steps"]).peekable();
            let name = text(&scenario["name"]);
            if steps.peek().is_none() {
                self.failed.push(format!("`{name}` has no steps"));
                continue;
            }
            match steps.find(|step| step["result"]["status"] != "passed") {
                None => self.passed += 1,
                Some(step) => {
                    let [status, reason] = ["status", "error_message"].map(|key| text(&step["result"][key]));
                    self.failed.push(format!("`{name}`: the step `{}` {status}: {reason}", text(&step["name"])));
                }
            }
        }
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scenario(name: &str, results: &[(&str, &str)]) -> Value {
        let steps: Vec<_> = results
            .iter()
            .map(|(status, error)| json!({"name": "s", "result": {"status": status, "error_message": error}}))
            .collect();
        json!({"name": name, "steps": steps})
    }

    #[test]
    fn only_scenarios_whose_steps_all_passed_pass() {
        let report = json!([{"elements": [
            scenario("right", &[("passed", ""), ("passed", "")]),
            scenario("wrong", &[("passed", ""), ("failed", "503, not 200"), ("skipped", "")]),
            scenario("pending", &[("pending", "")]),
            scenario("empty", &[]),
        ]}]);
        let mut counts = Counts::default();
        counts.add(&report);
        assert_eq!(counts.passed, 1);
        assert_eq!(counts.failed[0], "`wrong`: the step `s` failed: 503, not 200");
        assert!(counts.failed[1].starts_with("`pending`") && counts.failed[2].starts_with("`empty`"));
    }

    #[test]
    fn every_feature_needs_a_report_with_scenarios() {
        let dir = tempfile::tempdir().unwrap();
        let features = ["a.feature", "b.feature"].map(str::to_owned);
        let write = |name: &str, report: &Value| fs::write(dir.path().join(name), report.to_string()).unwrap();
        write("a.feature-report.json", &json!([{"elements": [scenario("x", &[("passed", "")])]}]));
        assert_eq!(Counts::read(dir.path(), &features[..1]).unwrap().passed, 1);
        assert!(Counts::read(dir.path(), &features).is_err(), "`b` has no report");
        write("b.feature-report.json", &json!([]));
        assert!(Counts::read(dir.path(), &features).is_err(), "the report of `b` is empty");
    }
}
