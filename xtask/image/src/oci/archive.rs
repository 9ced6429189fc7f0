//! Tar and gzip files whose bytes depend on their content alone.

use std::io::Write as _;

use anyhow::{Context, Result};

/// A tar file under construction; its entries reveal nothing about the machine.
pub struct Archive {
    builder: tar::Builder<Vec<u8>>,
}

// === impl Archive ===

impl Default for Archive {
    fn default() -> Self {
        Self { builder: tar::Builder::new(Vec::new()) }
    }
}

impl Archive {
    /// Adds a directory.
    ///
    /// # Errors
    /// Fails if the path is too long for the format.
    pub fn directory(&mut self, path: &str, mode: u32) -> Result<()> {
        self.entry(&format!("{path}/"), tar::EntryType::Directory, mode, &[])
    }

    /// Adds a regular file.
    ///
    /// # Errors
    /// Fails if the path is too long for the format.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.entry(path, tar::EntryType::Regular, mode, content)
    }

    fn entry(&mut self, path: &str, kind: tar::EntryType, mode: u32, content: &[u8]) -> Result<()> {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(content.len().try_into()?);
        self.builder.append_data(&mut header, path, content).with_context(|| format!("cannot add `{path}`"))
    }

    /// Returns the bytes of the whole file.
    ///
    /// # Errors
    /// Fails if the file cannot be completed.
    pub fn finish(self) -> Result<Vec<u8>> {
        self.builder.into_inner().context("cannot finish the archive")
    }
}

/// Compresses `content` with gzip. The header has no time and no name. The bytes depend on the version of the
/// compressor, which `Cargo.lock` pins.
///
/// # Errors
/// Fails if the content cannot be compressed.
pub fn gzip(content: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(content).and_then(|()| encoder.finish()).context("cannot compress an archive")
}
