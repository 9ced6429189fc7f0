//! Attribution of connections to hosts, written by the proxy as it parses requests, read by XDP for every packet.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use super::error::Error;
use crate::shared::{DatapathShared, octets};
use ingress_common::{
    Flow, FlowKey, RawHostId,
    flow::{PROTO_TCP, PROTO_UDP},
};

/// Handle on the flow map, for connections of one protocol: cheap to clone, usable from every worker at the same time.
#[derive(Clone, Debug)]
pub struct Flows {
    shared: Arc<DatapathShared>,
    proto: u8,
}

// === impl Flows ===

impl Flows {
    pub(super) const fn new(shared: Arc<DatapathShared>) -> Self {
        Self { shared, proto: PROTO_TCP }
    }

    /// Returns the handle for connections over UDP, which have an entry for the address that their client uses now.
    #[must_use]
    pub fn over_udp(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), proto: PROTO_UDP }
    }

    fn key(&self, remote: SocketAddr, local: SocketAddr) -> FlowKey {
        FlowKey { proto: self.proto, ..flow_key(remote, local) }
    }

    /// Attributes further packets of this connection to `host`. Costs one system call of about 1 µs, without
    /// allocation.
    ///
    /// Never returns an error: if the map is full, the connection stays with host 0 and is counted in
    /// [`ingress_common::Total::FlowsFull`].
    pub fn insert(&self, remote: SocketAddr, local: SocketAddr, host: RawHostId) {
        let flow = Flow { host_id: host, epoch: self.shared.life.epoch() };
        if self.shared.maps.flows.try_set(&self.key(remote, local), &flow).is_err() {
            self.shared.flows_full.fetch_add(1, Relaxed);
        }
    }

    /// Removes an ended connection.
    pub fn remove(&self, remote: SocketAddr, local: SocketAddr) {
        // If the deletion fails, `evict_dead` of this epoch removes the entry.
        let _kept = self.shared.maps.flows.remove(&self.key(remote, local)).is_err();
    }
}

/// Returns the key of a TCP connection accepted by the proxy: `remote` is the client, `local` the node.
#[must_use]
pub fn flow_key(remote: SocketAddr, local: SocketAddr) -> FlowKey {
    FlowKey {
        remote_addr: octets(remote.ip()),
        local_addr: octets(local.ip()),
        remote_port_be: remote.port().to_be(),
        local_port_be: local.port().to_be(),
        proto: PROTO_TCP,
        pad: 0,
        pad_end: 0,
    }
}

/// Deletes the flows of ended processes, and returns their number.
pub(super) fn evict_dead(shared: &DatapathShared) -> Result<usize, Error> {
    let mut live = HashMap::from([(shared.life.epoch(), true)]);
    let mut dead = Vec::new();
    shared.maps.flows.scan(|key, flow: &Flow| {
        if !*live.entry(flow.epoch).or_insert_with(|| shared.pins.is_live(flow.epoch)) {
            dead.push(*key);
        }
    })?;
    for key in &dead {
        shared.maps.flows.remove(key)?;
    }
    Ok(dead.len())
}
