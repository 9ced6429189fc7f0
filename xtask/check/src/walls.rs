//! Checks the walls between crates and modules: each crate of the product depends only on those of its own crates that
//! it may know, and pure modules name no crate that does IO. The second check reads names in the text.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use xtask_tools::workspace;

/// A directory or file and the names that must not occur in it.
struct Wall {
    path: &'static str,
    forbidden: &'static [&'static str],
}

const IO: &[&str] = &["kube", "k8s_openapi", "hyper", "hyper_util", "tokio", "rustls", "aya", "Instant", "SystemTime"];

const WALLS: [Wall; 8] = [
    Wall { path: "ingress-userspace/crates/model/src", forbidden: IO },
    Wall {
        path: "ingress-userspace/crates/control/src/translate",
        forbidden: &["Client", "hyper", "tokio", "aya", "async", "Instant", "SystemTime"],
    },
    Wall { path: "ingress-userspace/crates/http3/src", forbidden: IO },
    Wall { path: "ingress-userspace/crates/proxy/src", forbidden: &["kube", "k8s_openapi", "aya"] },
    Wall { path: "ingress-userspace/crates/quic/src", forbidden: &["kube", "k8s_openapi", "aya", "hyper"] },
    Wall { path: "ingress-userspace/crates/datapath/src", forbidden: &["kube", "k8s_openapi", "hyper"] },
    Wall { path: "ingress-ebpf/src/parse.rs", forbidden: &["aya_ebpf", "aya_log_ebpf"] },
    Wall { path: "ingress-ebpf/src/decide.rs", forbidden: &["aya_ebpf", "aya_log_ebpf"] },
];

/// The crates of `ingress-userspace/crates`, and those of this project on which each may depend. Only `node`, which
/// puts them together, may depend on all.
const CRATES: [(&str, &[&str]); 13] = [
    ("cli", &["ingress-common", "ingress-control", "ingress-inspect", "ingress-model"]),
    ("control", &["ingress-model", "ingress-panics"]),
    ("datapath", &["ingress-common"]),
    ("http3", &[]),
    ("inspect", &["ingress-control", "ingress-model", "ingress-nginx-model"]),
    ("lab", &["ingress-common", "xtask-tools"]),
    ("model", &[]),
    ("nginx-model", &[]),
    (
        "node",
        &[
            "ingress-cli",
            "ingress-common",
            "ingress-control",
            "ingress-datapath",
            "ingress-inspect",
            "ingress-model",
            "ingress-panics",
            "ingress-proxy",
            "ingress-quic",
        ],
    ),
    ("panics", &[]),
    ("proxy", &["ingress-common", "ingress-model", "ingress-panics", "ingress-quic"]),
    ("proxy-testing", &["ingress-common", "ingress-model", "ingress-proxy", "ingress-quic"]),
    ("quic", &["ingress-common", "ingress-http3"]),
];

/// The crates of the tooling, likewise. The door knows no lab, so that it is soon built.
const TOOLS: [(&str, &[&str]); 13] = [
    ("xtask", &["xtask-setup", "xtask-tools"]),
    ("xtask/bench", &["ingress-common", "ingress-lab", "xtask-setup", "xtask-tools"]),
    ("xtask/check", &["xtask-setup", "xtask-tools"]),
    ("xtask/conformance", &["xtask-image", "xtask-kube-lab", "xtask-setup", "xtask-tools"]),
    ("xtask/demo", &["ingress-common", "ingress-lab", "xtask-setup", "xtask-tools"]),
    ("xtask/image", &["xtask-setup", "xtask-tools"]),
    ("xtask/interop", &["ingress-lab", "xtask-setup", "xtask-tools"]),
    ("xtask/kernels", &["ingress-common", "ingress-lab", "xtask-image", "xtask-setup", "xtask-tools"]),
    ("xtask/kube-lab", &["ingress-lab", "xtask-image", "xtask-setup", "xtask-tools"]),
    ("xtask/release", &["xtask-image", "xtask-setup", "xtask-tools"]),
    ("xtask/setup", &["xtask-tools"]),
    ("xtask/tools", &[]),
    ("xtask/ui", &["ingress-lab", "xtask-setup", "xtask-tools"]),
];

/// The part of a manifest that matters here.
#[derive(Deserialize)]
struct Manifest {
    dependencies: BTreeMap<String, toml::Value>,
}

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
    let crates = workspace::root().join("ingress-userspace/crates");
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(&crates).context("cannot list the crates of `ingress-userspace`")? {
        found.insert(entry?.file_name().to_string_lossy().into_owned());
    }
    let known: BTreeSet<_> = CRATES.iter().map(|(name, _)| (*name).to_owned()).collect();
    if found != known {
        bail!("the crates are {found:?} but `CRATES` of `xtask/check/src/walls.rs` has {known:?}");
    }
    let of_product = CRATES.map(|(name, allowed)| (format!("ingress-userspace/crates/{name}"), allowed));
    for (name, allowed) in of_product.into_iter().chain(TOOLS.map(|(name, allowed)| (name.to_owned(), allowed))) {
        let path = workspace::root().join(&name).join("Cargo.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
        if let Some(other) = forbidden_dependency(&text, allowed).with_context(|| format!("in `{name}`"))? {
            bail!("crate `{name}` depends on `{other}`, which it must not know (ARCHITECTURE.md, invariants)");
        }
    }
    Ok(())
}

/// Returns a dependency on a crate of this project that is not in `allowed`. Dependencies of tests do not count.
fn forbidden_dependency(manifest: &str, allowed: &[&str]) -> Result<Option<String>> {
    let Manifest { dependencies } = toml::from_str(manifest)?;
    let is_ours = |name: &String| name.starts_with("ingress-") || name.starts_with("xtask");
    Ok(dependencies.into_keys().find(|name| is_ours(name) && !allowed.contains(&name.as_str())))
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
        .with_context(|| format!("`{}` is gone; move its wall in `xtask/check/src/walls.rs`", path.display()))?;
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
    fn dependencies_on_other_crates_of_the_project_are_found() {
        let manifest = "[dependencies]\ntokio = \"1\"\ningress-model.workspace = true\n\n[dev-dependencies]\ningress-lab.workspace = true\n";
        assert_eq!(forbidden_dependency(manifest, &["ingress-model"]).unwrap(), None);
        assert_eq!(forbidden_dependency(manifest, &[]).unwrap().as_deref(), Some("ingress-model"));
        assert!(forbidden_dependency("[package]", &[]).is_err());
    }

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
