//! The content of a directory of manifests, and its changes as files change. This module never waits.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet, btree_map::Entry},
    fs::{self, File},
    io::{self, Read as _},
    ops::Bound,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    look::{EntryKind, FileIdentity, Fingerprint, Fingerprints, FoundFiles, Look, identity, look},
    parse::{self, ParsedFile},
};
use crate::{
    SourceError,
    change::{Batch, Change, Object, ObjectId},
    outcome::{ObjectRef, Origin, Outcome, Reason},
};

/// State of a directory as it was last read.
#[derive(Debug)]
pub(super) struct Directory {
    root: PathBuf,
    identity: FileIdentity,
    was_replaced: bool,
    files: BTreeMap<Arc<Path>, Manifest>,
    seen: Fingerprints,
    objects: BTreeMap<ObjectId, HeldObject>,
    /// Objects that are defined more than once.
    repeated: BTreeSet<ObjectId>,
    /// Files with remarks.
    remarked: BTreeSet<Arc<Path>>,
    /// Remarks about directories that could not be read.
    out_of_reach: Vec<Outcome>,
    remarks: Vec<Outcome>,
}

/// An object that files hold. Between `set` and `report`, `files` may be empty: the object is gone, and that is not sent
/// yet.
#[derive(Debug, Default)]
struct HeldObject {
    /// The files that hold it, in order; mostly one. It is taken from the first.
    files: Vec<Arc<Path>>,
    /// The object as it was sent last, with the file that it was taken from.
    reported: Option<(Object, Origin)>,
}

#[derive(Debug)]
struct Manifest {
    origin: Origin,
    /// In order of their names. A map would have room for eleven, and most files hold few.
    objects: Box<[(ObjectId, Object)]>,
    /// Objects that are defined more than once in this file.
    repeated: BTreeSet<ObjectId>,
    remarks: Vec<Outcome>,
}

/// Result of reading some files.
#[derive(Debug, Default)]
pub(super) struct Update {
    /// The differences from the state sent before.
    pub(super) batch: Option<Batch>,
    /// Paths to read again after a short time: either a loss there was not believed yet, or the read may have been
    /// partial.
    pub(super) in_doubt: HashSet<PathBuf>,
    /// Whether any file may have changed.
    pub(super) is_blind: bool,
}

/// How to treat a file that is gone, or holds less than it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Losses {
    /// Keep its objects for now: an editor may be about to put another file in its place, or to write it again.
    Doubt,
    Accept,
}

/// A larger file is a mistake, and would be in memory twice.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;

// === impl Directory ===

impl Directory {
    /// Opens the directory `root` without reading files.
    ///
    /// # Errors
    /// If it is no directory that can be read.
    pub(super) fn open(root: &Path) -> Result<Self, SourceError> {
        let error = |source| SourceError::Manifests { path: root.into(), source };
        fs::read_dir(root).map_err(error)?;
        Ok(Self {
            root: root.into(),
            identity: identity(root).map_err(error)?,
            was_replaced: false,
            files: BTreeMap::new(),
            seen: Fingerprints::new(),
            objects: BTreeMap::new(),
            repeated: BTreeSet::new(),
            remarked: BTreeSet::new(),
            out_of_reach: Vec::new(),
            remarks: Vec::new(),
        })
    }

    /// Looks through the whole directory. Reads new files, and those in `changed` even if they look the same. Files
    /// that are being written keep their former content.
    ///
    /// Returns the differences from the last result, or `None`.
    pub(super) fn scan(
        &mut self,
        changed: &HashSet<PathBuf>,
        is_being_written: impl Fn(&Path) -> bool,
    ) -> Option<Batch> {
        let mut named = self.take_in(look(&self.root, &self.seen));
        named.extend(changed.iter().cloned());
        self.update(&named, Losses::Accept, is_being_written).batch
    }

    /// Returns `true` if the last look found another directory under the name.
    pub(super) fn was_replaced(&self) -> bool {
        self.was_replaced
    }

    /// Returns the arguments of the next [`look`].
    pub(super) fn view(&self) -> (PathBuf, Fingerprints) {
        (self.root.clone(), self.seen.clone())
    }

    /// Records the result of a look, and returns the paths to read for it.
    pub(super) fn take_in(&mut self, look: Look) -> HashSet<PathBuf> {
        let Look { found, out_of_reach, identity } = look;
        self.out_of_reach = out_of_reach.iter().map(|(path, error)| unreadable(path, error)).collect();
        if let Some(now) = identity {
            self.was_replaced = now != self.identity;
            self.identity = now;
        }
        // Files that inotify has named since the look began are already read.
        let is_news = |(path, print): &(PathBuf, Option<Fingerprint>)| self.seen.get(&**path) != print.as_ref();
        found.into_iter().filter(is_news).map(|(path, _)| path).collect()
    }

    /// Reads the files under these names, even if they look the same. Files that are being written keep their former
    /// content. The cost depends only on the size of these files.
    pub(super) fn update(
        &mut self,
        named: &HashSet<PathBuf>,
        losses: Losses,
        is_being_written: impl Fn(&Path) -> bool,
    ) -> Update {
        let (mut update, mut touched) = (Update::default(), BTreeSet::new());
        for path in named {
            match EntryKind::of(path, &self.root) {
                EntryKind::File(fingerprint) => {
                    if !self.read(path, fingerprint, losses, &is_being_written, &mut touched) {
                        update.in_doubt.insert(path.clone());
                    }
                }
                EntryKind::Directory(FoundFiles { files, out_of_reach }) => {
                    update.is_blind |= !out_of_reach.is_empty();
                    let mut missing: BTreeSet<_> = self.below(path).into_iter().collect();
                    for (path, fingerprint) in files {
                        missing.remove(&*path);
                        if self.seen.get(&*path) != Some(&fingerprint)
                            && !self.read(&path, fingerprint, losses, &is_being_written, &mut touched)
                        {
                            update.in_doubt.insert(path);
                        }
                    }
                    // When a directory takes the place of another, inotify does not name the files that went with the
                    // former one.
                    if losses == Losses::Accept && out_of_reach.is_empty() {
                        missing.iter().for_each(|path| self.set(path, None, &mut touched));
                    }
                    // inotify does not report files that came into a new directory before it was watched.
                    update.in_doubt.insert(path.clone());
                }
                EntryKind::Gone => {
                    let gone = self.below(path);
                    if losses == Losses::Doubt && !gone.is_empty() {
                        update.in_doubt.insert(path.clone());
                    } else {
                        gone.iter().for_each(|path| self.set(path, None, &mut touched));
                    }
                }
                EntryKind::Link => update.is_blind = true,
                EntryKind::Other => {}
            }
        }
        let is_in_doubt = losses == Losses::Doubt && !update.in_doubt.is_empty();
        update.batch = self.report(touched, is_in_doubt);
        update
    }

    /// Reads a file, unless a process is writing it. Returns `false` if its content is in doubt.
    fn read(
        &mut self,
        path: &Path,
        fingerprint: Fingerprint,
        losses: Losses,
        is_being_written: impl Fn(&Path) -> bool,
        touched: &mut BTreeSet<ObjectId>,
    ) -> bool {
        if is_being_written(path) {
            return true;
        }
        let (name, before): (Arc<Path>, _) = match self.files.get_key_value(path) {
            Some((name, before)) => (Arc::clone(name), Some(before)),
            None => (path.into(), None),
        };
        let manifest = Manifest::read(&name, before);
        // A process may have begun to write during the read, and the inotify event may still be on its way. The end of
        // that write, or the next look, leads to another read.
        if is_being_written(path) || Fingerprint::now(path) != Some(fingerprint) {
            return true;
        }
        // A file that was moved over another is complete.
        let is_same_file = self.seen.get(path).is_some_and(|seen| seen.is_of_file(&fingerprint));
        if losses == Losses::Doubt && is_same_file && before.is_some_and(|before| !manifest.has_all_of(before)) {
            return false;
        }
        self.set(&name, Some((manifest, fingerprint)), touched);
        true
    }

    /// Returns the files read at this path and below.
    fn below(&self, path: &Path) -> Vec<Arc<Path>> {
        let from: (Bound<&Path>, Bound<&Path>) = (Bound::Included(path), Bound::Unbounded);
        let files = self.files.range::<Path, _>(from).map(|(file, _)| file);
        files.take_while(|file| file.starts_with(path)).cloned().collect()
    }

    /// Sets the content of a file; `None` if it is gone.
    fn set(&mut self, path: &Arc<Path>, manifest: Option<(Manifest, Fingerprint)>, touched: &mut BTreeSet<ObjectId>) {
        if manifest.as_ref().is_some_and(|(manifest, _)| !manifest.remarks.is_empty()) {
            self.remarked.insert(Arc::clone(path));
        } else {
            self.remarked.remove(path);
        }
        let before = match manifest {
            Some((manifest, fingerprint)) => {
                for (id, _) in &manifest.objects {
                    let files = &mut self.objects.entry(id.clone()).or_default().files;
                    if let Err(at) = files.binary_search(path) {
                        files.reserve_exact(1);
                        files.insert(at, Arc::clone(path));
                    }
                    touched.insert(id.clone());
                }
                self.seen.insert(Arc::clone(path), fingerprint);
                self.files.insert(Arc::clone(path), manifest)
            }
            None => {
                self.seen.remove(path);
                self.files.remove(path)
            }
        };
        let now = self.files.get(path);
        for (id, _) in before.into_iter().flat_map(|manifest| manifest.objects) {
            let held = self.objects.get_mut(&id).filter(|_| now.is_none_or(|manifest| manifest.get(&id).is_none()));
            held.into_iter().for_each(|held| held.files.retain(|file| file != path));
            touched.insert(id);
        }
    }

    /// Compares these objects and the remarks with the state sent before. Remarks wait while a loss is in doubt.
    fn report(&mut self, touched: BTreeSet<ObjectId>, is_in_doubt: bool) -> Option<Batch> {
        let (mut changes, mut applied) = (Vec::new(), Vec::new());
        for id in touched {
            let Some(held) = self.objects.get_mut(&id) else {
                continue;
            };
            let Some((object, origin, is_repeated)) = find(&self.files, &held.files, &id) else {
                self.repeated.remove(&id);
                if self.objects.remove(&id).is_some_and(|held| held.reported.is_some()) {
                    changes.push(Change::Remove(id));
                }
                continue;
            };
            if is_repeated {
                self.repeated.insert(id.clone());
            } else {
                self.repeated.remove(&id);
            }
            if held.reported.as_ref().is_none_or(|(before, from)| before != object || from != origin) {
                applied.push(Change::Apply { object: object.clone(), origin: origin.clone() });
                held.reported = Some((object.clone(), origin.clone()));
            }
        }
        changes.append(&mut applied);
        // After a file was moved, both names hold the objects until the loss of the first is believed.
        let remarks = if is_in_doubt { self.remarks.clone() } else { self.to_remark() };
        if changes.is_empty() && remarks == self.remarks {
            return None;
        }
        self.remarks.clone_from(&remarks);
        Some(Batch { changes, remarks: Some(remarks), ..Batch::default() })
    }

    fn to_remark(&self) -> Vec<Outcome> {
        let own = self.remarked.iter().filter_map(|path| self.files.get(path)).flat_map(|manifest| &manifest.remarks);
        let mut remarks: Vec<_> = self.out_of_reach.iter().chain(own).cloned().collect();
        for id in &self.repeated {
            let paths = self.objects.get(id).into_iter().flat_map(|held| &held.files);
            let mut manifests = paths.filter_map(|path| self.files.get(path));
            let Some(first) = manifests.next() else { continue };
            let again = first.repeated.contains(id).then_some(first);
            remarks.extend(again.into_iter().chain(manifests).map(|other| duplicate(id, &other.origin, &first.origin)));
        }
        remarks.sort();
        remarks.dedup();
        remarks
    }
}

/// Returns an object as its first file defines it, that file's origin, and whether it is defined again.
fn find<'f>(
    files: &'f BTreeMap<Arc<Path>, Manifest>,
    paths: &[Arc<Path>],
    id: &ObjectId,
) -> Option<(&'f Object, &'f Origin, bool)> {
    let manifest = files.get(paths.first()?)?;
    Some((manifest.get(id)?, &manifest.origin, paths.len() > 1 || manifest.repeated.contains(id)))
}

// === impl Manifest ===

impl Manifest {
    /// Reads the file. If it is broken, the objects of `before` stay.
    fn read(path: &Arc<Path>, before: Option<&Self>) -> Self {
        let mut manifest = Self {
            origin: Origin::File(Arc::clone(path)),
            objects: Box::default(),
            repeated: BTreeSet::new(),
            remarks: Vec::new(),
        };
        let mut known = BTreeMap::new();
        let is_broken = match content(path) {
            Ok(text) => {
                let ParsedFile { objects, remarks } = parse::parse(path, &text);
                for object in objects {
                    match known.entry(object.id()) {
                        Entry::Vacant(entry) => drop(entry.insert(object)),
                        Entry::Occupied(entry) => drop(manifest.repeated.insert(entry.key().clone())),
                    }
                }
                manifest.remarks = remarks;
                manifest.remarks.iter().any(|remark| remark.reason == Reason::InvalidObject)
            }
            Err(error) => {
                manifest.remarks.push(unreadable(path, &error));
                true
            }
        };
        if is_broken {
            for (id, object) in before.into_iter().flat_map(|before| &before.objects) {
                known.entry(id.clone()).or_insert_with(|| object.clone());
            }
        }
        manifest.objects = known.into_iter().collect();
        manifest
    }

    fn get(&self, id: &ObjectId) -> Option<&Object> {
        let at = self.objects.binary_search_by(|(other, _)| other.cmp(id)).ok()?;
        self.objects.get(at).map(|(_, object)| object)
    }

    fn has_all_of(&self, before: &Self) -> bool {
        before.objects.iter().all(|(id, _)| self.get(id).is_some())
    }
}

fn content(path: &Path) -> io::Result<String> {
    let file = File::open(path)?;
    // Read with one call, so that little time remains for a concurrent write.
    let expected = usize::try_from(file.metadata()?.len().min(MAX_FILE_BYTES)).unwrap_or_default();
    let mut text = String::with_capacity(expected + 1);
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if u64::try_from(text.len()).is_ok_and(|length| length > MAX_FILE_BYTES) {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is larger than {MAX_FILE_BYTES} bytes")));
    }
    Ok(text)
}

fn unreadable(path: &Path, error: &io::Error) -> Outcome {
    let object = parse::file(&Origin::File(path.into()));
    let reason = if error.kind() == io::ErrorKind::FileTooLarge { Reason::TooLarge } else { Reason::InvalidObject };
    Outcome::new(object, reason, format!("it cannot be read: {error}; its last readable content stays in use"))
}

fn duplicate(id: &ObjectId, origin: &Origin, first: &Origin) -> Outcome {
    let object: ObjectRef = id.name.refer(id.kind, origin);
    let place = match first {
        Origin::File(path) => path.display().to_string(),
        Origin::Api => "the API server".into(),
    };
    let message = format!("`{place}`, earlier in the order of paths, defines it already; remove one of the two");
    Outcome::new(object, Reason::DuplicateObject, message)
}
