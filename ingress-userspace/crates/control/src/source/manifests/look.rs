//! Looks through a directory for files that differ from their last read, by their metadata only. It reads no files.

use std::{
    collections::HashMap,
    ffi::OsStr,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use ingress_model::Tree;

/// Fingerprints of files as they were read. A copy is cheap.
pub(super) type Fingerprints = Tree<Arc<Path>, Fingerprint>;

/// Metadata that changes with the content of a file. Inotify reports the contrived cases where it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Result of a look.
#[derive(Debug)]
pub(super) struct Look {
    /// Files that are new, different or gone, and their fingerprints: `None` if they are gone.
    pub(super) found: Vec<(PathBuf, Option<Fingerprint>)>,
    /// Directories that could not be read; the state of their files is not known.
    pub(super) out_of_reach: Vec<(PathBuf, io::Error)>,
    /// Identity of the directory; `None` if it does not exist.
    pub(super) identity: Option<FileIdentity>,
}

/// Device and inode.
pub(super) type FileIdentity = (u64, u64);

/// Kind of entry under a name.
#[derive(Debug)]
pub(super) enum EntryKind {
    /// A file to be read.
    File(Fingerprint),
    /// A directory, with the files in it and below.
    Directory(FoundFiles),
    /// A symbolic link that any files may be reached through, or the root itself.
    Link,
    /// No file: the entry does not exist, or is no regular file that can be read.
    Gone,
    /// An entry that is not read, or of an unknown kind.
    Other,
}

/// The files that exist.
#[derive(Debug, Default)]
pub(super) struct FoundFiles {
    pub(super) files: Vec<(PathBuf, Fingerprint)>,
    /// Directories that could not be read.
    pub(super) out_of_reach: Vec<(PathBuf, io::Error)>,
}

/// Maximum depth of directories. Links cannot make a loop, because links to directories are not followed.
const MAX_DEPTH: usize = 16;

/// Looks through `root` for files that differ from `seen`.
pub(super) fn look(root: &Path, seen: &Fingerprints) -> Look {
    let mut found = FoundFiles::default();
    found.walk(root, MAX_DEPTH);
    let FoundFiles { files, out_of_reach } = found;
    let mut unseen: HashMap<&Path, &Fingerprint> = seen.iter().map(|(path, print)| (&**path, print)).collect();
    let changed = files.into_iter().filter(|(path, print)| unseen.remove(&**path) != Some(print));
    let mut found: Vec<_> = changed.map(|(path, print)| (path, Some(print))).collect();
    // The files of a directory that could not be read keep their former state.
    let is_known = |path: &Path| !out_of_reach.iter().any(|(directory, _)| path.starts_with(directory));
    found.extend(unseen.into_keys().filter(|path| is_known(path)).map(|path| (path.to_path_buf(), None)));
    Look { found, out_of_reach, identity: identity(root).ok() }
}

pub(super) fn identity(path: &Path) -> io::Result<FileIdentity> {
    fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

fn is_manifest(path: &Path) -> bool {
    path.extension().and_then(OsStr::to_str).is_some_and(|e| matches!(e, "yaml" | "yml" | "json"))
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

// === impl Fingerprint ===

impl Fingerprint {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Returns the fingerprint of the file that is under this name now.
    pub(super) fn now(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|metadata| Self::of(&metadata))
    }

    /// Returns `true` if both are of the same file, regardless of its content.
    pub(super) fn is_of_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

// === impl EntryKind ===

impl EntryKind {
    /// Returns the kind of entry under a name in `root` or below, as [`look`] would find it.
    pub(super) fn of(path: &Path, root: &Path) -> Self {
        let Ok(inner) = path.strip_prefix(root) else { return Self::Other };
        let Some(depth) = inner.components().count().checked_sub(1) else { return Self::Link };
        let is_hidden = inner.iter().any(is_hidden);
        let own = match path.symlink_metadata() {
            Ok(own) => own,
            Err(error) if is_hidden || !is_absence(&error) || !root.exists() => return Self::Other,
            Err(_) => return Self::Gone,
        };
        if own.is_symlink() && (is_hidden || !is_manifest(path)) {
            return Self::Link;
        }
        let is_directory = |path: &Path| path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
        if is_hidden || depth > MAX_DEPTH || !path.ancestors().skip(1).take(depth).all(is_directory) {
            return Self::Other;
        }
        if own.is_dir() {
            let mut found = FoundFiles::default();
            if let Some(depth) = MAX_DEPTH.checked_sub(depth + 1) {
                found.walk(path, depth);
            }
            return Self::Directory(found);
        }
        if !is_manifest(path) {
            return Self::Other;
        }
        // A link that leads nowhere, or to a directory, counts as gone.
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => Self::File(Fingerprint::of(&metadata)),
            Ok(_) | Err(_) => Self::Gone,
        }
    }
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

// === impl FoundFiles ===

impl FoundFiles {
    fn walk(&mut self, directory: &Path, depth: usize) {
        match self.entries(directory, depth) {
            // The directory went away during the look. If the root is gone, it may be about to be replaced by another,
            // so that case is an error.
            Err(error) if error.kind() == io::ErrorKind::NotFound && depth < MAX_DEPTH => {}
            Err(error) => self.out_of_reach.push((directory.into(), error)),
            Ok(()) => {}
        }
    }

    fn entries(&mut self, directory: &Path, depth: usize) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if is_hidden(&entry.file_name()) {
                continue;
            }
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if depth > 0 {
                    self.walk(&path, depth - 1);
                }
            } else if is_manifest(&path) {
                // A link may lead nowhere, and a file may go away during the look; both count as absent.
                let Ok(metadata) = fs::metadata(&path) else { continue };
                if metadata.is_file() {
                    self.files.push((path, Fingerprint::of(&metadata)));
                }
            }
        }
        Ok(())
    }
}
