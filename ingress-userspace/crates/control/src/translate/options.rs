//! The operator's options for the translation. It reads no arguments.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
    sync::Arc,
};

use ipnet::IpNet;

use crate::{address_pool::AddressPool, change::ObjectName};

/// Options of a translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub classes: Classes,
    /// The node of this process. Its name and zone are compared with topology hints. Default none: hints are ignored.
    pub node: Option<String>,
    /// ConfigMap of global settings, which those of an IngressClass' parameters overlay. Default none.
    pub config_map: Option<ObjectName>,
    /// Service for requests that no rule matches; its first port is used. Default none: 404.
    pub default_backend: Option<ObjectName>,
    /// TLS Secret for names without a usable certificate of their own. Default none: a self-signed certificate.
    pub default_certificate: Option<ObjectName>,
    /// ConfigMaps of stream services. Default none.
    pub tcp_services: Option<ObjectName>,
    pub udp_services: Option<ObjectName>,
    /// TCP ports of the node that are not available to services, because this process uses them, including the ports to
    /// which `--steer rewrite` sends packets. Default 80 and 443.
    pub reserved_ports: BTreeSet<u16>,
    /// The ports of this process for HTTP and HTTPS, which are among `reserved_ports`. Without `gateway_addresses`, a
    /// listener of a Gateway has one of them only with its protocol. Default 80 and 443.
    pub http_port: u16,
    pub https_port: u16,
    /// UDP port of HTTP/3, which no UDP service may have. Default none.
    pub http3_port: Option<u16>,
    /// Ports that Gateways may use although they are for programs of nodes, such as SSH or Kubernetes. Default none.
    pub gateway_ports: BTreeSet<u16>,
    /// Maximum number of ports of Gateways and of stream services together, beside `http_port` and `https_port`. The
    /// oldest Gateways take precedence. Default 62.
    pub max_ports: usize,
    /// Secret with the keys that seal tickets of TLS sessions. Default none: keys of the process alone.
    pub ticket_secret: Option<ObjectName>,
    pub external_names: ExternalNames,
    /// Networks in which endpoints of slices are never refused: not even loopback, link-local and metadata addresses,
    /// or those of Services, of the API server and of nodes. Default none.
    pub endpoint_networks: Vec<IpNet>,
    /// Private networks that external names, and hosts in URLs, may lead to. Default none; all for a directory of
    /// manifests.
    pub external_networks: Vec<IpNet>,
    /// Services to which `auth-url`, `mirror-target` and `jwt-jwks-url` of Ingresses of any namespace may lead. Default
    /// none: only those of the Ingress' own namespace, and those that ReferenceGrants allow.
    pub cross_namespace: Vec<ServicePattern>,
    pub catch_all: CatchAll,
    /// Maximum number of Secrets and ConfigMaps that an Ingress may name; each is followed by a watch of its own, on
    /// every node. Default 256.
    pub max_references: usize,
    /// Maximum number of hosts, and of paths, that all Ingresses of a namespace may claim. Default 100,000 and 200,000.
    pub max_hosts_per_namespace: usize,
    pub max_paths_per_namespace: usize,
    /// Maximum number of rules with separate counts, of all Ingresses and of those of one namespace. Default 10,000 and
    /// 2,000.
    pub max_metered_rules: usize,
    pub max_metered_rules_per_namespace: usize,
    /// Claims that Ingresses may make on hosts of other namespaces, unless settings decide. Default further paths
    /// alone.
    pub host_sharing: HostSharing,
    pub gateway_api: GatewayApi,
    /// Whether an Ingress counts only while its Namespace matches a selector. Default false.
    pub selects_namespaces: bool,
    /// Addresses that Gateways get. This node holds them although no interface has them, so names and URLs do not lead to
    /// them, as to no other address of this node. Default none: Gateways share the addresses of the nodes.
    pub gateway_addresses: AddressPool,
    /// Whether GatewayClasses show that Gateways have Services with the metadata of their `spec.infrastructure`, which
    /// [`status::Options::gateway_services`](crate::status::Options::gateway_services) writes. Default false.
    pub gateway_services: bool,
    /// Prefix of annotations that are understood besides `xdp-ingress.io/`. Default `nginx.ingress.kubernetes.io`.
    pub annotations_prefix: String,
}

/// Whether Services of type ExternalName may be backends. They lead out of the cluster to a destination of their
/// owner's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExternalNames {
    /// Allowed to public addresses and those of `external_networks`, but never to loopback, link-local, metadata, node
    /// or cluster addresses.
    Allow,
    #[default]
    Refuse,
}

/// Whether objects of the Gateway API are read. Grants for Ingresses are read in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GatewayApi {
    /// Read, if the API server knows them and a GatewayClass is of this controller.
    #[default]
    Serve,
    Ignore,
}

/// A single Service, or all Services of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePattern {
    namespace: Arc<str>,
    name: Option<Arc<str>>,
}

/// Whether an Ingress may claim all hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CatchAll {
    #[default]
    Allow,
    /// An Ingress without a host, or with a default backend for all hosts, does not get them.
    Refuse,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            classes: Classes::default(),
            node: None,
            config_map: None,
            default_backend: None,
            default_certificate: None,
            tcp_services: None,
            udp_services: None,
            reserved_ports: [80, 443].into(),
            http_port: 80,
            https_port: 443,
            http3_port: None,
            gateway_ports: BTreeSet::new(),
            max_ports: 62,
            ticket_secret: None,
            external_names: ExternalNames::default(),
            endpoint_networks: Vec::new(),
            external_networks: Vec::new(),
            cross_namespace: Vec::new(),
            catch_all: CatchAll::default(),
            max_references: 256,
            max_hosts_per_namespace: 100_000,
            max_paths_per_namespace: 200_000,
            max_metered_rules: 10_000,
            max_metered_rules_per_namespace: 2_000,
            host_sharing: HostSharing::default(),
            gateway_api: GatewayApi::default(),
            selects_namespaces: false,
            gateway_addresses: AddressPool::default(),
            gateway_services: false,
            annotations_prefix: "nginx.ingress.kubernetes.io".into(),
        }
    }
}

impl Options {
    /// Returns the defaults for a directory of manifests.
    #[must_use]
    pub fn for_manifests() -> Self {
        // The author of the manifests also runs the node.
        let external_networks = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
        let external_networks = external_networks.into_iter().filter_map(|all| IpNet::new(all, 0).ok()).collect();
        Self { classes: Classes::for_manifests(), external_networks, ..Self::default() }
    }
}

// === impl ServicePattern ===

impl ServicePattern {
    /// Reads `namespace/name`, or `namespace` for all of its Services.
    ///
    /// # Errors
    /// If it is neither.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (namespace, Some(name)),
            None => (text, None),
        };
        let is_label = |part: &str| {
            !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        };
        if !is_label(namespace) || !name.is_none_or(is_label) {
            return Err(format!("`{text}` is neither `namespace` nor `namespace/name`"));
        }
        Ok(Self { namespace: namespace.into(), name: name.map(Into::into) })
    }

    pub(super) fn holds(&self, service: &ObjectName) -> bool {
        let Self { namespace, name } = self;
        *namespace == service.namespace && name.as_ref().is_none_or(|name| *name == service.name)
    }
}

/// Claims that an Ingress may make on a host of another namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostSharing {
    /// Further paths, and nothing else.
    #[default]
    Paths,
    /// No claims.
    Owner,
    /// Further paths, if the owner or the operator grants that.
    Granted,
    /// Every claim that is still free, as with ingress-nginx.
    Open,
}

// === impl HostSharing ===

impl FromStr for HostSharing {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "paths" => Self::Paths,
            "owner" => Self::Owner,
            "granted" => Self::Granted,
            "open" => Self::Open,
            _ => return Err("`paths`, `owner`, `granted` or `open`"),
        })
    }
}

/// Selection of the Ingresses to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes {
    /// An IngressClass with this `spec.controller` belongs to this controller. Default `xdp-ingress.io/controller`.
    pub controller: String,
    /// A class that belongs to this controller by name alone, if no IngressClass decides. The legacy annotation
    /// `kubernetes.io/ingress.class` may have this value while no IngressClass has the name. With `by_name`,
    /// `spec.ingressClassName` may have it while there is no IngressClass at all. In every other case `spec.controller`
    /// of the IngressClass decides, and the name has no meaning. Default `xdp`.
    pub name: String,
    /// Serves Ingresses that name no class. Off by default: in a shared cluster they may belong to another controller.
    pub watch_without_class: bool,
    /// Gives Ingresses without a class to the IngressClass marked as default. In a cluster, admission does that when an
    /// Ingress is created; a directory of manifests has no admission. Default off.
    pub apply_default_class: bool,
    /// Accepts `name` in `spec.ingressClassName` while there is no IngressClass at all, so that a directory of
    /// manifests need not hold one. On for manifests, off for a cluster. Default off.
    pub by_name: bool,
}

// === impl Classes ===

impl Default for Classes {
    fn default() -> Self {
        Self {
            controller: "xdp-ingress.io/controller".into(),
            name: "xdp".into(),
            watch_without_class: false,
            apply_default_class: false,
            by_name: false,
        }
    }
}
