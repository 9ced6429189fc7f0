//! Resolves the backend of a rule to an upstream. It does not know rules.

use std::{borrow::Cow, fmt};

use k8s_openapi::api::{
    core::v1::{Service, ServicePort},
    networking::v1::{IngressBackend, IngressServiceBackend, ServiceBackendPort},
};

use super::{
    Context,
    annotations::shorten,
    endpoints,
    external::{self, Lead},
    protocol::{self, Wanted},
};
use crate::{
    control::{
        change::{Kind, ObjectName},
        outcome::{ObjectRef, Origin, Reason},
    },
    model::{Action, Protocol, Unavailable, Upstream, UpstreamKey},
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
    wanted: Wanted,
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
    forward(&name, &service.object, port.as_ref().and_then(Port::of), wanted, ingress, context)
}

/// What the first TCP port of service `name` does where no rule fits; `None` if there is no such service or port, which is
/// reported on the service.
pub(super) fn default(name: &ObjectName, context: &mut Context<'_>) -> Option<Action> {
    let Some(service) = context.service(name) else {
        let message =
            "`--default-backend-service` names it, but it does not exist; create it, requests without a rule get 404";
        context.report(&name.refer(Kind::Service, &Origin::Api), Reason::ServiceNotFound, message.into());
        return None;
    };
    let object = service.refer(Kind::Service, name);
    let Some(port) = ports(&service.object).next() else {
        let message = "`--default-backend-service` names it, but it has no TCP port; add one";
        context.report(&object, Reason::PortNotFound, message.into());
        return None;
    };
    Some(forward(name, &service.object, Some(Port::Number(port.port)), Wanted::OfPort, &object, context))
}

fn forward(
    name: &ObjectName,
    service: &Service,
    port: Option<Port<'_>>,
    wanted: Wanted,
    object: &ObjectRef,
    context: &mut Context<'_>,
) -> Action {
    let external_name = external_name(service);
    let found = match (&port, port.as_ref().and_then(|port| port.find(service))) {
        (_, Some(found)) => Some(Cow::Borrowed(found)),
        // A service with an external name needs no ports of its own: there is nothing to map them to.
        (Some(Port::Number(number)), None) if external_name.is_some() => {
            Some(Cow::Owned(ServicePort { port: *number, ..ServicePort::default() }))
        }
        _ => None,
    };
    let Some(found) = found else {
        let wanted = port.map_or_else(|| "(none)".to_owned(), |port| shorten(&port.to_string()));
        let message = format!("service `{name}` has no TCP port `{wanted}`; it has {}", offered(service));
        context.report(object, Reason::PortNotFound, message);
        return Action::Refuse(Unavailable::NoPort);
    };
    let key = UpstreamKey::new(&name.namespace, &name.name, &found.port.to_string());
    let own = match external_name {
        None => Some(pods(name, &found, &key, object, context)),
        Some(external_name) => outside(name, external_name, &found, &key, object, context),
    };
    let Some(own) = own else { return Action::Refuse(Unavailable::Backend) };
    match wanted {
        // What speaks another protocol shares no connections with the rest, so it is another upstream.
        Wanted::This(protocol) if protocol != own => {
            let port = format!("{}+{protocol}", found.port);
            let other = UpstreamKey::new(&name.namespace, &name.name, &port);
            if !context.upstreams.contains_key(&other) {
                let endpoints = context.upstreams.get(&key).map(|own| own.endpoints.clone()).unwrap_or_default();
                context.upstreams.insert(other.clone(), Upstream { protocol, endpoints });
            }
            Action::Forward(other)
        }
        Wanted::This(_) | Wanted::OfPort | Wanted::Unsupported => Action::Forward(key),
    }
}

/// Adds the endpoints that slices give, which are read once for all rules that lead to them.
fn pods(
    name: &ObjectName,
    port: &ServicePort,
    key: &UpstreamKey,
    object: &ObjectRef,
    context: &mut Context<'_>,
) -> Protocol {
    if !context.upstreams.contains_key(key) {
        let upstream = endpoints::collect(name, port, context);
        context.upstreams.insert(key.clone(), upstream);
    }
    let (protocol, is_empty) = match context.upstreams.get(key) {
        Some(Upstream { protocol, endpoints }) => (*protocol, endpoints.is_empty()),
        None => (Protocol::default(), true),
    };
    if is_empty {
        let message =
            format!("port `{}` of service `{name}` has no ready endpoint; check its pods and selector", port.port);
        context.report(object, Reason::NoReadyEndpoints, message);
    }
    protocol
}

/// Adds the addresses of an external name; `None` if it is refused.
fn outside(
    name: &ObjectName,
    external_name: &str,
    port: &ServicePort,
    key: &UpstreamKey,
    object: &ObjectRef,
    context: &mut Context<'_>,
) -> Option<Protocol> {
    let number = endpoints::target(port).or_else(|| u16::try_from(port.port).ok()).filter(|number| *number != 0);
    let Some(number) = number else {
        let message = format!("port `{}` of service `{name}` is no port number; correct the backend", port.port);
        context.report(object, Reason::PortNotFound, message);
        return None;
    };
    let Lead::Endpoints(endpoints) = external::follow(name, external_name, number, object, context) else {
        return None;
    };
    let service = endpoints::reference(name, context);
    let protocol = protocol::of_port(port.app_protocol.as_deref(), &service, context);
    context.upstreams.insert(key.clone(), Upstream { protocol, endpoints });
    Some(protocol)
}

/// The name that a service of type ExternalName stands for.
fn external_name(service: &Service) -> Option<&str> {
    let spec = service.spec.as_ref().filter(|spec| spec.type_.as_deref() == Some("ExternalName"))?;
    Some(spec.external_name.as_deref().unwrap_or_default())
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
