//! Every kind of client is answered, over either family and in each `--xdp-mode`, at an address of its own. Connections
//! are counted as docs/lifecycle.md says: by the program of a NIC, or by sk_lookup alone. Each test starts one process
//! and sends it six requests.

use std::net::IpAddr;

use ingress_common::Total;
use ingress_lab::{
    Namespace,
    client::Ask,
    controller::{Controller, DataPath, XdpMode},
    maps::Counts,
    topology::{CLIENT_V4, CLIENT_V6, Family, NODE_NIC, NODE_V4, NODE_V6},
    until,
};

use crate::{
    net::{Net, http},
    nics::receives,
};

/// Location of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The node itself.
    Node,
    /// A pod of the node.
    Pod,
    /// A client beyond its NIC.
    Nic,
}

/// Program that counts a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    /// The program of a NIC, which also chooses the worker.
    ByProgram,
    /// sk_lookup by its default rule; no packet counts for a host.
    ByLookup,
}

/// Clients behind a NIC come last: the end of such a connection may be late, and would count for others.
const EVERYBODY: [(Origin, Family); 6] = [
    (Origin::Node, Family::V4),
    (Origin::Node, Family::V6),
    (Origin::Pod, Family::V4),
    (Origin::Pod, Family::V6),
    (Origin::Nic, Family::V4),
    (Origin::Nic, Family::V6),
];

/// Counters that grow where the program of a NIC counts, and stand still elsewhere.
const OF_PROGRAMS: [Total; 4] = [Total::Accepted, Total::Decided, Total::LookupDecided, Total::Transmitted];

#[test]
fn native_xdp_serves_and_counts_clients() {
    serves_and_counts("native", Some(XdpMode::Native));
}

#[test]
fn generic_xdp_serves_and_counts_clients() {
    serves_and_counts("generic", Some(XdpMode::Generic));
}

#[test]
fn tcx_serves_and_counts_clients() {
    serves_and_counts("tcx", Some(XdpMode::Tcx));
}

#[test]
fn sk_lookup_alone_serves_clients() {
    serves_and_counts("lookup", None);
}

/// Serves with a program on the node's NIC in this mode, or without one.
#[track_caller]
fn serves_and_counts(name: &str, mode: Option<XdpMode>) {
    let Some(net) = Net::build(name) else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let mut options = net.options(name, 9110);
    let bpffs = net.bpffs.clone();
    options.path = match mode {
        Some(mode) => DataPath::Kernel { mode, interface: NODE_NIC.into(), bpffs },
        None => DataPath::Lookup { bpffs },
    };
    let _proxy = Controller::start(&net.lab, &net.topology.node, &options).expect("the proxy is ready");
    assert_eq!(receives(&net, NODE_NIC).as_deref(), mode.map(XdpMode::name), "the mode that was asked for");

    let mut before = net.settled();
    for (number, (origin, family)) in (1..).zip(EVERYBODY) {
        let case = format!("{name}, {origin:?}, {family:?}");
        let (from, address) = place(&net, origin, family);
        let (answer, _) = net.ask(from, http(family), &Ask::get("web.test", "/"));
        assert_eq!(answer.status, 200, "{case}");
        let seen = answer.json().expect("the pod answers with JSON");
        assert_eq!(seen["headers"]["x-forwarded-for"], address.to_string(), "{case}: its own address");
        assert_eq!(seen["headers"]["x-forwarded-port"], "80", "{case}: the port that was asked");

        // A request counts when its response has ended, which the client may see first.
        let is_counted = || {
            let counts = net.settled();
            (counts.hosts["web.test"].l7.requests.success == number).then_some(counts)
        };
        let after = until("the request to be counted", is_counted).unwrap_or_else(|error| panic!("{case}: {error:#}"));
        let counted = if origin == Origin::Nic && mode.is_some() { Counted::ByProgram } else { Counted::ByLookup };
        check(&case, counted, &before, &after);
        before = after;
    }
}

/// Checks that one connection was counted by the expected program alone.
#[track_caller]
fn check(case: &str, counted: Counted, before: &Counts, after: &Counts) {
    let grown = |total| after.total(total).packets - before.total(total).packets;
    let by_programs = OF_PROGRAMS.map(grown);
    let by_lookup = grown(Total::LookupDefault);
    assert_eq!(grown(Total::Undecided), 0, "{case}: no program has left a choice to sk_lookup");
    match counted {
        // More where a SYN was sent again, or a segment came after its connection was gone.
        Counted::ByProgram => {
            assert!(by_programs.iter().all(|packets| *packets > 0), "{case}: {OF_PROGRAMS:?} grew by {by_programs:?}");
            assert_eq!(by_lookup, 0, "{case}");
            let [before, after] = [before, after].map(|counts| counts.hosts["web.test"].net);
            assert!(after.rx_packets > before.rx_packets, "{case}: what its client sent, after the request");
            assert!(after.tx_packets > before.tx_packets, "{case}: what answered it");
        }
        Counted::ByLookup => {
            assert_eq!(by_programs, [0; 4], "{case}: {OF_PROGRAMS:?}");
            assert!(by_lookup > 0, "{case}");
        }
    }
}

/// Returns the namespace of the client, and the address it connects to.
fn place(net: &Net, origin: Origin, family: Family) -> (&Namespace, IpAddr) {
    let pod = &net.topology.pods[0];
    let (namespace, v4, v6) = match origin {
        Origin::Node => (&net.topology.node, NODE_V4, NODE_V6),
        Origin::Pod => (&pod.namespace, pod.v4, pod.v6),
        Origin::Nic => (&net.topology.client, CLIENT_V4, CLIENT_V6),
    };
    let address = match family {
        Family::V4 => v4.into(),
        Family::V6 => v6.into(),
    };
    (namespace, address)
}
