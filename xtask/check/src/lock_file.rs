//! The parts of the lock files that the checks of dependencies read: the file of the workspace, and the file of the
//! fuzz targets, which are a separate workspace.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use semver::Version;
use serde::Deserialize;

use xtask_tools::workspace;

/// The manifest beside each lock file.
pub(super) const MANIFESTS: [&str; 2] = ["Cargo.toml", "ingress-userspace/fuzz/Cargo.toml"];

/// A lock file.
#[derive(Debug, Deserialize)]
pub(super) struct LockFile {
    pub(super) package: Vec<Locked>,
}

/// A package in the version chosen by cargo.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(super) struct Locked {
    pub(super) name: String,
    pub(super) version: Version,
    /// The registry or repository; `None` for packages of the workspace.
    pub(super) source: Option<String>,
}

// === impl LockFile ===

impl LockFile {
    /// Reads the lock file beside `manifest`.
    ///
    /// # Errors
    /// Fails if the file cannot be read or parsed.
    pub(super) fn beside(manifest: &str) -> Result<Self> {
        let path = Path::new(manifest).with_file_name("Cargo.lock");
        let shown = path.display();
        let text = fs::read_to_string(workspace::root().join(&path));
        toml::from_str(&text.with_context(|| format!("cannot read `{shown}`"))?)
            .with_context(|| format!("cannot understand `{shown}`"))
    }

    /// Reads all lock files into one list, without duplicates.
    ///
    /// # Errors
    /// Fails if a file cannot be read or parsed.
    pub(super) fn read() -> Result<Self> {
        let mut package = BTreeSet::new();
        for manifest in MANIFESTS {
            package.extend(Self::beside(manifest)?.package);
        }
        Ok(Self { package: package.into_iter().collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_the_fuzz_targets_are_included() {
        let [workspace, fuzz] = MANIFESTS.map(|manifest| LockFile::beside(manifest).unwrap().package);
        let all = LockFile::read().unwrap().package;
        assert!(workspace.iter().chain(&fuzz).all(|locked| all.contains(locked)));
        assert!(all.len() > workspace.len() && all.len() < workspace.len() + fuzz.len());
        assert!(all.iter().any(|locked| locked.name == "libfuzzer-sys"));
    }
}
