//! The training of a build that counts its branches: all cases of the benchmark, for the product alone.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use clap::ValueEnum as _;

use super::{
    case::Case,
    credentials::Credentials,
    load, network,
    peers::{self, Peer, Programs, Running, Setting, Stage},
};
use xtask_tools::progress;

/// Duration of each case.
const LENGTH: Duration = Duration::from_secs(3);

/// Runs all cases against `binary`, and ends it in order, because it writes its counts at a normal exit. Afterwards
/// this process has a network of its own.
///
/// # Errors
/// Fails if a required program is unavailable, the product does not start, or a request fails.
pub fn train(binary: &Path) -> anyhow::Result<()> {
    xtask_setup::packages(&["nginx", "wrk", "nghttp2-client", "iproute2", "util-linux"], "build --pgo")?;
    network::own()?;
    let folder = tempfile::Builder::new().prefix("xdp-ingress-training-").tempdir().context("cannot make a folder")?;
    let credentials = Credentials::write(folder.path())?;
    let programs = Programs::default();
    let stage = Stage { folder: folder.path(), credentials: &credentials, binary, before: None, programs: &programs };
    let mut backend = peers::backend(stage.folder, false)?;
    for (access_log, http3) in [(false, false), (true, false), (false, true)] {
        let setting = Setting { workers: 1, pin: false, access_log, http3 };
        let mut product = Running::start(Peer::XdpIngress, 0, stage, setting)?;
        let is_of = |case: &&Case| case.has_access_log() == access_log && case.is_http3() == http3;
        for case in Case::value_variants().iter().filter(is_of) {
            progress::note(&format!("training: {case}"));
            let sample = load::run(*case, stage.target(&product, setting), LENGTH)?;
            ensure!(sample.errors == 0, "{} of {} requests failed in `{case}`", sample.errors, sample.requests);
        }
        product.stop()?;
        ensure!(!product.was_killed()?, "it did not end in order, and so its counts are lost");
    }
    backend.stop()
}
