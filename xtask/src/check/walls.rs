//! Checks the walls between modules: each feature of `ingress-userspace` compiles without the others, and pure modules
//! name no crate that does IO. The check reads names in the text, so it also finds uses that the features alone would
//! permit.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::build;
use xtask_tools::{process, workspace};

/// A directory or file and the names that must not occur in it.
struct Wall {
    path: &'static str,
    forbidden: &'static [&'static str],
}

const IO: &[&str] = &["kube", "k8s_openapi", "hyper", "hyper_util", "tokio", "rustls", "aya", "Instant", "SystemTime"];

const WALLS: [Wall; 7] = [
    Wall { path: "ingress-userspace/src/model", forbidden: IO },
    Wall { path: "ingress-userspace/src/route", forbidden: IO },
    Wall {
        path: "ingress-userspace/src/control/translate",
        forbidden: &["Client", "hyper", "tokio", "aya", "async", "Instant", "SystemTime"],
    },
    Wall { path: "ingress-userspace/src/proxy", forbidden: &["kube", "k8s_openapi", "aya"] },
    Wall { path: "ingress-userspace/src/datapath", forbidden: &["kube", "k8s_openapi", "hyper"] },
    Wall { path: "ingress-ebpf/src/parse.rs", forbidden: &["aya_ebpf", "aya_log_ebpf"] },
    Wall { path: "ingress-ebpf/src/decide.rs", forbidden: &["aya_ebpf", "aya_log_ebpf"] },
];

/// The features of `ingress-userspace` that must compile alone.
const FEATURES: [&str; 3] = ["control", "proxy", "datapath"];

/// Checks all walls.
///
/// # Errors
/// Fails if a wall is broken; the error names each place.
pub(super) fn run() -> Result<()> {
    let mut breaches = Vec::new();
    for wall in &WALLS {
        for file in rust_files(&workspace::root().join(wall.path))? {
            let text = fs::read_to_string(&file).with_context(|| format!("cannot read `{}`", file.display()))?;
            let shown = file.strip_prefix(workspace::root()).unwrap_or(&file).display().to_string();
            breaches.extend(breaches_in(&text, wall.forbidden).map(|(line, name)| format!("{shown}:{line}: `{name}`")));
        }
    }
    if !breaches.is_empty() {
        bail!("modules name what they must not know (ARCHITECTURE.md, invariants):\n  {}", breaches.join("\n  "));
    }
    let alone = ["check", "--package", "ingress-userspace", "--lib", "--no-default-features"];
    process::run(build::cargo().args(alone)).context("without features, only `model` and `route` remain")?;
    for feature in FEATURES {
        process::run(build::cargo().args(alone).args(["--features", feature]))
            .with_context(|| format!("feature `{feature}` must compile without the others"))?;
    }
    Ok(())
}

/// Returns the lines, outside comments and before the tests, that use one of the names as a word.
fn breaches_in<'a>(text: &'a str, forbidden: &'a [&'a str]) -> impl Iterator<Item = (usize, &'a str)> {
    let product = text.lines().take_while(|line| line.trim() != "#[cfg(test)]").enumerate();
    product.flat_map(|(index, line)| {
        let code = line.split("//").next().unwrap_or_default();
        // String literals may contain any name.
        let code: String = code.split('"').step_by(2).collect();
        forbidden.iter().filter(move |name| has_word(&code, name)).map(move |name| (index + 1, *name))
    })
}

fn has_word(code: &str, word: &str) -> bool {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word)
}

pub(super) fn rust_files(path: &Path) -> Result<Vec<PathBuf>> {
    let meta = fs::metadata(path)
        .with_context(|| format!("`{}` is gone; move its wall in `xtask/src/check/walls.rs`", path.display()))?;
    if meta.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?.path();
        if entry.is_dir() {
            files.extend(rust_files(&entry)?);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            files.push(entry);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_count_only_as_identifiers_in_code() {
        let check = |text: &str, expect: &[usize]| {
            let lines: Vec<_> = breaches_in(text, &["tokio", "kube"]).map(|(line, _)| line).collect();
            assert_eq!(lines, expect, "{text}");
        };
        check("use tokio::net;", &[1]);
        check("let x = 1;\nkube::Client::new()", &[2]);
        check("// tokio would be wrong here", &[]);
        check("//! knows no kube", &[]);
        check("let s = \"kube\";", &[]);
        check("let kubelet = my_tokio;", &[]);
        check("#[cfg(test)]\nuse tokio::test;", &[]);
    }
}
