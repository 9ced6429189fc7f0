//! Packets that the proxy must not get, packets that must come through whole, and that every packet is counted once.
//! `combinations.rs` covers the modes.

use std::net::SocketAddr;

use ingress_common::Total;
use ingress_lab::{client::Ask, echo::Echo, topology::Family};

use crate::net::{Net, http};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

#[test]
fn transit_and_other_ports_are_untouched() {
    let Some((net, _proxy)) = Net::serving("transit") else { return };
    let pod = &net.topology.pods[2];
    let beside: SocketAddr = "0.0.0.0:8081".parse().expect("valid address");
    let _own = Echo::start(&net.topology.node, "node-program", &[beside]).expect("a program of the node listens");
    for addr in [SocketAddr::from((pod.v4, 80)), SocketAddr::from((pod.v6, 80))] {
        let (answer, _) = net.ask(&net.topology.client, addr, &Ask::get("web.test", "/"));
        assert_eq!(answer.pod(), Some("pod-c"), "the pod itself answers, which `web.test` does not use");
    }
    let mut other = http(Family::V4);
    other.set_port(8081);
    let (answer, _) = net.ask(&net.topology.client, other, &Ask::get("web.test", "/"));
    assert_eq!(answer.pod(), Some("node-program"));

    let counts = net.settled();
    assert_eq!(counts.total(Total::Accepted).packets, 0);
    assert!(counts.total(Total::Transit).packets >= 10, "{:?}", counts.totals);
    assert!(counts.total(Total::OtherPort).packets >= 5, "{:?}", counts.totals);
}

#[test]
fn three_megabytes_cross_the_small_mtu_hop_both_ways() {
    let Some((net, _proxy)) = Net::serving("mtu") else { return };
    for family in FAMILIES {
        let (down, _) = net.ask(&net.topology.client, http(family), &Ask::get("web.test", "/bytes/3000000"));
        assert!(down.body.intact() && down.body.received() == 3_000_000, "{family:?}: {:?}", down.body);
        let (up, _) = net.ask(&net.topology.client, http(family), &Ask::upload("web.test", "/upload", 3_000_000));
        let receipt = up.json().expect("the pod answers with JSON");
        assert_eq!((receipt["received"].as_u64(), receipt["intact"].as_bool()), (Some(3_000_000), Some(true)));
    }
}

#[test]
fn every_accepted_packet_is_counted_for_exactly_one_host() {
    let Some((net, _proxy)) = Net::serving("counters") else { return };
    net.write("api.yaml", &net.site("api", &[2]));
    let ask = |family, ask: &Ask| net.ask(&net.topology.client, http(family), ask).0;
    ingress_lab::until("the second host", || (ask(Family::V4, &Ask::get("api.test", "/")).status == 200).then_some(()))
        .expect("a new manifest takes effect");
    let before = net.settled();

    let (mut sent, mut received) = ([0; 2], [0; 2]);
    for family in FAMILIES {
        for (index, host) in ["web.test", "api.test"].into_iter().enumerate() {
            for bytes in [0, 1, 1448, 100_000] {
                let answer = ask(family, &Ask::upload(host, "/upload", bytes));
                sent[index] += bytes;
                received[index] += answer.body.received();
            }
        }
        assert_eq!(ask(family, &Ask::get("nobody.test", "/")).status, 404);
    }

    let after = net.settled();
    assert_eq!(after.received(), after.total(Total::Accepted));
    for (index, host) in ["web.test", "api.test"].into_iter().enumerate() {
        let (before, after) = (before.hosts[host], after.hosts[host]);
        assert_eq!(after.l7.requests.success - before.l7.requests.success, 8, "{host}");
        assert_eq!(after.l7.bytes_in - before.l7.bytes_in, sent[index], "{host}");
        assert_eq!(after.l7.bytes_out - before.l7.bytes_out, received[index], "{host}");
        // Packets before the first parsed request belong to host 0, those after it to the host.
        assert!(after.net.rx_packets > before.net.rx_packets, "{host}");
    }
}
