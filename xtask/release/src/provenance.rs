//! How a release was built: a statement of in-toto with the provenance of SLSA, version 1. It tells no times and no name
//! of a machine, so that equal builds have equal statements.

use std::env;

use serde_json::{Value, json};
use xtask_image::Platform;
use xtask_setup::build::Profile;
use xtask_tools::published;

use super::registry::Registry;
use super::source::Source;

/// Builder without a name of its own.
pub const UNNAMED: &str = "https://xdp-ingress.example.com/builders/unnamed";

/// A file or a manifest that was built.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// Name of the file, or of the repository.
    pub name: String,
    /// SHA-256 as hexadecimal digits.
    pub sha256: String,
}

/// Everything that decides about the bytes of a release.
#[derive(Debug, Clone, Copy)]
pub struct Build<'a> {
    /// The sources.
    pub source: &'a Source,
    /// SHA-256 of `Cargo.lock`.
    pub lock: &'a str,
    /// Version of the Rust compiler.
    pub rustc: &'a str,
    /// The platforms of the image.
    pub platforms: &'a [Platform],
    /// Profile of the programs.
    pub profile: Profile,
    /// The registry that chart and manifests name.
    pub registry: &'a Registry,
    /// URI of the party that vouches for the build.
    pub builder: &'a str,
}

/// Returns the statement about `subjects`.
#[must_use]
pub fn statement(subjects: &[Subject], build: Build<'_>) -> Value {
    let Build { source, lock, rustc, platforms, profile, registry, builder } = build;
    let Source { commit, time, is_modified } = source;
    let subject = |Subject { name, sha256 }: &Subject| json!({ "name": name, "digest": { "sha256": sha256 } });
    let profile = match profile {
        Profile::Dev => "dev",
        Profile::Release => "release",
        Profile::Guided => "release, guided by a profile",
    };
    json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects.iter().map(subject).collect::<Vec<_>>(),
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": format!("{}/cargo-xtask-release/v1", published::HOME),
                "externalParameters": {
                    "platforms": platforms.iter().map(|platform| platform.oci()).collect::<Vec<_>>(),
                    "profile": profile,
                    "registry": registry.to_string(),
                },
                "internalParameters": {
                    "host": env::consts::ARCH,
                    "modified": is_modified,
                    "rustc": rustc,
                    "SOURCE_DATE_EPOCH": time,
                },
                "resolvedDependencies": [
                    { "uri": format!("git+{}@{commit}", published::SOURCES), "digest": { "gitCommit": commit } },
                    { "name": "Cargo.lock", "digest": { "sha256": lock } },
                ],
            },
            "runDetails": { "builder": { "id": builder } },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_names_what_was_built_and_from_what() {
        let source = Source { commit: "c0ffee".to_owned(), time: 7, is_modified: false };
        let registry = "r.example/x".parse().unwrap();
        let subjects = [Subject { name: "a.tar".to_owned(), sha256: "00".to_owned() }];
        let made = statement(
            &subjects,
            Build {
                source: &source,
                lock: "11",
                rustc: "1.95.0",
                platforms: &[Platform::Amd64, Platform::Arm64],
                profile: Profile::Release,
                registry: &registry,
                builder: UNNAMED,
            },
        );
        for (pointer, expect) in [
            ("/_type", json!("https://in-toto.io/Statement/v1")),
            ("/predicateType", json!("https://slsa.dev/provenance/v1")),
            ("/subject/0/digest/sha256", json!("00")),
            ("/predicate/buildDefinition/externalParameters/platforms", json!(["amd64", "arm64"])),
            ("/predicate/buildDefinition/resolvedDependencies/0/digest/gitCommit", json!("c0ffee")),
            ("/predicate/buildDefinition/resolvedDependencies/1/digest/sha256", json!("11")),
            ("/predicate/runDetails/builder/id", json!(UNNAMED)),
        ] {
            assert_eq!(made.pointer(pointer), Some(&expect), "{pointer}");
        }
    }

    #[test]
    fn the_unnamed_builder_is_at_home() {
        assert!(UNNAMED.starts_with(published::HOME));
    }
}
