//! Gathers the upstream of a destination: addresses, protocol, TLS and health policy. The rules that lead there are not
//! known here.

use std::{borrow::Cow, fmt, net::SocketAddr, sync::Arc};

use k8s_openapi::api::core::v1::ServicePort;

use super::{
    Context,
    annotations::{self, ParsedTls},
    endpoints::{self, Collected},
    external_name::{self, Lead},
    protocol,
    service::{Port, bare},
    text::shorten,
    trust_anchors::{self, TrustAnchors},
};
use crate::{change::ObjectName, outcome::Reason, service::Service};
use ingress_model::{
    Endpoint, HealthPolicy, Protocol, ProxyVersion, Question, Transport, Upstream, UpstreamKey, UpstreamTls,
};

/// Destination of rules, or of this controller's own requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Destination {
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
        asker: Option<Asker>,
    },
    /// A host that an annotation gives, by its name or address.
    Outside { host: Box<str>, port: u16, protocol: Protocol, trust_anchors: TrustAnchors, asker: Asker },
    /// A port of a service, for protocols other than HTTP.
    Stream { name: ObjectName, port: i32, transport: Transport },
}

/// Sender and purpose of requests that do not come from clients. Their upstreams are separate: time-outs and failures
/// of such requests do not affect the same endpoints in rules of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asker {
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
pub(super) enum Through {
    /// Directly to pods.
    #[default]
    Pods,
    /// Through the address of the service, so that the cluster chooses the pod. Services without an address are reached
    /// directly.
    Service,
}

/// Result of gathering a [`Destination`].
#[derive(Debug)]
pub(super) struct Gathered {
    /// `None` if requests must not be sent there.
    pub(super) upstream: Option<Arc<Upstream>>,
    /// Problems to report on every Ingress that routes here.
    pub(super) findings: Vec<Finding>,
}

/// A problem of a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) reason: Reason,
    pub(super) message: String,
}

/// Gathers the upstream of `destination`.
pub(super) fn gather(destination: &Destination, context: &mut Context<'_>) -> Gathered {
    let mut findings = Vec::new();
    let upstream = match destination {
        Destination::Service { name, port, protocol, through, tls, health_policy, proxy_header, asker: _ } => {
            behind(name, *port, *through, &mut findings, context).and_then(|own| {
                let tls = match tls {
                    None => None,
                    Some(parsed) => Some(policy(name, parsed, &mut findings, context)?),
                };
                let protocol = protocol.unwrap_or(own.protocol);
                let health_policy =
                    health_policy.as_ref().map(|health_policy| possible(health_policy, protocol, name, &mut findings));
                Some(Upstream { protocol, tls, health_policy, proxy_header: *proxy_header, ..own })
            })
        }
        Destination::Outside { host, port, protocol, trust_anchors, asker: _ } => {
            let endpoints = external_name::reach(host, *port, &mut findings, context);
            let tls = if protocol.is_over_tls() { trust_anchors::tls(host, trust_anchors, context) } else { Ok(None) };
            // If verification is required but not possible, no request is sent at all.
            let tls = tls.map_err(|finding| findings.push(finding)).ok();
            endpoints.zip(tls).map(|(endpoints, tls)| Upstream {
                protocol: *protocol,
                tls,
                endpoints,
                ..Upstream::default()
            })
        }
        Destination::Stream { name, port, transport } => {
            let endpoints = stream_endpoints(name, *port, *transport, &mut findings, context);
            endpoints.map(|endpoints| Upstream { endpoints, ..Upstream::default() })
        }
    };
    Gathered { upstream: upstream.map(Arc::new), findings }
}

/// Returns the upstream of a port of a service: its pods, the service itself, or its external name.
fn behind(
    name: &ObjectName,
    number: i32,
    through: Through,
    findings: &mut Vec<Finding>,
    context: &mut Context<'_>,
) -> Option<Upstream> {
    match find(name, number, Transport::Tcp, context)? {
        Found::Own { service, port } => {
            let collected = endpoints::collect(name, port, context);
            Some(match through {
                // The cluster would choose among all endpoints in the slices, and send from this node.
                Through::Service if !collected.has_refused => itself(name, service, port, context),
                Through::Service | Through::Pods => pods(name, port, collected, findings, context),
            })
        }
        Found::External { external_name, port } => outside(name, external_name, &port, findings, context),
    }
}

/// Returns `health_policy` without checks that endpoints of this `protocol` do not support.
fn possible(
    health_policy: &Arc<HealthPolicy>,
    protocol: Protocol,
    service: &ObjectName,
    findings: &mut Vec<Finding>,
) -> Arc<HealthPolicy> {
    let asks_grpc = health_policy.check.as_ref().is_some_and(|check| matches!(check.question, Question::Grpc { .. }));
    if !asks_grpc || matches!(protocol, Protocol::H2c | Protocol::H2) {
        return Arc::clone(health_policy);
    }
    let message = format!(
        "annotation `health-check` is `grpc`, but the pods of service `{service}` are not reached over gRPC; they are not checked, set `backend-protocol` to `GRPC` or `GRPCS`"
    );
    findings.push(Finding { reason: Reason::IneffectiveAnnotation, message });
    Arc::new(HealthPolicy { check: None, ..HealthPolicy::clone(health_policy) })
}

/// Returns the TLS policy of `parsed` for a service; `None` if it cannot be met.
fn policy(
    service: &ObjectName,
    parsed: &ParsedTls,
    findings: &mut Vec<Finding>,
    context: &mut Context<'_>,
) -> Option<Arc<UpstreamTls>> {
    let own = format!("{}.{}.svc", service.name, service.namespace);
    let stored = context.service(service);
    let own = stored.and_then(|stored| stored.object.external_name.as_deref()).map_or(own, str::to_owned);
    match annotations::backend_tls(parsed, &service.namespace, context) {
        Ok(backend_tls) => {
            let policy = backend_tls?.of_service(&own);
            if policy.is_none() {
                let message = format!(
                    "`{}` is not a name that a certificate can have; its rules answer 503, set `proxy-ssl-name`",
                    shorten(&own)
                );
                findings.push(Finding { reason: Reason::InvalidAnnotation, message });
            }
            policy.map(Arc::new)
        }
        Err((reason, message)) => {
            findings.push(Finding { reason, message });
            None
        }
    }
}

/// Returns the upstream of a port with the endpoints of its slices.
fn pods(
    name: &ObjectName,
    port: &ServicePort,
    collected: Collected<'_>,
    findings: &mut Vec<Finding>,
    context: &mut Context<'_>,
) -> Upstream {
    let app_protocol = collected.app_protocol;
    let endpoints = listed(name, port, collected, findings);
    let reference = endpoints::reference(name, context);
    let protocol = protocol::of_port(app_protocol, &reference, context);
    Upstream { protocol, endpoints, ..Upstream::default() }
}

/// Returns the endpoints of a port without HTTP; `None` if nothing may be sent there.
fn stream_endpoints(
    name: &ObjectName,
    number: i32,
    transport: Transport,
    findings: &mut Vec<Finding>,
    context: &mut Context<'_>,
) -> Option<Vec<Endpoint>> {
    match find(name, number, transport, context)? {
        Found::Own { service: _, port } => {
            let collected = endpoints::collect(name, port, context);
            Some(listed(name, port, collected, findings))
        }
        Found::External { external_name, port } => led_to(name, external_name, &port, findings, context),
    }
}

/// A port, and the kind of service that has it.
enum Found<'c> {
    /// A service with pods of its own.
    Own { service: &'c Service, port: &'c ServicePort },
    /// A service with an external name, which need not list its ports.
    External { external_name: &'c str, port: Cow<'c, ServicePort> },
}

/// Finds port `number` of a service.
fn find<'c>(name: &ObjectName, number: i32, transport: Transport, context: &mut Context<'c>) -> Option<Found<'c>> {
    let service: &'c Service = &context.service(name)?.object;
    let port = Port::Number(number).find(service, transport);
    match service.external_name.as_deref() {
        None => port.map(|port| Found::Own { service, port }),
        Some(external_name) => {
            let port = port.map_or_else(|| Cow::Owned(bare(number)), Cow::Borrowed);
            Some(Found::External { external_name, port })
        }
    }
}

/// Returns the endpoints of the slices.
fn listed(
    name: &ObjectName,
    port: &ServicePort,
    collected: Collected<'_>,
    findings: &mut Vec<Finding>,
) -> Vec<Endpoint> {
    let Collected { endpoints, app_protocol: _, has_refused: _ } = collected;
    if endpoints.is_empty() {
        let message =
            format!("port `{}` of service `{name}` has no ready endpoint; check its pods and selector", port.port);
        findings.push(Finding { reason: Reason::NoReadyEndpoints, message });
    }
    endpoints
}

/// Returns an upstream with the addresses of the service itself.
fn itself(name: &ObjectName, service: &Service, port: &ServicePort, context: &mut Context<'_>) -> Upstream {
    let reference = endpoints::reference(name, context);
    let protocol = protocol::of_port(port.app_protocol.as_deref(), &reference, context);
    let number = u16::try_from(port.port).unwrap_or_default();
    let mut endpoints: Vec<_> =
        service.cluster_ips.iter().map(|ip| Endpoint { address: SocketAddr::new(*ip, number) }).collect();
    endpoints.sort();
    Upstream { protocol, endpoints, ..Upstream::default() }
}

/// Returns the upstream of an external name; `None` if it is refused.
fn outside(
    name: &ObjectName,
    external_name: &str,
    port: &ServicePort,
    findings: &mut Vec<Finding>,
    context: &mut Context<'_>,
) -> Option<Upstream> {
    let endpoints = led_to(name, external_name, port, findings, context)?;
    let service = endpoints::reference(name, context);
    let protocol = protocol::of_port(port.app_protocol.as_deref(), &service, context);
    Some(Upstream { protocol, endpoints, ..Upstream::default() })
}

/// Returns the endpoints of an external name; `None` if it is refused.
fn led_to(
    name: &ObjectName,
    external_name: &str,
    port: &ServicePort,
    findings: &mut Vec<Finding>,
    context: &mut Context<'_>,
) -> Option<Vec<Endpoint>> {
    let number = endpoints::target(port).or_else(|| u16::try_from(port.port).ok()).filter(|number| *number != 0);
    let Some(number) = number else {
        let message = format!("port `{}` of service `{name}` is not a port number; correct the backend", port.port);
        findings.push(Finding { reason: Reason::PortNotFound, message });
        return None;
    };
    match external_name::follow(name, external_name, number, findings, context) {
        Lead::Endpoints(endpoints) => Some(endpoints),
        Lead::Refused => None,
    }
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
                asker,
            } => {
                let through = match through {
                    Through::Pods => "",
                    Through::Service => "+service",
                };
                let mut port = match protocol {
                    None => format!("{port}{through}"),
                    Some(protocol) => format!("{port}{through}+{protocol}"),
                };
                if let Some(tls) = tls {
                    port += &format!("+tls({})", tls.label());
                }
                if let Some(health_policy) = health_policy {
                    port += &format!("+upkeep({health_policy})");
                }
                if let Some(version) = proxy_header {
                    port += &format!("+proxy-protocol({version})");
                }
                if let Some(asker) = asker {
                    port += &format!("+{asker}");
                }
                UpstreamKey::new(namespace, name, &port)
            }
            // A namespace is never empty, so no service has this key.
            Self::Outside { host, port, protocol, trust_anchors, asker } => {
                let verified = match trust_anchors {
                    TrustAnchors::Any => String::new(),
                    TrustAnchors::Public => "+verified".to_owned(),
                    TrustAnchors::Private(secret) => format!("+verified({secret})"),
                };
                UpstreamKey::new("", host, &format!("{port}+{protocol}{verified}+{asker}"))
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

// === impl Asker ===

impl fmt::Display for Asker {
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
