//! Where objects come from: a directory of manifests or an API server. Both tell the same changes. What DNS says of the
//! names in them comes from `names`.

use tokio::sync::mpsc;

use super::change::Batch;

pub mod kube;
pub mod manifests;
pub(super) mod names;
mod strip;

/// Batches under way from a source to the loop. Few, because a source that runs ahead only delays what it says last.
const QUEUED_BATCHES: usize = 16;

pub(super) fn queue() -> (mpsc::Sender<Batch>, mpsc::Receiver<Batch>) {
    mpsc::channel(QUEUED_BATCHES)
}
