//! What a build that counts its branches is to be trained by: all that is measured, of the product alone.

use std::{path::Path, thread, time::Duration};

use anyhow::{Context as _, ensure};
use clap::ValueEnum as _;

use super::{
    case::Case,
    credentials::Credentials,
    load, network,
    peers::{self, Peer, Running, Setting, Stage},
};
use crate::{progress, setup};

/// How long each case is asked.
const LENGTH: Duration = Duration::from_secs(3);

/// Has `binary` do what is measured, and ends it in order, which is when it writes what it has counted.
///
/// # Errors
/// When a program that it needs cannot be had, it does not start, or it answers badly.
pub fn train(binary: &Path) -> anyhow::Result<()> {
    setup::packages(&["nginx", "wrk", "nghttp2-client", "iproute2", "util-linux"], "build --pgo")?;
    // What is built afterwards is not to lose its network.
    let trained = thread::scope(|scope| scope.spawn(|| train_here(binary)).join());
    trained.map_err(|_panic| anyhow::anyhow!("the training has panicked"))?
}

fn train_here(binary: &Path) -> anyhow::Result<()> {
    network::own()?;
    let folder = tempfile::Builder::new().prefix("xdp-ingress-training-").tempdir().context("cannot make a folder")?;
    let credentials = Credentials::write(folder.path())?;
    let stage = Stage { folder: folder.path(), credentials: &credentials, binary };
    let mut backend = peers::backend(stage.folder, false)?;
    for access_log in [false, true] {
        let setting = Setting { workers: 1, pin: false, access_log };
        let mut product = Running::start(Peer::XdpIngress, 0, stage, setting)?;
        for case in Case::value_variants().iter().filter(|case| case.has_access_log() == access_log) {
            progress::note(&format!("training: {case}"));
            let sample = load::run(*case, stage.target(&product, setting), LENGTH)?;
            ensure!(sample.errors == 0, "{} of {} requests failed in `{case}`", sample.errors, sample.requests);
        }
        product.stop()?;
        ensure!(!product.was_killed()?, "it did not end in order, and so its counts are lost");
    }
    backend.stop()
}
