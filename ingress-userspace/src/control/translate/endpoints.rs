//! Collects the addresses behind one port of a service from its EndpointSlices. It does not balance between them.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use k8s_openapi::{
    api::{
        core::v1::ServicePort,
        discovery::v1::{EndpointConditions, EndpointPort},
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::{Context, address};
use crate::{
    control::{
        change::{Kind, ObjectName},
        outcome::{ObjectRef, Origin, Reason},
        slice::{Slice, SliceEndpoint},
    },
    model::{Endpoint, Transport},
};

/// How far an endpoint is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    /// Going, but still answering: used where nothing is ready, as kube-proxy does (KEP-1669).
    Draining,
    Unfit,
}

/// The endpoints of `port` of `service`: of the ready ones those that topology hints mean for this node, or if none is
/// ready those that still serve while they terminate.
///
/// Addresses of both families become one upstream, and none goes before the other: whether a family can be reached
/// shows when it is tried. The `appProtocol` comes with them.
pub(super) fn collect<'c>(
    service: &ObjectName,
    port: &'c ServicePort,
    context: &mut Context<'c>,
) -> (Vec<Endpoint>, Option<&'c str>) {
    let (mut ready, mut draining) = (Vec::new(), BTreeSet::new());
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
        // Whoever writes slices for a service without selector may say it there alone.
        app_protocol = app_protocol.or_else(|| matching(slice, port).find_map(|port| port.app_protocol.as_deref()));
        for SliceEndpoint { address, conditions, hints } in &slice.endpoints {
            let state = State::of(conditions.as_ref());
            if state == State::Unfit {
                continue;
            }
            let Ok(ip) = address.parse::<IpAddr>() else {
                let message = format!("`{address}` is no IP address; this endpoint is skipped");
                context.report(&object, Reason::InvalidObject, message);
                continue;
            };
            // Files are the operator's own; who may write objects of a namespace must not lead us to the node itself.
            if stored.origin == Origin::Api
                && let Some(kind) = address::kind(ip)
                && !context.options.endpoint_networks.iter().any(|network| network.contains(&ip))
            {
                let message = format!(
                    "`{address}` is {kind}, which no pod has; this endpoint is skipped, remove it or ask the operator for `--allow-endpoints-in`"
                );
                context.report(&object, Reason::EndpointRefused, message);
                continue;
            }
            let found = numbers.iter().map(|number| Endpoint { address: SocketAddr::new(ip, *number) });
            match state {
                State::Ready => ready.extend(found.map(|endpoint| (endpoint, hints.as_deref()))),
                State::Draining | State::Unfit => draining.extend(found),
            }
        }
    }
    let endpoints = if ready.is_empty() { draining } else { context.place().nearest(&ready) };
    (endpoints.into_iter().collect(), app_protocol)
}

/// The service as outcomes name it.
pub(super) fn reference(service: &ObjectName, context: &mut Context<'_>) -> ObjectRef {
    let origin = context.service(service).map_or(Origin::Api, |stored| stored.origin.clone());
    service.refer(Kind::Service, &origin)
}

/// The port numbers in `slice` that bear the name of the service's port. They may differ from slice to slice, because a
/// named target port may differ from pod to pod.
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
    let transport = transport(service_port.protocol.as_deref());
    slice.ports.iter().filter(move |EndpointPort { name, protocol, .. }| {
        name.as_deref().unwrap_or_default() == wanted && self::transport(protocol.as_deref()) == transport
    })
}

/// The number that the service itself gives; only for slices that restrict no port, and for external names.
pub(super) fn target(port: &ServicePort) -> Option<u16> {
    let number = match &port.target_port {
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(_)) => return None,
        None => port.port,
    };
    u16::try_from(number).ok().filter(|number| *number != 0)
}

/// Absent means TCP, here as for services; `None` is neither of the two.
pub(super) fn transport(protocol: Option<&str>) -> Option<Transport> {
    match protocol {
        None | Some("TCP") => Some(Transport::Tcp),
        Some("UDP") => Some(Transport::Udp),
        Some(_) => None,
    }
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
