//! The build of the product that is measured.

use std::path::PathBuf;

use xtask_setup::build::{self, Profile};

/// Selection of a build; by default the release of this checkout.
#[derive(Debug, clap::Args)]
pub(super) struct Subject {
    /// Measure a release that was laid out by a training run, as built by `cargo xtask build --release --pgo`.
    #[arg(long)]
    pgo: bool,
    /// A build of the product other than this checkout's.
    #[arg(long, conflicts_with_all = ["pgo", "record"])]
    binary: Option<PathBuf>,
}

impl Subject {
    /// Returns the program; builds it if it is this checkout's.
    ///
    /// # Errors
    /// Fails if it does not compile, or its training fails.
    pub(super) fn program(&self) -> anyhow::Result<PathBuf> {
        match &self.binary {
            Some(binary) => Ok(binary.clone()),
            None => build::userspace(Profile::of(true, self.pgo)),
        }
    }

    /// Returns a sentence for readers of the results, or an empty one.
    pub(super) fn remark(&self) -> &'static str {
        match self {
            Self { pgo: true, .. } => " xdp-ingress is laid out by a training run (`--pgo`).",
            Self { binary: Some(_), .. } => " xdp-ingress is a build from elsewhere (`--binary`).",
            Self { .. } => "",
        }
    }
}
