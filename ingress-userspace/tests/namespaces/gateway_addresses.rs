//! Addresses that all nodes hold and one announces, seen from a router on their link, and from a client beyond it.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use ingress_common::Total;
use ingress_datapath::{Datapath, HeldAddress, Interfaces, Pinned, XdpMode as Place};
use ingress_lab::{
    Namespace, Process,
    client::Ask,
    controller::{DataPath, XdpMode, get},
    load::{Connections, Load},
    topology::{NODE_NIC, ROUTER_NIC},
    until, until_within,
};

use crate::net::Net;

const POOL: &str = "203.0.113.80/30,2001:db8:3::80/126";
/// The usable addresses of the pool.
const ADDRESSES: [&str; 5] = ["203.0.113.81", "203.0.113.82", "2001:db8:3::81", "2001:db8:3::82", "2001:db8:3::83"];

pub(crate) fn at(address: &str) -> SocketAddr {
    let address: IpAddr = address.parse().expect("an address");
    (address, 80).into()
}

/// Returns what `ip` prints in a namespace.
pub(crate) fn shown(namespace: &Namespace, arguments: &str) -> String {
    let mut command = Command::new("ip");
    command.args(arguments.split(' '));
    let output = namespace.run(move || Ok(command.output()?)).expect("`ip` runs");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the addresses for which a node has a route of ours.
pub(crate) fn routes(node: &Namespace) -> BTreeSet<String> {
    let of = |family| shown(node, &format!("{family} route show table local proto 120"));
    let lines = ["-4", "-6"].map(of).concat();
    lines.lines().filter_map(|line| line.split(' ').nth(1)).map(str::to_owned).collect()
}

pub(crate) fn pool() -> BTreeSet<String> {
    ADDRESSES.map(str::to_owned).into()
}

/// Asks for the site at an address, from a client beyond the router.
fn ask(net: &Net, address: &str) -> anyhow::Result<()> {
    let (answer, _) = net.try_ask(&net.topology.client, at(address), &Ask::get("web.test", "/"))?;
    anyhow::ensure!(answer.status == 200, "{}", answer.status);
    Ok(())
}

#[track_caller]
pub(crate) fn all_are_served(net: &Net) {
    for address in ADDRESSES {
        let served = until(&format!("an answer at {address}"), || ask(net, address).ok());
        served.unwrap_or_else(|error| panic!("{error:#}: {}", shown(&net.topology.router, "neigh show")));
    }
}

/// A node with a process.
pub(crate) struct Node<'n> {
    pub(crate) namespace: &'n Namespace,
    pub(crate) bpffs: PathBuf,
}

impl<'n> Node<'n> {
    pub(crate) fn of(net: &'n Net) -> Self {
        Self { namespace: &net.topology.node, bpffs: net.bpffs.clone() }
    }

    /// Starts a process, and waits until it is ready.
    pub(crate) fn start(&self, net: &Net, name: &str, mode: XdpMode, port: u16, more: &[&str]) -> Process {
        let mut options = net.options(name, port);
        options.path = DataPath::Kernel { mode, interface: NODE_NIC.into(), bpffs: self.bpffs.clone() };
        let mut command = options.command();
        command.args(more);
        let mut process = net.lab.spawn(self.namespace, name, command).expect("it can be run");
        let admin = (Ipv4Addr::LOCALHOST, port).into();
        let ready = || get(self.namespace, admin, "/readyz").is_ok_and(|answer| answer.status.is_success());
        process.wait_until(Duration::from_secs(30), "it is ready", ready).expect("it becomes ready");
        process
    }

    /// Returns the addresses that the node answers for, and those for which it is silent.
    pub(crate) fn held(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        let held = Pinned::open(&self.bpffs).expect("pinned").maps().held_addresses().expect("readable");
        let (announced, silent): (Vec<_>, Vec<_>) = held.into_iter().partition(|held| held.is_announced);
        let names = |held: Vec<HeldAddress>| held.iter().map(|held| held.address.to_string()).collect();
        (names(announced), names(silent))
    }

    /// Returns whether the node forwards packets of an address.
    pub(crate) fn has_moves(&self) -> bool {
        let held = Pinned::open(&self.bpffs).expect("pinned").maps().held_addresses().expect("readable");
        held.iter().any(|held| held.is_moved)
    }

    /// Waits until the node announces exactly these addresses.
    #[track_caller]
    pub(crate) fn announces(&self, addresses: &BTreeSet<String>) {
        until("the announcements", || (self.held().0 == *addresses).then_some(()))
            .unwrap_or_else(|error| panic!("{error:#}: {:?}", self.held()));
    }

    pub(crate) fn total(&self, total: Total) -> u64 {
        Pinned::open(&self.bpffs).expect("pinned").maps().totals().expect("readable").get(total).packets
    }
}

/// Attaches a program to interfaces of the router: a veth sends what XDP answers only to an end with a program.
pub(crate) fn attach_at_router(net: &Net, interfaces: &[&str]) -> Datapath {
    let options = ingress_datapath::Options {
        bpffs: net.lab.bpffs().expect("mounted").join("router"),
        interfaces: Interfaces { names: interfaces.iter().map(|&name| name.to_owned()).collect(), above: Vec::new() },
        xdp_mode: Place::Native,
        lookup: false,
        host_capacity: 1,
        ..ingress_datapath::Options::default()
    };
    net.topology.router.run(|| Ok(Datapath::open(&options)?)).expect("attached")
}

pub(crate) const WITH_POOL: [&str; 2] = ["--gateway-addresses", POOL];

fn is_found_and_served(name: &str, mode: XdpMode) {
    let Some(net) = Net::build(name) else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let _router = (mode == XdpMode::Native).then(|| attach_at_router(&net, &[ROUTER_NIC]));
    let node = Node::of(&net);
    let _process = node.start(&net, "first", mode, 9110, &WITH_POOL);
    node.announces(&pool());
    let silent = node.total(Total::Unannounced);
    all_are_served(&net);
    assert_eq!(routes(node.namespace), pool());
    assert!(node.total(Total::Announced) >= 5, "the program has answered");
    assert_eq!(node.total(Total::Unannounced), silent);
    // From the node itself, and from a pod.
    for from in [node.namespace, &net.topology.pods[0].namespace] {
        for address in ADDRESSES {
            let (answer, _) = net.try_ask(from, at(address), &Ask::get("web.test", "/")).expect("answered");
            assert_eq!(answer.status, 200, "{address}");
        }
    }
    // The node's own address is the stack's matter, as before.
    let (answer, _) =
        net.ask(&net.topology.client, crate::net::http(ingress_lab::topology::Family::V4), &Ask::get("web.test", "/"));
    assert_eq!(answer.status, 200);
}

#[test]
fn addresses_are_found_and_served_by_native_xdp() {
    is_found_and_served("ga-native", XdpMode::Native);
}

#[test]
fn addresses_are_found_and_served_by_generic_xdp() {
    is_found_and_served("ga-generic", XdpMode::Generic);
}

#[test]
fn addresses_are_found_and_served_by_tc() {
    is_found_and_served("ga-tc", XdpMode::Tcx);
}

#[test]
fn routes_of_addresses_follow_the_process() {
    let Some(net) = Net::build("ga-routes") else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let node = Node::of(&net);
    let start = |name, more: &[&str]| node.start(&net, name, XdpMode::Generic, 9110, more);
    let become_ = |expect: &BTreeSet<String>| {
        until("the routes", || (routes(node.namespace) == *expect).then_some(()))
            .unwrap_or_else(|error| panic!("{error:#}: {:?}", routes(node.namespace)));
    };
    let mut first = start("first", &WITH_POOL);
    become_(&pool());
    node.namespace.ip("route del local 203.0.113.81 dev lo table local").expect("removed by somebody else");
    become_(&pool());
    first.terminate(Duration::from_secs(40)).expect("it ends");
    become_(&BTreeSet::new());
    assert_eq!(node.held(), (BTreeSet::new(), BTreeSet::new()));

    let mut second = start("second", &WITH_POOL);
    become_(&pool());
    second.kill().expect("it dies");
    become_(&pool());
    let mut third = start("third", &["--gateway-addresses", "203.0.113.82"]);
    become_(&["203.0.113.82".to_owned()].into());
    third.kill().expect("it dies");
    let _fourth = start("fourth", &[]);
    become_(&BTreeSet::new());
    drop(_fourth);
    let mut fifth = start("fifth", &WITH_POOL);
    become_(&pool());
    fifth.kill().expect("it dies");
    let mut unload = Command::new(env!("CARGO_BIN_EXE_xdp-ingress"));
    unload.arg("unload").arg("--bpffs").arg(&net.bpffs);
    let status = node.namespace.run(move || Ok(unload.status()?)).expect("unload runs");
    assert!(status.success());
    become_(&BTreeSet::new());
}

#[test]
fn only_addresses_that_the_programs_know_get_routes() {
    let Some(net) = Net::build("ga-room") else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let node = Node::of(&net);
    // The pool has 2046 addresses, and the programs have room for 1024, with those of the interfaces.
    let _process = node.start(&net, "first", XdpMode::Generic, 9110, &["--gateway-addresses", "10.200.0.0/21"]);
    let held = until("all are announced", || {
        let (announced, silent) = node.held();
        (announced.len() > 900 && silent.is_empty()).then_some(announced)
    });
    let held = held.expect("one node announces all");
    until("the routes", || (routes(node.namespace) == held).then_some(()))
        .unwrap_or_else(|error| panic!("{error:#}: {} routes, {} held", routes(node.namespace).len(), held.len()));
}

#[test]
fn routes_of_addresses_end_with_the_last_program() {
    let Some(net) = Net::build("ga-no-program") else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let node = Node::of(&net);
    let _process = node.start(&net, "first", XdpMode::Generic, 9110, &WITH_POOL);
    until("the routes", || (routes(node.namespace) == pool()).then_some(())).expect("added");
    node.namespace.ip("link del eth0").expect("an interface that goes");
    until("no routes", || routes(node.namespace).is_empty().then_some(())).expect("the stack would answer ARP");
}

#[test]
fn an_update_keeps_addresses_and_fails_no_request() {
    let Some(net) = Net::build("ga-update") else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let node = Node::of(&net);
    let mut first = node.start(&net, "first", XdpMode::Generic, 9110, &WITH_POOL);
    node.announces(&pool());
    let silent = node.total(Total::Unannounced);
    all_are_served(&net);
    let load = |address| {
        Load::start(&net.topology.client, at(address), Ask::get("web.test", "/"), 2, Connections::New).expect("starts")
    };
    let loads = [load(ADDRESSES[0]), load(ADDRESSES[2])];
    let mut second = node.start(&net, "second", XdpMode::Generic, 9111, &WITH_POOL);
    loads.iter().for_each(|load| load.pass(200).expect("answered by the second process"));
    assert_eq!(node.held(), (pool(), BTreeSet::new()), "still announced");
    first.terminate(Duration::from_secs(40)).expect("it drains and ends");
    loads.iter().for_each(|load| load.pass(200).expect("answered after the first is gone"));
    // And back, as in a roll-back.
    let _third = node.start(&net, "third", XdpMode::Generic, 9110, &WITH_POOL);
    second.terminate(Duration::from_secs(40)).expect("it drains and ends");
    for load in loads {
        load.pass(200).expect("answered by the third process");
        let report = load.stop().expect("load ends");
        assert_eq!(report.failed, 0, "{:?}", report.reasons);
    }
    assert_eq!(routes(node.namespace), pool());
    assert_eq!(node.total(Total::Unannounced), silent, "no question was left unanswered");
}

/// Ethernet addresses of two nodes between which the hash divides the addresses of the pool, in both families. With random
/// ones, one node would now and then have all of them.
const MACS: [&str; 2] = ["02:00:00:00:00:02", "02:00:00:00:00:06"];

/// Connects a second node to the link of the first, by a bridge on the router.
pub(crate) fn second_node(net: &Net) -> Namespace {
    let (router, second) = (&net.topology.router, net.lab.namespace("node2").expect("a namespace"));
    net.lab.link((router, "eth2"), (&second, NODE_NIC), 1500).expect("linked");
    let bridge = [
        "link add br0 type bridge mcast_snooping 0",
        "link set br0 up",
        "addr del 203.0.113.1/24 dev eth1",
        "addr del 2001:db8:3::1/64 dev eth1",
        "link set eth1 master br0",
        "link set eth2 master br0",
        "addr add 203.0.113.1/24 dev br0",
        "addr add 2001:db8:3::1/64 dev br0 nodad",
    ];
    router.ip(&bridge.join("\n")).expect("a bridge");
    net.topology.node.ip(&format!("link set eth0 address {}", MACS[0])).expect("an Ethernet address");
    second.ip(&format!("link set eth0 address {}", MACS[1])).expect("an Ethernet address");
    let addresses = [
        "addr add 203.0.113.20/24 dev eth0",
        "addr add 2001:db8:3::20/64 dev eth0 nodad",
        "route add default via 203.0.113.1",
        "route add default via 2001:db8:3::1",
        "route add 10.244.0.0/24 via 203.0.113.10",
    ];
    second.ip(&addresses.join("\n")).expect("addresses");
    second
}

/// Returns what each of two nodes announces, if each address is announced by one node and held by the other.
pub(crate) fn shared(nodes: &[Node<'_>; 2]) -> Option<[BTreeSet<String>; 2]> {
    let [(one, silent_one), (other, silent_other)] = [nodes[0].held(), nodes[1].held()];
    let is_shared = one == silent_other && other == silent_one && !one.is_empty() && !other.is_empty();
    is_shared.then_some([one, other])
}

#[test]
fn neighbours_are_told_anew_after_a_node_stood_still() {
    let Some(net) = Net::build("ga-still") else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let namespace = second_node(&net);
    let _router = attach_at_router(&net, &["eth1", "eth2"]);
    let nodes =
        [Node::of(&net), Node { namespace: &namespace, bpffs: net.lab.bpffs().expect("mounted").join("node2") }];
    let start = |index: usize, name| nodes[index].start(&net, name, XdpMode::Native, 9110, &WITH_POOL);
    let processes = [start(0, "first"), start(1, "second")];
    let announced = until("a choice", || shared(&nodes)).expect("both hear of each other");
    all_are_served(&net);
    let knows = |address: &String, mac: &str| {
        let neighbours = shown(&net.topology.router, "neigh show dev br0");
        let is_known = |line: &str| line.starts_with(&format!("{address} ")) && line.contains(mac);
        neighbours.lines().any(is_known).then_some(())
    };
    for address in &announced[0] {
        until("the router's entry", || knows(address, MACS[0])).expect("the first node");
    }
    processes[0].signal(nix::sys::signal::Signal::SIGSTOP).expect("stopped");
    for address in &announced[0] {
        until("another entry", || knows(address, MACS[1])).expect("the second node takes over");
    }
    processes[0].signal(nix::sys::signal::Signal::SIGCONT).expect("continued");
    for address in &announced[0] {
        until("the entry of before", || knows(address, MACS[0]))
            .unwrap_or_else(|error| panic!("{error:#}: {}", shown(&net.topology.router, "neigh show")));
    }
    assert_eq!(until("the same choice", || shared(&nodes)).expect("both hear of each other"), announced);
}

#[test]
fn one_of_two_nodes_announces_an_address_and_the_other_takes_over() {
    let Some(net) = Net::build("ga-two") else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let namespace = second_node(&net);
    let _router = attach_at_router(&net, &["eth1", "eth2"]);
    let nodes =
        [Node::of(&net), Node { namespace: &namespace, bpffs: net.lab.bpffs().expect("mounted").join("node2") }];
    let start = |index: usize, name| nodes[index].start(&net, name, XdpMode::Native, 9110, &WITH_POOL);
    let mut processes = [start(0, "first"), start(1, "second")];
    let shared = || shared(&nodes);
    let announced = until("a choice", shared).expect("both hear of each other");
    assert_eq!(announced.iter().flatten().cloned().collect::<BTreeSet<_>>(), pool());
    all_are_served(&net);
    assert!(nodes.iter().any(|node| node.total(Total::Unannounced) > 0), "one was silent");

    // A dead process: the router learns where the address is now.
    let moved: Vec<_> = announced[0].iter().cloned().collect();
    processes[0].kill().expect("it dies");
    let killed = Instant::now();
    for address in &moved {
        until_within(Duration::from_secs(5), "the other node serves", || ask(&net, address).ok())
            .unwrap_or_else(|error| panic!("{error:#}: {}", shown(&net.topology.router, "neigh show")));
        println!("process killed: {address} is served by another node after {} ms", killed.elapsed().as_millis());
    }
    all_are_served(&net);

    // It comes back, and gets the same addresses.
    processes[0] = start(0, "third");
    assert_eq!(until("the same choice", shared).expect("both hear of each other"), announced);
    all_are_served(&net);

    // An end that is announced.
    let moved: Vec<_> = announced[1].iter().cloned().collect();
    processes[1].signal(nix::sys::signal::Signal::SIGTERM).expect("asked to end");
    let asked = Instant::now();
    nodes[0].announces(&pool());
    println!("process ends: the other node announces its addresses after {} ms", asked.elapsed().as_millis());
    for address in &moved {
        until("the other node serves", || ask(&net, address).ok()).expect("served");
    }
    assert!(until("no routes", || routes(&namespace).is_empty().then_some(())).is_ok());
}

/// The groups of both families are on the link, and a node may have addresses of one family only.
#[test]
fn nodes_without_ipv4_hear_each_other() {
    let Some(net) = Net::build("ga-six") else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let namespace = second_node(&net);
    let _router = attach_at_router(&net, &["eth1", "eth2"]);
    for node in [&net.topology.node, &namespace] {
        shown(node, &format!("-4 addr flush dev {NODE_NIC}"));
    }
    let nodes =
        [Node::of(&net), Node { namespace: &namespace, bpffs: net.lab.bpffs().expect("mounted").join("node2") }];
    let start = |index: usize, name| nodes[index].start(&net, name, XdpMode::Native, 9110, &WITH_POOL);
    let _processes = [start(0, "first"), start(1, "second")];
    let announced = until("a choice", || shared(&nodes)).expect("both hear of each other");
    assert_eq!(announced.iter().flatten().cloned().collect::<BTreeSet<_>>(), pool());
}
