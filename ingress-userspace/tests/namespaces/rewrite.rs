//! `--steer rewrite`: a foreign DNAT rule for the ports does not take the connections, and other traffic is unaffected.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    process::Command,
    time::Duration,
};

use ingress_common::{Nic, Total, map, steer::NIC_NATIVE};
use ingress_lab::{
    Process,
    client::{Answer, Ask},
    load::{Connections, Load},
    nft,
    topology::{CLIENT_V4, CLIENT_V6, Family, NODE_NIC, NODE_V4, NODE_V6, POD_PORT, node_addr},
};

use crate::{
    full::pinned,
    inspect::{attention, status},
    net::{Net, http},
};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
/// Longest wait for the first snapshot: loading the programs is the slow part.
const READY: Duration = Duration::from_secs(30);
/// Port of a TCP service that leads to the same pods.
const SERVICE_PORT: u16 = 5432;
const REWRITE: &[&str] = &["--steer", "rewrite"];
const AUTO: &[&str] = &["--steer", "auto"];

/// A node with `web.test`, and the same behind a TCP service; no proxy yet.
fn build(name: &str) -> Option<Net> {
    let net = Net::build(name)?;
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let rows = format!("{{\"{SERVICE_PORT}\": \"default/web:80\"}}");
    net.write(
        "tcp.yaml",
        &format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: tcp, namespace: default}}\ndata: {rows}\n"),
    );
    Some(net)
}

/// Starts a proxy with these options and waits until it is ready.
fn start(net: &Net, name: &str, admin_port: u16, steering: &[&str]) -> Process {
    let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, admin_port));
    let mut command = Command::new(env!("CARGO_BIN_EXE_xdp-ingress"));
    command.env("NO_COLOR", "1").args(["run", "--workers", "2", "--interface", NODE_NIC]).args(steering);
    command.args(["--tcp-services-configmap", "default/tcp", "--admin-addr", &admin.to_string()]);
    command.arg("--manifests").arg(&net.manifests).arg("--bpffs").arg(&net.bpffs);
    let mut process = net.lab.spawn(&net.topology.node, name, command).expect("the proxy starts");
    let ask = Ask::get("localhost", "/readyz");
    let is_ready = || {
        let answer = net.try_ask(&net.topology.node, admin, &ask);
        answer.is_ok_and(|(answer, _)| answer.status.is_success())
    };
    process.wait_until(READY, "the proxy is ready", is_ready).expect("it becomes ready");
    process
}

/// Adds the rule of a CNI for a pod's `hostPort` 80: connections to the node's port 80 go to pod-c.
fn host_port(net: &Net) {
    let pod = &net.topology.pods[2];
    let chain = "chain prerouting {\n  type nat hook prerouting priority dstnat;\n";
    let rules = format!(
        "table ip nat {{\n {chain}  ip daddr {NODE_V4} tcp dport 80 dnat to {}:{POD_PORT}\n }}\n}}\n\
         table ip6 nat {{\n {chain}  ip6 daddr {NODE_V6} tcp dport 80 dnat to [{}]:{POD_PORT}\n }}\n}}\n",
        pod.v4, pod.v6
    );
    nft::apply(&net.topology.node, &net.lab.home().join("host-port.nft"), &rules).expect("the rules are taken");
}

fn ask(net: &Net, family: Family) -> Answer {
    net.ask(&net.topology.client, http(family), &Ask::get("web.test", "/")).0
}

/// Checks that the proxy answers a client, and knows the client's address and the port it connected to.
#[track_caller]
fn served(net: &Net, family: Family) {
    let answer = ask(net, family);
    assert_eq!(answer.status, 200);
    assert!(matches!(answer.pod(), Some("pod-a" | "pod-b")), "by {family:?}: {:?}", answer.pod());
    let seen = answer.json().expect("the pod answers with JSON");
    let client = match family {
        Family::V4 => CLIENT_V4.to_string(),
        Family::V6 => CLIENT_V6.to_string(),
    };
    assert_eq!(seen["headers"]["x-forwarded-port"], "80", "{family:?}");
    assert_eq!(seen["headers"]["x-forwarded-for"], client.as_str(), "{family:?}");
}

/// Checks that the rule takes the connections of clients.
#[track_caller]
fn taken(net: &Net) {
    for family in FAMILIES {
        assert_eq!(ask(net, family).pod(), Some("pod-c"), "which `web.test` does not use");
    }
}

#[track_caller]
fn large_bodies_pass(net: &Net) {
    const LENGTH: u64 = 3_000_000;
    for family in FAMILIES {
        let (down, _) = net.ask(&net.topology.client, http(family), &Ask::get("web.test", "/bytes/3000000"));
        assert!(down.body.intact() && down.body.received() == LENGTH, "{family:?}: {:?}", down.body);
        let (up, _) = net.ask(&net.topology.client, http(family), &Ask::upload("web.test", "/upload", LENGTH));
        let receipt = up.json().expect("the pod answers with JSON");
        assert_eq!((receipt["received"].as_u64(), receipt["intact"].as_bool()), (Some(LENGTH), Some(true)));
    }
}

#[test]
fn a_host_port_rule_does_not_take_rewritten_connections() {
    let Some(net) = build("rewrite") else { return };
    host_port(&net);
    let mut first = start(&net, "first", 9110, AUTO);
    taken(&net);

    let mut second = start(&net, "second", 9111, REWRITE);
    first.terminate(READY).expect("the first ends");
    let before = net.settled();
    FAMILIES.into_iter().for_each(|family| served(&net, family));
    large_bodies_pass(&net);
    for family in FAMILIES {
        let service = SocketAddr::from((node_addr(family), SERVICE_PORT));
        let (answer, _) = net.ask(&net.topology.client, service, &Ask::get("web.test", "/"));
        assert!(matches!(answer.pod(), Some("pod-a" | "pod-b")), "a TCP service by {family:?}");
        // The rule applies to incoming packets only.
        assert_eq!(net.ask(&net.topology.node, http(family), &Ask::get("web.test", "/")).0.status, 200);
    }
    let after = net.settled();
    let grown = |total: Total| after.total(total).packets - before.total(total).packets;
    assert!(grown(Total::LookupDecided) >= 8, "{:?}", after.totals);
    assert!(grown(Total::LookupDefault) >= 2, "node-local: {:?}", after.totals);
    assert_eq!(grown(Total::Undecided), 0, "what XDP notes is found: {:?}", after.totals);
    let web = (before.hosts["web.test"], after.hosts["web.test"]);
    assert_eq!(web.1.l7.requests.success - web.0.l7.requests.success, 8);
    // Except for the packets before a request is read.
    assert!(web.1.net.rx_bytes - web.0.net.rx_bytes >= 5_000_000, "packets count for their host: {web:?}");
    assert!(web.1.net.tx_bytes - web.0.net.tx_bytes >= 6_000_000, "and so do those that are sent: {web:?}");

    let state = status(&net);
    assert_eq!(state["ports"][0]["port"], 80);
    assert_eq!(state["ports"][0]["rewritten_to"], 10_080);
    assert_eq!(attention(&net), "");

    let _third = start(&net, "third", 9110, AUTO);
    second.terminate(READY).expect("the second ends");
    taken(&net);
    assert_eq!(status(&net)["ports"][0]["rewritten_to"], serde_json::Value::Null);
}

#[test]
fn the_rewritten_port_refuses_connections() {
    let Some(net) = build("rewritten-port") else { return };
    let _proxy = start(&net, "first", 9110, REWRITE);
    let before = net.settled();
    for family in FAMILIES {
        let other = SocketAddr::from((node_addr(family), 10_080));
        let connected =
            net.topology.client.run(|| Ok(TcpStream::connect_timeout(&other, Duration::from_secs(1)).is_ok()));
        assert!(!connected.expect("tried"), "{family:?}");
    }
    let after = net.settled();
    assert!(after.total(Total::RewrittenPort).packets >= before.total(Total::RewrittenPort).packets + 2);
    assert_eq!(after.total(Total::Accepted), before.total(Total::Accepted));
    // Pods and the node itself are served as before, because their interfaces have no programs.
    for family in FAMILIES {
        served(&net, family);
        for from in [&net.topology.node, &net.topology.pods[0].namespace] {
            assert_eq!(net.ask(from, http(family), &Ask::get("web.test", "/")).0.status, 200, "{}", from.name());
        }
    }
}

#[test]
fn tcx_and_generic_xdp_rewrite_ports() {
    for (name, mode) in [("rewrite-tcx", "tcx"), ("rewrite-generic", "generic")] {
        let Some(net) = build(name) else { return };
        host_port(&net);
        let _proxy = start(&net, "first", 9110, &[REWRITE, &["--xdp-mode", mode]].concat());
        FAMILIES.into_iter().for_each(|family| served(&net, family));
        large_bodies_pass(&net);
        net.settled();
    }
}

#[test]
fn an_interface_without_an_egress_program_is_not_rewritten() {
    let Some(net) = build("one-way") else { return };
    let in_its_way = net.bpffs.join(map::LAYOUT).join("links").join(format!("tc-out-{NODE_NIC}"));
    fs::create_dir_all(&in_its_way).expect("a directory in its way");
    let proxy = start(&net, "first", 9110, REWRITE);
    FAMILIES.into_iter().for_each(|family| served(&net, family));
    let nics: Vec<Nic> = pinned::<u32, Nic>(&net, map::NICS).iter().map(|nic| nic.expect("read").1).collect();
    assert_eq!(nics, [Nic { mode: NIC_NATIVE, flags: 0 }], "what `status` says of it follows from that");
    assert!(proxy.log().contains("`--steer rewrite` does nothing for received ones"), "{}", proxy.log_tail(20));
    fs::remove_dir(in_its_way).expect("nothing is in its way");
}

#[test]
fn updates_of_rewriting_processes_fail_no_request() {
    let Some(net) = build("rewrite-overlap") else { return };
    host_port(&net);
    let mut old = start(&net, "first", 9110, REWRITE);
    let load = |connections| {
        let ask = Ask::get("web.test", "/");
        Load::start(&net.topology.client, http(Family::V4), ask, 2, connections).expect("load starts")
    };
    let loads = [load(Connections::New), load(Connections::Kept)];
    for (name, admin_port) in [("second", 9111), ("third", 9110)] {
        let new = start(&net, name, admin_port, REWRITE);
        loads.iter().for_each(|load| load.pass(100).expect("the new process answers"));
        old.terminate(Duration::from_secs(40)).expect("the old one drains and ends");
        loads.iter().for_each(|load| load.pass(100).expect("and goes on"));
        old = new;
    }
    for load in loads {
        let report = load.stop().expect("load ends");
        assert_eq!(report.failed, 0, "{:?}", report.reasons);
    }
    net.settled();
}
