//! The address of an API server, and the part of it to watch.

use std::path::PathBuf;

/// Address of an API server, and the part of it to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubernetesConfig {
    /// A kubeconfig file. Default: the file in `$KUBECONFIG`, `~/.kube/config`, or the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig. Default: its current one.
    pub context: Option<String>,
    /// Watches only objects of this namespace. Default: all namespaces.
    pub namespace: Option<String>,
    /// Watches only Ingresses of namespaces with labels that match this selector. Default: all watched namespaces.
    pub namespace_selector: Option<String>,
}
