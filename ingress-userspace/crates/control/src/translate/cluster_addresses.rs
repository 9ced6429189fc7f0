//! The addresses of this cluster's own components. `address` collects them and checks others against them.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use ingress_model::StreamPort;

/// Addresses of this cluster's own components.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterAddresses {
    pub(crate) nodes: BTreeSet<IpAddr>,
    pub(crate) api_server: BTreeSet<IpAddr>,
    /// The addresses and ports on which API servers listen, as they publish them.
    pub(crate) api_endpoints: BTreeSet<SocketAddr>,
    /// Addresses of this node's interfaces.
    pub(crate) own: BTreeSet<IpAddr>,
    /// Ports on which this controller listens for stream services, and for Gateways at the nodes' addresses. An endpoint
    /// there would be a loop.
    pub(crate) streams: BTreeSet<StreamPort>,
    /// Whether `nodes` has an address of this node that its pods may have.
    pub(crate) knows_own_node: bool,
}
