//! A fingerprint of everything an output depends on, so that an unchanged build is recognised without cargo.
//! This module reads files; callers decide about a change.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// Collects the inputs of an output.
#[derive(Debug, Default)]
pub(super) struct Stamp {
    hash: Sha256,
}

impl Stamp {
    /// Adds a piece of text, such as a flag or a version.
    pub(super) fn text(&mut self, text: &str) {
        self.field(text.as_bytes());
    }

    /// Adds a file, or all files below a directory, with their paths relative to `root`.
    ///
    /// # Errors
    /// Fails if something cannot be read.
    pub(super) fn path(&mut self, root: &Path, relative: &str) -> Result<()> {
        let mut files = Vec::new();
        collect(&root.join(relative), &mut files)?;
        files.sort();
        for file in files {
            let content = fs::read(&file).with_context(|| format!("cannot read `{}`", file.display()))?;
            let name = file.strip_prefix(root).unwrap_or(&file);
            self.field(name.to_string_lossy().as_bytes());
            self.field(&content);
        }
        Ok(())
    }

    /// Returns the fingerprint in hexadecimal.
    pub(super) fn finish(self) -> String {
        self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn field(&mut self, bytes: &[u8]) {
        // The length separates fields, so that two fields never look like one.
        self.hash.update(bytes.len().to_le_bytes());
        self.hash.update(bytes);
    }
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let meta = fs::metadata(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    if meta.is_file() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path).with_context(|| format!("cannot list `{}`", path.display()))? {
        collect(&entry?.path(), files)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    fn texts(texts: &[&str]) -> String {
        let mut stamp = Stamp::default();
        texts.iter().for_each(|text| stamp.text(text));
        stamp.finish()
    }

    #[test]
    fn fields_do_not_run_together() {
        assert_eq!(texts(&["ab", "c"]), texts(&["ab", "c"]));
        assert_ne!(texts(&["ab", "c"]), texts(&["a", "bc"]));
        assert_ne!(texts(&["a"]), texts(&["a", ""]));
    }

    #[test]
    fn content_and_name_both_count() {
        let root = env::temp_dir().join(format!("xdp-ingress-stamp-{}", std::process::id()));
        let of = |files: &[(&str, &str)]| {
            fs::create_dir_all(root.join("src/deep")).unwrap();
            files.iter().for_each(|(name, content)| fs::write(root.join("src").join(name), content).unwrap());
            let mut stamp = Stamp::default();
            stamp.path(&root, "src").unwrap();
            fs::remove_dir_all(&root).unwrap();
            stamp.finish()
        };
        let first = of(&[("a", "1"), ("deep/b", "2")]);
        assert_eq!(first, of(&[("deep/b", "2"), ("a", "1")]));
        assert_ne!(first, of(&[("a", "2"), ("deep/b", "1")]));
        assert_ne!(first, of(&[("a", "1"), ("deep/c", "2")]));
    }
}
