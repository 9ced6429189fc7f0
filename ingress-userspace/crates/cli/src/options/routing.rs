//! Options of the heading "Routing": the objects that routes and certificates are made from, and limits of the claims of a
//! namespace.

use clap::{ArgAction, Args};
use ingress_control::{
    change::ObjectName,
    translate::{HostSharing, ServicePattern},
};
use ipnet::IpNet;

use super::{boolean, object_name};

#[derive(Debug, Args)]
#[command(next_help_heading = "Routing")]
pub struct RoutingArgs {
    /// ConfigMap with the settings of all hosts. The parameters of an IngressClass override it.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name)]
    pub configmap: Option<ObjectName>,

    /// Service that answers requests that no rule matches, on its first port. Default: answer 404.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name)]
    pub default_backend_service: Option<ObjectName>,

    /// TLS Secret for names without their own certificate. Default: a self-signed certificate.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name)]
    pub default_ssl_certificate: Option<ObjectName>,

    /// ConfigMap of TCP services. Each row opens a port of the node: `port: "namespace/service:port"`. Append `:PROXY`
    /// if clients send a PROXY protocol header, and another `:PROXY` (or `:PROXY-V2`) if pods expect one.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name)]
    pub tcp_services_configmap: Option<ObjectName>,

    /// ConfigMap of UDP services. Each row opens a port of the node: `port: "namespace/service:port"`. Ports below 1024
    /// need CAP_NET_BIND_SERVICE.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name)]
    pub udp_services_configmap: Option<ObjectName>,

    /// Accepted for compatibility with ingress-nginx. Hosts with the annotation `ssl-passthrough` are always passed
    /// through, at no cost to others.
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    pub enable_ssl_passthrough: bool,

    /// Secret with the keys that encrypt TLS session tickets, so that every node and every process can resume the
    /// sessions (docs/tls.md). Default: keys of this process alone.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name)]
    pub tls_ticket_secret: Option<ObjectName>,

    /// Allow Services of type ExternalName. They can lead to any address except those of the node, of the cluster and
    /// of its cloud. Hosts in URLs of annotations (`auth-url`, `mirror-target`, `jwt-jwks-url`) do not need this
    /// option.
    #[arg(long, conflicts_with = "disable_svc_external_name")]
    pub allow_svc_external_name: bool,

    /// Services that Ingresses of any namespace may name in `auth-url`, `mirror-target` and `jwt-jwks-url`:
    /// `namespace/name`, or `namespace` for all its Services; repeatable, or separated by commas. Default: Services of
    /// the Ingress's own namespace, and those that ReferenceGrants allow.
    #[arg(long, value_name = "NAMESPACE[/NAME]", value_delimiter = ',', value_parser = ServicePattern::parse)]
    pub allow_cross_namespace_services: Vec<ServicePattern>,

    /// Networks that EndpointSlices of the API server may lead to without restriction. This includes loopback,
    /// link-local and metadata addresses, and those of Services, of the API server and of nodes
    /// (docs/cross-namespace.md). Repeatable, or separated by commas. Default: none. Manifests may lead to any address.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub allow_endpoints_in: Vec<IpNet>,

    /// Private networks that Services of type ExternalName, and hosts in URLs of annotations, may lead to; repeatable,
    /// or separated by commas. Default: none, and all with `--manifests`.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub allow_external_addresses_in: Vec<IpNet>,

    /// Accepted for compatibility with ingress-nginx. Services of type ExternalName are refused unless explicitly
    /// allowed.
    #[arg(long, value_name = "BOOL", default_value_t = false, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    pub disable_svc_external_name: bool,

    /// Refuse Ingresses that claim all hosts.
    #[arg(long, value_name = "BOOL", default_value_t = false, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    pub disable_catch_all: bool,

    /// Maximum number of Secrets and ConfigMaps per Ingress. An Ingress that names more is not served. Each reference
    /// needs its own watch, on every node.
    #[arg(long, value_name = "COUNT", default_value_t = 256)]
    pub max_references: usize,

    /// Maximum number of hosts that all Ingresses of a namespace may claim, by rules, `tls` and aliases. Ingresses
    /// are admitted by age, the oldest first. One that does not fit beside those admitted before it is not served.
    #[arg(long, value_name = "COUNT", default_value_t = 100_000)]
    pub max_hosts_per_namespace: usize,

    /// Maximum number of paths that all Ingresses of a namespace may claim, summed over hosts. Ingresses are
    /// admitted by age, the oldest first. One that does not fit beside those admitted before it is not served.
    #[arg(long, value_name = "COUNT", default_value_t = 200_000)]
    pub max_paths_per_namespace: usize,

    /// Maximum number of rules with their own metrics, about six series each, over all Ingresses with
    /// `metrics-per-path`. Rules of younger Ingresses are counted by host only.
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    pub max_metered_rules: usize,

    /// The same limit for the Ingresses of one namespace.
    #[arg(long, value_name = "COUNT", default_value_t = 2_000)]
    pub max_metered_rules_per_namespace: usize,

    /// Permissions of an Ingress on a host that another namespace owns (by its oldest Ingress): `paths`, only further
    /// paths; `owner`, nothing; `granted`, paths where the owner grants them; `open`, anything not yet claimed, as with
    /// ingress-nginx (docs/sharing-hosts.md).
    #[arg(long, value_name = "MODE", default_value = "paths")]
    pub host_sharing: HostSharing,

    /// Further ports that Gateways may use although they are for programs of nodes: 22, 6443, 8472 and so on
    /// (docs/gateway.md). The kernel steers a port at all addresses of a node. Repeatable, or separated by commas.
    /// Default: none.
    #[arg(long, value_name = "PORT", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    pub gateway_ports: Vec<u16>,

    /// Additional prefix of annotations, besides `xdp-ingress.io/`.
    #[arg(long, value_name = "PREFIX", default_value = "nginx.ingress.kubernetes.io")]
    pub annotations_prefix: String,

    /// Name of the node of this process, for topology hints. Default: hints are ignored.
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    pub node_name: Option<String>,
}
