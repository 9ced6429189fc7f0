//! The parts of a translation, what each depends on, and the trace of one part while it is made.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use crate::{
    change::{ObjectId, ObjectName},
    outcome::Outcome,
};
use ingress_model::{HostPattern, ListenerName, Transport, UpstreamKey};

/// A unit that is made anew separately. The variants are in order: a part may depend on those before it, and never on a
/// later one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Part {
    /// Settings that hold for all Ingresses alike.
    Globals,
    /// The addresses of nodes and of the API server.
    ClusterAddresses,
    Upstream(UpstreamKey),
    /// The content of a Secret for TLS with clients.
    Certificate(ObjectName),
    /// The claims of an Ingress.
    Ingress(ObjectName),
    DefaultBackend,
    FallbackCertificate,
    /// The stream services of one ConfigMap.
    Streams(Transport),
    TicketKeys,
    /// Ingresses with more regular expressions than allowed.
    Expressions,
    /// Ingresses with more hosts and paths than a namespace may have.
    Shares,
    /// Ingresses with more separately counted rules than allowed.
    Meters,
    /// The merged claims on a host.
    Host(HostPattern),
    /// Rules that hosts for challenges inherit.
    InheritedRoutes,
    /// The status of a GatewayClass.
    GatewayClass(ObjectName),
    /// The addresses of all Gateways, and which of their listeners stand.
    Placement,
    /// The listeners of a Gateway or ListenerSet.
    Parent(ObjectId),
    /// A route of the Gateway API.
    Route(ObjectId),
    /// HTTPRoutes and GRPCRoutes of a listener that yield to older routes of the other kind.
    HostnameConflicts(ListenerName),
    /// A BackendTLSPolicy, with the Gateways that it concerns.
    Policy(ObjectName),
    /// The merged rules for a hostname of a listener.
    ListenerHost(ListenerName, HostPattern),
    /// The status of a route, and its matches that other routes have, too.
    RouteStatus(ObjectId),
    /// The status of a Gateway or ListenerSet, with the numbers of its routes.
    ParentStatus(ObjectId),
    /// Upstreams of the table, and Ingresses beyond the check rate of a node.
    Checks,
}

/// A lookup, whether it found something or not. Results made from it are out of date when it changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Dependency {
    /// A single object, by its name.
    Object(ObjectId),
    /// Every IngressClass.
    Classes,
    /// Every node.
    Nodes,
    /// The EndpointSlices of a service.
    SlicesOf(ObjectName),
    /// The ReferenceGrants of a namespace.
    GrantsOf(Arc<str>),
    /// The addresses of an external name. The lookup also requests that the name is resolved.
    Addresses(Arc<str>),
    /// Node and zone of this process.
    Topology,
    /// The current hour.
    Hour,
    /// The addresses of nodes, of the API server and of this node's interfaces.
    ClusterAddresses,
    /// The addresses in a vicinity that belong to those or to Services.
    Taken(Vicinity),
    /// The addresses of this node's interfaces.
    OwnAddresses,
    /// The protocol of an upstream and its problems; endpoints are not included.
    Upstream(UpstreamKey),
    /// The names of the certificate in a Secret and its problems; chain and key are not included.
    Certificate(ObjectName),
    /// The BackendTLSPolicies that target a service.
    PoliciesOf(ObjectName),
    /// Every GatewayClass, Gateway and ListenerSet.
    Gateways,
    /// The view that routes have of a Gateway or ListenerSet.
    Parent(ObjectId),
}

/// Dependencies and reports of a part of a translation.
#[derive(Debug, Default)]
pub(crate) struct PartTrace {
    pub(crate) reads: BTreeSet<Dependency>,
    pub(crate) outcomes: Vec<Outcome>,
}

/// A block of adjacent addresses, 4,096 of them for IPv4. The ranges of pods and of Services are far larger, so a
/// change of Services seldom concerns the vicinity of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Vicinity(IpAddr);

// === impl Vicinity ===

impl Vicinity {
    pub(crate) fn of(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() & !0xfff).into(),
            // No network of Services is larger.
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !0xf_ffff).into(),
        })
    }
}
