//! Checks the table of `docs/security.md`: each known class of attack has a row, and each row names a test that exists.
//! The check runs no test.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, bail};

use super::walls::rust_files;
use xtask_tools::workspace;

const PAGE: &str = "docs/security.md";
/// Directories with tests.
const SOURCES: [&str; 4] = ["ingress-common/src", "ingress-ebpf/src", "ingress-userspace", "xtask"];
/// Cases of the translation: each directory is a case.
const GOLDENS: &str = "ingress-userspace/crates/control/tests/translate";
/// Findings of the review, which are numbered from 1.
const FINDINGS: usize = 28;
/// Public advisories about ingress-nginx, other controllers and nginx that were reviewed.
const ADVISORIES: [&str; 26] = [
    "CVE-2018-1002104",
    "CVE-2020-8553",
    "CVE-2021-25740",
    "CVE-2021-25742",
    "CVE-2021-25745",
    "CVE-2021-25746",
    "CVE-2021-25748",
    "CVE-2021-32783",
    "CVE-2022-4886",
    "CVE-2023-5043",
    "CVE-2023-5044",
    "CVE-2023-44487",
    "CVE-2024-7646",
    "CVE-2025-1097",
    "CVE-2025-1098",
    "CVE-2025-1974",
    "CVE-2025-15566",
    "CVE-2025-24513",
    "CVE-2025-24514",
    "CVE-2026-1580",
    "CVE-2026-3288",
    "CVE-2026-4342",
    "CVE-2026-24512",
    "CVE-2026-24513",
    "CVE-2026-24514",
    "CVE-2026-42945",
];

/// A row: its key and the text of its last column.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    key: String,
    proof: String,
}

/// Checks the table.
///
/// # Errors
/// Fails if a row is missing, or names no test or one that does not exist.
pub(super) fn run() -> Result<()> {
    let page = fs::read_to_string(workspace::root().join(PAGE)).with_context(|| format!("cannot read `{PAGE}`"))?;
    let rows: Vec<_> = page.lines().filter_map(row).collect();
    let objections = objections(&rows, &wanted(), &tests()?);
    if !objections.is_empty() {
        bail!("`{PAGE}` does not hold:\n  {}", objections.join("\n  "));
    }
    Ok(())
}

fn wanted() -> Vec<String> {
    let findings = (1..=FINDINGS).map(|number| number.to_string());
    findings.chain(ADVISORIES.map(str::to_owned)).collect()
}

/// Parses a table row if its first column is a number or a CVE.
fn row(line: &str) -> Option<Row> {
    let cells: Vec<_> = line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
    let (key, proof) = (cells.first()?, cells.last()?);
    let is_key = key.starts_with("CVE-") || key.parse::<usize>().is_ok();
    is_key.then(|| Row { key: (*key).to_owned(), proof: (*proof).to_owned() })
}

/// Returns the names of all tests and goldens.
fn tests() -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for source in SOURCES {
        for file in rust_files(&workspace::root().join(source))? {
            let text = fs::read_to_string(&file).with_context(|| format!("cannot read `{}`", file.display()))?;
            names.extend(tests_in(&text));
        }
    }
    for entry in fs::read_dir(workspace::root().join(GOLDENS))? {
        let path = entry?.path();
        if path.join("in.yaml").is_file() {
            names.extend(path.file_name().and_then(|name| name.to_str()).map(str::to_owned));
        }
    }
    Ok(names)
}

/// Returns the functions below an attribute that ends in `test`, such as `#[test]` and `#[tokio::test(…)]`, and the
/// cases of proptest.
fn tests_in(text: &str) -> Vec<String> {
    let mut is_test = false;
    let mut names = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(attribute) = line.strip_prefix("#[") {
            let path = attribute.split(['(', ']']).next().unwrap_or_default();
            is_test |= path.rsplit("::").next() == Some("test");
            continue;
        }
        let signature = line.trim_start_matches("pub ").trim_start_matches("async ");
        if let Some(name) = signature.strip_prefix("fn ").filter(|_| is_test) {
            names.extend(name.split(['(', '<']).next().map(str::to_owned));
        }
        is_test &= line.is_empty() || line.starts_with("//");
    }
    names
}

fn objections(rows: &[Row], wanted: &[String], tests: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for key in wanted {
        match rows.iter().filter(|row| row.key == *key).count() {
            1 => {}
            0 => found.push(format!("`{key}` has no row")),
            count => found.push(format!("`{key}` has {count} rows")),
        }
    }
    for Row { key, proof } in rows {
        let named: Vec<_> = proof.split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            found.push(format!("`{key}` names no test"));
        }
        let missing = named.iter().filter(|name| !tests.contains(**name));
        found.extend(missing.map(|name| format!("`{key}` names the test `{name}`, which does not exist")));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_row_needs_a_test_that_exists() {
        let tests = BTreeSet::from(["a_law".to_owned()]);
        let check = |page: &str, expect: &[&str]| {
            let rows: Vec<_> = page.lines().filter_map(row).collect();
            let found = objections(&rows, &["1".to_owned()], &tests);
            assert_eq!(found.len(), expect.len(), "{found:?}");
            for (found, expect) in found.iter().zip(expect) {
                assert!(found.contains(expect), "{found:?}");
            }
        };
        check("| # | what | test |\n|---|---|---|\n| 1 | it | `a_law` |", &[]);
        check("| 1 | it | `a_law`, `another` |", &["`another`, which does not exist"]);
        check("| 1 | it | none |", &["names no test"]);
        check("| 1 | it | open |", &["names no test"]);
        check("| 1 | it | `a_law` |\n| 2 | it | `a_law` |", &[]);
        check("| 1 | it | `a_law` |\n| 1 | it | `a_law` |", &["has 2 rows"]);
        check("no table", &["has no row"]);
    }

    #[test]
    fn only_tests_count_as_tests() {
        let text = "fn helper() {}\n#[test]\nfn one() {}\n#[tokio::test(start_paused = true)]\nasync fn two() {}\n\
                    #[cfg(test)]\nmod tests {\n    fn three() {}\n    #[test]\n    #[ignore]\n    // Why.\n    fn four() {}\n    fn five() {}";
        assert_eq!(tests_in(text), ["one", "two", "four"]);
    }

    #[test]
    fn the_deployment_has_no_admission_webhook() {
        fn look(directory: &Path) {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    look(&path);
                } else if let Ok(text) = fs::read_to_string(&path) {
                    assert!(!text.contains("WebhookConfiguration"), "{}", path.display());
                }
            }
        }
        look(&workspace::root().join("deploy"));
    }
}
