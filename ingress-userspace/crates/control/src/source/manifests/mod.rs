//! Reads a directory of ordinary Kubernetes manifests and follows its changes. It does not interpret objects.
//!
//! ```text
//! inotify ──> Signals (which files, which are half written) ──names──> Directory::update ──> Batch
//!     every 2 to 60 s, for what inotify cannot see ──> look ──names──────────┘
//! ```
//!
//! Files named `*.yaml`, `*.yml` and `*.json` in the directory and below it are read, in order of their paths. Names
//! that begin with `.` are skipped, so a mounted ConfigMap (`..data`) is read once. Symbolic links to files are
//! followed, those to directories are not. Of objects with the same name the first one counts.
//!
//! A file that cannot be read or is broken keeps the objects that it held before; a file that is gone takes its objects
//! with it. A file that is still being written is read when it is closed, or after 200 ms without a write. A file that
//! is gone, or holds less than it did, is looked at again after 1 ms before the loss is believed.
//!
//! A change costs as much as the content of the files that inotify names. If inotify cannot name any (a link was set
//! elsewhere, or its queue has overflowed), and also from time to time, the metadata of all files is compared.

use std::{
    collections::HashSet,
    path::{self, Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::mpsc,
    task::{JoinError, JoinHandle, spawn_blocking},
    time::{self, Instant},
};

use crate::{SourceError, change::Batch, clock::expiry};

mod directory;
mod look;
mod parse;
mod signals;

use directory::{Directory, Losses, Update};
use look::{Look, look};
pub use parse::{ParsedFile, parse};
use signals::{Named, Signals};

/// Quiet time after which a loss is taken as intended.
const QUIET: Duration = Duration::from_millis(1);

/// Longest time for which changes without a pause hold a loss back.
const MAX_DELAY: Duration = Duration::from_millis(50);

/// Changes that inotify does not see (network file systems, targets of links) are found after this time, …
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// … or later, so that looks take at most one part in this many of the time (a look takes 0.2 s for 100,000 files); …
const LOOK_SHARE: u32 = 100;

/// … but at least this often: a single look that a file system delayed does not predict the next.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(60);

/// Sends the content of `root`, then every change, until the receiver is dropped.
///
/// The first batch is sent even if it is empty.
///
/// # Errors
/// If `root` is no directory, or its changes cannot be watched, at the start. If another directory takes its place
/// later and cannot be watched, its changes are found by looking.
pub async fn watch(root: PathBuf, batches: mpsc::Sender<Batch>) -> Result<(), SourceError> {
    watch_with(root, batches, FileWatch::start).await
}

async fn watch_with(
    root: PathBuf,
    batches: mpsc::Sender<Batch>,
    start: impl Fn(&Path, &Arc<Signals>) -> Result<FileWatch, SourceError>,
) -> Result<(), SourceError> {
    // Absolute, as in the paths that inotify reports.
    let root = path::absolute(&root).unwrap_or(root);
    let directory = Directory::open(&root)?;
    let signals = Arc::new(Signals::default());
    let mut watch = Some(start(&root, &signals)?);
    let mut is_warned = false;
    let (mut directory, first) = read_all(directory, &signals).await?;
    if batches.send(first.unwrap_or_default()).await.is_err() {
        return Ok(());
    }
    // At once, as the directory may have been replaced before it was watched.
    let mut looking = Looking { under_way: None, due: Instant::now(), again: false };
    loop {
        let (mut named, mut has_looked) = (HashSet::new(), false);
        tokio::select! {
            () = batches.closed() => return Ok(()),
            () = signals.changed() => {}
            () = expiry(signals.next_expiry().map(|after| Instant::now() + after)) => {}
            found = looking.next(&directory) => {
                named = directory.take_in(found?);
                has_looked = true;
                if directory.was_replaced() {
                    watch = None;
                }
                if watch.is_none() {
                    watch = or_warn(start(&root, &signals), &mut is_warned);
                    // Changes since the look were not watched.
                    if watch.is_some() {
                        looking.hasten();
                    }
                }
            }
        }
        for losses in [Losses::Doubt, Losses::Accept] {
            let Named { paths, is_blind } = signals.take();
            named.extend(paths);
            // The wake-up was for a file that is being written. It is read when it is closed or its time is over.
            if named.is_empty() && !has_looked {
                if is_blind {
                    looking.hasten();
                }
                break;
            }
            let (returned, update) = read(directory, named, losses, &signals).await?;
            directory = returned;
            let Update { batch, in_doubt, is_blind: may_be_others } = update;
            if is_blind || may_be_others {
                looking.hasten();
            }
            if let Some(batch) = batch
                && batches.send(batch).await.is_err()
            {
                return Ok(());
            }
            if in_doubt.is_empty() || losses == Losses::Accept {
                break;
            }
            settle(&signals).await;
            named = in_doubt;
        }
    }
}

/// Returns the watch, or logs the error that prevented it, once per series of failures.
fn or_warn(started: Result<FileWatch, SourceError>, is_warned: &mut bool) -> Option<FileWatch> {
    let error = match started {
        Ok(watch) => {
            *is_warned = false;
            return Some(watch);
        }
        Err(error) => error,
    };
    if !std::mem::replace(is_warned, true) {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(error, "cannot watch the manifests; they are read periodically until they can be watched");
    }
    None
}

/// Waits until no more changes come, up to a limit.
async fn settle(signals: &Signals) {
    let quiet = async { while time::timeout(QUIET, signals.changed()).await.is_ok() {} };
    drop(time::timeout(MAX_DELAY, quiet).await);
}

/// Reads everything, on a thread where blocking is allowed.
async fn read_all(mut directory: Directory, signals: &Arc<Signals>) -> Result<(Directory, Option<Batch>), SourceError> {
    let signals = Arc::clone(signals);
    let scanned = spawn_blocking(move || {
        let batch = directory.scan(&signals.take().paths, |path| signals.is_being_written(path));
        (directory, batch)
    });
    scanned.await.map_err(stopped)
}

/// Reads the named paths, on a thread where blocking is allowed.
async fn read(
    mut directory: Directory,
    named: HashSet<PathBuf>,
    losses: Losses,
    signals: &Arc<Signals>,
) -> Result<(Directory, Update), SourceError> {
    let signals = Arc::clone(signals);
    let updated = spawn_blocking(move || {
        let update = directory.update(&named, losses, |path| signals.is_being_written(path));
        (directory, update)
    });
    updated.await.map_err(stopped)
}

fn stopped(source: JoinError) -> SourceError {
    SourceError::Stopped { what: "the reader of manifests", source }
}

/// Repeats looks through the directory, while named paths are read.
struct Looking {
    /// The look in progress; it returns its duration, too.
    under_way: Option<JoinHandle<(Look, Duration)>>,
    /// Start time of the next look.
    due: Instant,
    /// Whether the look in progress may be too early for the change it should find, so that another one must follow.
    again: bool,
}

// === impl Looking ===

impl Looking {
    /// Returns the result of the next look. If the future is dropped, the next call returns that result.
    async fn next(&mut self, directory: &Directory) -> Result<Look, SourceError> {
        if self.under_way.is_none() {
            time::sleep_until(self.due).await;
        }
        let under_way = self.under_way.get_or_insert_with(|| {
            let (root, seen) = directory.view();
            spawn_blocking(move || {
                let began = Instant::now();
                (look(&root, &seen), began.elapsed())
            })
        });
        let looked = under_way.await;
        self.under_way = None;
        let (look, took) = looked.map_err(stopped)?;
        let pause = if std::mem::take(&mut self.again) { Duration::ZERO } else { pause(took) };
        self.due = Instant::now() + pause;
        Ok(look)
    }

    /// Starts a look now, or right after the one in progress.
    fn hasten(&mut self) {
        self.again = self.under_way.is_some();
        self.due = Instant::now();
    }
}

/// Returns the pause after a look that took this long.
fn pause(took: Duration) -> Duration {
    took.saturating_mul(LOOK_SHARE).clamp(LOOK_EVERY, LOOK_AT_LEAST_EVERY)
}

/// The subscription to changes; it ends when dropped.
#[derive(Debug)]
struct FileWatch {
    _watcher: notify::RecommendedWatcher,
}

// === impl FileWatch ===

impl FileWatch {
    fn start(root: &Path, signals: &Arc<Signals>) -> Result<Self, SourceError> {
        use notify::Watcher as _;
        let error = |source| SourceError::Watch { path: root.into(), source };
        let signals = Arc::clone(signals);
        let mut watcher = notify::recommended_watcher(move |event| signals.on_event(event)).map_err(error)?;
        watcher.watch(root, notify::RecursiveMode::Recursive).map_err(error)?;
        Ok(Self { _watcher: watcher })
    }
}

#[cfg(test)]
mod tests;
