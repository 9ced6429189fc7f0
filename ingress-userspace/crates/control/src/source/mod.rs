//! Sources of objects: a directory of manifests or an API server. Both send the same kinds of changes. `names` resolves
//! the DNS names in the objects.

use tokio::sync::mpsc;

use super::change::Batch;

pub mod kube;
pub mod manifests;
pub(super) mod names;
mod strip;

pub use names::lookup_over;

/// Capacity of the queue of batches between a source and the loop. It is small, because a source that runs ahead only
/// delays its own latest changes.
const QUEUED_BATCHES: usize = 16;

pub(super) fn queue() -> (mpsc::Sender<Batch>, mpsc::Receiver<Batch>) {
    mpsc::channel(QUEUED_BATCHES)
}
