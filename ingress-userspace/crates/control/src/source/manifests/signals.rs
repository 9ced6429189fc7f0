//! Collects inotify events: files that changed, and files that are being written. It reads no content.

use std::{
    collections::{HashMap, HashSet},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use notify::{
    Event, EventKind,
    event::{AccessKind, AccessMode, CreateKind, ModifyKind},
};
use tokio::sync::Notify;

/// Shared by the thread that inotify calls and the task that reads.
#[derive(Default)]
pub(super) struct Signals {
    state: Mutex<SignalState>,
    changed: Notify,
}

/// Paths to look at.
#[derive(Debug, Default)]
pub(super) struct Named {
    /// Files to read again even if they look the same, and directories.
    pub(super) paths: HashSet<PathBuf>,
    /// Whether events were lost, so that any file may have changed.
    pub(super) is_blind: bool,
}

#[derive(Default)]
struct SignalState {
    named: Named,
    /// Files written to but not yet closed, with the time of the last write.
    writing: HashMap<PathBuf, Instant>,
}

/// Time without a write after which a file that is still open is taken as complete.
const GRACE: Duration = Duration::from_millis(200);

// === impl Signals ===

impl Signals {
    pub(super) fn on_event(&self, event: notify::Result<Event>) {
        let Some(Event { kind, paths, attrs: _ }) = event.ok().filter(|event| !event.need_rescan()) else {
            // An overflow or the like.
            self.state().named.is_blind = true;
            self.changed.notify_one();
            return;
        };
        // Checked before the lock is taken: the file system may be slow, and the control thread waits for the lock.
        let is_begun = kind == EventKind::Create(CreateKind::File) && !paths.iter().any(|path| is_link(path));
        let mut state = self.state();
        match kind {
            // Reads are not changes.
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => {}
            EventKind::Access(_) => return,
            EventKind::Modify(ModifyKind::Data(_)) => return self.write(state, paths),
            // A writer may also set the owner or the times of the file. A close follows.
            EventKind::Modify(ModifyKind::Metadata(_)) if paths.iter().any(|path| state.writing.contains_key(path)) => {
                return;
            }
            // A close follows the creation of a file, but not that of a link.
            _ if is_begun => return self.write(state, paths),
            _ => {}
        }
        for path in paths {
            state.writing.remove(&path);
            state.named.paths.insert(path);
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Records that files are being written. The first write of each file wakes the waiting task, so that it knows when
    /// to take the file as complete.
    fn write(&self, mut state: MutexGuard<'_, SignalState>, paths: Vec<PathBuf>) {
        let begins = state.write(paths);
        drop(state);
        if begins {
            self.changed.notify_one();
        }
    }

    /// Returns when something has changed since the last call.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the paths collected since the last call.
    pub(super) fn take(&self) -> Named {
        let now = Instant::now();
        let mut state = self.state();
        let mut named = std::mem::take(&mut state.named);
        let written = state.writing.extract_if(|_, last| now.duration_since(*last) >= GRACE);
        named.paths.extend(written.map(|(path, _)| path));
        named
    }

    /// Returns `true` if the file is only partly written, as far as events have arrived.
    pub(super) fn is_being_written(&self, path: &Path) -> bool {
        self.state().writing.contains_key(path)
    }

    /// Returns how long until a file that stays open is taken as complete.
    pub(super) fn next_expiry(&self) -> Option<Duration> {
        let now = Instant::now();
        self.state().writing.values().map(|last| GRACE.saturating_sub(now.duration_since(*last))).min()
    }

    fn state(&self) -> MutexGuard<'_, SignalState> {
        // The state is consistent between any two statements, so a panic elsewhere leaves it usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl SignalState ===

impl SignalState {
    /// Returns `true` if one of these files was not being written before.
    fn write(&mut self, paths: Vec<PathBuf>) -> bool {
        let (now, known) = (Instant::now(), self.writing.len());
        self.writing.extend(paths.into_iter().map(|path| (path, now)));
        self.writing.len() > known
    }
}

/// Returns `true` if the entry is a symbolic link, or a hard link to an existing file.
fn is_link(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink() || metadata.nlink() > 1)
}

#[cfg(test)]
mod tests {
    use notify::event::{DataChange, Flag, MetadataKind};

    use super::*;

    #[test]
    fn a_file_is_reported_once_it_is_complete() {
        let signals = Signals::default();
        let path = Path::new("/manifests/a.yaml");
        let written = EventKind::Modify(ModifyKind::Data(DataChange::Any));
        let dated = EventKind::Modify(ModifyKind::Metadata(MetadataKind::Any));
        let closed = EventKind::Access(AccessKind::Close(AccessMode::Write));
        let read = EventKind::Access(AccessKind::Close(AccessMode::Read));
        for (kind, is_being_written, is_named) in [
            (read, false, false),
            (written, true, false),
            (dated, true, false),
            (read, true, false),
            (closed, false, true),
            (dated, false, true),
        ] {
            signals.on_event(Ok(Event::new(kind).add_path(path.into())));
            let found = (signals.is_being_written(path), signals.state().named.paths.remove(path));
            assert_eq!(found, (is_being_written, is_named), "{kind:?}");
        }
    }

    #[tokio::test]
    async fn the_first_write_of_a_file_wakes_the_reader() {
        let (signals, path) = (Signals::default(), Path::new("/manifests/a.yaml"));
        let written = || Ok(Event::new(EventKind::Modify(ModifyKind::Data(DataChange::Any))).add_path(path.into()));
        for wakes in [true, false] {
            signals.on_event(written());
            let woken = tokio::time::timeout(Duration::ZERO, signals.changed()).await.is_ok();
            assert_eq!(woken, wakes);
            assert!(signals.next_expiry().is_some_and(|left| left <= GRACE));
        }
    }

    #[test]
    fn a_lost_event_forces_one_full_scan() {
        let signals = Signals::default();
        for lost in [Ok(Event::new(EventKind::Other).set_flag(Flag::Rescan)), Err(notify::Error::generic("lost"))] {
            signals.on_event(lost);
            assert!(signals.take().is_blind && !signals.take().is_blind);
        }
    }
}
