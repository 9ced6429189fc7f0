//! Checks of alerts and dashboards: every query names metrics and labels that exist, every alert has its runbook and
//! its tests. The lane `monitoring` runs the same files in a real Prometheus ([`lane`]).
//!
//! ```text
//! docs/metrics.md ── names ──┬── rules ── docs/runbooks, deploy/monitoring/tests
//!                            └── boards
//! ```
//!
//! A unit test of the product compares `docs/metrics.md` with the metrics of the code.

mod boards;
mod lane;
mod names;
mod rules;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

pub use self::lane::run as lane;
use self::names::Metrics;
use xtask_tools::workspace;

/// The alerts, a file of rules for Prometheus.
const RULES: &str = "deploy/chart/files/rules/xdp-ingress.yaml";
/// The dashboards for Grafana.
const BOARDS: &str = "deploy/chart/files/dashboards";
/// The pages that alerts lead to.
const RUNBOOKS: &str = "docs/runbooks";
/// Tests of the alerts, for `promtool test rules`.
const TESTS: &str = "deploy/monitoring/tests";
/// The page with all metrics.
const METRICS: &str = "docs/metrics.md";

/// Runs all checks.
///
/// # Errors
/// Fails with all objections.
pub(super) fn run() -> Result<()> {
    let root = workspace::root();
    let metrics = Metrics::of(&read(&root.join(METRICS))?);
    let mut objections = Vec::new();
    let alerts = rules::alerts(&read(&root.join(RULES))?).with_context(|| format!("in `{RULES}`"))?;
    objections.extend(rules::objections(&alerts, &metrics));
    let pages = files(&root.join(RUNBOOKS), "md")?.into_iter().map(|path| Ok((stem(&path), read(&path)?)));
    objections.extend(rules::page_objections(&alerts, &pages.collect::<Result<_>>()?));
    let tests = files(&root.join(TESTS), "yaml")?.iter().map(|path| read(path)).collect::<Result<Vec<_>>>()?;
    objections.extend(rules::test_objections(&alerts, &tests)?);
    let boards = files(&root.join(BOARDS), "json")?.into_iter().map(|path| Ok((stem(&path), read(&path)?)));
    objections.extend(boards::objections(&boards.collect::<Result<Vec<_>>>()?, &metrics)?);
    if !objections.is_empty() {
        bail!("alerts and dashboards do not hold:\n  {}", objections.join("\n  "));
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()))
}

/// Returns the files of a directory with this extension, sorted.
fn files(directory: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot list `{}`", directory.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|path| path.extension().is_some_and(|found| found == extension));
    files.sort();
    Ok(files)
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_this_tree_hold() {
        run().unwrap();
    }
}
