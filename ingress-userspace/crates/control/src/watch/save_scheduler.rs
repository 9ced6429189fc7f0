//! Reads and writes the saved configuration when that is due. Neither the served nor the saved content is its decision.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::Instant,
};

use crate::{
    clock::expiry,
    saved::{self, Restored, SavedContent},
};

/// How long the API server may take for its first lists before the saved configuration is served. The lists usually
/// take less than a second, and a client that is turned away meanwhile comes back later than this.
pub(super) const RESTORE_AFTER: Duration = Duration::from_secs(3);

/// Delay between a change and the save after it, which is also the shortest interval between two saves.
const SAVE_AFTER: Duration = Duration::from_secs(3);

/// The file, and when to read or write it.
pub(super) struct SaveScheduler {
    file: Option<Arc<saved::File>>,
    restore_at: Option<Instant>,
    save_at: Option<Instant>,
    /// The write in progress, on a thread where blocking is allowed.
    writing: Option<JoinHandle<()>>,
}

// === impl SaveScheduler ===

impl SaveScheduler {
    pub(super) fn new(file: Option<saved::File>) -> Self {
        if let Some(file) = &file {
            file.warn();
        }
        let restore_at = file.is_some().then(|| Instant::now() + RESTORE_AFTER);
        Self { file: file.map(Arc::new), restore_at, save_at: None, writing: None }
    }

    /// Returns when to serve the saved configuration, if ever.
    pub(super) fn restore_at(&self) -> Option<Instant> {
        self.restore_at
    }

    /// Records that the saved configuration is not needed any more.
    pub(super) fn forget(&mut self) {
        self.restore_at = None;
    }

    /// Records that the served configuration has changed.
    pub(super) fn mark(&mut self) {
        if self.file.is_some() {
            self.save_at.get_or_insert_with(|| Instant::now() + SAVE_AFTER);
        }
    }

    /// Resolves when a save is due and no write is in progress.
    pub(super) async fn is_due(&mut self) {
        if self.save_at.is_some() {
            self.written().await;
        }
        expiry(self.save_at).await;
    }

    async fn written(&mut self) {
        if let Some(writing) = &mut self.writing {
            if let Err(error) = writing.await {
                tracing::warn!(%error, "the configuration was not saved");
            }
            self.writing = None;
        }
    }

    /// Starts to write the served configuration. Errors are logged; the next change tries again.
    pub(super) fn save(&mut self, content: Option<SavedContent>) {
        self.save_at = None;
        let (Some(file), Some(content)) = (&self.file, content) else { return };
        let file = Arc::clone(file);
        self.writing = Some(spawn_blocking(move || {
            let path = file.path.display();
            match file.write(&content, SystemTime::now()) {
                Ok(bytes) => tracing::debug!(%path, bytes, "configuration saved"),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(%path, error, "cannot save the configuration; a restart without the API server would serve an older one");
                }
            }
        }));
    }

    /// Saves pending changes before the end.
    pub(super) async fn finish(&mut self, content: Option<SavedContent>) {
        self.written().await;
        if self.save_at.is_some() {
            self.save(content);
            self.written().await;
        }
    }

    /// Returns the saved configuration, if it can be used.
    pub(super) async fn restore(&mut self) -> Option<Restored> {
        self.forget();
        let file = Arc::clone(self.file.as_ref()?);
        let path = file.path.clone();
        let path = path.display();
        match spawn_blocking(move || file.read(SystemTime::now())).await {
            Ok(Ok(Some(restored))) => {
                let age = restored.age.as_secs();
                tracing::warn!(%path, age, "the API server does not answer; serving the saved configuration");
                return Some(restored);
            }
            Ok(Ok(None)) => tracing::warn!(%path, "the API server does not answer, and no configuration is saved"),
            Ok(Err(error)) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "the API server does not answer, and the saved configuration cannot be used");
            }
            Err(error) => tracing::warn!(%error, "the saved configuration was not read"),
        }
        None
    }
}
