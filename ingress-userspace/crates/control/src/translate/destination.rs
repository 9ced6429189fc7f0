//! Destinations of rules and of this controller's own requests, what was found there, and the key of their upstream. It
//! looks nothing up; `gather` does.

use std::{fmt, sync::Arc};

use super::features::upstream_tls::ParsedTls;
use crate::{change::ObjectName, outcome::Reason};
use ingress_model::{HealthPolicy, Protocol, ProxyVersion, Transport, Upstream, UpstreamKey};

/// Destination of rules, or of this controller's own requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// A port of a service. If ports share a number, which an API server refuses, the first TCP port counts.
    Service {
        name: ObjectName,
        port: i32,
        /// Overrides the protocol of the port.
        protocol: Option<Protocol>,
        through: Through,
        /// TLS settings, if they differ from the default.
        tls: Option<Box<ParsedTls>>,
        /// Health policy, if it differs from the default.
        health_policy: Option<Arc<HealthPolicy>>,
        /// Version of the PROXY protocol header sent there, if any.
        proxy_header: Option<ProxyVersion>,
        /// The sender of this controller's own requests; `None` for the requests of rules that lead there.
        sender: Option<SubrequestSender>,
    },
    /// A host that an annotation gives, by its name or address.
    Outside { host: Box<str>, port: u16, protocol: Protocol, trust_anchors: TrustAnchors, sender: SubrequestSender },
    /// A port of a service with TLS, as a BackendTLSPolicy demands it.
    Secured {
        name: ObjectName,
        port: i32,
        policy: ObjectName,
        /// Secret with the certificate to present, if any.
        certificate: Option<ObjectName>,
        /// Protocol for ports that name none.
        protocol: Option<Protocol>,
        through: Through,
        /// Health policy, if it differs from the default.
        health_policy: Option<Arc<HealthPolicy>>,
        /// Version of the PROXY protocol header sent to pods, if any.
        proxy_header: Option<ProxyVersion>,
        sender: Option<SubrequestSender>,
    },
    /// A port of a service, for protocols other than HTTP.
    Stream { name: ObjectName, port: i32, transport: Transport },
}

/// Sender and purpose of requests that do not come from clients. Their upstreams are separate: time-outs and failures
/// of such requests do not affect the same endpoints in rules of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SubrequestSender {
    pub(super) purpose: Purpose,
    /// The namespace of the Ingress.
    pub(super) namespace: Arc<str>,
}

/// Purpose of this controller's own requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Authorization of a client.
    Auth,
    /// Keys that sign tokens.
    Keys,
    /// A second copy of a request.
    Mirror,
    /// A page in place of an error, or of missing pods.
    Page,
}

/// Path of requests to the pods of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Through {
    /// Directly to pods.
    #[default]
    Pods,
    /// Through the address of the service, so that the cluster chooses the pod. Services without an address are reached
    /// directly.
    Service,
}

/// Result of gathering a [`Destination`].
#[derive(Debug)]
pub(crate) struct Gathered {
    /// `None` if requests must not be sent there.
    pub(super) upstream: Option<Arc<Upstream>>,
    /// Problems to report on every Ingress that routes here.
    pub(super) findings: Vec<Finding>,
}

/// A problem of a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(super) reason: Reason,
    pub(super) message: String,
}

// === impl Destination ===

impl Destination {
    pub(super) fn key(&self) -> UpstreamKey {
        match self {
            Self::Service {
                name: ObjectName { namespace, name },
                port,
                protocol,
                through,
                tls,
                health_policy,
                proxy_header,
                sender,
            } => {
                let through = through.label();
                let mut port = match protocol {
                    None => format!("{port}{through}"),
                    Some(protocol) => format!("{port}{through}+{protocol}"),
                };
                if let Some(tls) = tls {
                    port += &format!("+tls({})", tls.label());
                }
                if let Some(health_policy) = health_policy {
                    port += &format!("+health({health_policy})");
                }
                if let Some(version) = proxy_header {
                    port += &format!("+proxy-protocol({version})");
                }
                if let Some(sender) = sender {
                    port += &format!("+{sender}");
                }
                UpstreamKey::new(namespace, name, &port)
            }
            Self::Secured {
                name: ObjectName { namespace, name },
                port,
                policy,
                certificate,
                protocol,
                through,
                health_policy,
                proxy_header,
                sender,
            } => {
                let mut port = format!("{port}{}+policy({})", through.label(), policy.name);
                if let Some(certificate) = certificate {
                    port += &format!("+certificate({certificate})");
                }
                if let Some(protocol) = protocol {
                    port += &format!("+{protocol}");
                }
                if let Some(health_policy) = health_policy {
                    port += &format!("+health({health_policy})");
                }
                if let Some(version) = proxy_header {
                    port += &format!("+proxy-protocol({version})");
                }
                if let Some(sender) = sender {
                    port += &format!("+{sender}");
                }
                UpstreamKey::new(namespace, name, &port)
            }
            // A namespace is never empty, so no service has this key.
            Self::Outside { host, port, protocol, trust_anchors, sender } => {
                let verified = match trust_anchors {
                    TrustAnchors::Any => String::new(),
                    TrustAnchors::Public => "+verified".to_owned(),
                    TrustAnchors::Private(secret) => format!("+verified({secret})"),
                };
                UpstreamKey::new("", host, &format!("{port}+{protocol}{verified}+{sender}"))
            }
            // The state of HTTP connections to the same pods does not apply here.
            Self::Stream { name: ObjectName { namespace, name }, port, transport } => {
                let transport = match transport {
                    Transport::Tcp => "tcp",
                    Transport::Udp => "udp",
                };
                UpstreamKey::new(namespace, name, &format!("{port}+{transport}"))
            }
        }
    }
}

// === impl Through ===

impl Through {
    const fn label(self) -> &'static str {
        match self {
            Self::Pods => "",
            Self::Service => "+service",
        }
    }
}

// === impl SubrequestSender ===

impl fmt::Display for SubrequestSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { purpose, namespace } = self;
        let purpose = match purpose {
            Purpose::Auth => "auth",
            Purpose::Keys => "keys",
            Purpose::Mirror => "mirror",
            Purpose::Page => "page",
        };
        write!(f, "{purpose}({namespace})")
    }
}

// === impl Gathered ===

impl Gathered {
    /// Returns `true` if both are equal apart from the endpoints.
    pub(super) fn looks_like(&self, other: &Self) -> bool {
        let spoken = |gathered: &Self| {
            let upstream = gathered.upstream.as_ref();
            upstream.map(|upstream| (upstream.protocol, upstream.tls.clone()))
        };
        spoken(self) == spoken(other) && self.findings == other.findings
    }
}

/// Certificates of a host that are accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum TrustAnchors {
    #[default]
    Any,
    /// A certificate for its name, by an authority that browsers trust.
    Public,
    /// A certificate for its name, by an authority in this Secret.
    Private(ObjectName),
}
