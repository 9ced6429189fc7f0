//! Chooses the endpoints that topology hints assign to this node. It neither writes hints nor reads conditions.
//!
//! The rule is kube-proxy's (KEP-2433, KEP-3015; k/k pkg/proxy/topology.go). Hints count only if every ready endpoint
//! has them and at least one names this node, or else its zone; hints for nodes come before those for zones. A missing
//! hint means that the set is about to change, and an incomplete set would send all requests to a few endpoints.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    core::v1::Node,
    discovery::v1::{EndpointHints, ForNode, ForZone},
};

use super::Options;
use crate::{
    change::ObjectName,
    cluster::{Cluster, Stored},
};
use ingress_model::Endpoint;

/// Node and zone of this process, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeTopology<'c> {
    node: Option<&'c str>,
    zone: Option<&'c str>,
}

/// A ready endpoint and its hints.
pub(super) type Hinted<'c> = (Endpoint, Option<&'c EndpointHints>);

/// Label of a node that names its zone (k8s.io/api/core/v1, `LabelTopologyZone`).
const ZONE: &str = "topology.kubernetes.io/zone";

// === impl NodeTopology ===

impl<'c> NodeTopology<'c> {
    /// Returns the node that `options` name, and its zone if the cluster knows the node.
    pub(super) fn of(options: &'c Options, cluster: &'c Cluster) -> Self {
        let node = options.node.as_deref();
        let stored = node.and_then(|node| cluster.nodes.get(&ObjectName::new("", node)));
        Self { node, zone: stored.and_then(|Stored { object, origin: _ }| zone(object)) }
    }

    /// Returns the endpoints of `ready` with hints for this node or its zone; all, if hints do not count.
    pub(super) fn nearest(self, ready: &[Hinted<'_>]) -> BTreeSet<Endpoint> {
        let Self { node, zone } = self;
        only(ready, node, nodes_of)
            .or_else(|| only(ready, zone, zones_of))
            .unwrap_or_else(|| ready.iter().map(|(endpoint, _)| endpoint.clone()).collect())
    }
}

/// Returns the endpoints with hints for `own`, if all endpoints have hints and at least one names it.
fn only(
    ready: &[Hinted<'_>],
    own: Option<&str>,
    meant_for: fn(&EndpointHints) -> Vec<&str>,
) -> Option<BTreeSet<Endpoint>> {
    let own = own?;
    let mut near = BTreeSet::new();
    for (endpoint, hints) in ready {
        let names = hints.map(meant_for).filter(|names| !names.is_empty())?;
        if names.contains(&own) {
            near.insert(endpoint.clone());
        }
    }
    (!near.is_empty()).then_some(near)
}

fn nodes_of(hints: &EndpointHints) -> Vec<&str> {
    hints.for_nodes.iter().flatten().map(|ForNode { name }| name.as_str()).collect()
}

fn zones_of(hints: &EndpointHints) -> Vec<&str> {
    hints.for_zones.iter().flatten().map(|ForZone { name }| name.as_str()).collect()
}

fn zone(node: &Node) -> Option<&str> {
    node.metadata.labels.as_ref()?.get(ZONE).map(String::as_str)
}
