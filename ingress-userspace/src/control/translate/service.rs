//! Resolves the backend of a rule to an upstream. It does not know rules.

use std::fmt;

use k8s_openapi::api::{
    core::v1::{Service, ServicePort},
    networking::v1::{IngressBackend, IngressServiceBackend, ServiceBackendPort},
};

use super::{Context, endpoints};
use crate::{
    control::{
        change::ObjectName,
        outcome::{ObjectRef, Reason},
    },
    model::{Action, Unavailable, UpstreamKey},
};

/// How an Ingress names a port.
enum Port<'b> {
    Name(&'b str),
    Number(i32),
}

/// What a rule with `backend` does. Upstreams are added to the context; problems are reported on `ingress`.
pub(super) fn resolve(
    namespace: &str,
    backend: &IngressBackend,
    ingress: &ObjectRef,
    context: &mut Context<'_>,
) -> Action {
    let IngressBackend { resource, service } = backend;
    let backend = match (service, resource) {
        (Some(backend), None) => backend,
        (None, Some(resource)) => {
            let (kind, name) = (&resource.kind, &resource.name);
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
    let cluster = context.cluster;
    let Some(service) = cluster.services.get(&name) else {
        let message = format!("service `{name}` does not exist; create it or correct the backend");
        context.report(ingress, Reason::ServiceNotFound, message);
        return Action::Refuse(Unavailable::NoService);
    };
    let spec = service.object.spec.as_ref();
    if spec.and_then(|spec| spec.type_.as_deref()) == Some("ExternalName") {
        let message =
            format!("service `{name}` is of type ExternalName, which is not supported; use one with endpoints");
        context.report(ingress, Reason::UnsupportedBackend, message);
        return Action::Refuse(Unavailable::Backend);
    }
    let wanted = port.as_ref().and_then(Port::of);
    let Some(found) = wanted.as_ref().and_then(|wanted| wanted.find(&service.object)) else {
        let wanted = wanted.map_or_else(|| "(none)".to_owned(), |wanted| wanted.to_string());
        let message = format!("service `{name}` has no TCP port `{wanted}`; it has {}", offered(&service.object));
        context.report(ingress, Reason::PortNotFound, message);
        return Action::Refuse(Unavailable::NoPort);
    };
    let key = UpstreamKey::new(&name.namespace, &name.name, &found.port.to_string());
    if !context.upstreams.contains_key(&key) {
        let upstream = endpoints::collect(&name, found, context);
        context.upstreams.insert(key.clone(), upstream);
    }
    if context.upstreams.get(&key).is_some_and(|upstream| upstream.endpoints.is_empty()) {
        let message =
            format!("port `{}` of service `{name}` has no ready endpoint; check its pods and selector", found.port);
        context.report(ingress, Reason::NoReadyEndpoints, message);
    }
    Action::Forward(key)
}

fn ports(service: &Service) -> impl Iterator<Item = &ServicePort> {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    ports.iter().filter(|port| endpoints::is_tcp(port.protocol.as_deref()))
}

/// The ports of a service, for people.
fn offered(service: &Service) -> String {
    let ports: Vec<_> = ports(service)
        .map(|port| match &port.name {
            Some(name) => format!("`{}` (`{name}`)", port.port),
            None => format!("`{}`", port.port),
        })
        .collect();
    if ports.is_empty() { "none".into() } else { ports.join(", ") }
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

    fn find<'s>(&self, service: &'s Service) -> Option<&'s ServicePort> {
        ports(service).find(|port| match self {
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
