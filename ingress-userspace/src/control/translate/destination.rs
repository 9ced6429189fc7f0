//! Gathers what is behind a destination: addresses, the protocol that is spoken there, TLS and upkeep. It does not know
//! who leads there.

use std::{borrow::Cow, fmt, net::SocketAddr, sync::Arc};

use k8s_openapi::api::core::v1::ServicePort;

use super::{
    Context,
    annotations::{self, AskedTls, shorten},
    believed::{self, Believed},
    endpoints,
    external::{self, Lead},
    protocol,
    service::{Port, bare},
};
use crate::{
    control::{change::ObjectName, outcome::Reason, service::Service},
    model::{Endpoint, Protocol, ProxyVersion, Question, Transport, Upkeep, Upstream, UpstreamKey, UpstreamTls},
};

/// Where rules lead to, or ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// A port of a service. Of ports that share a number, which an API server refuses, the first TCP port counts.
    Service {
        name: ObjectName,
        port: i32,
        /// What is spoken in place of what the port says.
        protocol: Option<Protocol>,
        through: Through,
        /// What holds for TLS with what is there, if that is not what holds anyway.
        tls: Option<Box<AskedTls>>,
        /// How it is looked after, if not as all is.
        upkeep: Option<Arc<Upkeep>>,
        /// In which version it is told whose a connection is, if it is.
        introduction: Option<ProxyVersion>,
        /// Who asks it on its own account; `None` for the requests of rules that lead there.
        asker: Option<Asker>,
    },
    /// A host that an annotation gives, by its name or address.
    Outside { host: Box<str>, port: u16, protocol: Protocol, believed: Believed, asker: Asker },
    /// A port of a service, for what is not HTTP.
    Stream { name: ObjectName, port: i32, transport: Transport },
}

/// Who sends requests beside those of clients, and what for. Its upstreams are its own: time-outs and failures of such
/// requests say nothing of the same endpoints to the rules of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asker {
    pub(super) purpose: Purpose,
    /// Of the Ingress.
    pub(super) namespace: Arc<str>,
}

/// What requests of our own are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Whether a client may come in.
    Auth,
    /// Keys that sign tokens.
    Keys,
    /// A second copy of a request.
    Mirror,
    /// A page in place of an error, or of pods that are missing.
    Page,
}

/// How requests reach what is behind a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Through {
    /// Straight to pods.
    #[default]
    Pods,
    /// By the address of the service, so that the cluster chooses the pod. Services without one are reached as ever.
    Service,
}

/// What is behind a [`Destination`].
#[derive(Debug)]
pub(super) struct Gathered {
    /// `None` if requests must not be sent there.
    pub(super) upstream: Option<Arc<Upstream>>,
    /// What whoever leads there is to be told.
    pub(super) findings: Vec<Finding>,
}

/// What is wrong with a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) reason: Reason,
    pub(super) message: String,
}

/// Gathers what is behind `destination`.
pub(super) fn gather(destination: &Destination, context: &mut Context<'_>) -> Gathered {
    let mut findings = Vec::new();
    let upstream = match destination {
        Destination::Service { name, port, protocol, through, tls, upkeep, introduction, asker: _ } => {
            behind(name, *port, *through, &mut findings, context).and_then(|own| {
                let tls = match tls {
                    None => None,
                    Some(asked) => Some(policy(name, asked, &mut findings, context)?),
                };
                let protocol = protocol.unwrap_or(own.protocol);
                let upkeep = upkeep.as_ref().map(|upkeep| possible(upkeep, protocol, name, &mut findings));
                Some(Upstream { protocol, tls, upkeep, introduction: *introduction, ..own })
            })
        }
        Destination::Outside { host, port, protocol, believed, asker: _ } => {
            let endpoints = external::reach(host, *port, &mut findings, context);
            let tls = if protocol.is_over_tls() { believed::tls(host, believed, context) } else { Ok(None) };
            // What is to be verified and cannot be is not asked at all.
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

/// What is behind a port of a service: its pods, the service itself, or what its external name leads to.
fn behind(
    name: &ObjectName,
    number: i32,
    through: Through,
    findings: &mut Vec<Finding>,
    context: &mut Context<'_>,
) -> Option<Upstream> {
    match find(name, number, Transport::Tcp, context)? {
        Found::Own { service, port } => Some(match through {
            Through::Pods => pods(name, port, findings, context),
            Through::Service => itself(name, service, port, context),
        }),
        Found::External { external_name, port } => outside(name, external_name, &port, findings, context),
    }
}

/// `upkeep` without what endpoints that speak `protocol` cannot be asked.
fn possible(
    upkeep: &Arc<Upkeep>,
    protocol: Protocol,
    service: &ObjectName,
    findings: &mut Vec<Finding>,
) -> Arc<Upkeep> {
    let asks_grpc = upkeep.check.as_ref().is_some_and(|check| matches!(check.question, Question::Grpc { .. }));
    if !asks_grpc || matches!(protocol, Protocol::H2c | Protocol::H2) {
        return Arc::clone(upkeep);
    }
    let message = format!(
        "annotation `health-check` is `grpc`, which is not spoken to the pods of service `{service}`; they are not checked, set `backend-protocol` to `GRPC` or `GRPCS`"
    );
    findings.push(Finding { reason: Reason::IneffectiveAnnotation, message });
    Arc::new(Upkeep { check: None, ..Upkeep::clone(upkeep) })
}

/// What `asked` comes to for a service; `None` if it cannot be kept.
fn policy(
    service: &ObjectName,
    asked: &AskedTls,
    findings: &mut Vec<Finding>,
    context: &mut Context<'_>,
) -> Option<Arc<UpstreamTls>> {
    let own = format!("{}.{}.svc", service.name, service.namespace);
    let stored = context.service(service);
    let own = stored.and_then(|stored| stored.object.external_name.as_deref()).map_or(own, str::to_owned);
    match annotations::terms(asked, &service.namespace, context) {
        Ok(terms) => {
            let policy = terms?.of_service(&own);
            if policy.is_none() {
                let message = format!(
                    "`{}` is no name that a certificate could have; its rules answer 503, set `proxy-ssl-name`",
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

/// What is behind a port, by the endpoints that slices give.
fn pods<'c>(
    name: &ObjectName,
    port: &'c ServicePort,
    findings: &mut Vec<Finding>,
    context: &mut Context<'c>,
) -> Upstream {
    let (endpoints, app_protocol) = listed(name, port, findings, context);
    let reference = endpoints::reference(name, context);
    let protocol = protocol::of_port(app_protocol, &reference, context);
    Upstream { protocol, endpoints, ..Upstream::default() }
}

/// The endpoints of a port without HTTP; `None` if nothing may be sent there.
fn stream_endpoints(
    name: &ObjectName,
    number: i32,
    transport: Transport,
    findings: &mut Vec<Finding>,
    context: &mut Context<'_>,
) -> Option<Vec<Endpoint>> {
    match find(name, number, transport, context)? {
        Found::Own { service: _, port } => Some(listed(name, port, findings, context).0),
        Found::External { external_name, port } => led_to(name, external_name, &port, findings, context),
    }
}

/// A port, and the kind of service that has it.
enum Found<'c> {
    /// One with pods of its own.
    Own { service: &'c Service, port: &'c ServicePort },
    /// One that stands for an external name, and need not list its ports.
    External { external_name: &'c str, port: Cow<'c, ServicePort> },
}

/// Port `number` of a service.
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

/// The endpoints that slices give, with the `appProtocol` of the port.
fn listed<'c>(
    name: &ObjectName,
    port: &'c ServicePort,
    findings: &mut Vec<Finding>,
    context: &mut Context<'c>,
) -> (Vec<Endpoint>, Option<&'c str>) {
    let (endpoints, app_protocol) = endpoints::collect(name, port, context);
    if endpoints.is_empty() {
        let message =
            format!("port `{}` of service `{name}` has no ready endpoint; check its pods and selector", port.port);
        findings.push(Finding { reason: Reason::NoReadyEndpoints, message });
    }
    (endpoints, app_protocol)
}

/// The addresses of the service itself.
fn itself(name: &ObjectName, service: &Service, port: &ServicePort, context: &mut Context<'_>) -> Upstream {
    let reference = endpoints::reference(name, context);
    let protocol = protocol::of_port(port.app_protocol.as_deref(), &reference, context);
    let number = u16::try_from(port.port).unwrap_or_default();
    let mut endpoints: Vec<_> =
        service.cluster_ips.iter().map(|ip| Endpoint { address: SocketAddr::new(*ip, number) }).collect();
    endpoints.sort();
    Upstream { protocol, endpoints, ..Upstream::default() }
}

/// What is behind an external name; `None` if it is refused.
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

/// The addresses of an external name; `None` if it is refused.
fn led_to(
    name: &ObjectName,
    external_name: &str,
    port: &ServicePort,
    findings: &mut Vec<Finding>,
    context: &mut Context<'_>,
) -> Option<Vec<Endpoint>> {
    let number = endpoints::target(port).or_else(|| u16::try_from(port.port).ok()).filter(|number| *number != 0);
    let Some(number) = number else {
        let message = format!("port `{}` of service `{name}` is no port number; correct the backend", port.port);
        findings.push(Finding { reason: Reason::PortNotFound, message });
        return None;
    };
    match external::follow(name, external_name, number, findings, context) {
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
                upkeep,
                introduction,
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
                if let Some(upkeep) = upkeep {
                    port += &format!("+upkeep({upkeep})");
                }
                if let Some(version) = introduction {
                    port += &format!("+proxy-protocol({version})");
                }
                if let Some(asker) = asker {
                    port += &format!("+{asker}");
                }
                UpstreamKey::new(namespace, name, &port)
            }
            // No namespace is empty, so that no service has this key.
            Self::Outside { host, port, protocol, believed, asker } => {
                let verified = match believed {
                    Believed::Any => String::new(),
                    Believed::Public => "+verified".to_owned(),
                    Believed::Private(secret) => format!("+verified({secret})"),
                };
                UpstreamKey::new("", host, &format!("{port}+{protocol}{verified}+{asker}"))
            }
            // What is known of connections of HTTP to the same pods does not hold for these.
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
    /// Whether everything but the endpoints is the same.
    pub(super) fn looks_like(&self, other: &Self) -> bool {
        let spoken = |gathered: &Self| {
            let upstream = gathered.upstream.as_ref();
            upstream.map(|upstream| (upstream.protocol, upstream.tls.clone()))
        };
        spoken(self) == spoken(other) && self.findings == other.findings
    }
}
