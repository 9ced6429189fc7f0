//! What the operator tells the translation. It reads no arguments.

use std::{collections::BTreeSet, sync::Arc};

use ipnet::IpNet;

use super::{Classes, HostSharing};
use crate::control::change::ObjectName;

/// How a cluster is to be translated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub classes: Classes,
    /// The node this process runs on, whose name and zone topology hints are compared with. Default none: hints are
    /// ignored.
    pub node: Option<String>,
    /// ConfigMap of global settings, which those of an IngressClass' parameters overlay. Default none.
    pub config_map: Option<ObjectName>,
    /// Service that answers what no rule matches; its first port is taken. Default none: 404.
    pub default_backend: Option<ObjectName>,
    /// TLS Secret for names without a usable certificate of their own. Default none: a self-signed certificate.
    pub default_certificate: Option<ObjectName>,
    /// ConfigMaps of stream services. Default none.
    pub tcp_services: Option<ObjectName>,
    pub udp_services: Option<ObjectName>,
    /// TCP ports of the node that no service gets, as this process has a use for them, also as those that packets get by
    /// `--steer rewrite`. Default 80 and 443.
    pub reserved_ports: BTreeSet<u16>,
    /// Secret whose keys seal tickets of TLS sessions. Default none: keys of the process alone.
    pub ticket_secret: Option<ObjectName>,
    pub external_names: ExternalNames,
    /// Where endpoints may be although no pod is there: loopback, link-local and metadata addresses. Default none.
    pub endpoint_networks: Vec<IpNet>,
    /// Services that Ingresses of any namespace may have asked, by `auth-url` and the like. Default none: those of their
    /// own namespace alone.
    pub cross_namespace: Vec<ServicePattern>,
    pub catch_all: CatchAll,
    /// How many Secrets and ConfigMaps an Ingress may name; each is followed by a watch of its own, on every node.
    /// Default 256.
    pub max_references: usize,
    /// What Ingresses may ask for hosts of other namespaces, where settings do not say. Default further paths alone.
    pub host_sharing: HostSharing,
    /// Prefix of annotations that are understood besides `xdp-ingress.io/`. Default `nginx.ingress.kubernetes.io`.
    pub annotations_prefix: String,
}

/// Whether Services of type ExternalName may be backends. They lead out of the cluster to wherever their owner says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExternalNames {
    /// To public and private addresses, but never to loopback, link-local, metadata, node or cluster addresses.
    Allow,
    #[default]
    Refuse,
}

/// One Service, or all of a namespace.
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
            ticket_secret: None,
            external_names: ExternalNames::default(),
            endpoint_networks: Vec::new(),
            cross_namespace: Vec::new(),
            catch_all: CatchAll::default(),
            max_references: 256,
            host_sharing: HostSharing::default(),
            annotations_prefix: "nginx.ingress.kubernetes.io".into(),
        }
    }
}

impl Options {
    /// The defaults for a directory of manifests.
    #[must_use]
    pub fn for_manifests() -> Self {
        Self { classes: Classes::for_manifests(), ..Self::default() }
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
