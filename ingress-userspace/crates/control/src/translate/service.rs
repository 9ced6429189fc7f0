//! Resolves the backend of a rule to a destination, and so to an upstream. Rules are not known here.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::api::{
    core::v1::ServicePort,
    networking::v1::{IngressBackend, IngressServiceBackend},
};

use super::{
    Context,
    backend_policy::BackendPolicy,
    destination::{Destination, Finding, SubrequestSender, Through},
    features::{backend_protocol::Wanted, upstream_tls::ParsedTls},
    grant,
    lookup::Lookup,
    port::{PortReference, ports},
    text::shorten,
};
use crate::{
    change::{Kind, ObjectName},
    outcome::{ObjectRef, Origin, Reason},
    service::Service,
};
use ingress_model::{Action, Protocol, Split, Transport, Unavailable, UpstreamKey};

/// Returns the action of a rule with `backend`. Problems are reported on `ingress`.
pub(super) fn resolve(
    namespace: &str,
    backend: &IngressBackend,
    wish: &BackendPolicy,
    ingress: &ObjectRef,
    context: &mut Context<'_, '_>,
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
    let port = port.as_ref().and_then(PortReference::of);
    if wish.protocol != Wanted::OfClient {
        return forward(&name, &service.object, port, wish, None, ingress, context);
    }
    // TLS settings are for the pods of clients over TLS alone.
    let clear = BackendPolicy { protocol: Wanted::This(Protocol::Http1), tls: None, ..wish.clone() };
    let secure = BackendPolicy { protocol: Wanted::This(Protocol::Https), ..wish.clone() };
    let main = forward(&name, &service.object, port, &clear, None, ingress, context);
    let Action::Forward(main) = main else { return main };
    match forward(&name, &service.object, port, &secure, None, ingress, context) {
        Action::Forward(over_tls) => {
            let over_tls = vec![(main.clone(), over_tls)];
            Action::Split(Arc::new(Split { main, canaries: Vec::new(), over_tls }))
        }
        other => other,
    }
}

/// Returns the action of the first TCP port of service `name` for requests without a rule. Returns `None` if there is
/// no such service or port, which is reported on the service. `sender` is set if it is used for error pages.
pub(super) fn default(
    name: &ObjectName,
    sender: Option<&SubrequestSender>,
    context: &mut Context<'_, '_>,
) -> Option<Action> {
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
    let (port, wish) = (Some(PortReference::Number(port.port)), BackendPolicy::default());
    Some(forward(name, &service.object, port, &wish, sender, &object, context))
}

/// Returns the upstream of the first TCP port of service `name`, or `None` with the reason reported on `object`.
pub(super) fn first(
    name: &ObjectName,
    sender: &SubrequestSender,
    object: &ObjectRef,
    context: &mut Context<'_, '_>,
) -> Option<UpstreamKey> {
    let Some(service) = context.service(name) else {
        let message = format!("service `{name}` does not exist; create it or correct its name");
        context.report(object, Reason::ServiceNotFound, message);
        return None;
    };
    let port = ports(&service.object, Transport::Tcp).next().map(|port| PortReference::Number(port.port));
    match forward(name, &service.object, port, &BackendPolicy::default(), Some(sender), object, context) {
        Action::Forward(key) => Some(key),
        Action::Split(_) | Action::Weighted(_) | Action::Refuse(_) | Action::Redirect(_) => None,
    }
}

/// Returns the upstream of one port of service `name`, for requests of `sender` in `protocol`, over TLS under
/// `backend_tls`. Returns `None` with the reason reported on `object`.
pub(super) fn named(
    name: &ObjectName,
    port: u16,
    protocol: Protocol,
    backend_tls: Option<ParsedTls>,
    sender: &SubrequestSender,
    object: &ObjectRef,
    context: &mut Context<'_, '_>,
) -> Option<UpstreamKey> {
    let Some(service) = context.service(name) else {
        let message = format!("service `{name}` does not exist; create it or correct its name");
        context.report(object, Reason::ServiceNotFound, message);
        return None;
    };
    let port = PortReference::Number(i32::from(port));
    let wish = BackendPolicy { protocol: Wanted::This(protocol), tls: backend_tls, ..BackendPolicy::default() };
    match forward(name, &service.object, Some(port), &wish, Some(sender), object, context) {
        Action::Forward(key) => Some(key),
        Action::Split(_) | Action::Weighted(_) | Action::Refuse(_) | Action::Redirect(_) => None,
    }
}

/// Returns the upstream of one port of service `name`, for protocols other than HTTP, or `None` with the problems added
/// to `findings`.
pub(super) fn stream(
    name: &ObjectName,
    port: PortReference<'_>,
    transport: Transport,
    findings: &mut Vec<Finding>,
    lookup: &Lookup<'_>,
) -> Option<UpstreamKey> {
    let mut find = |reason, message| findings.push(Finding { reason, message });
    let Some(service) = lookup.service(name).map(|stored| &stored.object) else {
        find(
            Reason::ServiceNotFound,
            format!("service `{name}` does not exist; create it or correct its name, the port is closed"),
        );
        return None;
    };
    let number = match (port.find(service, transport), port) {
        (Some(found), _) => found.port,
        (None, PortReference::Number(number)) if service.external_name.is_some() => number,
        (None, _) => {
            let wanted = shorten(&port.to_string());
            find(Reason::PortNotFound, no_port(name, service, &wanted, transport));
            return None;
        }
    };
    let (key, gathered) = lookup.upstream(&Destination::Stream { name: name.clone(), port: number, transport });
    findings.extend(gathered.findings.iter().cloned());
    gathered.upstream.as_ref().map(|_| key)
}

/// Returns the action that forwards to a port of `service`. Problems are reported on `object`.
fn forward(
    name: &ObjectName,
    service: &Service,
    port: Option<PortReference<'_>>,
    wish: &BackendPolicy,
    sender: Option<&SubrequestSender>,
    object: &ObjectRef,
    context: &mut Context<'_, '_>,
) -> Action {
    if grant::is_api_server(name) {
        let message = format!(
            "service `{name}` is the API server, which never gets requests from the proxy; name \
         another service"
        );
        context.report(object, Reason::RefNotPermitted, message);
        return Action::Refuse(Unavailable::Backend);
    }
    let Some(found) = find_port(port, service) else {
        let wanted = port.map_or_else(|| "(none)".to_owned(), |port| shorten(&port.to_string()));
        context.report(object, Reason::PortNotFound, no_port(name, service, &wanted, Transport::Tcp));
        return Action::Refuse(Unavailable::NoPort);
    };
    let through = if service.cluster_ips.is_empty() { Through::Pods } else { wish.through };
    let plain = Destination::Service {
        name: name.clone(),
        port: found.port,
        protocol: None,
        through,
        tls: None,
        health_policy: None,
        proxy_header: None,
        sender: None,
    };
    let (key, gathered) = context.upstream(&plain);
    report(&gathered.findings, object, context);
    let Some(upstream) = &gathered.upstream else { return Action::Refuse(Unavailable::Backend) };
    let BackendPolicy { protocol: wanted, through: _, tls, health_policy, proxy_header } = wish;
    let protocol = match wanted {
        Wanted::This(protocol) if *protocol != upstream.protocol => Some(*protocol),
        Wanted::This(_) | Wanted::OfPort | Wanted::OfClient | Wanted::Unsupported => None,
    };
    let tls = effective_tls(tls.as_ref(), protocol.unwrap_or(upstream.protocol), name, object, context);
    if protocol.is_none() && tls.is_none() && health_policy.is_none() && proxy_header.is_none() && sender.is_none() {
        return Action::Forward(key);
    }
    let special = Destination::Service {
        name: name.clone(),
        port: found.port,
        protocol,
        through,
        tls: tls.cloned().map(Box::new),
        health_policy: health_policy.clone(),
        proxy_header: *proxy_header,
        sender: sender.cloned(),
    };
    forward_to(&special, &gathered.findings, object, context)
}

/// Returns the TLS settings for `protocol`. Settings for a protocol without TLS are reported on `object`.
fn effective_tls<'w>(
    tls: Option<&'w ParsedTls>,
    protocol: Protocol,
    name: &ObjectName,
    object: &ObjectRef,
    context: &mut Context<'_, '_>,
) -> Option<&'w ParsedTls> {
    let effective = tls.filter(|_| protocol.is_over_tls());
    if tls.is_some() && effective.is_none() {
        let message = format!(
            "annotations `proxy-ssl-*` have no effect for service `{name}`, because connections to its pods use no \
             TLS; set `backend-protocol` to `HTTPS` or `GRPCS`"
        );
        context.report(object, Reason::IneffectiveAnnotation, message);
    }
    effective
}

/// Returns the action that forwards to another upstream of the same port. A different protocol shares no connections
/// with the rest, and a different health policy no health. Problems other than `known` are reported on `object`.
fn forward_to(special: &Destination, known: &[Finding], object: &ObjectRef, context: &mut Context<'_, '_>) -> Action {
    let (key, gathered) = context.upstream(special);
    if gathered.upstream.is_none() {
        report(&gathered.findings, object, context);
        return Action::Refuse(Unavailable::Policy);
    }
    let new: Vec<_> = gathered.findings.iter().filter(|finding| !known.contains(finding)).cloned().collect();
    report(&new, object, context);
    Action::Forward(key)
}

fn report(findings: &[Finding], object: &ObjectRef, context: &mut Context<'_, '_>) {
    for Finding { reason, message } in findings {
        context.report(object, *reason, message.clone());
    }
}

/// Returns the port of `service` that `port` names.
fn find_port<'s>(port: Option<PortReference<'_>>, service: &'s Service) -> Option<Cow<'s, ServicePort>> {
    match (port?, port?.find(service, Transport::Tcp)) {
        (_, Some(found)) => Some(Cow::Borrowed(found)),
        // A service with an external name needs no ports of its own, because there is nothing to map them to.
        (PortReference::Number(number), None) if service.external_name.is_some() => Some(Cow::Owned(bare(number))),
        (_, None) => None,
    }
}

/// Makes a port that a service does not list.
pub(super) fn bare(number: i32) -> ServicePort {
    ServicePort { port: number, ..ServicePort::default() }
}

/// Returns the message that a service does not have the port `wanted`, with the ports that it has.
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
