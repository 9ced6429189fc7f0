//! The options of a run: the source of objects, the translation, the saved configuration, and the status.

use std::path::PathBuf;

use crate::{contact::Contact, saved, source::kube::KubernetesConfig, status, translate};

/// Options of [`run`](crate::run), other than the source of objects.
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

/// Source of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceConfig {
    /// A directory of manifests.
    Manifests(PathBuf),
    /// An API server.
    Kubernetes(KubernetesConfig),
}

impl Options {
    /// Returns the defaults for a directory of manifests.
    #[must_use]
    pub fn for_manifests() -> Self {
        Self { translate: translate::Options::for_manifests(), ..Self::default() }
    }
}
