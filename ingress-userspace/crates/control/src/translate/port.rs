//! A port of a service, as an Ingress or a row of stream services names it.

use std::fmt;

use k8s_openapi::api::{core::v1::ServicePort, networking::v1::ServiceBackendPort};

use crate::service::Service;
use ingress_model::Transport;

/// A port as an Ingress, or a row of stream services, names it.
#[derive(Clone, Copy)]
pub(crate) enum PortReference<'b> {
    Name(&'b str),
    Number(i32),
}

pub(crate) fn ports(service: &Service, transport: Transport) -> impl Iterator<Item = &ServicePort> {
    service.ports.iter().filter(move |port| transport_of(port.protocol.as_deref()) == Some(transport))
}

// === impl PortReference ===

impl<'b> PortReference<'b> {
    pub(crate) fn of(port: &'b ServiceBackendPort) -> Option<Self> {
        let ServiceBackendPort { name, number } = port;
        match (name.as_deref().filter(|name| !name.is_empty()), number.filter(|number| *number != 0)) {
            (Some(name), _) => Some(Self::Name(name)),
            (None, Some(number)) => Some(Self::Number(number)),
            (None, None) => None,
        }
    }

    pub(crate) fn find<'s>(&self, service: &'s Service, transport: Transport) -> Option<&'s ServicePort> {
        ports(service, transport).find(|port| match self {
            Self::Name(name) => port.name.as_deref() == Some(name),
            Self::Number(number) => port.port == *number,
        })
    }
}

impl fmt::Display for PortReference<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// Parses a transport. Absent means TCP, as for services; `None` is neither TCP nor UDP.
pub(crate) fn transport_of(protocol: Option<&str>) -> Option<Transport> {
    match protocol {
        None | Some("TCP") => Some(Transport::Tcp),
        Some("UDP") => Some(Transport::Udp),
        Some(_) => None,
    }
}
