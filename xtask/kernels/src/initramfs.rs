//! The root file system of a machine in the form that the kernel unpacks: an archive of the format `newc` (cpio(5), and
//! Documentation/driver-api/early-userspace/buffer-format.rst of the kernel). The files are the caller's choice.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use xtask_image::oci::File;

/// Types of files in the mode (inode(7)).
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
/// The name that ends an archive.
const END: &str = "TRAILER!!!";

/// Returns the archive of `files`, including their parent directories.
///
/// # Errors
/// Fails if a path is not absolute, or something is too large for the format (4 GiB).
pub(super) fn archive(files: &[File]) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    let mut directories = BTreeSet::new();
    for File { path, mode: _, content: _ } in files {
        let path = relative(path)?;
        directories.extend(path.match_indices('/').map(|(at, _)| &path[..at]));
    }
    // The set is ordered, so each directory follows its parent.
    for directory in directories {
        archive.entry(directory, DIRECTORY | 0o755, &[])?;
    }
    for File { path, mode, content } in files {
        archive.entry(relative(path)?, REGULAR | mode, content)?;
    }
    archive.entry(END, 0, &[])?;
    Ok(archive.bytes)
}

fn relative(path: &str) -> Result<&str> {
    path.strip_prefix('/').with_context(|| format!("`{path}` is no absolute path"))
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    /// Inode number of the last entry. Entries with the same number would be one file.
    inode: u32,
}

impl Archive {
    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.inode += 1;
        let size = u32::try_from(content.len()).with_context(|| format!("`{path}` is too large for an initramfs"))?;
        let name_size = u32::try_from(path.len() + 1)?;
        // c_ino, c_mode, c_uid, c_gid, c_nlink, c_mtime, c_filesize, four of devices, c_namesize, c_chksum.
        let fields = [self.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
        Ok(())
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns path, mode and content of each entry, read according to the format.
    fn entries(mut archive: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        let whole = archive.len();
        while !archive.is_empty() {
            assert!(archive.starts_with(b"070701"));
            let field = |index: usize| {
                let digits = str::from_utf8(&archive[6 + index * 8..14 + index * 8]).expect("ASCII");
                u32::from_str_radix(digits, 16).expect("hexadecimal")
            };
            let (mode, size, name_size) = (field(1), field(6) as usize, field(11) as usize);
            let at = whole - archive.len();
            let content = (at + 110 + name_size).next_multiple_of(4) - at;
            let name = String::from_utf8(archive[110..110 + name_size - 1].to_vec()).expect("UTF-8");
            assert_eq!(archive[110 + name_size - 1], 0);
            entries.push((name, mode, archive[content..content + size].to_vec()));
            archive = &archive[(at + content + size).next_multiple_of(4) - at..];
        }
        entries
    }

    #[test]
    fn archived_files_follow_their_directories() {
        let file = |path: &str, mode: u32, content: &str| File {
            path: path.to_owned(),
            mode,
            content: content.as_bytes().to_vec(),
        };
        let files =
            [file("/usr/bin/a", 0o755, "1"), file("/init", 0o755, "#!/bin/sh\n"), file("/usr/lib/b", 0o644, "12345")];
        let entry = |path: &str, mode: u32, content: &str| (path.to_owned(), mode, content.as_bytes().to_vec());
        assert_eq!(
            entries(&archive(&files).expect("an archive")),
            [
                entry("usr", 0o040_755, ""),
                entry("usr/bin", 0o040_755, ""),
                entry("usr/lib", 0o040_755, ""),
                entry("usr/bin/a", 0o100_755, "1"),
                entry("init", 0o100_755, "#!/bin/sh\n"),
                entry("usr/lib/b", 0o100_644, "12345"),
                entry(END, 0, ""),
            ]
        );
        assert!(archive(&[file("init", 0o755, "")]).is_err());
    }
}
