//! The process follows the interfaces of its node, and reports a foreign rule that takes its connections.

use std::{path::PathBuf, process::Command, time::Duration};

use ingress_common::Total;
use ingress_datapath::{Datapath, Interfaces, XdpMode};
use ingress_lab::{
    Process,
    capability::skipped,
    client::Ask,
    nft,
    topology::{Family, NODE_NIC, NODE_V4},
    until,
};

use crate::{
    faults::{failed_start, is_refused, none_failed, steady},
    generation::Generation,
    inspect::attention,
    net::{Net, http},
};

/// Returns the receive state of an interface; `None` if it is not shown.
pub(crate) fn receives(net: &Net, name: &str) -> Option<String> {
    let shown = net.admin("/interfaces").ok()?.json().ok()?;
    let nic = shown.as_array()?.iter().find(|nic| nic["interface"] == name)?.clone();
    nic["receives"].as_str().map(str::to_owned)
}

#[track_caller]
fn becomes(net: &Net, process: &Process, name: &str, how: Option<&str>) {
    until(&format!("{name} to be {how:?}"), || (receives(net, name).as_deref() == how).then_some(()))
        .unwrap_or_else(|error| panic!("{error:#}: {:?}\n{}", receives(net, name), process.log_tail(30)));
}

#[test]
fn added_and_removed_interfaces_are_reconciled() {
    let Some(net) = Net::build("nics") else { return };
    net.write("web.yaml", &net.site("web", &[0]));
    let node = &net.topology.node;
    let first = Generation::start(&net, "first", &["--interface", "eth1"]);
    let becomes = |name, how| becomes(&net, &first.process, name, how);
    becomes("eth0", Some("native"));
    becomes("eth1", Some("absent"));

    let add = "link add eth1 type veth peer name far1";
    for _ in 0..2 {
        node.ip(add).expect("it comes");
        becomes("eth1", Some("native"));
        let metrics = net.admin("/metrics").expect("answered");
        let series = "xdp_ingress_interface_attached{interface=\"eth1\",direction=\"received\",how=\"native\"} 1";
        assert!(String::from_utf8_lossy(&metrics.text).contains(series), "{series}");
        node.ip("link del eth1").expect("it goes");
        becomes("eth1", Some("absent"));
    }
    // The interface is replaced without a pause.
    node.ip(&format!("{add}\nlink del eth1\n{add}")).expect("it comes, goes and comes back");
    becomes("eth1", Some("native"));
    node.ip("link set eth1 name lan1").expect("it gets another name");
    becomes("eth1", Some("absent"));
    node.ip("link set lan1 name eth1").expect("and its own again");
    becomes("eth1", Some("native"));
    assert_eq!(attention(&net), "", "no link is left that does nothing");

    assert_eq!(net.ask(&net.topology.client, http(Family::V4), &Ask::get("web.test", "/")).0.status, 200);
    assert_eq!(receives(&net, "eth0").as_deref(), Some("native"));
}

#[test]
fn ports_of_a_bond_are_reconciled() {
    const BOND: &str = "link add bond0 type bond mode active-backup";
    let Some(net) = Net::build("bond") else { return };
    let node = &net.topology.node;
    if let Err(error) = node.ip(BOND) {
        let error = format!("{error:#}");
        assert!(error.contains("Unknown device type"), "{error}");
        skipped("ports_of_a_bond_are_reconciled", "this kernel has no bonds (CONFIG_BONDING)");
        return;
    }
    let ports = "link add port0 type veth peer name far0\nlink add port1 type veth peer name far1";
    node.ip(&format!("{ports}\nlink set port0 master bond0")).expect("a bond with one port");
    let first = Generation::start(&net, "first", &["--interface", "bond0"]);
    let becomes = |name, how| becomes(&net, &first.process, name, how);
    becomes("port0", Some("native"));
    becomes("bond0", None);
    node.ip("link set port1 master bond0").expect("another port");
    becomes("port1", Some("native"));
    node.ip("link set port0 nomaster").expect("it leaves");
    becomes("port0", None);
    node.ip("link del bond0").expect("it goes");
    becomes("port1", None);
    becomes("bond0", Some("absent"));
}

#[test]
fn a_netfilter_rule_that_takes_connections_is_reported() {
    const REQUESTS: usize = 20;
    let Some((net, _proxy)) = Net::serving("dnat") else { return };
    assert_eq!(attention(&net), "");
    let rules = format!(
        "table ip nat {{\n chain prerouting {{\n  type nat hook prerouting priority dstnat;\n  ip daddr {NODE_V4} tcp dport \
         80 dnat to {}:8080\n }}\n}}\n",
        net.topology.pods[2].v4
    );
    nft::apply(&net.topology.node, &net.lab.home().join("dnat.nft"), &rules).expect("the rule is taken");
    for _ in 0..REQUESTS {
        let (answer, _) = net.ask(&net.topology.client, http(Family::V4), &Ask::get("web.test", "/"));
        assert_eq!(answer.pod(), Some("pod-c"), "which `web.test` does not use");
    }
    let said = attention(&net);
    assert!(said.contains("but none reached sk_lookup: a rule of netfilter takes or drops them"), "{said}");
    assert!(said.contains("nft list ruleset") && said.contains("`--steer rewrite`"), "{said}");
}

/// Attaches a foreign XDP program to the node's interface, by a link pinned below the returned directory.
fn somebody_else(net: &Net) -> PathBuf {
    let bpffs = net.lab.bpffs().expect("mounted").join("somebody-else");
    let options = ingress_datapath::Options {
        bpffs: bpffs.clone(),
        interfaces: Interfaces { names: vec![NODE_NIC.to_owned()], above: Vec::new() },
        xdp_mode: XdpMode::Native,
        lookup: false,
        host_capacity: 1,
        ..ingress_datapath::Options::default()
    };
    let theirs = net.topology.node.run(|| Ok(Datapath::open(&options)?)).expect("it is first");
    // The pinned link stays.
    drop(theirs);
    bpffs
}

#[test]
fn a_foreign_xdp_program_stays_and_clients_are_served() {
    let Some(net) = Net::build("busy") else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let theirs = somebody_else(&net);
    let said = failed_start(&net, "native", net.options("native", 9110).command());
    let busy = "interface `eth0` has an XDP program of another application";
    let words = [busy, "run with `--xdp-mode auto` or `tcx`", "`bpftool net`"];
    assert!(words.iter().all(|words| said.contains(words)), "{said}");
    is_refused(&net);

    let mut command = Command::new(env!("CARGO_BIN_EXE_xdp-ingress"));
    command.env("NO_COLOR", "1").args(["run", "--workers", "2", "--admin-addr", "127.0.0.1:9110"]);
    command.args(["--xdp-mode", "auto", "--interface", NODE_NIC, "--manifests"]).arg(&net.manifests);
    command.arg("--bpffs").arg(&net.bpffs);
    let mut process = net.lab.spawn(&net.topology.node, "auto", command).expect("it can be run");
    let is_ready = || net.admin("/readyz").is_ok_and(|answer| answer.status.is_success());
    process.wait_until(Duration::from_secs(30), "it is ready", is_ready).expect("it becomes ready");
    becomes(&net, &process, NODE_NIC, Some("tcx"));
    let log = process.log();
    let is_told = |line: &str| line.contains("this interface has no better mode") && line.contains(busy);
    assert!(log.lines().any(|line| line.contains("WARN") && is_told(line)), "{log}");
    let load = steady(&net);
    load.pass(50).expect("clients are served");
    let counts = net.maps().read().expect("maps");
    assert!(counts.total(Total::Decided).packets > 0 && counts.hosts["web.test"].net.rx_packets > 0, "{counts:?}");

    // The foreign program goes, and an interface changes.
    net.topology.node.run(|| Ok(ingress_datapath::unload(&theirs)?)).expect("it goes");
    net.topology.node.ip("link add eth1 type veth peer name far1").expect("an interface comes");
    becomes(&net, &process, NODE_NIC, Some("native"));
    load.pass(50).expect("clients are served");
    none_failed(load);
}
