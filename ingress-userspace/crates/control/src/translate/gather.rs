//! The upstream of a destination is gathered here: addresses, protocol, TLS and health policy. The rules that lead
//! there are not known here.

use std::{borrow::Cow, net::SocketAddr, sync::Arc};

use k8s_openapi::api::core::v1::ServicePort;

use super::{
    Context,
    destination::{Destination, Finding, Gathered, Through},
    endpoints::{self, Collected},
    external_name::{self, Lead},
    features::upstream_tls::{ParsedTls, material},
    gateway::backend_tls,
    lookup::Lookup,
    port::PortReference,
    protocol,
    service::bare,
    text::shorten,
    trust_anchors,
};
use crate::{change::ObjectName, outcome::Reason, service::Service};
use ingress_model::{Endpoint, HealthPolicy, Protocol, Question, Transport, Upstream, UpstreamTls};

/// Gathers the upstream of `destination`.
pub(crate) fn gather(destination: &Destination, context: &mut Context<'_, '_>) -> Gathered {
    let mut findings = Vec::new();
    let upstream = match destination {
        Destination::Service { name, port, protocol, through, tls, health_policy, proxy_header, sender: _ } => {
            behind(name, *port, *through, &mut findings, context).and_then(|own| {
                let tls = match tls {
                    None => None,
                    Some(parsed) => Some(policy(name, parsed, &mut findings, context.lookup)?),
                };
                let protocol = protocol.unwrap_or(own.protocol);
                let health_policy =
                    health_policy.as_ref().map(|health_policy| possible(health_policy, protocol, name, &mut findings));
                Some(Upstream { protocol, tls, health_policy, proxy_header: *proxy_header, ..own })
            })
        }
        Destination::Outside { host, port, protocol, trust_anchors, sender: _ } => {
            let endpoints = external_name::reach(host, *port, &mut findings, context.lookup);
            let tls =
                if protocol.is_over_tls() { trust_anchors::tls(host, trust_anchors, context.lookup) } else { Ok(None) };
            // If verification is required but not possible, no request is sent at all.
            let tls = tls.map_err(|finding| findings.push(finding)).ok();
            endpoints.zip(tls).map(|(endpoints, tls)| Upstream {
                protocol: *protocol,
                tls,
                endpoints,
                ..Upstream::default()
            })
        }
        Destination::Secured {
            name,
            port,
            policy,
            certificate,
            protocol,
            through,
            health_policy,
            proxy_header,
            sender: _,
        } => {
            let own = behind(name, *port, *through, &mut findings, context);
            let tls = backend_tls::terms(policy, certificate.as_ref(), context.lookup);
            let tls = tls.map_err(|message| findings.push(Finding { reason: Reason::InvalidCertificate, message }));
            own.zip(tls.ok()).map(|(own, tls)| {
                let protocol = match (own.protocol, protocol) {
                    (Protocol::H2c | Protocol::H2, _) | (Protocol::Http1, Some(Protocol::H2c)) => Protocol::H2,
                    (Protocol::Http1 | Protocol::Https, _) => Protocol::Https,
                };
                let health_policy =
                    health_policy.as_ref().map(|health_policy| possible(health_policy, protocol, name, &mut findings));
                Upstream { protocol, tls: Some(tls), health_policy, proxy_header: *proxy_header, ..own }
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
pub(crate) fn behind(
    name: &ObjectName,
    number: i32,
    through: Through,
    findings: &mut Vec<Finding>,
    context: &mut Context<'_, '_>,
) -> Option<Upstream> {
    match find(name, number, Transport::Tcp, context.lookup)? {
        FoundPort::Own { service, port } => {
            let collected = endpoints::collect(name, port, context);
            Some(match through {
                // The cluster would choose among all endpoints in the slices, and send from this node.
                Through::Service if !collected.has_refused => itself(name, service, port, context),
                Through::Service | Through::Pods => pods(name, port, collected, findings, context),
            })
        }
        FoundPort::External { external_name, port } => outside(name, external_name, &port, findings, context),
    }
}

/// Returns `health_policy` without checks that endpoints of this `protocol` do not support.
pub(crate) fn possible(
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
pub(crate) fn policy(
    service: &ObjectName,
    parsed: &ParsedTls,
    findings: &mut Vec<Finding>,
    lookup: &Lookup<'_>,
) -> Option<Arc<UpstreamTls>> {
    let own = format!("{}.{}.svc", service.name, service.namespace);
    let stored = lookup.service(service);
    let own = stored.and_then(|stored| stored.object.external_name.as_deref()).map_or(own, str::to_owned);
    match material::backend_tls(parsed, &service.namespace, lookup) {
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
pub(crate) fn pods(
    name: &ObjectName,
    port: &ServicePort,
    collected: Collected<'_>,
    findings: &mut Vec<Finding>,
    context: &mut Context<'_, '_>,
) -> Upstream {
    let app_protocol = collected.app_protocol;
    let endpoints = listed(name, port, collected, findings);
    let reference = endpoints::reference(name, context.lookup);
    let protocol = protocol::of_port(app_protocol, &reference, context.outcomes);
    Upstream { protocol, endpoints, ..Upstream::default() }
}

/// Returns the endpoints of a port without HTTP; `None` if nothing may be sent there.
pub(crate) fn stream_endpoints(
    name: &ObjectName,
    number: i32,
    transport: Transport,
    findings: &mut Vec<Finding>,
    context: &mut Context<'_, '_>,
) -> Option<Vec<Endpoint>> {
    match find(name, number, transport, context.lookup)? {
        FoundPort::Own { service: _, port } => {
            let collected = endpoints::collect(name, port, context);
            Some(listed(name, port, collected, findings))
        }
        FoundPort::External { external_name, port } => led_to(name, external_name, &port, findings, context.lookup),
    }
}

/// A port, and the kind of service that has it.
pub(crate) enum FoundPort<'c> {
    /// A service with pods of its own.
    Own { service: &'c Service, port: &'c ServicePort },
    /// A service with an external name, which need not list its ports.
    External { external_name: &'c str, port: Cow<'c, ServicePort> },
}

/// Finds port `number` of a service.
pub(crate) fn find<'c>(
    name: &ObjectName,
    number: i32,
    transport: Transport,
    lookup: &Lookup<'c>,
) -> Option<FoundPort<'c>> {
    let service: &'c Service = &lookup.service(name)?.object;
    let port = PortReference::Number(number).find(service, transport);
    match service.external_name.as_deref() {
        None => port.map(|port| FoundPort::Own { service, port }),
        Some(external_name) => {
            let port = port.map_or_else(|| Cow::Owned(bare(number)), Cow::Borrowed);
            Some(FoundPort::External { external_name, port })
        }
    }
}

/// Returns the endpoints of the slices.
pub(crate) fn listed(
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
pub(crate) fn itself(
    name: &ObjectName,
    service: &Service,
    port: &ServicePort,
    context: &mut Context<'_, '_>,
) -> Upstream {
    let reference = endpoints::reference(name, context.lookup);
    let protocol = protocol::of_port(port.app_protocol.as_deref(), &reference, context.outcomes);
    let number = u16::try_from(port.port).unwrap_or_default();
    let mut endpoints: Vec<_> =
        service.cluster_ips.iter().map(|ip| Endpoint { address: SocketAddr::new(*ip, number) }).collect();
    endpoints.sort();
    Upstream { protocol, endpoints, ..Upstream::default() }
}

/// Returns the upstream of an external name; `None` if it is refused.
pub(crate) fn outside(
    name: &ObjectName,
    external_name: &str,
    port: &ServicePort,
    findings: &mut Vec<Finding>,
    context: &mut Context<'_, '_>,
) -> Option<Upstream> {
    let endpoints = led_to(name, external_name, port, findings, context.lookup)?;
    let service = endpoints::reference(name, context.lookup);
    let protocol = protocol::of_port(port.app_protocol.as_deref(), &service, context.outcomes);
    Some(Upstream { protocol, endpoints, ..Upstream::default() })
}

/// Returns the endpoints of an external name; `None` if it is refused.
pub(crate) fn led_to(
    name: &ObjectName,
    external_name: &str,
    port: &ServicePort,
    findings: &mut Vec<Finding>,
    lookup: &Lookup<'_>,
) -> Option<Vec<Endpoint>> {
    let number = endpoints::target(port).or_else(|| u16::try_from(port.port).ok()).filter(|number| *number != 0);
    let Some(number) = number else {
        let message = format!("port `{}` of service `{name}` is not a port number; correct the backend", port.port);
        findings.push(Finding { reason: Reason::PortNotFound, message });
        return None;
    };
    match external_name::resolve(name, external_name, number, findings, lookup) {
        Lead::Endpoints(endpoints) => Some(endpoints),
        Lead::Refused => None,
    }
}
