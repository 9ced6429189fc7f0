//! Reads a directory of ordinary Kubernetes manifests and follows its changes. It does not interpret objects.
//!
//! ```text
//! inotify ──> Signals (which files, which are half written) ──> quiet for 1 ms ──> Directory::scan ──> Batch
//!                 every 2 s, for what inotify cannot see ────────────┘
//! ```
//!
//! Files named `*.yaml`, `*.yml` and `*.json` in the directory and below it are read, in order of their paths; names
//! that begin with `.` are not, so a mounted ConfigMap (`..data`) is read once. Symbolic links to files are followed,
//! those to directories are not. Of objects with the same name the first stays.
//!
//! A file that cannot be read or is broken keeps the objects that it held before; a file that is gone takes its objects
//! with it. A file that someone is still writing is looked at when it is closed, or after 200 ms without a write.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::mpsc, time};

use crate::control::{Error, change::Batch};

mod directory;
mod parse;
mod signals;

pub use directory::Directory;
pub use parse::{Parsed, parse};
use signals::Signals;

/// Quiet time after which a change is taken as complete: several files written in one go become one batch.
const QUIET: Duration = Duration::from_millis(1);

/// Longest time that changes without a pause are held back.
const MAX_DELAY: Duration = Duration::from_millis(50);

/// What inotify does not see (network file systems, targets of links, an overflow of its queue) is seen after this
/// time.
const RESCAN: Duration = Duration::from_secs(2);

/// Sends the content of `root`, then every change, until the receiver goes.
///
/// The first batch is sent even if it is empty.
///
/// # Errors
/// If `root` is no directory, or its changes cannot be watched, at the start. Later, while the changes of a directory
/// that took its place cannot be watched, they are found by looking.
pub async fn follow(root: PathBuf, batches: mpsc::Sender<Batch>) -> Result<(), Error> {
    follow_with(root, batches, Watch::start).await
}

async fn follow_with(
    root: PathBuf,
    batches: mpsc::Sender<Batch>,
    start: impl Fn(&Path, &Arc<Signals>) -> Result<Watch, Error>,
) -> Result<(), Error> {
    let mut directory = Directory::open(&root)?;
    let signals = Arc::new(Signals::default());
    let mut watch = Some(start(&root, &signals)?);
    let mut is_warned = false;
    let mut is_first = true;
    loop {
        let (returned, batch) = scan(directory, &signals).await?;
        directory = returned;
        if let Some(batch) = batch.or_else(|| is_first.then(Batch::default)) {
            is_first = false;
            if batches.send(batch).await.is_err() {
                return Ok(());
            }
        }
        if directory.was_replaced() {
            watch = None;
        }
        if watch.is_none() {
            match start(&root, &signals) {
                Ok(started) => {
                    (watch, is_warned) = (Some(started), false);
                    // What changed since the scan was not watched.
                    continue;
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_warned, true) {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(error, "the manifests are looked at every {RESCAN:?} until they can be watched");
                    }
                }
            }
        }
        let deadline = signals.next_expiry().map_or(RESCAN, |expiry| expiry.min(RESCAN));
        tokio::select! {
            () = batches.closed() => return Ok(()),
            signalled = time::timeout(deadline, signals.changed()) => {
                if signalled.is_ok() {
                    settle(&signals).await;
                }
            }
        }
    }
}

/// Waits until no more changes come, but not forever.
async fn settle(signals: &Signals) {
    let quiet = async { while time::timeout(QUIET, signals.changed()).await.is_ok() {} };
    drop(time::timeout(MAX_DELAY, quiet).await);
}

/// Scans on a thread where blocking is allowed.
async fn scan(mut directory: Directory, signals: &Arc<Signals>) -> Result<(Directory, Option<Batch>), Error> {
    let signals = Arc::clone(signals);
    let scanned = tokio::task::spawn_blocking(move || {
        let batch = directory.scan(&signals.take(), |path| signals.is_being_written(path));
        (directory, batch)
    });
    scanned.await.map_err(|source| Error::Stopped { what: "the reader of manifests", source })
}

/// The subscription to changes; it ends when dropped.
#[derive(Debug)]
struct Watch {
    _watcher: notify::RecommendedWatcher,
}

// === impl Watch ===

impl Watch {
    fn start(root: &Path, signals: &Arc<Signals>) -> Result<Self, Error> {
        use notify::Watcher as _;
        let error = |source| Error::Watch { path: root.into(), source };
        let signals = Arc::clone(signals);
        let mut watcher = notify::recommended_watcher(move |event| signals.on_event(event)).map_err(error)?;
        watcher.watch(root, notify::RecursiveMode::Recursive).map_err(error)?;
        Ok(Self { _watcher: watcher })
    }
}

#[cfg(test)]
mod tests;
