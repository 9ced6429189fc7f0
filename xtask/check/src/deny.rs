//! Checks the rules of `deny.toml` about dependencies: with cargo-deny if it is installed, else with a small reader of
//! the same file. The small reader covers licences, sources and banned crates; `advisories.rs` covers vulnerabilities.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::licence;
use super::lock_file::{LockFile, Locked, MANIFESTS};
use xtask_setup::build;
use xtask_tools::{process, progress, workspace};

/// The registry of cargo itself, as written in lock files.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[derive(Debug, Deserialize)]
struct Config {
    graph: Graph,
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Debug, Deserialize)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Licenses {
    allow: Vec<String>,
    #[serde(default)]
    exceptions: Vec<Exception>,
}

#[derive(Debug, Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Bans {
    deny: Vec<Ban>,
}

#[derive(Debug, Deserialize)]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
    /// Packages that alone may depend on it. The small reader only checks that one of them is present; cargo-deny
    /// checks who depends on it.
    #[serde(default)]
    wrappers: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    #[serde(default)]
    allow_registry: Vec<String>,
    #[serde(default)]
    allow_git: Vec<String>,
}

/// A package that is compiled for at least one of the targets.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    licence: String,
}

/// Checks the dependencies.
///
/// # Errors
/// Fails if a rule is broken, the lock file does not fit the manifests, or something cannot be read.
pub(super) fn run() -> Result<()> {
    if process::find_program("cargo-deny").is_some() {
        let root = workspace::root();
        return MANIFESTS.iter().try_for_each(|manifest| {
            let mut deny = build::cargo();
            deny.arg("deny").arg("--manifest-path").arg(root.join(manifest)).args(["--workspace", "--locked", "check"]);
            deny.arg("--config").arg(root.join("deny.toml")).args(["licenses", "bans", "sources"]);
            process::run(&mut deny)
        });
    }
    progress::warn("cargo-deny is not installed; xtask reads `deny.toml` itself: licences, sources and banned crates");
    let text = fs::read_to_string(workspace::root().join("deny.toml")).context("cannot read `deny.toml`")?;
    let config: Config = toml::from_str(&text).context("cannot understand `deny.toml`")?;
    let lock = LockFile::read()?;
    let mut packages = BTreeSet::new();
    for target in &config.graph.targets {
        for manifest in MANIFESTS {
            packages.extend(compiled_for(target, manifest)?);
        }
    }
    let objections = objections(&config, &packages, &lock);
    if !objections.is_empty() {
        bail!("`deny.toml` does not allow:\n  {}", objections.join("\n  "));
    }
    progress::note(&format!("{} packages for {} targets comply", packages.len(), config.graph.targets.len()));
    Ok(())
}

/// Returns the packages that cargo would compile for a target. Unlike the lock file, the result lacks packages that no
/// enabled feature needs.
fn compiled_for(target: &str, manifest: &str) -> Result<BTreeSet<Package>> {
    let mut tree = build::cargo();
    tree.args(["tree", "--locked", "--manifest-path", manifest, "--workspace", "--target", target]);
    tree.args(["--edges", "normal,build,dev"]);
    tree.args(["--prefix", "none", "--no-dedupe", "--format", "{p}|{l}"]);
    let output = process::capture(&mut tree).with_context(|| {
        format!("`cargo check --manifest-path {manifest}` may have to bring its `Cargo.lock` up to date")
    })?;
    output.lines().filter(|line| !line.is_empty()).map(parse_package).collect()
}

/// Parses `name v1.2.3 (source)|licence`. Cargo adds ` (*)` to a package whose tests depend on it again.
fn parse_package(line: &str) -> Result<Package> {
    let parts = line.split_once('|').and_then(|(package, licence)| {
        let mut words = package.split_whitespace();
        Some((words.next()?, words.next()?.strip_prefix('v')?, licence.trim_end_matches(" (*)").trim()))
    });
    let (name, version, licence) = parts.with_context(|| format!("cargo tree printed `{line}`"))?;
    Ok(Package { name: name.to_owned(), version: version.to_owned(), licence: licence.to_owned() })
}

fn objections(config: &Config, packages: &BTreeSet<Package>, lock: &LockFile) -> Vec<String> {
    let Config { graph: _, licenses, bans, sources } = config;
    let licences = packages.iter().filter_map(|Package { name, version, licence }| {
        let extra = licenses.exceptions.iter().filter(|exception| exception.name == *name);
        let allowed: Vec<String> = licenses.allow.iter().chain(extra.flat_map(|extra| &extra.allow)).cloned().collect();
        Some(format!("`{name}` {version} {}", licence::objection(licence, &allowed)?))
    });
    let banned = packages.iter().filter_map(|Package { name, version, .. }| {
        let is_wrapped = |ban: &&Ban| packages.iter().any(|package| ban.wrappers.contains(&package.name));
        let ban = bans.deny.iter().find(|ban| ban.name == *name).filter(|ban| !is_wrapped(ban))?;
        Some(format!("`{name}` {version}: {} (`cargo tree --invert {name}` shows who wants it)", ban.reason))
    });
    let foreign = lock.package.iter().filter_map(|Locked { name, version: _, source }| {
        let source = source.as_ref()?;
        (!source_allowed(source, sources)).then(|| format!("`{name}` comes from `{source}`"))
    });
    licences.chain(banned).chain(foreign).collect()
}

fn source_allowed(source: &str, sources: &Sources) -> bool {
    let without_revision = |url: &str| url.split(['?', '#']).next().unwrap_or_default().to_owned();
    let registry = |url: &str| sources.allow_registry.iter().any(|allowed| allowed == url);
    let git = |url: &str| sources.allow_git.contains(&without_revision(url));
    source == CRATES_IO
        || source.strip_prefix("registry+").is_some_and(registry)
        || source.strip_prefix("git+").is_some_and(git)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        toml::from_str(
            r#"
            [graph]
            targets = ["x86_64-unknown-linux-gnu"]
            [licenses]
            allow = ["MIT"]
            exceptions = [{ crate = "roots", allow = ["CDLA-Permissive-2.0"] }]
            [bans]
            deny = [{ crate = "ring", reason = "one TLS crypto provider" }]
            [sources]
            unknown-registry = "deny"
            allow-git = ["https://example.org/fork"]
            "#,
        )
        .unwrap()
    }

    fn lock(source: &str) -> LockFile {
        let version = semver::Version::new(1, 0, 0);
        LockFile { package: vec![Locked { name: "it".to_owned(), version, source: Some(source.to_owned()) }] }
    }

    #[test]
    fn each_rule_reports_its_violations() {
        let check = |package: &str, source: &str, expect: Option<&str>| {
            let packages = BTreeSet::from([parse_package(package).unwrap()]);
            let found = objections(&config(), &packages, &lock(source));
            assert_eq!(found.len(), usize::from(expect.is_some()), "{found:?}");
            assert!(expect.is_none_or(|expect| found[0].contains(expect)), "{found:?}");
        };
        check("it v1.0.0|MIT OR Apache-2.0", CRATES_IO, None);
        check("it v1.0.0 (/here/it)|MIT", CRATES_IO, None);
        check("it v1.0.0 (/here/it)|MIT OR Apache-2.0 (*)", CRATES_IO, None);
        check("it v1.0.0|AGPL-3.0-only", CRATES_IO, Some("AGPL-3.0-only"));
        check("it v1.0.0|", CRATES_IO, Some("names no licence"));
        check("ring v0.17.8|MIT", CRATES_IO, Some("one TLS crypto provider"));
        check("roots v1.0.0|MIT AND CDLA-Permissive-2.0", CRATES_IO, None);
        check("it v1.0.0|MIT AND CDLA-Permissive-2.0", CRATES_IO, Some("CDLA"));
        check("it v1.0.0|MIT", "registry+https://example.org/index", Some("example.org/index"));
        check("it v1.0.0|MIT", "git+https://example.org/other?rev=1#1", Some("example.org/other"));
        check("it v1.0.0|MIT", "git+https://example.org/fork?rev=1#1", None);
    }

    #[test]
    fn the_rules_of_the_project_parse() {
        let text = fs::read_to_string(workspace::root().join("deny.toml")).unwrap();
        let config: Config = toml::from_str(&text).unwrap();
        assert!(config.bans.deny.iter().any(|ban| ban.name == "ring"));
    }
}
