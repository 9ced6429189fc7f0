//! Checks addresses and names to which requests may be sent: those behind Services of type ExternalName and URLs, and
//! those of EndpointSlices. This module resolves nothing.
//!
//! Every user with write access to Ingresses, Services or EndpointSlices of one namespace chooses such destinations.
//! They must not reach destinations that are reserved to the node: the node itself, other nodes, the API server,
//! Services of other namespaces. The same holds for the metadata services of clouds, which hand out credentials.
//!
//! Behind a name there are no pods, so all of these are refused. Behind a slice there are pods, and those in the host
//! network have node addresses. So on the addresses of nodes and of the API server, only certain ports are refused.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use super::{cluster_addresses::ClusterAddresses, gateway::placement, lookup::Lookup, part::Vicinity, stream_rows};
use crate::{
    change::ObjectName,
    cluster::Stored,
    slice::{Slice, SliceEndpoint},
};
use ingress_model::{Host, StreamPort, Transport};

/// Ports of nodes on which Kubernetes itself listens: etcd, the API server, the kubelet, kube-proxy, the controller
/// managers (of clouds, too) and the scheduler (kubernetes.io, "Ports and Protocols").
pub(super) const KUBERNETES_PORTS: [u16; 12] =
    [2379, 2380, 2381, 6443, 10248, 10249, 10250, 10255, 10256, 10257, 10258, 10259];

/// Metadata services outside the link-local range: Amazon, Google and Scaleway over IPv6, Alibaba, Oracle, Azure.
const METADATA: [IpAddr; 6] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x0254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x0042, 0, 0, 0, 0, 0, 0x0042)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
];

/// Returns the name in canonical form, or the reason why it must not be resolved.
///
/// # Errors
/// If it is no DNS name of at least two labels, or stands for the node itself (RFC 6761, 6.3).
pub(super) fn check_name(name: &str) -> Result<Host, String> {
    let host = Host::parse(name).map_err(|error| error.to_string())?;
    let text = host.as_str();
    if text == "localhost" || text.ends_with(".localhost") || text.starts_with("localhost.localdomain") {
        return Err(format!("`{text}` is the node itself"));
    }
    // A Service needs a grant, and pods are reached through Services. A name in the cluster's DNS would bypass both
    // rules.
    if text.ends_with(".svc") || text.ends_with(".cluster.local") {
        return Err(format!("`{text}` is a name within the cluster"));
    }
    if !text.contains('.') {
        return Err(format!("`{text}` is not a fully qualified name"));
    }
    Ok(host)
}

/// Checks an address that a name or a URL leads to.
///
/// # Errors
/// The kind of the address, if it must not be reached.
pub(super) fn check_outside(address: IpAddr, lookup: &Lookup<'_>) -> Result<(), &'static str> {
    lookup.cluster_addresses().check(address)?;
    let reached = reached(address);
    if lookup.is_cluster_ip(reached) {
        return Err("the address of a Service");
    }
    if lookup.options.gateway_addresses.contains(&reached) {
        return Err("the address of a Gateway");
    }
    if is_private(reached) && !lookup.options.external_networks.iter().any(|network| network.contains(&reached)) {
        return Err("a private address outside `--allow-external-addresses-in`");
    }
    Ok(())
}

/// Checks the address of an endpoint in a slice.
///
/// # Errors
/// The kind of the address, if no request may go there at any port.
pub(super) fn check_slice_address(address: IpAddr, lookup: &Lookup<'_>) -> Result<(), &'static str> {
    if let Some(kind) = kind(address) {
        return Err(kind);
    }
    let reached = reached(address);
    if lookup.is_cluster_ip(reached) {
        return Err("the address of a Service");
    }
    if lookup.options.gateway_addresses.contains(&reached) {
        return Err("the address of a Gateway");
    }
    lookup.cluster_addresses_in(Vicinity::of(reached)).check_slice_address(reached)
}

/// Checks the port of an endpoint in a slice.
///
/// # Errors
/// The kind of the endpoint, if no request may go to this port of its address.
pub(super) fn check_slice_port(
    endpoint: SocketAddr,
    transport: Transport,
    lookup: &Lookup<'_>,
) -> Result<(), &'static str> {
    let reached = SocketAddr::new(reached(endpoint.ip()), endpoint.port());
    let reserved = &lookup.options.reserved_ports;
    lookup.cluster_addresses_in(Vicinity::of(reached.ip())).check_slice_port(reached, transport, reserved)
}

// === impl ClusterAddresses ===

impl ClusterAddresses {
    pub(super) fn of(lookup: &Lookup<'_>) -> Self {
        let own = lookup.own_addresses().clone();
        let node = lookup.options.node.as_deref();
        let (mut nodes, mut knows_own_node) = (BTreeSet::new(), false);
        for (name, Stored { object, origin: _ }) in lookup.nodes() {
            let addresses = object.status.iter().flat_map(|status| status.addresses.iter().flatten());
            let addresses = addresses.filter_map(|address| parse(&address.address));
            for address in addresses {
                knows_own_node |= Some(&*name.name) == node && own.contains(&address);
                nodes.insert(address);
            }
        }
        let name = ObjectName::new("default", "kubernetes");
        let service_ips =
            lookup.service(&name).into_iter().flat_map(|stored| stored.object.cluster_ips.iter().copied());
        let mut api_server: BTreeSet<_> = service_ips.collect();
        let mut api_endpoints = BTreeSet::new();
        for (slice, stored) in lookup.slices_of(&name) {
            let Slice { endpoints, ports, .. } = &*stored.object;
            let addresses = endpoints.iter().filter_map(|SliceEndpoint { address, .. }| parse(address));
            for address in addresses {
                api_server.insert(address);
                // The API server maintains the slice with its Service's name. Other slices there may come from any user
                // with write access to slices of that namespace.
                if *slice == name {
                    let ports = ports.iter().filter_map(|port| u16::try_from(port.port?).ok());
                    api_endpoints.extend(ports.map(|port| SocketAddr::new(address, port)));
                }
            }
        }
        let mut streams = stream_rows::ports(lookup);
        if lookup.options.gateway_addresses.is_empty() {
            streams.extend(placement::ports(lookup));
        }
        Self { nodes, api_server, api_endpoints, own, streams, knows_own_node }
    }

    /// Returns the vicinities in which endpoints may be judged differently than by `before`.
    pub(super) fn changes_since(&self, before: &Self) -> BTreeSet<Vicinity> {
        let mut changed: BTreeSet<IpAddr> = self.nodes.symmetric_difference(&before.nodes).copied().collect();
        changed.extend(self.own.symmetric_difference(&before.own));
        changed.extend(self.api_endpoints.symmetric_difference(&before.api_endpoints).map(SocketAddr::ip));
        if self.knows_own_node != before.knows_own_node {
            changed.extend(&self.own);
        }
        if self.streams != before.streams {
            changed.extend(self.own.union(&self.nodes));
        }
        if self.nodes.is_empty() != before.nodes.is_empty() {
            changed.extend(self.api_endpoints.iter().map(SocketAddr::ip));
        }
        changed.into_iter().map(Vicinity::of).collect()
    }

    fn check_slice_address(&self, ip: IpAddr) -> Result<(), &'static str> {
        if self.nodes.contains(&ip) {
            return Ok(());
        }
        // If the API server is on no node, no pod shares its address.
        if !self.nodes.is_empty() && self.api_endpoints.iter().any(|api| api.ip() == ip) {
            return Err("the address of the API server");
        }
        // Pods in the host network have the addresses that the Node object shows.
        if self.knows_own_node && self.own.contains(&ip) {
            return Err("an address of this node that none of its pods has");
        }
        Ok(())
    }

    fn check_slice_port(
        &self,
        endpoint: SocketAddr,
        transport: Transport,
        reserved: &BTreeSet<u16>,
    ) -> Result<(), &'static str> {
        if self.api_endpoints.contains(&endpoint) {
            return Err("the address of the API server");
        }
        let (ip, number) = (endpoint.ip(), endpoint.port());
        if !self.nodes.contains(&ip) && !self.own.contains(&ip) {
            return Ok(());
        }
        if reserved.contains(&number) || self.streams.contains(&StreamPort { transport, number }) {
            return Err("a node at a port of this controller");
        }
        if KUBERNETES_PORTS.contains(&number) {
            return Err("a node at a port of Kubernetes");
        }
        Ok(())
    }

    /// Checks an address against all known ones.
    ///
    /// # Errors
    /// The kind of the address, if it must not be reached.
    pub(super) fn check(&self, address: IpAddr) -> Result<(), &'static str> {
        let reached = reached(address);
        let is_in = |known: &BTreeSet<IpAddr>| known.contains(&address) || known.contains(&reached);
        match kind(address) {
            Some(kind) => Err(kind),
            None if is_in(&self.nodes) => Err("the address of a node"),
            None if is_in(&self.own) => Err("an address of this node"),
            None if is_in(&self.api_server) => Err("the address of the API server"),
            None => Ok(()),
        }
    }
}

/// Returns `true` if an address is private to an organisation (RFC 1918, RFC 6598, RFC 4193, RFC 3879), as pod
/// addresses are.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_private() || matches!(v4.octets(), [100, 64..=127, ..]),
        IpAddr::V6(v6) => matches!(v6.segments(), [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..]),
    }
}

fn parse(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

/// Returns the address that a packet to `address` finally reaches. If an IPv6 address embeds an IPv4 address, a gateway
/// or the kernel sends the packet there, so the embedded address is judged as well.
pub(crate) fn reached(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => embedded(v6).map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// Returns `true` if no request is ever sent to this address, regardless of its owner.
pub(crate) fn is_always_refused(address: IpAddr) -> bool {
    kind(address).is_some()
}

/// Returns the kind of an address to which no request is sent, for the address itself or the one that it reaches.
pub(super) fn kind(address: IpAddr) -> Option<&'static str> {
    kind_as_written(address).or_else(|| kind_as_written(reached(address)))
}

fn kind_as_written(address: IpAddr) -> Option<&'static str> {
    if METADATA.contains(&address) {
        return Some("a metadata address");
    }
    match address {
        IpAddr::V4(v4) => match v4.octets() {
            [0, ..] => Some("an unspecified address"),
            [127, ..] => Some("a loopback address"),
            [169, 254, 169, 254] => Some("a metadata address"),
            [169, 254, ..] => Some("a link-local address"),
            [224..=239, ..] => Some("a multicast address"),
            [240..=255, ..] => Some("a reserved address"),
            _ => None,
        },
        IpAddr::V6(v6) => match v6.segments() {
            [0, 0, 0, 0, 0, 0, 0, 0] => Some("an unspecified address"),
            [0, 0, 0, 0, 0, 0, 0, 1] => Some("a loopback address"),
            [0, 0, 0, 0, 0, 0xffff, ..] => Some("an IPv4 address written as IPv6"),
            [0, 0, 0, 0, 0, 0, ..] => Some("a reserved address"),
            // Amazon's node-local services, of which the metadata service is one.
            [0xfd00, 0x0ec2, ..] => Some("a metadata address"),
            // Translated to IPv4 by local rules (RFC 8215, RFC 2765), so the destination is not known here.
            [0x64, 0xff9b, 1, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => Some("an IPv4 address written as IPv6"),
            [0xfe80..=0xfebf, ..] => Some("a link-local address"),
            [0xff00..=0xffff, ..] => Some("a multicast address"),
            _ => None,
        },
    }
}

/// Returns the IPv4 address within an IPv6 one. The forms are mapped or compatible addresses (RFC 4291, 2.5.5), NAT64
/// (RFC 6052, well-known prefix), 6to4 (RFC 3056) and Teredo (RFC 4380, 4: the client's address, all bits inverted).
fn embedded(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let join = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match v6.segments() {
        // The unspecified and the loopback address.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            Some(join(high, low))
        }
        [0x2001, 0, _, _, _, _, high, low] => Some(join(!high, !low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_only_the_node_may_reach_are_refused() {
        let cluster_addresses =
            ClusterAddresses { nodes: [parse("10.1.0.1").expect("an address")].into(), ..ClusterAddresses::default() };
        for (address, expect) in [
            ("93.184.215.14", ""),
            ("10.0.0.1", ""),
            ("192.168.1.1", ""),
            ("2001:db8::1", ""),
            ("fd00::1", ""),
            ("10.1.0.1", "node"),
            ("0.0.0.0", "unspecified"),
            ("0.1.2.3", "unspecified"),
            ("127.0.0.1", "loopback"),
            ("127.255.1.2", "loopback"),
            ("169.254.169.254", "metadata"),
            ("169.254.1.1", "link-local"),
            ("100.100.100.200", "metadata"),
            ("168.63.129.16", "metadata"),
            ("224.0.0.1", "multicast"),
            ("255.255.255.255", "reserved"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("::ffff:10.0.0.1", "written as IPv6"),
            ("::7f00:1", "reserved"),
            ("fe80::1", "link-local"),
            ("febf::1", "link-local"),
            ("ff02::1", "multicast"),
            ("fd00:ec2::254", "metadata"),
            ("fd20:ce::254", "metadata"),
            ("64:ff9b::a9fe:a9fe", "metadata"),
            ("64:ff9b::0a01:0001", "node"),
            ("64:ff9b::0a00:0001", ""),
            ("2002:7f00:1::", "loopback"),
            ("2002:a01:1::5", "node"),
            ("2001:0:db8:1:0:c350:f5fe:fffe", "node"),
            ("2001:0:db8:1:0:c350:5601:5601", "metadata"),
        ] {
            let got = cluster_addresses.check(parse(address).expect("an address"));
            match got {
                Ok(()) => assert_eq!(expect, "", "{address}"),
                Err(kind) => assert!(!expect.is_empty() && kind.contains(expect), "{address}: {kind}"),
            }
        }
    }

    #[test]
    fn embedded_ipv4_addresses_are_extracted() {
        for (address, expect) in [
            ("10.1.0.1", "10.1.0.1"),
            ("::ffff:10.1.0.1", "10.1.0.1"),
            ("::10.1.0.1", "10.1.0.1"),
            ("64:ff9b::10.1.0.1", "10.1.0.1"),
            ("2002:a01:1:ffff::5", "10.1.0.1"),
            ("2001:0:db8:1:0:c350:f5fe:fffe", "10.1.0.1"),
            ("::", "::"),
            ("::1", "::1"),
            ("2001:db8::a01:1", "2001:db8::a01:1"),
            ("fd00::a01:1", "fd00::a01:1"),
        ] {
            let (address, expect) = (parse(address).expect("an address"), parse(expect).expect("an address"));
            assert_eq!(reached(address), expect, "{address}");
        }
    }

    #[test]
    fn only_fully_qualified_names_are_resolved() {
        for (name, expect) in [
            ("API.Example.com.", Ok("api.example.com")),
            ("a_b.example", Ok("a_b.example")),
            ("web.other.svc.cluster.local", Err("within the cluster")),
            ("a.web.OTHER.svc.", Err("within the cluster")),
            ("10-1-0-1.other.pod.cluster.local", Err("within the cluster")),
            ("localhost", Err("the node itself")),
            ("LOCALHOST.", Err("the node itself")),
            ("x.localhost", Err("the node itself")),
            ("localhost.localdomain", Err("the node itself")),
            ("intranet", Err("fully qualified")),
            ("127.1", Err("IP address")),
            ("*.example.com", Err("holds '*'")),
            ("http://example.com", Err("holds ':'")),
            ("", Err("empty")),
        ] {
            match (check_name(name), expect) {
                (Ok(host), Ok(expect)) => assert_eq!(host.as_str(), expect, "{name}"),
                (Err(error), Err(expect)) => assert!(error.contains(expect), "{name}: {error}"),
                (got, _) => panic!("{name}: {got:?}"),
            }
        }
    }
}
