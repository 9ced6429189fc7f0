//! Client limits under the verifier, and packets spoofed with a client's address: they take nothing from its open
//! connections, and these take nothing from others.

use ingress_common::{ClientKey, Total, flow::v4_mapped};
use ingress_datapath::ClientLimits;

use crate::{
    frames::check_sum,
    limits::{Node, bursts, packet},
    packets::{ACK, FIN, Packet, RST, SYN},
    sandbox::sandboxed,
};

const CLIENTS: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// A packet to the node from another port than that of `limits::packet`: no connection of the client's.
fn spoofed(from: &str, flags: u8) -> Packet {
    let mut packet = packet(from, flags);
    packet.remote.set_port(40001);
    packet
}

/// Enters the packet's connection as accepted by the proxy.
fn open(node: &Node, packet: &Packet) {
    node.datapath.flows().insert(packet.remote, packet.local, 0);
}

#[test]
fn spoofed_packets_take_no_tokens_from_open_connections() {
    sandboxed(|sandbox| {
        let mut node = Node::new(sandbox);
        node.limit(bursts(2, 5));
        for client in CLIENTS {
            let connection = packet(client, ACK);
            open(&node, &connection);
            // Of ten SYNs two pass, and three other packets are left.
            assert_eq!(node.passing(&spoofed(client, SYN), 10), 2, "{client}");
            for flags in [ACK, RST, FIN | ACK, SYN | ACK] {
                node.passing(&spoofed(client, flags), 10);
            }
            assert_eq!(node.passing(&spoofed(client, ACK), 10), 0, "{client}: no more than its share");
            assert_eq!(node.passing(&connection, 5), 5, "{client}: the open connection has a bucket of its own");
            assert_eq!(node.passing(&connection, 5), 0, "{client}: which has an end");
            // A SYN with the ports of an open connection does not belong to it.
            assert_eq!(node.passing(&packet(client, SYN), 1), 0, "{client}");
        }
        assert_eq!(node.known(), 2 * CLIENTS.len());
        assert_eq!(node.total(Total::Accepted).packets, 2 * (5 + 5));
        check_sum(&node.datapath);
    });
}

#[test]
fn open_connections_share_a_bucket_apart_from_new_ones() {
    sandboxed(|sandbox| {
        let mut node = Node::new(sandbox);
        node.limit(bursts(0, 4));
        let (first, second) = (packet("192.0.2.1", ACK), spoofed("192.0.2.1", ACK));
        open(&node, &first);
        open(&node, &second);
        assert_eq!((node.passing(&first, 3), node.passing(&second, 3)), (3, 1), "one bucket for both");
        assert_eq!(node.passing(&packet("192.0.2.1", SYN), 6), 4, "and the other is full");
        // The command shows the client, once.
        let limited = node.datapath.maps().limited_clients().expect("clients");
        let limited: Vec<_> = limited.iter().map(|it| (it.client.to_string(), it.syns, it.packets)).collect();
        assert_eq!(limited, [("192.0.2.1/32".to_owned(), 0, 2 + 2)]);
        assert_eq!(node.total(Total::LimitedPacket).packets, 2 + 2);
        // A closed connection is not open: its late packets are charged like any others.
        node.datapath.flows().remove(first.remote, first.local);
        node.wait("192.0.2.1", 2);
        assert_eq!((node.passing(&first, 5), node.passing(&second, 5)), (2, 0));
        check_sum(&node.datapath);
    });
}

#[test]
fn open_connections_are_looked_up_only_with_packet_limits() {
    sandboxed(|sandbox| {
        let mut node = Node::new(sandbox);
        let connection = packet("192.0.2.1", ACK);
        open(&node, &connection);
        node.limit(bursts(1, 0));
        assert_eq!((node.passing(&connection, 20), node.known()), (20, 0));
        // A dry run counts them separately, too.
        node.limit(ClientLimits { is_dry_run: true, ..bursts(0, 3) });
        assert_eq!((node.passing(&connection, 5), node.passing(&spoofed("192.0.2.1", ACK), 5)), (5, 5));
        assert_eq!(node.total(Total::WouldLimitPacket).packets, 2 + 2);
        let key = ClientKey::of(&v4_mapped([192, 0, 2, 1]));
        assert!(node.has(key) && node.has(key.open()));
    });
}
