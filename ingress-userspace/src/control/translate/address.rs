//! Judges addresses and names that a Service of type ExternalName, or a URL, leads to. It resolves nothing.
//!
//! Whoever may write a Service chooses them, so they must not reach what only the node may reach: the node itself,
//! other nodes, the API server, and the metadata services of clouds, which hand out credentials.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::Context;
use crate::{
    control::{change::ObjectName, cluster::Stored},
    model::Host,
};

/// Addresses of this cluster's own machinery.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Machinery {
    nodes: BTreeSet<IpAddr>,
    api_server: BTreeSet<IpAddr>,
}

/// Metadata services outside the link-local range: Amazon, Google and Scaleway over IPv6, Alibaba, Oracle, Azure.
const METADATA: [IpAddr; 6] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x0254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x0042, 0, 0, 0, 0, 0, 0x0042)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
];

/// The name in canonical form, or why it must not be asked for.
///
/// # Errors
/// If it is no DNS name of at least two labels, or stands for the node itself (RFC 6761, 6.3).
pub(super) fn check_name(name: &str) -> Result<Host, String> {
    let host = Host::parse(name).map_err(|error| error.to_string())?;
    let text = host.as_str();
    if text == "localhost" || text.ends_with(".localhost") || text.starts_with("localhost.localdomain") {
        return Err(format!("`{text}` is the node itself"));
    }
    // Services are named by what is granted, and pods by Services: a name of the cluster's DNS would go round both.
    if text.ends_with(".svc") || text.ends_with(".cluster.local") {
        return Err(format!("`{text}` is a name within the cluster"));
    }
    if !text.contains('.') {
        return Err(format!("`{text}` is not a fully qualified name"));
    }
    Ok(host)
}

// === impl Machinery ===

impl Machinery {
    pub(super) fn of(context: &mut Context<'_>) -> Self {
        let nodes = context.nodes().values().filter_map(|Stored { object, origin: _ }| object.status.as_ref());
        let nodes = nodes.flat_map(|status| status.addresses.iter().flatten());
        let name = ObjectName::new("default", "kubernetes");
        let service_ips =
            context.service(&name).into_iter().flat_map(|stored| stored.object.cluster_ips.iter().copied());
        let endpoints = context.slices_of(&name).flat_map(|(_, stored)| stored.object.endpoints.iter());
        let endpoints = endpoints.filter_map(|endpoint| parse(&endpoint.address));
        Self {
            nodes: nodes.filter_map(|address| parse(&address.address)).collect(),
            api_server: service_ips.chain(endpoints).collect(),
        }
    }

    /// # Errors
    /// What the address is, if it must not be reached.
    pub(super) fn check(&self, address: IpAddr) -> Result<(), &'static str> {
        match kind(address) {
            Some(kind) => Err(kind),
            None if self.nodes.contains(&address) => Err("the address of a node"),
            None if self.api_server.contains(&address) => Err("the address of the API server"),
            // An IPv4 address within another is reached through a gateway, and is judged as if it were reached
            // directly.
            None => match address {
                IpAddr::V6(v6) => embedded(v6).map_or(Ok(()), |v4| self.check(IpAddr::V4(v4))),
                IpAddr::V4(_) => Ok(()),
            },
        }
    }
}

fn parse(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

/// What kind of address this is, of those that are never reached.
pub(super) fn kind(address: IpAddr) -> Option<&'static str> {
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
            // Amazon's node-local services, of which metadata is one.
            [0xfd00, 0x0ec2, ..] => Some("a metadata address"),
            // Translated to IPv4 by rules of the place (RFC 8215, RFC 2765), so that nobody here knows what is reached.
            [0x64, 0xff9b, 1, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => Some("an IPv4 address written as IPv6"),
            [0xfe80..=0xfebf, ..] => Some("a link-local address"),
            [0xff00..=0xffff, ..] => Some("a multicast address"),
            _ => None,
        },
    }
}

/// The IPv4 address within one of NAT64 (RFC 6052, well-known prefix) or of 6to4 (RFC 3056).
fn embedded(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let join = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match v6.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(join(high, low)),
        [0x2002, high, low, ..] => Some(join(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_only_the_node_may_reach_are_refused() {
        let machinery = Machinery { nodes: [parse("10.1.0.1").expect("an address")].into(), ..Machinery::default() };
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
        ] {
            let got = machinery.check(parse(address).expect("an address"));
            match got {
                Ok(()) => assert_eq!(expect, "", "{address}"),
                Err(kind) => assert!(!expect.is_empty() && kind.contains(expect), "{address}: {kind}"),
            }
        }
    }

    #[test]
    fn only_fully_qualified_names_are_asked_for() {
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
