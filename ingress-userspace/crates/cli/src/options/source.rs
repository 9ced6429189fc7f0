//! Options of the heading "Source": where objects come from, and which of them are served.

use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::{boolean, selector};

#[derive(Debug, Args)]
#[command(next_help_heading = "Source")]
pub struct SourceArgs {
    /// Read Kubernetes YAML or JSON from this directory instead of an API server, and watch it for changes.
    #[arg(long, value_name = "DIR", conflicts_with = "kubeconfig")]
    pub manifests: Option<PathBuf>,

    /// Path of the kubeconfig. Default: $KUBECONFIG or ~/.kube/config if present, else the pod's service account.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig. Default: its current one.
    #[arg(long, value_name = "NAME", conflicts_with = "manifests")]
    pub context: Option<String>,

    /// Name of the class to serve, as used in the annotation `kubernetes.io/ingress.class`. With manifests that hold no
    /// IngressClass, the name also counts in `ingressClassName`. Otherwise an IngressClass is selected by its
    /// controller, see --controller-class.
    #[arg(long, value_name = "NAME", default_value = "xdp")]
    pub ingress_class: String,

    /// Serve IngressClasses with this `spec.controller`. With `k8s.io/ingress-nginx`, settings get the defaults of
    /// ingress-nginx.
    #[arg(long, value_name = "NAME", default_value = "xdp-ingress.io/controller")]
    pub controller_class: String,

    /// Serve Ingresses with the `--ingress-class` name in `ingressClassName` while the cluster has no IngressClass at
    /// all.
    #[arg(long, value_name = "BOOL", default_value_t = false, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    pub ingress_class_by_name: bool,

    /// Also serve Ingresses that name no class.
    #[arg(long, value_name = "BOOL", default_value_t = false, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    pub watch_ingress_without_class: bool,

    /// Read objects of Gateway API, once a GatewayClass names the controller `xdp-ingress.io/gateway-controller`. A
    /// cluster may lack their kinds, and the roles may lack the permission.
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    pub gateway_api: bool,

    /// Read objects of this namespace only. Default: all namespaces.
    #[arg(long, value_name = "NAMESPACE", conflicts_with = "manifests")]
    pub watch_namespace: Option<String>,

    /// Serve only Ingresses, Gateways and routes of namespaces that match this label selector, such as
    /// `team=shop,env!=test`. A change of a namespace's labels takes effect at once. Default: all namespaces.
    #[arg(
        long,
        value_name = "SELECTOR",
        value_parser = selector::label_selector,
        conflicts_with_all = ["manifests", "watch_namespace"]
    )]
    pub watch_namespace_selector: Option<String>,

    /// Save the served configuration in this file. The next start serves it if the API server has not delivered
    /// everything within 3 s. Prefer a tmpfs of the node, in an existing directory. Default: such a start waits.
    #[arg(long, value_name = "FILE", conflicts_with = "manifests")]
    pub snapshot_file: Option<PathBuf>,

    /// Also save private keys of certificates and hashes of passwords there. Read access to the file gives access to
    /// them. Default: until the API server is back, such hosts get the default certificate and such rules answer 503.
    #[arg(long, requires = "snapshot_file")]
    pub snapshot_private_keys: bool,
}
