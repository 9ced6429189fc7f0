//! Resolves the backend of a rule to an upstream. It does not know rules.

use std::{
    borrow::Cow,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use k8s_openapi::api::{
    core::v1::{Service, ServicePort},
    networking::v1::{IngressBackend, IngressServiceBackend, ServiceBackendPort},
};
use rustls_pki_types::ServerName;

use super::{
    Context,
    annotations::{self, AskedTls, shorten},
    endpoints,
    external::{self, Lead},
    protocol::{self, Speech, Wanted},
};
use crate::{
    control::{
        change::{Kind, ObjectName},
        outcome::{ObjectRef, Origin, Reason},
    },
    model::{Action, Endpoint, Protocol, Question, Transport, Unavailable, Upkeep, Upstream, UpstreamKey, UpstreamTls},
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
        tls: Option<AskedTls>,
        /// How it is looked after, if not as all is.
        upkeep: Option<Arc<Upkeep>>,
    },
    /// A host that an annotation gives, by its name or address.
    Outside { host: Box<str>, port: u16, protocol: Protocol },
    /// A port of a service, for what is not HTTP.
    Stream { name: ObjectName, port: i32, transport: Transport },
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

/// How an Ingress, or a row of stream services, names a port.
#[derive(Clone, Copy)]
pub(super) enum Port<'b> {
    Name(&'b str),
    Number(i32),
}

/// What a rule with `backend` does. Problems are reported on `ingress`.
pub(super) fn resolve(
    namespace: &str,
    backend: &IngressBackend,
    speech: Speech<'_>,
    ingress: &ObjectRef,
    context: &mut Context<'_>,
) -> Action {
    let IngressBackend { resource, service } = backend;
    let backend = match (service, resource) {
        (Some(backend), None) => backend,
        (None, Some(resource)) => {
            let (kind, name) = (shorten(&resource.kind), shorten(&resource.name));
            let message = format!("resource backend `{kind}/{name}` is not supported; name a service");
            context.report(ingress, Reason::UnsupportedBackend, message);
            return Action::Refuse(Unavailable::Backend);
        }
        (None, None) | (Some(_), Some(_)) => {
            let message = "a backend must name either a service or a resource; name a service".to_owned();
            context.report(ingress, Reason::UnsupportedBackend, message);
            return Action::Refuse(Unavailable::Backend);
        }
    };
    let IngressServiceBackend { name, port } = backend;
    let name = ObjectName::new(namespace, name);
    let Some(service) = context.service(&name) else {
        let message = format!("service `{name}` does not exist; create it or correct the backend");
        context.report(ingress, Reason::ServiceNotFound, message);
        return Action::Refuse(Unavailable::NoService);
    };
    forward(&name, &service.object, port.as_ref().and_then(Port::of), speech, ingress, context)
}

/// What the first TCP port of service `name` does where no rule fits; `None` if there is no such service or port, which
/// is reported on the service.
pub(super) fn default(name: &ObjectName, context: &mut Context<'_>) -> Option<Action> {
    let Some(service) = context.service(name) else {
        let message =
            "`--default-backend-service` names it, but it does not exist; create it, requests without a rule get 404";
        context.report(&name.refer(Kind::Service, &Origin::Api), Reason::ServiceNotFound, message.into());
        return None;
    };
    let object = service.refer(Kind::Service, name);
    let Some(port) = ports(&service.object, Transport::Tcp).next() else {
        let message = "`--default-backend-service` names it, but it has no TCP port; add one";
        context.report(&object, Reason::PortNotFound, message.into());
        return None;
    };
    Some(forward(
        name,
        &service.object,
        Some(Port::Number(port.port)),
        Speech { protocol: Wanted::OfPort, through: Through::Pods, terms: None, upkeep: None },
        &object,
        context,
    ))
}

/// The upstream behind the first TCP port of service `name`; `None` and the reason reported on `object` if there is none.
pub(super) fn first(name: &ObjectName, object: &ObjectRef, context: &mut Context<'_>) -> Option<UpstreamKey> {
    let Some(service) = context.service(name) else {
        let message = format!("service `{name}` does not exist; create it or correct its name");
        context.report(object, Reason::ServiceNotFound, message);
        return None;
    };
    let port = ports(&service.object, Transport::Tcp).next().map(|port| Port::Number(port.port));
    let speech = Speech { protocol: Wanted::OfPort, through: Through::Pods, terms: None, upkeep: None };
    match forward(name, &service.object, port, speech, object, context) {
        Action::Forward(key) => Some(key),
        Action::Split(_) | Action::Refuse(_) | Action::Redirect(_) => None,
    }
}

/// The upstream behind one port of service `name`, which speaks `protocol`, over TLS under `terms`; `None` and the
/// reason reported on `object` if there is none.
pub(super) fn named(
    name: &ObjectName,
    port: u16,
    protocol: Protocol,
    terms: Option<&AskedTls>,
    object: &ObjectRef,
    context: &mut Context<'_>,
) -> Option<UpstreamKey> {
    let Some(service) = context.service(name) else {
        let message = format!("service `{name}` does not exist; create it or correct its name");
        context.report(object, Reason::ServiceNotFound, message);
        return None;
    };
    let port = Port::Number(i32::from(port));
    let speech = Speech { protocol: Wanted::This(protocol), through: Through::Pods, terms, upkeep: None };
    match forward(name, &service.object, Some(port), speech, object, context) {
        Action::Forward(key) => Some(key),
        Action::Split(_) | Action::Refuse(_) | Action::Redirect(_) => None,
    }
}

/// The upstream behind one port of service `name`, for what is not HTTP; `None` and what is wrong added to `findings`
/// if there is none.
pub(super) fn stream(
    name: &ObjectName,
    port: Port<'_>,
    transport: Transport,
    findings: &mut Vec<Finding>,
    context: &mut Context<'_>,
) -> Option<UpstreamKey> {
    let mut find = |reason, message| findings.push(Finding { reason, message });
    let Some(service) = context.service(name).map(|stored| &stored.object) else {
        find(
            Reason::ServiceNotFound,
            format!("service `{name}` does not exist; create it or correct its name, the port is closed"),
        );
        return None;
    };
    let number = match (port.find(service, transport), port) {
        (Some(found), _) => found.port,
        (None, Port::Number(number)) if external_name(service).is_some() => number,
        (None, _) => {
            let wanted = shorten(&port.to_string());
            find(Reason::PortNotFound, no_port(name, service, &wanted, transport));
            return None;
        }
    };
    let (key, gathered) = context.upstream(&Destination::Stream { name: name.clone(), port: number, transport });
    findings.extend(gathered.findings.iter().cloned());
    gathered.upstream.as_ref().map(|_| key)
}

fn forward(
    name: &ObjectName,
    service: &Service,
    port: Option<Port<'_>>,
    Speech { protocol: wanted, through, terms, upkeep }: Speech<'_>,
    object: &ObjectRef,
    context: &mut Context<'_>,
) -> Action {
    let external_name = external_name(service);
    let found = match (port, port.and_then(|port| port.find(service, Transport::Tcp))) {
        (_, Some(found)) => Some(Cow::Borrowed(found)),
        // A service with an external name needs no ports of its own: there is nothing to map them to.
        (Some(Port::Number(number)), None) if external_name.is_some() => Some(Cow::Owned(bare(number))),
        _ => None,
    };
    let Some(found) = found else {
        let wanted = port.map_or_else(|| "(none)".to_owned(), |port| shorten(&port.to_string()));
        context.report(object, Reason::PortNotFound, no_port(name, service, &wanted, Transport::Tcp));
        return Action::Refuse(Unavailable::NoPort);
    };
    let through = if cluster_ips(service).next().is_some() { through } else { Through::Pods };
    let destination = |protocol, tls: Option<&AskedTls>, upkeep: Option<&Arc<Upkeep>>| Destination::Service {
        name: name.clone(),
        port: found.port,
        protocol,
        through,
        tls: tls.cloned(),
        upkeep: upkeep.cloned(),
    };
    let (key, gathered) = context.upstream(&destination(None, None, None));
    for Finding { reason, message } in &gathered.findings {
        context.report(object, *reason, message.clone());
    }
    let Some(upstream) = &gathered.upstream else { return Action::Refuse(Unavailable::Backend) };
    let other = match wanted {
        Wanted::This(protocol) if protocol != upstream.protocol => Some(protocol),
        Wanted::This(_) | Wanted::OfPort | Wanted::Unsupported => None,
    };
    let agreed = terms.filter(|_| other.unwrap_or(upstream.protocol).is_over_tls());
    if terms.is_some() && agreed.is_none() {
        let message = format!(
            "annotations `proxy-ssl-*` have no effect for service `{name}`, as no TLS is spoken to its pods; set `backend-protocol` to `HTTPS` or `GRPCS`"
        );
        context.report(object, Reason::IneffectiveAnnotation, message);
    }
    if other.is_none() && agreed.is_none() && upkeep.is_none() {
        return Action::Forward(key);
    }
    // What is spoken to otherwise shares no connections with the rest, and what is looked after otherwise no health, so
    // it is another upstream.
    let known = gathered.findings.clone();
    let (key, gathered) = context.upstream(&destination(other, agreed, upkeep));
    if gathered.upstream.is_some() {
        for Finding { reason, message } in gathered.findings.iter().filter(|finding| !known.contains(finding)) {
            context.report(object, *reason, message.clone());
        }
        return Action::Forward(key);
    }
    for Finding { reason, message } in &gathered.findings {
        context.report(object, *reason, message.clone());
    }
    Action::Refuse(Unavailable::Policy)
}

/// Gathers what is behind `destination`.
pub(super) fn gather(destination: &Destination, context: &mut Context<'_>) -> Gathered {
    let mut findings = Vec::new();
    let (name, number, protocol, through, tls, upkeep) = match destination {
        Destination::Service { name, port, protocol, through, tls, upkeep } => {
            (name, port, protocol, through, tls, upkeep)
        }
        Destination::Outside { host, port, protocol } => {
            let endpoints = external::reach(host, *port, &mut findings, context);
            let tls = protocol.is_over_tls().then(|| outside_tls(host)).flatten();
            let upstream =
                endpoints.map(|endpoints| Arc::new(Upstream { protocol: *protocol, tls, upkeep: None, endpoints }));
            return Gathered { upstream, findings };
        }
        Destination::Stream { name, port, transport } => {
            let endpoints = stream_endpoints(name, *port, *transport, &mut findings, context);
            let upstream = endpoints.map(|endpoints| Arc::new(Upstream { endpoints, ..Upstream::default() }));
            return Gathered { upstream, findings };
        }
    };
    let upstream = context.service(name).and_then(|stored| {
        let service = &stored.object;
        let found = Port::Number(*number).find(service, Transport::Tcp);
        match external_name(service) {
            None => found.map(|port| match through {
                Through::Pods => pods(name, port, &mut findings, context),
                Through::Service => itself(name, service, port, context),
            }),
            Some(external_name) => {
                let port = found.map_or_else(|| Cow::Owned(bare(*number)), Cow::Borrowed);
                outside(name, external_name, &port, &mut findings, context)
            }
        }
    });
    let upstream = upstream.and_then(|own| {
        let tls = match tls {
            None => None,
            Some(asked) => Some(policy(name, asked, &mut findings, context)?),
        };
        let protocol = protocol.unwrap_or(own.protocol);
        let upkeep = upkeep.as_ref().map(|upkeep| possible(upkeep, protocol, name, &mut findings));
        Some(Upstream { protocol, tls, upkeep, ..own })
    });
    Gathered { upstream: upstream.map(Arc::new), findings }
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

/// What is said to a host outside, of whose services nothing but its name may say which is meant. An address is no
/// server name.
fn outside_tls(host: &str) -> Option<Arc<UpstreamTls>> {
    let name = ServerName::try_from(host.trim_end_matches('.').to_owned()).ok();
    let name = name.filter(|name| matches!(name, ServerName::DnsName(_)))?;
    Some(Arc::new(UpstreamTls { verify: None, certificate: None, server_name: Some(name) }))
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
    let own = stored.and_then(|stored| external_name(&stored.object)).map_or(own, str::to_owned);
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
    let service = &context.service(name)?.object;
    let found = Port::Number(number).find(service, transport);
    match external_name(service) {
        None => found.map(|port| listed(name, port, findings, context).0),
        Some(external_name) => {
            let port = found.map_or_else(|| Cow::Owned(bare(number)), Cow::Borrowed);
            led_to(name, external_name, &port, findings, context)
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
        cluster_ips(service).map(|ip| Endpoint { address: SocketAddr::new(ip, number) }).collect();
    endpoints.sort();
    Upstream { protocol, endpoints, ..Upstream::default() }
}

/// The addresses that the cluster has given a service; a headless one has none.
fn cluster_ips(service: &Service) -> impl Iterator<Item = IpAddr> {
    let spec = service.spec.as_ref();
    let first = spec.and_then(|spec| spec.cluster_ip.iter().next());
    let all = spec
        .and_then(|spec| spec.cluster_ips.as_deref())
        .unwrap_or(first.map(std::slice::from_ref).unwrap_or_default());
    all.iter().filter_map(|ip| ip.parse().ok())
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

/// A port that a service does not list.
fn bare(number: i32) -> ServicePort {
    ServicePort { port: number, ..ServicePort::default() }
}

/// The name that a service of type ExternalName stands for.
fn external_name(service: &Service) -> Option<&str> {
    let spec = service.spec.as_ref().filter(|spec| spec.type_.as_deref() == Some("ExternalName"))?;
    Some(spec.external_name.as_deref().unwrap_or_default())
}

fn ports(service: &Service, transport: Transport) -> impl Iterator<Item = &ServicePort> {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    ports.iter().filter(move |port| endpoints::transport(port.protocol.as_deref()) == Some(transport))
}

/// Says that a service does not have the port `wanted`, and which it has.
fn no_port(name: &ObjectName, service: &Service, wanted: &str, transport: Transport) -> String {
    let ports: Vec<_> = ports(service, transport)
        .map(|port| match &port.name {
            Some(name) => format!("`{}` (`{name}`)", port.port),
            None => format!("`{}`", port.port),
        })
        .collect();
    let offered = if ports.is_empty() { "none".into() } else { ports.join(", ") };
    format!("service `{name}` has no {transport} port `{wanted}`; it has {offered}")
}

// === impl Destination ===

impl Destination {
    pub(super) fn key(&self) -> UpstreamKey {
        match self {
            Self::Service { name: ObjectName { namespace, name }, port, protocol, through, tls, upkeep } => {
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
                UpstreamKey::new(namespace, name, &port)
            }
            // No namespace is empty, so that no service has this key.
            Self::Outside { host, port, protocol } => UpstreamKey::new("", host, &format!("{port}+{protocol}")),
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

// === impl Port ===

impl<'b> Port<'b> {
    fn of(port: &'b ServiceBackendPort) -> Option<Self> {
        let ServiceBackendPort { name, number } = port;
        match (name.as_deref().filter(|name| !name.is_empty()), number.filter(|number| *number != 0)) {
            (Some(name), _) => Some(Self::Name(name)),
            (None, Some(number)) => Some(Self::Number(number)),
            (None, None) => None,
        }
    }

    fn find<'s>(&self, service: &'s Service, transport: Transport) -> Option<&'s ServicePort> {
        ports(service, transport).find(|port| match self {
            Self::Name(name) => port.name.as_deref() == Some(name),
            Self::Number(number) => port.port == *number,
        })
    }
}

impl fmt::Display for Port<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}
