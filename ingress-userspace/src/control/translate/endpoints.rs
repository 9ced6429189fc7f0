//! Collects the addresses behind one port of a service from its EndpointSlices. It does not choose among them.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use k8s_openapi::{
    api::{
        core::v1::ServicePort,
        discovery::v1::{Endpoint as SliceEndpoint, EndpointConditions, EndpointPort, EndpointSlice},
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::Context;
use crate::{
    control::{
        change::{Kind, ObjectName},
        outcome::Reason,
    },
    model::{Endpoint, Upstream},
};

/// How far an endpoint is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    /// Going, but still answering: used where nothing is ready, as kube-proxy does (KEP-1669).
    Draining,
    Unfit,
}

/// The endpoints of `port` of `service`: the ready ones, or if there are none those that still serve while they terminate.
pub(super) fn collect(service: &ObjectName, port: &ServicePort, context: &mut Context<'_>) -> Upstream {
    let (mut ready, mut draining) = (BTreeSet::new(), BTreeSet::new());
    for (name, stored) in context.cluster.slices_of(service) {
        let slice = &stored.object;
        let object = stored.refer(Kind::EndpointSlice, name);
        if !matches!(slice.address_type.as_str(), "IPv4" | "IPv6") {
            let message = format!("address type `{}` is not supported; use `IPv4` or `IPv6`", slice.address_type);
            context.report(&object, Reason::UnsupportedBackend, message);
            continue;
        }
        let numbers = numbers(slice, port);
        for SliceEndpoint { addresses, conditions, .. } in slice.endpoints.iter().flatten() {
            let state = State::of(conditions.as_ref());
            // Addresses after the first have no meaning (discovery/v1, `Endpoint.addresses`).
            let Some(text) = addresses.first().filter(|_| state != State::Unfit) else { continue };
            let Ok(ip) = text.parse::<IpAddr>() else {
                let message = format!("`{text}` is no IP address; this endpoint is skipped");
                context.report(&object, Reason::InvalidObject, message);
                continue;
            };
            let chosen = if state == State::Ready { &mut ready } else { &mut draining };
            chosen.extend(numbers.iter().map(|number| Endpoint { address: SocketAddr::new(ip, *number) }));
        }
    }
    let endpoints = if ready.is_empty() { draining } else { ready };
    Upstream { endpoints: endpoints.into_iter().collect(), ..Upstream::default() }
}

/// The port numbers in `slice` that bear the name of the service's port. They may differ from slice to slice, because a
/// named target port may differ from pod to pod.
fn numbers(slice: &EndpointSlice, service_port: &ServicePort) -> Vec<u16> {
    let ports = slice.ports.as_deref().unwrap_or_default();
    if ports.is_empty() {
        return target(service_port).into_iter().collect();
    }
    ports
        .iter()
        .filter(|EndpointPort { name, protocol, .. }| {
            name.as_deref().unwrap_or_default() == service_port.name.as_deref().unwrap_or_default()
                && is_tcp(protocol.as_deref())
        })
        .filter_map(|EndpointPort { port, .. }| match port {
            Some(number) => u16::try_from(*number).ok().filter(|number| *number != 0),
            None => target(service_port),
        })
        .collect()
}

/// The number that the service itself gives; only for slices that restrict no port.
fn target(port: &ServicePort) -> Option<u16> {
    let number = match &port.target_port {
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(_)) => return None,
        None => port.port,
    };
    u16::try_from(number).ok().filter(|number| *number != 0)
}

/// Absent means TCP, here as for services.
pub(super) fn is_tcp(protocol: Option<&str>) -> bool {
    protocol.is_none_or(|protocol| protocol == "TCP")
}

// === impl State ===

impl State {
    fn of(conditions: Option<&EndpointConditions>) -> Self {
        let Some(EndpointConditions { ready, serving, terminating }) = conditions else { return Self::Ready };
        let ready = ready.unwrap_or(true);
        let serving = serving.unwrap_or(ready);
        match (ready, serving, terminating.unwrap_or(false)) {
            (true, _, _) => Self::Ready,
            (false, true, true) => Self::Draining,
            _ => Self::Unfit,
        }
    }
}
