//! Counters of sent packets: as much as arrives at the other end of the link, under load and through updates.

use std::fs;

use ingress_common::{Total, Traffic, map};
use ingress_datapath::{Datapath, Interfaces, Options, XdpMode};
use ingress_lab::{
    client::Ask,
    load::{Connections, Load},
    maps::Counts,
    topology::{Family, NODE_NIC, ROUTER_NIC},
    until,
};
use nix::sys::signal::Signal;

use crate::{
    generation::Generation,
    net::{Net, http},
};

/// A response that leaves in large packets, which are cut into segments on their way out.
const BODY: u64 = 200_000;
const UPDATES: usize = 3;

/// Counts packets that arrive at the router from the node, by the program for received packets. The program knows no
/// port there and so counts every packet of TCP or UDP as `other_port`.
///
/// XDP at the receiving end also keeps a veth from passing large packets on whole. The sending side therefore cuts them
/// (`veth_fix_features` in the kernel), as it does for a NIC without segmentation of its own.
fn witness(net: &Net) -> Datapath {
    let options = Options {
        bpffs: net.lab.bpffs().expect("mounted").join("witness"),
        interfaces: Interfaces { names: vec![ROUTER_NIC.to_owned()], above: Vec::new() },
        xdp_mode: XdpMode::Native,
        lookup: false,
        host_capacity: 1,
        ..Options::default()
    };
    net.topology.router.run(|| Ok(Datapath::open(&options)?)).expect("the router counts")
}

/// Waits until all counters agree, packets and bytes: the hosts, the interfaces and the totals of the node, and the
/// other end of the link. The last packets of closing connections are late. Returns the final counts.
fn all_agree(net: &Net, witness: &Datapath) -> (Counts, Traffic) {
    let mut last = None;
    let agreed = until("all who count to agree", || {
        let sent = net.maps().read().ok()?.total(Total::Transmitted);
        let (counts, nics) = (net.settled(), net.maps().nics().ok()?);
        let arrived = witness.totals().ok()?.get(Total::OtherPort);
        let received = Traffic { packets: nics.rx_packets, bytes: nics.rx_bytes };
        let transmitted = Traffic { packets: nics.tx_packets, bytes: nics.tx_bytes };
        let agree = received == counts.received() && [transmitted, counts.transmitted(), arrived] == [sent; 3];
        last = Some((sent, transmitted, counts.transmitted(), arrived, received, counts.received()));
        agree.then_some((counts, sent))
    });
    agreed.unwrap_or_else(|error| {
        panic!("{error:#}: sent by totals, interfaces, hosts; arrived; received by interfaces, hosts: {last:?}")
    })
}

#[test]
fn sent_counts_equal_arrivals_under_load_and_during_updates() {
    let Some(net) = Net::build("transmit") else { return };
    // The windows are so small that all packets in flight fit into the queue of a veth (256 packets). Lost packets
    // would be counted as sent without arriving.
    net.topology.client.sysctl("ipv4/tcp_rmem", "4096 32768 65536").expect("a small window");
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let witness = witness(&net);
    let mut old = Generation::start(&net, "generation-0", &[]);

    let large = Ask::get("web.test", &format!("/bytes/{BODY}"));
    let load = |connections| {
        Load::start(&net.topology.client, http(Family::V4), large.clone(), 1, connections).expect("load starts")
    };
    let loads = [load(Connections::Kept), load(Connections::New)];
    for number in 1..=UPDATES {
        let mut new = Generation::start(&net, &format!("generation-{number}"), &[]);
        loads.iter().for_each(|load| load.pass(5).expect("the new process answers"));
        old.process.signal(Signal::SIGTERM).expect("the kubelet ends the old one");
        assert!(old.ended().success());
        loads.iter().for_each(|load| load.pass(5).expect("and goes on"));
        std::mem::swap(&mut old, &mut new);
    }
    let mut answered = 0;
    for load in loads {
        let report = load.stop().expect("load ends");
        assert_eq!(report.failed, 0, "{:?}", report.reasons);
        answered += report.answered;
    }
    let (answer, _) = net.ask(&net.topology.client, http(Family::V6), &large);
    assert_eq!(answer.body.received(), BODY);
    answered += 1;

    let (counts, sent) = all_agree(&net, &witness);
    let web = counts.hosts["web.test"];
    assert_eq!(web.l7.bytes_out, answered * BODY);
    assert!(web.net.tx_bytes >= web.l7.bytes_out, "every response is on its host's account: {web:?}");
    // These are segments, not the large packets that they are cut from: none is longer than the link takes.
    assert!(sent.bytes <= sent.packets * 1514, "{sent:?}");
    println!("{UPDATES} updates: {} packets, {} bytes sent and arrived", sent.packets, sent.bytes);
}

#[test]
fn interfaces_are_shown_with_their_traffic() {
    let Some((net, _proxy)) = Net::serving("interfaces") else { return };
    net.ask(&net.topology.client, http(Family::V4), &Ask::get("web.test", "/"));
    // A connection may still be closing, so both are read until they are of one time.
    let agree = until("metrics to show what the maps hold", || {
        let (counts, metrics) = (net.settled(), net.admin("/metrics").ok()?);
        let metrics = String::from_utf8(metrics.text).ok()?;
        let (received, transmitted) = (counts.received(), counts.transmitted());
        let lines = [
            ("interface_packets_total", "received", received.packets),
            ("interface_packets_total", "transmitted", transmitted.packets),
            ("interface_bytes_total", "received", received.bytes),
            ("interface_bytes_total", "transmitted", transmitted.bytes),
        ]
        .map(|(metric, direction, value)| {
            format!("xdp_ingress_{metric}{{interface=\"{NODE_NIC}\",direction=\"{direction}\"}} {value}")
        });
        let are_there = lines.iter().all(|line| metrics.lines().any(|each| each == line));
        (received.packets > 0 && transmitted.packets > 0 && are_there).then_some((metrics, transmitted))
    });
    let (metrics, transmitted) = agree.expect("they agree");
    for (direction, how) in [("received", "native"), ("transmitted", "tcx")] {
        let series = format!(
            "xdp_ingress_interface_attached{{interface=\"{NODE_NIC}\",direction=\"{direction}\",how=\"{how}\"}} 1"
        );
        assert!(metrics.contains(&series), "{series}: {metrics}");
    }
    let shown = net.admin("/interfaces").expect("answered").json().expect("JSON");
    assert_eq!(shown[0]["interface"], NODE_NIC);
    assert!(shown[0]["tx_bytes"].as_u64() >= Some(transmitted.bytes), "{shown}");
}

#[test]
fn a_node_without_a_transmit_program_serves() {
    let Some(net) = Net::build("untransmitted") else { return };
    net.write("web.yaml", &net.site("web", &[0]));
    let in_its_way = net.bpffs.join(map::LAYOUT).join("links").join(format!("tc-out-{NODE_NIC}"));
    fs::create_dir_all(&in_its_way).expect("a directory in its way");
    let proxy = net.start("first", 9110);
    net.ask(&net.topology.client, http(Family::V4), &Ask::get("web.test", "/"));
    assert!(
        proxy.process.log().contains("packets that this interface sends are not counted"),
        "{}",
        proxy.process.log_tail(20)
    );
    let metrics = net.admin("/metrics").expect("answered");
    let metrics = String::from_utf8_lossy(&metrics.text);
    let series = format!(
        "xdp_ingress_interface_attached{{interface=\"{NODE_NIC}\",direction=\"transmitted\",how=\"failed\"}} 0"
    );
    assert!(metrics.contains(&series), "{metrics}");
    fs::remove_dir(in_its_way).expect("nothing is in its way");
}
