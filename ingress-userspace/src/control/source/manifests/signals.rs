//! What inotify said since the last scan: files that changed, and files that are being written. It reads no content.

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

/// Shared by the thread that inotify calls and the task that scans.
#[derive(Default)]
pub(super) struct Signals {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    changed: HashSet<PathBuf>,
    /// Files written to but not yet closed, and when last.
    writing: HashMap<PathBuf, Instant>,
}

/// After so long without a write, a file that is still open is taken as complete.
const GRACE: Duration = Duration::from_millis(200);

// === impl Signals ===

impl Signals {
    pub(super) fn on_event(&self, event: notify::Result<Event>) {
        let Ok(Event { kind, paths, attrs: _ }) = event else {
            // An overflow or the like: look at everything.
            self.changed.notify_one();
            return;
        };
        let mut state = self.state();
        match kind {
            // Reading is no change.
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => {}
            EventKind::Access(_) => return,
            EventKind::Modify(ModifyKind::Data(_)) => return state.write(paths),
            // A close follows the creation of a file, but not that of a link.
            EventKind::Create(CreateKind::File) if !paths.iter().any(|path| is_link(path)) => {
                return state.write(paths);
            }
            _ => {}
        }
        for path in paths {
            state.writing.remove(&path);
            state.changed.insert(path);
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Returns when something changed since the last call.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Files to read again even if they look the same.
    pub(super) fn take(&self) -> HashSet<PathBuf> {
        let now = Instant::now();
        let mut state = self.state();
        let mut changed = std::mem::take(&mut state.changed);
        changed.extend(state.writing.extract_if(|_, last| now.duration_since(*last) >= GRACE).map(|(path, _)| path));
        changed
    }

    /// Whether the file is half written, as far as it is known by now.
    pub(super) fn is_being_written(&self, path: &Path) -> bool {
        self.state().writing.contains_key(path)
    }

    /// How long until a file that stays open is taken as complete.
    pub(super) fn next_expiry(&self) -> Option<Duration> {
        let now = Instant::now();
        self.state().writing.values().map(|last| GRACE.saturating_sub(now.duration_since(*last))).min()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements, so a panic elsewhere leaves it usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    fn write(&mut self, paths: Vec<PathBuf>) {
        let now = Instant::now();
        self.writing.extend(paths.into_iter().map(|path| (path, now)));
    }
}

/// Whether the file came to be as a link to one that is already there.
fn is_link(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink() || metadata.nlink() > 1)
}
