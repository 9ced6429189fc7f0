//! The directory of a release: its files, their checksums and signatures. It appears under its name only when it is
//! complete.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use xtask_image::oci::Blob;

use super::key::Key;
use super::provenance::Subject;

/// Checksums of the files, for `sha256sum --check`.
pub(crate) const SUMS: &str = "SHA256SUMS";
/// The public part of the key.
pub(crate) const PUBLIC_KEY: &str = "cosign.pub";

/// A directory under construction; dropped without [`Files::finish`], it is removed.
#[derive(Debug)]
pub(crate) struct Files {
    staging: tempfile::TempDir,
    place: PathBuf,
    /// SHA-256 of each file that depends on the sources alone.
    sums: BTreeMap<String, String>,
}

// === impl Files ===

impl Files {
    /// Begins a directory that becomes `place`.
    ///
    /// # Errors
    /// Fails if `place` exists and is neither empty nor a release, or cannot be created.
    pub(crate) fn begin(place: &Path) -> Result<Self> {
        if let Ok(mut entries) = fs::read_dir(place) {
            ensure!(
                entries.next().is_none() || place.join(SUMS).is_file(),
                "`{}` has other files than a release; name another directory",
                place.display()
            );
        }
        let parent = place.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(parent).with_context(|| format!("cannot make `{}`", parent.display()))?;
        let staging = tempfile::Builder::new().prefix(".release-").tempdir_in(parent);
        let staging = staging.with_context(|| format!("cannot make a directory in `{}`", parent.display()))?;
        Ok(Self { staging, place: place.to_owned(), sums: BTreeMap::new() })
    }

    /// Returns the path of a directory without checksums, to write it there.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.staging.path().join(name)
    }

    /// Writes a file whose bytes depend on the sources alone.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub(crate) fn write(&mut self, name: &str, content: &[u8]) -> Result<()> {
        self.write_unlisted(name, content)?;
        self.sums.insert(name.to_owned(), Blob::new("", content.to_vec()).hash().to_owned());
        Ok(())
    }

    /// Writes a file without a checksum: it differs between equal builds, such as a signature.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub(crate) fn write_unlisted(&self, name: &str, content: &[u8]) -> Result<()> {
        fs::write(self.path(name), content).with_context(|| format!("cannot write `{name}`"))
    }

    /// Returns the listed files.
    pub(crate) fn subjects(&self) -> Vec<Subject> {
        let subject = |(name, sha256): (&String, &String)| Subject { name: name.clone(), sha256: sha256.clone() };
        self.sums.iter().map(subject).collect()
    }

    /// Writes the checksums, signs them and every listed file, and gives the directory its name. A release that was
    /// there is replaced.
    ///
    /// # Errors
    /// Fails if a file cannot be read or written, or the key cannot sign.
    pub(crate) fn finish(self, key: Option<&Key>) -> Result<PathBuf> {
        let sums: String = self.sums.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect();
        self.write_unlisted(SUMS, sums.as_bytes())?;
        if let Some(key) = key {
            for name in self.sums.keys().map(String::as_str).chain([SUMS]) {
                let content = fs::read(self.path(name)).with_context(|| format!("cannot read `{name}`"))?;
                self.write_unlisted(&format!("{name}.sig"), key.sign(&content)?.as_bytes())?;
            }
            self.write_unlisted(PUBLIC_KEY, key.public_pem()?.as_bytes())?;
        }
        let Self { staging, place, sums: _ } = self;
        if place.exists() {
            fs::remove_dir_all(&place).with_context(|| format!("cannot remove `{}`", place.display()))?;
        }
        let staging = staging.keep();
        // Temporary directories are for their owner alone.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&staging, mode)
            .with_context(|| format!("cannot open `{}` to others", staging.display()))?;
        fs::rename(&staging, &place).with_context(|| format!("cannot rename to `{}`", place.display()))?;
        Ok(place)
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::tests::{key, verifies};
    use super::*;

    #[test]
    fn a_release_has_checksums_and_signatures_and_replaces_the_last() {
        let dir = tempfile::tempdir().unwrap();
        let (place, key) = (dir.path().join("a/release"), key());
        for content in ["old", "new"] {
            let mut files = Files::begin(&place).unwrap();
            files.write(content, content.as_bytes()).unwrap();
            files.write_unlisted("other", b"").unwrap();
            assert_eq!(files.subjects()[0].name, content);
            assert_eq!(files.finish(Some(&key)).unwrap(), place);
        }
        let read = |name: &str| fs::read_to_string(place.join(name)).unwrap();
        let sum = Blob::new("", b"new".to_vec()).hash().to_owned();
        assert_eq!(read(SUMS), format!("{sum}  new\n"));
        for name in [SUMS, "new"] {
            assert!(verifies(&key, read(name).as_bytes(), &read(&format!("{name}.sig"))), "{name}");
        }
        assert_eq!(read(PUBLIC_KEY), key.public_pem().unwrap());
        assert!(!place.join("old").exists() && !place.join("other.sig").exists());
        assert_eq!(fs::read_dir(dir.path().join("a")).unwrap().count(), 1, "no temporary directory is left");
    }

    #[test]
    fn other_files_are_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("mine"), "x").unwrap();
        let error = Files::begin(dir.path()).unwrap_err().to_string();
        assert!(error.contains("name another directory"), "{error}");
    }

    #[test]
    fn an_abandoned_release_leaves_no_files() {
        let dir = tempfile::tempdir().unwrap();
        drop(Files::begin(&dir.path().join("release")).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
