//! Reasons why objects cannot be read at all.

use std::{io, path::PathBuf};

/// Reason why objects cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("cannot read the manifests directory `{path}`; give a directory that exists and is readable")]
    Manifests { path: PathBuf, source: io::Error },
    #[error(
        "cannot watch `{path}` for changes; raise `fs.inotify.max_user_watches` or `max_user_instances` if they are used up"
    )]
    Watch { path: PathBuf, source: notify::Error },
    #[error("cannot use the kubeconfig `{path}`; check the file and the context")]
    Kubeconfig { path: PathBuf, source: kube::config::KubeconfigError },
    #[error("cannot find an API server; run in a cluster, or give a kubeconfig or a manifests directory")]
    NoCluster { source: kube::config::InferConfigError },
    #[error("cannot make a client for the API server")]
    Client { source: kube::Error },
    #[error("{what} stopped")]
    Stopped { what: &'static str, source: tokio::task::JoinError },
}
