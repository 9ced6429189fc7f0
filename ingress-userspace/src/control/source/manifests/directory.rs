//! The content of a directory of manifests, and what changed in it from scan to scan. It waits for nothing.

use std::{
    collections::{BTreeMap, HashSet, btree_map::Entry},
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::parse::{self, Parsed};
use crate::control::{
    Error,
    change::{Batch, Change, Object, ObjectId},
    outcome::{ObjectRef, Origin, Outcome, Reason},
};

/// What was last read of a directory.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
    identity: (u64, u64),
    was_replaced: bool,
    files: BTreeMap<PathBuf, Manifest>,
    /// What has been told: each object with the file it is taken from.
    told: BTreeMap<ObjectId, (Object, Origin)>,
    remarks: Vec<Outcome>,
}

#[derive(Debug)]
struct Manifest {
    fingerprint: Fingerprint,
    objects: Vec<Object>,
    remarks: Vec<Outcome>,
}

/// What changes when a file does, in all but contrived cases: those are told by inotify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fingerprint {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The files there are.
#[derive(Debug, Default)]
struct Found {
    files: BTreeMap<PathBuf, Fingerprint>,
    /// Directories that could not be read.
    out_of_reach: Vec<(PathBuf, io::Error)>,
}

/// A larger file is a mistake, and would stand in memory twice.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;

/// Deeper directories are not read; links cannot make a loop, because those to directories are not followed.
const MAX_DEPTH: usize = 16;

// === impl Directory ===

impl Directory {
    /// The directory `root`, nothing of it read yet.
    ///
    /// # Errors
    /// If it is no directory that can be read.
    pub fn open(root: &Path) -> Result<Self, Error> {
        let error = |source| Error::Manifests { path: root.into(), source };
        fs::read_dir(root).map_err(error)?;
        let identity = identity(root).map_err(error)?;
        Ok(Self {
            root: root.into(),
            identity,
            was_replaced: false,
            files: BTreeMap::new(),
            told: BTreeMap::new(),
            remarks: Vec::new(),
        })
    }

    /// Reads what is new, and what is in `changed` even if it looks the same; leaves what is being written as it was.
    ///
    /// Returns what differs from what was last returned, or `None`.
    pub fn scan(&mut self, changed: &HashSet<PathBuf>, is_being_written: impl Fn(&Path) -> bool) -> Option<Batch> {
        let mut found = Found::default();
        found.walk(&self.root, MAX_DEPTH);
        let remarks = found.out_of_reach.iter().map(|(path, error)| unreadable(path, error)).collect();
        self.read(found, changed, is_being_written);
        if let Ok(now) = identity(&self.root) {
            self.was_replaced = now != self.identity;
            self.identity = now;
        }
        self.tell(remarks)
    }

    /// Whether the last scan found another directory under the name.
    #[must_use]
    pub fn was_replaced(&self) -> bool {
        self.was_replaced
    }

    fn read(&mut self, found: Found, changed: &HashSet<PathBuf>, is_being_written: impl Fn(&Path) -> bool) {
        let Found { files, out_of_reach } = found;
        // A directory out of reach says nothing about its files, so they stay as they were.
        let is_hidden = |path: &Path| out_of_reach.iter().any(|(directory, _)| path.starts_with(directory));
        self.files.retain(|path, _| files.contains_key(path) || is_hidden(path));
        for (path, fingerprint) in files {
            let before = self.files.get(&path);
            let is_same = before.is_some_and(|manifest| manifest.fingerprint == fingerprint);
            if (is_same && !changed.contains(&path)) || is_being_written(&path) {
                continue;
            }
            let manifest = Manifest::read(&path, fingerprint, before.map_or(&[][..], |manifest| &manifest.objects));
            // Someone may have begun to write while we read. When they are done, we are told again.
            if !is_being_written(&path) {
                self.files.insert(path, manifest);
            }
        }
    }

    /// Compares what the files hold now with what was told.
    fn tell(&mut self, mut remarks: Vec<Outcome>) -> Option<Batch> {
        let mut now: BTreeMap<ObjectId, (&Object, Origin)> = BTreeMap::new();
        for (path, Manifest { fingerprint: _, objects, remarks: own }) in &self.files {
            let origin = Origin::File(path.as_path().into());
            remarks.extend(own.iter().cloned());
            for object in objects {
                match now.entry(object.id()) {
                    Entry::Vacant(entry) => drop(entry.insert((object, origin.clone()))),
                    Entry::Occupied(entry) => remarks.push(duplicate(entry.key(), &origin, &entry.get().1)),
                }
            }
        }
        remarks.sort();
        remarks.dedup();
        let mut changes: Vec<_> =
            self.told.keys().filter(|id| !now.contains_key(id)).cloned().map(Change::Remove).collect();
        for (id, (object, origin)) in &now {
            if self.told.get(id).is_none_or(|(before, from)| before != *object || from != origin) {
                changes.push(Change::Apply { object: (*object).clone(), origin: origin.clone() });
            }
        }
        if changes.is_empty() && remarks == self.remarks {
            return None;
        }
        self.told = now.into_iter().map(|(id, (object, origin))| (id, (object.clone(), origin))).collect();
        self.remarks.clone_from(&remarks);
        Some(Batch { changes, remarks: Some(remarks), ..Batch::default() })
    }
}

// === impl Manifest ===

impl Manifest {
    /// Reads the file; of what is broken now, the objects of `before` stay.
    fn read(path: &Path, fingerprint: Fingerprint, before: &[Object]) -> Self {
        let name: Arc<Path> = path.into();
        let text = match content(path) {
            Ok(text) => text,
            Err(error) => {
                return Self { fingerprint, objects: before.to_vec(), remarks: vec![unreadable(&name, &error)] };
            }
        };
        let Parsed { mut objects, remarks } = parse::parse(&name, &text);
        if remarks.iter().any(|remark| remark.reason == Reason::InvalidObject) {
            let read: HashSet<_> = objects.iter().map(Object::id).collect();
            objects.extend(before.iter().filter(|object| !read.contains(&object.id())).cloned());
        }
        Self { fingerprint, objects, remarks }
    }
}

// === impl Found ===

impl Found {
    fn walk(&mut self, directory: &Path, depth: usize) {
        match self.entries(directory, depth) {
            // It went while we looked. Where the root is gone, someone may be about to put another in its place.
            Err(error) if error.kind() == io::ErrorKind::NotFound && depth < MAX_DEPTH => {}
            Err(error) => self.out_of_reach.push((directory.into(), error)),
            Ok(()) => {}
        }
    }

    fn entries(&mut self, directory: &Path, depth: usize) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let (name, path) = (entry.file_name(), entry.path());
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if depth > 0 {
                    self.walk(&path, depth - 1);
                }
            } else if is_manifest(&path) {
                // A link may lead nowhere, and a file may go while we look: then it is not there.
                let Ok(metadata) = fs::metadata(&path) else { continue };
                if metadata.is_file() {
                    self.files.insert(path, Fingerprint::of(&metadata));
                }
            }
        }
        Ok(())
    }
}

fn is_manifest(path: &Path) -> bool {
    path.extension().and_then(|extension| extension.to_str()).is_some_and(|e| matches!(e, "yaml" | "yml" | "json"))
}

fn content(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if u64::try_from(text.len()).is_ok_and(|length| length > MAX_FILE_BYTES) {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is larger than {MAX_FILE_BYTES} bytes")));
    }
    Ok(text)
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

fn unreadable(path: &Path, error: &io::Error) -> Outcome {
    let object = parse::file(&Origin::File(path.into()));
    let reason = if error.kind() == io::ErrorKind::FileTooLarge { Reason::TooLarge } else { Reason::InvalidObject };
    Outcome { object, reason, message: format!("cannot be read: {error}; what was read of it before stays") }
}

fn duplicate(id: &ObjectId, origin: &Origin, first: &Origin) -> Outcome {
    let object: ObjectRef = id.name.refer(id.kind, origin);
    let place = match first {
        Origin::File(path) => path.display().to_string(),
        Origin::Api => "the API server".into(),
    };
    let message = format!("`{place}` defines it already, and first in order of paths; remove one of the two");
    Outcome { object, reason: Reason::DuplicateObject, message }
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
}
