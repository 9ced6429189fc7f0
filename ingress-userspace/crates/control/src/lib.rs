//! Reads Kubernetes objects and translates them into a route table. It is independent of the proxy and the kernel part,
//! and publishes nothing itself.
//!
//! ```text
//! source::manifests (files) ─┐                                        ┌─> RouteTable ────────┐
//!                            ├─ Batch ─> watch ─> Cluster ─ translate ┤                      ├─> publish(Translation)
//! source::kube (API server) ─┘                                        └─> Outcomes ──────────┘
//!                                           └─> status: addresses and events, back to the API server
//! ```
//!
//! [`run`] is the entry point; [`translate`](translate::translate) is its pure core. A problem with an object never
//! stops the translation: it becomes an [`Outcome`] that names the object, the reason and the remedy.
#![forbid(unsafe_code)]

use std::{io, path::PathBuf};

pub mod change;
pub mod cluster;
mod contact;
pub mod namespace;
pub mod outcome;
pub mod reference_grant;
pub mod saved;
pub mod service;
pub mod slice;
pub mod source;
pub mod status;
pub mod translate;
mod watch;

pub use contact::Contact;
pub use outcome::{ObjectRef, Origin, Outcome, Reason, Severity};
pub use source::kube::KubernetesConfig;
pub use translate::{Classes, Translation};
pub use watch::run;

/// Options of [`run`], other than the source of objects.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub translate: translate::Options,
    /// File of the saved configuration, for a start without an API server. Default none: such a start waits.
    pub saved: Option<saved::File>,
    /// Reports to others how current the configuration is.
    pub contact: Contact,
    /// Writes to the API server; `None` writes nothing. Has no effect for a directory of manifests.
    pub status: Option<status::Options>,
}

impl Options {
    /// Returns the defaults for a directory of manifests.
    #[must_use]
    pub fn for_manifests() -> Self {
        Self { translate: translate::Options::for_manifests(), ..Self::default() }
    }
}

/// Resolves at this time, or never if it is `None`.
async fn expiry(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Source of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceConfig {
    /// A directory of manifests.
    Manifests(PathBuf),
    /// An API server.
    Kubernetes(KubernetesConfig),
}

/// Reason why objects cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the manifests directory `{path}`; give a directory that exists and is readable")]
    Manifests { path: PathBuf, source: io::Error },
    #[error(
        "cannot watch `{path}` for changes; raise `fs.inotify.max_user_watches` or `max_user_instances` if they are used up"
    )]
    Watch { path: PathBuf, source: notify::Error },
    #[error("cannot use the kubeconfig `{path}`; check the file and its current context")]
    Kubeconfig { path: PathBuf, source: kube::config::KubeconfigError },
    #[error("cannot find an API server; run in a cluster, or give a kubeconfig or a manifests directory")]
    NoCluster { source: kube::config::InferConfigError },
    #[error("cannot make a client for the API server")]
    Client { source: kube::Error },
    #[error("{what} stopped")]
    Stopped { what: &'static str, source: tokio::task::JoinError },
}
