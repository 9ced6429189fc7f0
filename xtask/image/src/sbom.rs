//! The software in the product's image, as CycloneDX 1.6 (JSON): the crates of the program and of the kernel programs.
//! The output depends only on `Cargo.lock`, so it has no time and no serial number.
//!
//! Written here because `cargo-cyclonedx` is a program to install, not a library, and writes a time.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use xtask_setup::build;
use xtask_tools::process;

/// A crate: name, version, licence, and `true` if it belongs to this workspace.
type Component = (String, String, String, bool);

/// Package and target of each program in the image.
const BUILT: [(&str, Option<&str>); 2] = [("ingress-userspace", None), ("ingress-ebpf", Some("bpfel-unknown-none"))];

/// Returns the document.
///
/// # Errors
/// Fails if cargo cannot list the crates that it would compile.
pub(super) fn write() -> Result<Vec<u8>> {
    let mut components = BTreeSet::new();
    for (package, target) in BUILT {
        let mut tree = build::cargo();
        tree.args(["tree", "--locked", "--package", package, "--edges", "normal", "--prefix", "none", "--no-dedupe"]);
        tree.args(["--format", "{p}|{l}"]).args(target.iter().flat_map(|target| ["--target", target]));
        for line in process::capture(&mut tree)?.lines().filter(|line| !line.is_empty()) {
            components.insert(component(line)?);
        }
    }
    let mut text = serde_json::to_vec_pretty(&document(&components))?;
    text.push(b'\n');
    Ok(text)
}

/// Parses `name v1.2.3 (source)|licence`.
fn component(line: &str) -> Result<Component> {
    let parts = line.split_once('|').and_then(|(package, licence)| {
        let mut words = package.split_whitespace();
        let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
        let is_own = words.next().is_some_and(|from| from.starts_with("(/"));
        // Older packages write `MIT/Apache-2.0` for `MIT OR Apache-2.0`.
        let licence = licence.split('/').map(str::trim).collect::<Vec<_>>().join(" OR ");
        Some((name.to_owned(), version.to_owned(), licence, is_own))
    });
    parts.with_context(|| format!("cargo tree printed `{line}`"))
}

fn document(components: &BTreeSet<Component>) -> Value {
    let reference = |name: &str, version: &str| format!("pkg:cargo/{name}@{version}");
    let one = |(name, version, licence, is_own): &Component| {
        let mut one = json!({
            "type": "library",
            "bom-ref": reference(name, version),
            "name": name,
            "version": version,
            "licenses": [{ "expression": licence }],
        });
        // A crate of the workspace is in no registry.
        if !is_own && let Some(fields) = one.as_object_mut() {
            fields.insert("purl".to_owned(), reference(name, version).into());
        }
        one
    };
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": { "component": {
            "type": "application",
            "bom-ref": "xdp-ingress",
            "name": "xdp-ingress",
            "version": env!("CARGO_PKG_VERSION"),
        } },
        "components": components.iter().map(one).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sbom_lists_linked_packages_but_no_test_dependencies() {
        let document: Value = serde_json::from_slice(&write().unwrap()).unwrap();
        let names: Vec<_> = document["components"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
        for name in ["hyper", "rustls", "aya-ebpf", "ingress-ebpf"] {
            assert!(names.iter().any(|other| *other == name), "{name}");
        }
        for name in ["criterion", "proptest", "xtask"] {
            assert!(!names.iter().any(|other| *other == name), "{name}");
        }
    }

    #[test]
    fn components_have_the_metadata_of_cargo() {
        let components =
            ["it v1.2.3|MIT/Apache-2.0", "own v0.1.0 (/here/own)|MIT"].map(|line| component(line).unwrap());
        let document = document(&components.into());
        assert_eq!(document["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(document["components"][0]["purl"], "pkg:cargo/it@1.2.3");
        assert_eq!(document["components"][1].get("purl"), None);
        assert!(component("nonsense").is_err());
    }
}
