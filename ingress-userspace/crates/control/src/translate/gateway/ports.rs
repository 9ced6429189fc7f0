//! Ports that listeners may have. A port of the nodes belongs to all tenants together, and the kernel steers it at every
//! address of a node. Hostnames and other listeners at a port are not known here.

use std::collections::BTreeSet;

use super::{listener::Shape, report::Flaw};
use crate::{
    NODES_PORT,
    translate::{Options, address::KUBERNETES_PORTS, lookup::Lookup, stream_rows},
};
use ingress_model::{ListenerProtocol, StreamPort, Transport};

/// TCP ports on which programs of nodes often listen, besides those of Kubernetes: SSH, BGP, Cilium, Typha, Felix and
/// node-exporter.
const NODE_PORTS: [u16; 6] = [22, 179, 4240, 5473, 9099, 9100];
/// UDP ports of nodes: DHCP, NTP, DHCPv6, and the networks of pods by VXLAN, Geneve and WireGuard. A listener would take
/// the port before the device of such a network is made.
const NODE_UDP_PORTS: [u16; 7] = [68, 123, 546, 4789, 6081, 8472, 51820];

/// The ports that are in use, while Gateways are placed in order of precedence.
pub(super) struct Ports<'o> {
    options: &'o Options,
    /// Ports of the operator's rows of TCP and UDP services.
    rows: BTreeSet<StreamPort>,
    /// Ports of listeners that stand, beside those for HTTP and HTTPS and those of `rows`.
    taken: BTreeSet<StreamPort>,
}

// === impl Ports ===

impl<'o> Ports<'o> {
    pub(super) fn new(lookup: &Lookup<'o>) -> Self {
        Self { options: lookup.options, rows: stream_rows::ports(lookup), taken: BTreeSet::new() }
    }

    /// Checks the ports of the listeners of one object.
    pub(super) fn check(&self, shapes: impl Iterator<Item = Result<Shape, Flaw>>) -> Vec<Result<Shape, Flaw>> {
        let mut new = BTreeSet::new();
        let check = |shape: Result<Shape, Flaw>| {
            let shape = shape?;
            match self.refusal(&shape) {
                Some(message) => return Err(Flaw::new("PortUnavailable", message)),
                None if self.is_counted(shape.port) => {}
                None => drop(new.insert(shape.port)),
            }
            let room = self.room();
            if self.taken.len() + new.len() > room {
                new.remove(&shape.port);
                let message = format!(
                    "port `{}` is one too many, because Gateways may have {room} ports together; use a port of another \
                     listener, or remove listeners",
                    shape.port.number
                );
                return Err(Flaw::new("PortUnavailable", message));
            }
            Ok(shape)
        };
        shapes.map(check).collect()
    }

    /// Counts the port of a listener that stands.
    pub(super) fn take(&mut self, port: StreamPort) {
        if !self.is_counted(port) {
            self.taken.insert(port);
        }
    }

    /// Returns the reason for which no listener of this protocol may have the port.
    fn refusal(&self, Shape { protocol, port, hostname: _ }: &Shape) -> Option<String> {
        let Options { reserved_ports, http_port, https_port, gateway_ports, gateway_addresses, .. } = self.options;
        let StreamPort { transport, number } = port;
        let is_shared = gateway_addresses.is_empty();
        if *transport == Transport::Tcp {
            match self.own_protocols(*port) {
                // Addresses of a pool have these ports for themselves.
                Some(_) if !is_shared => return None,
                Some(protocols) if protocols.contains(protocol) => return None,
                Some(_) if *protocol == ListenerProtocol::Http => {
                    return Some(format!(
                        "port `{number}` of the nodes has protocols `HTTPS` and `TLS`; use port `{http_port}`, or another one"
                    ));
                }
                Some(_) if *protocol != ListenerProtocol::Tcp => {
                    return Some(format!(
                        "port `{number}` of the nodes has protocol `HTTP`; use port `{https_port}`, or another one"
                    ));
                }
                None if !reserved_ports.contains(number) => {}
                Some(_) | None => {
                    return Some(format!(
                        "port `{number}` of the nodes is in use by the proxy itself; use another port"
                    ));
                }
            }
            let is_of_nodes = NODE_PORTS.contains(number) || KUBERNETES_PORTS.contains(number);
            if is_of_nodes && !gateway_ports.contains(number) {
                return Some(format!(
                    "port `{number}` is for programs of nodes, such as SSH or Kubernetes; use another port, or let the \
                     operator name it in `--gateway-ports`"
                ));
            }
        }
        if *transport == Transport::Udp && self.options.http3_port == Some(*number) {
            return Some(format!(
                "port `{number}` of the nodes is in use by HTTP/3 of the proxy itself; use another port"
            ));
        }
        if *transport == Transport::Udp && *number == NODES_PORT {
            return Some(format!("port `{number}` is for the replicas of this controller; use another port"));
        }
        if *transport == Transport::Udp && NODE_UDP_PORTS.contains(number) && !gateway_ports.contains(number) {
            return Some(format!(
                "port `{number}` is for DHCP, NTP or the network of pods on nodes; use another port, or let the operator \
                 name it in `--gateway-ports`"
            ));
        }
        (is_shared && self.rows.contains(port)).then(|| {
            format!("port `{number}` of the nodes is in use by a TCP or UDP service of the operator; use another port")
        })
    }

    /// Returns the protocols of this process at its port for HTTP or HTTPS.
    fn own_protocols(&self, StreamPort { transport, number }: StreamPort) -> Option<&'static [ListenerProtocol]> {
        use ListenerProtocol::{Http, Https, TlsPassthrough, TlsTerminate};
        match transport {
            Transport::Tcp if number == self.options.http_port => Some(&[Http]),
            Transport::Tcp if number == self.options.https_port => Some(&[Https, TlsPassthrough, TlsTerminate]),
            Transport::Tcp | Transport::Udp => None,
        }
    }

    fn is_counted(&self, port: StreamPort) -> bool {
        self.own_protocols(port).is_some() || self.rows.contains(&port) || self.taken.contains(&port)
    }

    /// Returns the number of further ports for all Gateways.
    fn room(&self) -> usize {
        self.options.max_ports.saturating_sub(self.rows.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address_pool::AddressPool;
    use ingress_model::HostPattern;

    fn shape(protocol: ListenerProtocol, number: u16) -> Shape {
        let transport = if protocol == ListenerProtocol::Udp { Transport::Udp } else { Transport::Tcp };
        Shape { protocol, port: StreamPort { transport, number }, hostname: HostPattern::Any }
    }

    fn ports<const N: usize>(options: &Options, rows: [StreamPort; N]) -> Ports<'_> {
        Ports { options, rows: rows.into(), taken: BTreeSet::new() }
    }

    #[test]
    fn ports_in_use_are_refused() {
        use ListenerProtocol::{Http, Https, Tcp, TlsPassthrough, TlsTerminate, Udp};
        let network = AddressPool::parse_network("192.0.2.0/30").expect("a network");
        let shared = Options {
            http_port: 8080,
            https_port: 8443,
            http3_port: Some(8443),
            reserved_ports: [8080, 8443, 9110, 18080].into(),
            gateway_ports: [10250, NODES_PORT].into(),
            ..Options::default()
        };
        let pool = Options { gateway_addresses: AddressPool::new([network]).expect("a pool"), ..shared.clone() };
        let row = StreamPort { transport: Transport::Udp, number: 53 };
        // The refusal without a pool, and whether there is one with a pool, too.
        for (protocol, number, expect, with_pool) in [
            (Http, 8080, "", false),
            (Https, 8443, "", false),
            (TlsPassthrough, 8443, "", false),
            (TlsTerminate, 8443, "", false),
            (Http, 80, "", false),
            (TlsTerminate, 80, "", false),
            (Http, 8443, "has protocols `HTTPS` and `TLS`; use port `8080`", false),
            (Https, 8080, "has protocol `HTTP`; use port `8443`", false),
            (TlsPassthrough, 8080, "has protocol `HTTP`; use port `8443`", false),
            (Tcp, 8080, "in use by the proxy itself", false),
            (Tcp, 8443, "in use by the proxy itself", false),
            (Udp, 8443, "in use by HTTP/3", true),
            (Udp, 8080, "", false),
            (Http, 9110, "in use by the proxy itself", true),
            (Https, 18080, "in use by the proxy itself", true),
            (Tcp, 9110, "in use by the proxy itself", true),
            (Udp, 9110, "", false),
            (Tcp, 22, "such as SSH or Kubernetes", true),
            (Http, 6443, "such as SSH or Kubernetes", true),
            (Https, 10250, "", false),
            (Tcp, 9100, "such as SSH or Kubernetes", true),
            (Udp, 22, "", false),
            (Udp, 8472, "the network of pods", true),
            (Udp, NODES_PORT, "for the replicas of this controller", true),
            (Udp, 53, "by a TCP or UDP service of the operator", false),
            (Tcp, 53, "", false),
        ] {
            let refusal = ports(&shared, [row]).refusal(&shape(protocol, number)).unwrap_or_default();
            assert!(
                refusal.contains(expect) && refusal.is_empty() == expect.is_empty(),
                "{protocol} {number}: {refusal}"
            );
            let refusal = ports(&pool, [row]).refusal(&shape(protocol, number));
            assert_eq!(refusal.is_some(), with_pool, "{protocol} {number}: {refusal:?}");
        }
    }

    #[test]
    fn the_first_ports_get_the_room() {
        use ListenerProtocol::{Http, Https, Tcp, Udp};
        let options = Options { max_ports: 4, ..Options::default() };
        let row = StreamPort { transport: Transport::Tcp, number: 5432 };
        let mut ports = ports(&options, [row]);
        let check = |ports: &Ports<'_>, shapes: &[(ListenerProtocol, u16)]| -> Vec<bool> {
            let shapes = shapes.iter().map(|(protocol, number)| Ok(shape(*protocol, *number)));
            ports.check(shapes).iter().map(Result::is_ok).collect()
        };
        let first =
            [(Http, 9000), (Http, 80), (Https, 443), (Http, 9001), (Http, 9000), (Tcp, 53), (Udp, 53), (Http, 9001)];
        assert_eq!(check(&ports, &first), [true, true, true, true, true, true, false, true]);
        // Ports of listeners that do not stand are free for those of other objects.
        for (protocol, number) in [(Http, 9000), (Http, 80), (Tcp, 53)] {
            ports.take(shape(protocol, number).port);
        }
        assert_eq!(check(&ports, &[(Udp, 53), (Http, 9001), (Http, 9000), (Http, 80)]), [true, false, true, true]);
        ports.take(shape(Udp, 53).port);
        let full = ports.check([Ok(shape(Http, 9001))].into_iter());
        let message = "port `9001` is one too many, because Gateways may have 3 ports together; use a port of another \
                       listener, or remove listeners";
        assert_eq!(full, [Err(Flaw::new("PortUnavailable", message))]);
    }
}
