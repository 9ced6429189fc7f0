//! Which build of the product is measured.

use std::path::PathBuf;

use crate::build::{self, Profile};

/// The release of this checkout, if nothing else is said.
#[derive(Debug, clap::Args)]
pub(super) struct Subject {
    /// Measure the release that a training run has laid out, as `cargo xtask build --release --pgo` makes it.
    #[arg(long)]
    pgo: bool,
    /// A build of the product other than this checkout's.
    #[arg(long, conflicts_with_all = ["pgo", "record"])]
    binary: Option<PathBuf>,
}

impl Subject {
    /// The program, built if it is this checkout's.
    ///
    /// # Errors
    /// When it does not compile, or its training fails.
    pub(super) fn program(&self) -> anyhow::Result<PathBuf> {
        match &self.binary {
            Some(binary) => Ok(binary.clone()),
            None => build::userspace(Profile::of(true, self.pgo)),
        }
    }

    /// A sentence for whoever reads the results, if there is something to say.
    pub(super) fn remark(&self) -> &'static str {
        match self {
            Self { pgo: true, .. } => " xdp-ingress is laid out by a training run (`--pgo`).",
            Self { binary: Some(_), .. } => " xdp-ingress is a build from elsewhere (`--binary`).",
            Self { .. } => "",
        }
    }
}
