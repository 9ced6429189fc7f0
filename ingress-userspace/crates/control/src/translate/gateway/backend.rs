//! Resolves a backend of a route to an upstream. Weights and filters are not known here.

use std::collections::BTreeSet;

use super::{backend_tls, grants, report::Flaw};
use crate::{
    change::{Kind, ObjectId, ObjectName},
    gateway::{BackendRef, Group, ReferentKind},
    translate::{
        Context,
        backend_policy::BackendPolicy,
        destination::{Destination, Gathered, SubrequestSender, Through},
        grant::is_api_server,
        lookup::Lookup,
        port::PortReference,
        text::shorten,
    },
};
use ingress_model::{Protocol, Transport, UpstreamKey};

/// Returns the upstream of a backend of route `id`, reached as `wish` says apart from protocol and TLS. `protocol` holds
/// for ports that name none. `sender` is set for copies of requests. `certificate` is the Secret with the certificate to
/// present over TLS, if any.
///
/// # Errors
/// The flaw of the reference; requests for this backend get 500.
pub(super) fn upstream(
    id: &ObjectId,
    reference: &BackendRef,
    protocol: Option<Protocol>,
    certificate: Option<&ObjectName>,
    sender: Option<SubrequestSender>,
    wish: &BackendPolicy,
    context: &mut Context<'_, '_>,
) -> Result<UpstreamKey, Flaw> {
    let BackendPolicy { protocol: _, through, tls: _, health_policy, proxy_header } = wish;
    let (through, proxy_header) = (*through, *proxy_header);
    let (name, port) = service(id, reference, Transport::Tcp, context)?;
    if let Some(policy) = policy(&name, port, context.lookup) {
        let certificate = certificate.cloned();
        let destination = Destination::Secured {
            name: name.clone(),
            port,
            policy,
            certificate,
            protocol,
            through,
            health_policy: health_policy.clone(),
            proxy_header,
            sender,
        };
        let (key, gathered) = context.upstream(&destination);
        return reachable(key, &name, &gathered).map_err(|flaw| Flaw::new("BackendNotFound", flaw.message));
    }
    let plain = |protocol| Destination::Service {
        name: name.clone(),
        port,
        protocol,
        through,
        tls: None,
        health_policy: health_policy.clone(),
        proxy_header,
        sender: sender.clone(),
    };
    let (mut key, mut gathered) = context.upstream(&plain(None));
    let own = gathered.upstream.as_ref().map(|upstream| upstream.protocol);
    if own == Some(Protocol::Http1) && protocol.is_some_and(|protocol| protocol != Protocol::Http1) {
        (key, gathered) = context.upstream(&plain(protocol));
    }
    reachable(key, &name, &gathered)
}

/// Returns the BackendTLSPolicy of a port.
fn policy(service: &ObjectName, port: i32, lookup: &Lookup<'_>) -> Option<ObjectName> {
    let stored = lookup.service(service)?;
    let port = PortReference::Number(port).find(&stored.object, Transport::Tcp);
    let policy = backend_tls::chosen(service, port.and_then(|port| port.name.as_deref()), lookup)?;
    Some(policy.metadata.name.clone())
}

fn reachable(key: UpstreamKey, name: &ObjectName, gathered: &Gathered) -> Result<UpstreamKey, Flaw> {
    if gathered.upstream.is_some() {
        return Ok(key);
    }
    let message = gathered.findings.last().map_or_else(
        || format!("service `{name}` cannot be reached; see its events"),
        |finding| finding.message.clone(),
    );
    Err(Flaw::new("RefNotPermitted", message))
}

/// Returns the upstream of a backend that gets bytes or datagrams. A policy for TLS holds for bytes of connections that a
/// listener terminates; those that are passed through reach pods as they are. `certificate` is as in [`upstream`].
///
/// # Errors
/// The flaw of the reference; connections for this backend are refused.
pub(super) fn stream(
    id: &ObjectId,
    reference: &BackendRef,
    transport: Transport,
    certificate: Option<&ObjectName>,
    context: &mut Context<'_, '_>,
) -> Result<UpstreamKey, Flaw> {
    let (name, port) = service(id, reference, transport, context)?;
    let policy = if id.kind == Kind::TlsRoute { policy(&name, port, context.lookup) } else { None };
    let destination = match policy {
        Some(policy) => {
            let certificate = certificate.cloned();
            Destination::Secured {
                name: name.clone(),
                port,
                policy,
                certificate,
                protocol: None,
                through: Through::Pods,
                health_policy: None,
                proxy_header: None,
                sender: None,
            }
        }
        None => Destination::Stream { name: name.clone(), port, transport },
    };
    let (key, gathered) = context.upstream(&destination);
    reachable(key, &name, &gathered)
}

/// Returns the Services that backends of route `id` name, whether they exist or not: sorted, without duplicates.
pub(super) fn services(id: &ObjectId, references: Vec<&BackendRef>, lookup: &Lookup<'_>) -> Box<[ObjectName]> {
    let services = references.into_iter().filter_map(|reference| service_of(id, reference, lookup));
    services.collect::<BTreeSet<_>>().into_iter().collect()
}

fn service_of(id: &ObjectId, reference: &BackendRef, lookup: &Lookup<'_>) -> Option<ObjectName> {
    let is_service = (&reference.group, &reference.kind) == (&Group::Core, &ReferentKind::Service);
    is_service.then(|| name_of(id, reference, lookup))
}

fn name_of(id: &ObjectId, BackendRef { namespace, name, .. }: &BackendRef, lookup: &Lookup<'_>) -> ObjectName {
    lookup.shared_name(ObjectName::new(namespace.as_deref().unwrap_or(&id.name.namespace), name))
}

/// Returns the Service and port of a backend.
///
/// # Errors
/// The flaw of the reference.
fn service(
    id: &ObjectId,
    reference: &BackendRef,
    transport: Transport,
    context: &Context<'_, '_>,
) -> Result<(ObjectName, i32), Flaw> {
    let BackendRef { group, kind, namespace: _, name: _, port, weight: _, filters: _ } = reference;
    if (group, kind) != (&Group::Core, &ReferentKind::Service) {
        let kind = shorten(kind.as_str());
        let message = format!("backends of kind `{kind}` are not supported; name a Service of the core group");
        return Err(Flaw::new("InvalidKind", message));
    }
    let name = name_of(id, reference, context.lookup);
    grants::check(id, Kind::Service, &name, context.lookup)?;
    if is_api_server(&name) {
        let message =
            format!("service `{name}` is the API server, which never gets requests from the proxy; name another");
        return Err(Flaw::new("RefNotPermitted", message));
    }
    let Some(stored) = context.service(&name) else {
        return Err(Flaw::new("BackendNotFound", format!("service `{name}` does not exist; create it")));
    };
    let Some(port) = port else {
        return Err(Flaw::new("BackendNotFound", format!("there is no `port` for service `{name}`; add one")));
    };
    let number = i32::from(*port);
    let is_known = PortReference::Number(number).find(&stored.object, transport).is_some();
    if !is_known && stored.object.external_name.is_none() {
        return Err(Flaw::new("BackendNotFound", format!("service `{name}` has no port `{port}`; correct it")));
    }
    Ok((name, number))
}
