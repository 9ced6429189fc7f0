//! The plugin of kubectl: an archive for each platform, and the manifest with which Krew installs one of them.

use anyhow::{Context, Result};
use xtask_image::Platform;
use xtask_image::oci::{Archive, gzip};
use xtask_tools::published;

/// Name of the program; kubectl makes it the command `kubectl xdp-ingress`.
const PROGRAM: &str = "kubectl-xdp_ingress";
/// Name of the manifest in a release.
pub(crate) const MANIFEST: &str = "krew.yaml";

/// A system on which the plugin runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    Linux(Platform),
    /// macOS on an architecture.
    Darwin(Platform),
}

// === impl System ===

impl System {
    /// Returns the names of system and architecture as Krew and Go have them.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Linux(platform) => ("linux", platform.oci()),
            Self::Darwin(platform) => ("darwin", platform.oci()),
        }
    }
}

/// Returns the name of the archive for a system.
pub(crate) fn archive_name(system: System) -> String {
    let (os, arch) = system.names();
    format!("{PROGRAM}-{os}-{arch}.tar.gz")
}

/// Returns the archive of a program, with its licences, which Krew asks for.
///
/// # Errors
/// Fails if the archive cannot be made.
pub(crate) fn archive(program: &[u8], licences: &[(&str, Vec<u8>)]) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for (name, text) in licences {
        archive.file(name, 0o644, text)?;
    }
    archive.file(PROGRAM, 0o755, program)?;
    gzip(&archive.finish()?)
}

/// Returns the manifest: the template with the checksums of the archives, for these systems alone.
///
/// # Errors
/// Fails if the template lacks one of the systems.
pub(crate) fn manifest(template: &str, archives: &[(System, String)]) -> Result<String> {
    const ITEM: &str = "    - selector:";
    let downloads = format!("{}/releases/download/v{}", published::SOURCES, env!("CARGO_PKG_VERSION"));
    let mut parts = template.split(ITEM);
    let head = parts.next().unwrap_or_default();
    let items: Vec<&str> = parts.collect();
    let mut manifest = head.replace("{{HOMEPAGE}}", published::HOME);
    for (system, sha256) in archives {
        let (os, arch) = system.names();
        let item = items.iter().find(|item| item.contains(&format!("os: {os}, arch: {arch} ")));
        let item = item.with_context(|| format!("the manifest for Krew has no platform `{os}/{arch}`"))?;
        let item = item.replace("{{DOWNLOADS}}", &downloads);
        manifest += ITEM;
        manifest += &item.replace(&format!("{{{{SHA256_{os}_{arch}}}}}").to_uppercase(), sha256);
    }
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATE: &str = include_str!("../../../deploy/krew/xdp-ingress.yaml");

    #[test]
    fn the_manifest_names_the_archives_of_the_release() {
        let archives = [
            (System::Linux(Platform::Amd64), "aa".to_owned()),
            (System::Linux(Platform::Arm64), "bb".to_owned()),
            (System::Darwin(Platform::Amd64), "cc".to_owned()),
            (System::Darwin(Platform::Arm64), "dd".to_owned()),
        ];
        for archives in [&archives[..1], &archives[..2], &archives[..]] {
            let text = manifest(TEMPLATE, archives).unwrap();
            let made: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
            let platforms = made["spec"]["platforms"].as_array().unwrap();
            let sums: Vec<_> = platforms.iter().map(|platform| platform["sha256"].as_str().unwrap()).collect();
            assert_eq!(sums, archives.iter().map(|(_, sum)| &**sum).collect::<Vec<_>>());
            for (platform, (built, _)) in platforms.iter().zip(archives) {
                assert!(platform["uri"].as_str().unwrap().ends_with(&format!("/{}", archive_name(*built))));
            }
            let body: String = text.lines().filter(|line| !line.starts_with('#')).collect();
            assert!(!body.contains("{{"), "{text}");
        }
        assert!(manifest("spec: {}", &archives).is_err());
    }

    #[test]
    fn an_archive_has_the_program_and_its_licences_and_no_times() {
        let made = || archive(b"program", &[("LICENSE-MIT", b"free".to_vec())]).unwrap();
        assert_eq!(made(), made());
        let made = made();
        let mut entries = tar::Archive::new(flate2::read::GzDecoder::new(made.as_slice()));
        let found: Vec<_> = entries
            .entries()
            .unwrap()
            .map(|entry| {
                let header = entry.as_ref().unwrap().header();
                (entry.as_ref().unwrap().path().unwrap().display().to_string(), header.mode().unwrap() & 0o777)
            })
            .collect();
        assert_eq!(found, [("LICENSE-MIT".to_owned(), 0o644), (PROGRAM.to_owned(), 0o755)]);
    }
}
