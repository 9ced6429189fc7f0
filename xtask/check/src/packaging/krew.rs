//! Checks the template of the manifest for Krew: its form, its version, and a name for each platform. Krew itself checks
//! the manifest of a release, which has addresses and checksums.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::objects;
use xtask_tools::workspace;

/// The template, and the manifest of the crate with the plugin.
const TEMPLATE: &str = "deploy/krew/xdp-ingress.yaml";
const CRATE: &str = "ingress-userspace/crates/cli/Cargo.toml";

/// Checks the template.
///
/// # Errors
/// Describes the first fault.
pub(super) fn run() -> Result<()> {
    let read =
        |path: &str| fs::read_to_string(workspace::root().join(path)).with_context(|| format!("cannot read `{path}`"));
    let names: toml::Value = toml::from_str(&read(CRATE)?)?;
    let programs = names["bin"].as_array().into_iter().flatten().filter_map(|program| program["name"].as_str());
    valid(&read(TEMPLATE)?, &programs.collect::<Vec<_>>()).with_context(|| format!("in `{TEMPLATE}`"))
}

/// Checks a manifest of a plugin that is one of the `programs`.
fn valid(yaml: &str, programs: &[&str]) -> Result<()> {
    let manifest = objects::value(yaml)?;
    let text = |pointer: &str| manifest.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    ensure!(text("/apiVersion") == "krew.googlecontainertools.github.com/v1alpha2", "`apiVersion` is not Krew's");
    ensure!(text("/kind") == "Plugin", "`kind` is not `Plugin`");
    let version = concat!("v", env!("CARGO_PKG_VERSION"));
    ensure!(text("/spec/version") == version, "`version` is `{}`, not `{version}`", text("/spec/version"));
    let short = text("/spec/shortDescription");
    // Krew's naming guide; `kubectl krew search` shows one line.
    ensure!((1..=50).contains(&short.len()) && !short.ends_with('.'), "`shortDescription` is no title: `{short}`");
    ensure!(
        !text("/spec/description").is_empty() && !text("/spec/homepage").is_empty(),
        "a description or homepage is missing"
    );
    // kubectl turns `_` of a program into `-` of a command.
    let program = format!("kubectl-{}", text("/metadata/name").replace('-', "_"));
    ensure!(programs.contains(&program.as_str()), "no crate has the program `{program}`");
    let mut found = BTreeSet::new();
    for platform in manifest.pointer("/spec/platforms").and_then(Value::as_array).into_iter().flatten() {
        let text = |pointer: &str| platform.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (os, arch) = (text("/selector/matchLabels/os"), text("/selector/matchLabels/arch"));
        ensure!(
            ["linux", "darwin"].contains(&os) && ["amd64", "arm64"].contains(&arch),
            "no platform is `{os}/{arch}`"
        );
        let archive = format!("{{{{DOWNLOADS}}}}/{program}-{os}-{arch}.tar.gz");
        ensure!(text("/uri") == archive, "`uri` of {os}/{arch} is `{}`, not `{archive}`", text("/uri"));
        let checksum = format!("{{{{SHA256_{os}_{arch}}}}}").to_uppercase();
        ensure!(text("/sha256") == checksum, "`sha256` of {os}/{arch} is `{}`, not `{checksum}`", text("/sha256"));
        ensure!(text("/bin") == program, "`bin` of {os}/{arch} is not `{program}`");
        ensure!(found.insert((os, arch)), "{os}/{arch} occurs twice");
    }
    ensure!(!found.is_empty(), "there is no platform");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_the_template_are_found() {
        let template = fs::read_to_string(workspace::root().join(TEMPLATE)).unwrap();
        let programs = ["kubectl-xdp_ingress"];
        valid(&template, &programs).unwrap();
        assert!(valid(&template, &["xdp-ingress"]).is_err(), "no such program");
        for (from, to) in [
            (concat!("v", env!("CARGO_PKG_VERSION")), "v9.9.9"),
            ("kind: Plugin", "kind: Pod"),
            ("on each node", "on each node."),
            ("os: linux, arch: arm64", "os: linux, arch: amd64"),
            ("os: linux, arch: arm64", "os: windows, arch: arm64"),
            ("{{SHA256_LINUX_AMD64}}", "{{SHA256_LINUX_ARM64}}"),
            ("bin: kubectl-xdp_ingress", "bin: kubectl-xdp-ingress"),
            ("linux-arm64.tar.gz", "linux-aarch64.tar.gz"),
        ] {
            assert!(template.contains(from), "{from}");
            assert!(valid(&template.replace(from, to), &programs).is_err(), "{to}");
        }
    }
}
