//! The plugin of kubectl: an archive for each platform, and the manifest with which Krew installs one of them.

use anyhow::{Context, Result};
use xtask_image::Platform;
use xtask_image::oci::{Archive, gzip};
use xtask_tools::published;

/// Name of the program; kubectl makes it the command `kubectl xdp-ingress`.
const PROGRAM: &str = "kubectl-xdp_ingress";
/// Name of the manifest in a release.
pub(crate) const MANIFEST: &str = "krew.yaml";

/// Returns the name of the archive for a platform.
pub(crate) fn archive_name(platform: Platform) -> String {
    format!("{PROGRAM}-linux-{}.tar.gz", platform.oci())
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

/// Returns the manifest: the template with the checksums of the archives, for these platforms alone.
///
/// # Errors
/// Fails if the template lacks one of the platforms.
pub(crate) fn manifest(template: &str, archives: &[(Platform, String)]) -> Result<String> {
    const ITEM: &str = "    - selector:";
    let downloads = format!("{}/releases/download/v{}", published::SOURCES, env!("CARGO_PKG_VERSION"));
    let mut parts = template.split(ITEM);
    let head = parts.next().unwrap_or_default();
    let items: Vec<&str> = parts.collect();
    let mut manifest = head.replace("{{HOMEPAGE}}", published::HOME);
    for (platform, sha256) in archives {
        let arch = platform.oci();
        let item = items.iter().find(|item| item.contains(&format!("arch: {arch} ")));
        let item = item.with_context(|| format!("the manifest for Krew has no platform `{arch}`"))?;
        let item = item.replace("{{DOWNLOADS}}", &downloads);
        manifest += ITEM;
        manifest += &item.replace(&format!("{{{{SHA256_LINUX_{}}}}}", arch.to_uppercase()), sha256);
    }
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATE: &str = include_str!("../../../deploy/krew/xdp-ingress.yaml");

    #[test]
    fn the_manifest_names_the_archives_of_the_release() {
        let archives = [(Platform::Amd64, "aa".to_owned()), (Platform::Arm64, "bb".to_owned())];
        for archives in [&archives[..1], &archives[..]] {
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
