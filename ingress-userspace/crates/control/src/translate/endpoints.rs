//! Collects the addresses behind one port of a service from its EndpointSlices. It does not balance between them.

use std::{
    collections::BTreeSet,
    fmt::Display,
    net::{IpAddr, SocketAddr},
};

use k8s_openapi::{
    api::{
        core::v1::ServicePort,
        discovery::v1::{EndpointConditions, EndpointPort},
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::{Context, address, grant, lookup::Lookup, port::transport_of};
use crate::{
    change::{Kind, ObjectName},
    outcome::{ObjectRef, Origin, Reason},
    slice::{Slice, SliceEndpoint},
};
use ingress_model::{Endpoint, Transport};

/// State of an endpoint in its life cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndpointCondition {
    Ready,
    /// Terminating but still serving: used if no endpoint is ready, as kube-proxy does (KEP-1669).
    Draining,
    Unready,
}

/// Addresses of one slice to which no request is sent, at one port or at any.
#[derive(Default)]
struct RefusedAddresses {
    /// With its port, if the address is allowed at other ports.
    first: Option<(String, &'static str)>,
    count: usize,
}

/// The content of slices for a port.
pub(super) struct Collected<'c> {
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) app_protocol: Option<&'c str>,
    /// Whether there are further endpoints, to which no request may go.
    pub(super) has_refused: bool,
}

/// Returns the endpoints of `port` of `service`: the ready ones that topology hints assign to this node. If none is
/// ready, it returns those that still serve while they terminate.
///
/// Addresses of both families become one upstream without preference: whether a family is reachable shows only in use.
pub(super) fn collect<'c>(service: &ObjectName, port: &'c ServicePort, context: &mut Context<'_, 'c>) -> Collected<'c> {
    let mut has_refused = false;
    let (mut ready, mut draining) = (Vec::new(), BTreeSet::new());
    let transport = transport_of(port.protocol.as_deref()).unwrap_or(Transport::Tcp);
    let mut app_protocol = port.app_protocol.as_deref();
    for (name, stored) in context.slices_of(service) {
        let slice = &stored.object;
        let object = stored.refer(Kind::EndpointSlice, name);
        if !matches!(&*slice.address_type, "IPv4" | "IPv6") {
            let message = format!("address type `{}` is not supported; use `IPv4` or `IPv6`", slice.address_type);
            context.report(&object, Reason::UnsupportedBackend, message);
            continue;
        }
        let numbers = numbers(slice, port);
        let mut refused = RefusedAddresses::default();
        // For a service without selector, `appProtocol` may be set only on the slices that its owner writes.
        app_protocol = app_protocol.or_else(|| matching(slice, port).find_map(|port| port.app_protocol.as_deref()));
        for SliceEndpoint { address, conditions, hints } in &slice.endpoints {
            let state = EndpointCondition::of(conditions.as_ref());
            if state == EndpointCondition::Unready {
                continue;
            }
            let Ok(ip) = address.parse::<IpAddr>() else {
                let message = format!("`{address}` is not an IP address; this endpoint is skipped");
                context.report(&object, Reason::InvalidObject, message);
                continue;
            };
            // Files belong to the operator. A user with write access to objects of a namespace must not lead this
            // controller to the node itself.
            let is_judged = stored.origin == Origin::Api
                && !context.options.endpoint_networks.iter().any(|network| network.contains(&ip));
            if is_judged && let Err(kind) = judge(service, ip, context.lookup) {
                refused.add(ip, kind);
                continue;
            }
            for address in numbers.iter().map(|number| SocketAddr::new(ip, *number)) {
                if is_judged && let Err(kind) = judge_port(service, address, transport, context.lookup) {
                    refused.add(address, kind);
                    continue;
                }
                match state {
                    EndpointCondition::Ready => ready.push((Endpoint { address }, hints.as_deref())),
                    EndpointCondition::Draining | EndpointCondition::Unready => {
                        draining.insert(Endpoint { address });
                    }
                }
            }
        }
        if let Some(message) = refused.message(&name.name) {
            has_refused = true;
            // Reported on the Service, where its owner looks; events of an EndpointSlice are rarely read.
            let service = reference(service, context.lookup);
            context.report(&service, Reason::EndpointRefused, message);
        }
    }
    let endpoints = if ready.is_empty() { draining } else { context.topology().nearest(&ready) };
    Collected { endpoints: endpoints.into_iter().collect(), app_protocol, has_refused }
}

/// Checks an address of `service`.
///
/// # Errors
/// The kind of `address`, if no request may go there.
fn judge(service: &ObjectName, address: IpAddr, lookup: &Lookup<'_>) -> Result<(), &'static str> {
    // Only rows of stream services lead to the API server's Service, and the operator writes them.
    if grant::is_api_server(service) {
        return address::kind(address).map_or(Ok(()), Err);
    }
    address::check_slice_address(address, lookup)
}

/// Checks a port of an endpoint of `service`.
///
/// # Errors
/// The kind of `endpoint`, if no request may go to this port.
fn judge_port(
    service: &ObjectName,
    endpoint: SocketAddr,
    transport: Transport,
    lookup: &Lookup<'_>,
) -> Result<(), &'static str> {
    if grant::is_api_server(service) {
        return Ok(());
    }
    address::check_slice_port(endpoint, transport, lookup)
}

/// Returns the service as outcomes refer to it.
pub(super) fn reference(service: &ObjectName, lookup: &Lookup<'_>) -> ObjectRef {
    let origin = lookup.service(service).map_or(Origin::Api, |stored| stored.origin.clone());
    service.refer(Kind::Service, &origin)
}

/// Returns the port numbers in `slice` with the name of the service's port. They may differ from slice to slice,
/// because a named target port may differ from pod to pod.
fn numbers(slice: &Slice, service_port: &ServicePort) -> Vec<u16> {
    if slice.ports.is_empty() {
        return target(service_port).into_iter().collect();
    }
    matching(slice, service_port)
        .filter_map(|EndpointPort { port, .. }| match port {
            Some(number) => u16::try_from(*number).ok().filter(|number| *number != 0),
            None => target(service_port),
        })
        .collect()
}

fn matching<'s, 'p>(
    slice: &'s Slice,
    service_port: &'p ServicePort,
) -> impl Iterator<Item = &'s EndpointPort> + use<'s, 'p> {
    let wanted = service_port.name.as_deref().unwrap_or_default();
    let transport = transport_of(service_port.protocol.as_deref());
    slice.ports.iter().filter(move |EndpointPort { name, protocol, .. }| {
        name.as_deref().unwrap_or_default() == wanted && transport_of(protocol.as_deref()) == transport
    })
}

/// Returns the number in the service itself; only for slices that restrict no port, and for external names.
pub(super) fn target(port: &ServicePort) -> Option<u16> {
    let number = match &port.target_port {
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(_)) => return None,
        None => port.port,
    };
    u16::try_from(number).ok().filter(|number| *number != 0)
}

// === impl RefusedAddresses ===

impl RefusedAddresses {
    fn add(&mut self, address: impl Display, kind: &'static str) {
        self.first.get_or_insert_with(|| (address.to_string(), kind));
        self.count += 1;
    }

    /// Returns the message for the owner of the Service: one for a slice, regardless of how many addresses and ports
    /// are refused.
    fn message(&self, slice: &str) -> Option<String> {
        let (endpoint, kind) = self.first.as_ref()?;
        let others = match self.count - 1 {
            0 => String::new(),
            others => format!(", and {others} more that are refused"),
        };
        Some(format!(
            "EndpointSlice `{slice}` has `{endpoint}`, {kind}{others}; it gets no requests, correct the slice or ask \
             the operator to add the network to `--allow-endpoints-in`"
        ))
    }
}

// === impl EndpointCondition ===

impl EndpointCondition {
    fn of(conditions: Option<&EndpointConditions>) -> Self {
        let Some(EndpointConditions { ready, serving, terminating }) = conditions else { return Self::Ready };
        let ready = ready.unwrap_or(true);
        let serving = serving.unwrap_or(ready);
        match (ready, serving, terminating.unwrap_or(false)) {
            (true, _, _) => Self::Ready,
            (false, true, true) => Self::Draining,
            _ => Self::Unready,
        }
    }
}
