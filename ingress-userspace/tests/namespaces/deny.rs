//! The deny list on real links: clients in `block-cidrs` get no answer of any kind on any port, and get one again as
//! soon as they leave the list. A trusted proxy is left to the proxy to judge.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    process::Command,
    time::Duration,
};

use ingress_common::{Total, map::DENY_MAX};
use ingress_lab::{
    Process,
    topology::{CLIENT_V4, CLIENT_V6, Family, node_addr},
    until, until_within,
};
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use crate::{
    inspect::attention,
    net::{Net, http},
    udp_services,
};

/// Longest wait for the first snapshot: loading the programs is the slow part.
const READY: Duration = Duration::from_secs(30);
/// Longest wait for an expected event.
const PATIENCE: Duration = Duration::from_secs(10);

/// Further addresses of the client.
pub(crate) const BLOCKED_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 3);
pub(crate) const BLOCKED_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 3);

/// For each family: an address that is not blocked, and one that is.
pub(crate) const CLIENTS: [(Family, IpAddr, IpAddr); 2] = [
    (Family::V4, IpAddr::V4(CLIENT_V4), IpAddr::V4(BLOCKED_V4)),
    (Family::V6, IpAddr::V6(CLIENT_V6), IpAddr::V6(BLOCKED_V6)),
];

/// Log line of the process for a change of the kernel's list.
const CHANGED: &str = "the node's deny list changed";

const BLOCK: &str = "block-cidrs: \"192.0.2.3, 2001:db8:1::3\"";
pub(crate) const TRUST: &str = "use-forwarded-headers: \"true\", proxy-real-ip-cidr: \"192.0.2.0/24, 2001:db8:1::/64\"";

/// A request with an answer that ends with the head.
const HEAD: &[u8] = b"HEAD / HTTP/1.1\r\nhost: web.test\r\n\r\n";

pub(crate) fn settings(net: &Net, rows: &[&str]) {
    let rows = rows.join(", ");
    net.write(
        "settings.yaml",
        &format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: default}}\ndata: {{{rows}}}\n"
        ),
    );
}

/// Starts a proxy that serves `web.test` and a UDP service on port 53, with these settings.
pub(crate) fn serving(name: &str, rows: &[&str]) -> Option<(Net, Process)> {
    serving_more(name, rows, |_| (), &[])
}

/// The same with further objects, which `write` writes, and further arguments.
pub(crate) fn serving_more(
    name: &str,
    rows: &[&str],
    write: impl FnOnce(&Net),
    arguments: &[&str],
) -> Option<(Net, Process)> {
    let net = Net::build(name)?;
    let addresses = format!("addr add {BLOCKED_V4}/24 dev eth0\naddr add {BLOCKED_V6}/64 dev eth0 nodad");
    net.topology.client.ip(&addresses).expect("more addresses");
    net.write("web.yaml", &net.site("web", &[0, 1]));
    for pod in &net.topology.pods {
        udp_services::echo(&pod.namespace, pod.name);
    }
    udp_services::manifests(&net, &[53]);
    settings(&net, rows);
    write(&net);
    let mut command = net.options("first", 9110).command();
    command.args(["--configmap", "default/settings", "--udp-services-configmap", "default/udp"]).args(arguments);
    let mut process = net.lab.spawn(&net.topology.node, "first", command).expect("the proxy starts");
    let is_ready = || net.admin("/readyz").is_ok_and(|answer| answer.status.is_success());
    process.wait_until(READY, "the proxy is ready", is_ready).expect("it becomes ready");
    process.wait_for_log("UDP port open", 1).expect("the port is open");
    Some((net, process))
}

pub(crate) fn socket(net: &Net, from: IpAddr, kind: Type) -> Socket {
    let from = SocketAddr::new(from, 0);
    let open = || -> anyhow::Result<Socket> {
        let socket = Socket::new(Domain::for_address(from), kind, None)?;
        socket.bind(&from.into())?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(socket)
    };
    net.topology.client.run(open).expect("a socket of the client")
}

pub(crate) fn connect(net: &Net, from: IpAddr, family: Family) -> anyhow::Result<TcpStream> {
    let socket = socket(net, from, Type::STREAM);
    socket.connect_timeout(&http(family).into(), PATIENCE)?;
    Ok(socket.into())
}

fn datagrams(net: &Net, from: IpAddr, family: Family) -> UdpSocket {
    let socket: UdpSocket = socket(net, from, Type::DGRAM).into();
    socket.connect((node_addr(family), 53)).expect("connected");
    // A datagram may be lost, and is sent again.
    socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a time");
    socket
}

/// Returns the status of an answer on a connection of its own.
pub(crate) fn get(net: &Net, from: IpAddr, family: Family, fields: &str) -> anyhow::Result<u16> {
    let mut stream = connect(net, from, family)?;
    stream.write_all(format!("GET / HTTP/1.1\r\nhost: web.test\r\nconnection: close\r\n{fields}\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).unwrap_or_default();
    Ok(status.parse()?)
}

/// Returns the packets dropped by the list.
pub(crate) fn denied(net: &Net) -> u64 {
    net.maps().read().expect("maps").total(Total::Denied).packets
}

pub(crate) fn wait_for_drop(net: &Net, before: u64) {
    until("a packet is dropped", || (denied(net) > before).then_some(())).expect("the kernel drops it");
}

/// Runs `xdp-ingress` with these arguments. Returns its output, or an error if it fails.
pub(crate) fn run(net: &Net, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xdp-ingress"));
    let output = command.args(arguments).arg("--bpffs").arg(&net.bpffs).output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// Like [`run`], but must succeed.
#[track_caller]
pub(crate) fn command(net: &Net, arguments: &[&str]) -> String {
    run(net, arguments).unwrap_or_else(|said| panic!("{said}"))
}

#[test]
fn blocked_clients_get_no_response_until_the_list_changes() {
    let Some((net, mut process)) = serving("deny", &[BLOCK]) else { return };
    process.wait_for_log(CHANGED, 1).expect("it changes");

    for (family, client, blocked) in CLIENTS {
        until("a datagram is answered", || udp_services::ask(&datagrams(&net, client, family), "x"))
            .expect("others are served");
        let before = denied(&net);
        let shut_out = datagrams(&net, blocked, family);
        shut_out.send(b"x").expect("sent");
        wait_for_drop(&net, before);
        assert_eq!(denied(&net), before + 1, "the datagram and nothing else");
        shut_out.set_nonblocking(true).expect("non-blocking");
        assert!(shut_out.recv(&mut [0; 64]).is_err(), "no answer, and no word that there is none");
    }
    for (family, client, blocked) in CLIENTS {
        assert_eq!(get(&net, client, family, "").expect("an answer"), 200);
        let before = denied(&net);
        let shut_out = socket(&net, blocked, Type::STREAM);
        shut_out.set_nonblocking(true).expect("non-blocking");
        assert!(shut_out.connect(&http(family).into()).is_err(), "in progress");
        wait_for_drop(&net, before);
        // The connection is neither accepted nor refused.
        assert!(shut_out.peer_addr().is_err());
        assert!(shut_out.take_error().expect("readable").is_none());
        assert_eq!(get(&net, client, family, "").expect("an answer"), 200);
    }
    let counts = net.settled();
    assert_eq!(counts.received(), counts.total(Total::Accepted), "what is dropped is no host's");

    let list: Value = serde_json::from_str(&command(&net, &["deny", "list", "--output", "json"])).expect("JSON");
    let dropped: Vec<_> =
        list.as_array().expect("a list").iter().map(|row| (&row["prefix"], &row["packets"])).collect();
    let [(v4, v4_packets), (v6, v6_packets)] = dropped[..] else { panic!("two rules: {list}") };
    assert_eq!((v4, v6), (&Value::from("192.0.2.3/32"), &Value::from("2001:db8:1::3/128")));
    // A datagram, and a SYN that may have been sent again.
    assert!(v4_packets.as_u64() >= Some(2) && v6_packets.as_u64() >= Some(2), "{list}");
    assert!(command(&net, &["deny", "test", "192.0.2.3"]).starts_with("denied by 192.0.2.3/32 (rule "));
    assert!(command(&net, &["deny", "test", "192.0.2.2"]).starts_with("passes"));
    assert!(command(&net, &["deny", "list"]).contains("192.0.2.3/32"));
    let before = denied(&net);
    let [state, hosts] = [&["status"][..], &["top", "--once"]].map(|which| -> Value {
        serde_json::from_str(&command(&net, &[which, &["--output", "json"]].concat())).expect("JSON")
    });
    for shown in [&state, &hosts] {
        let packets = shown["totals"]["denied"]["packets"].as_u64().expect("a count");
        assert!((before..=denied(&net)).contains(&packets), "{shown}");
    }
    for map in ["deny4", "deny6"] {
        let fill = json!({ "map": map, "entries": 1, "capacity": DENY_MAX });
        assert!(state["maps"].as_array().is_some_and(|maps| maps.contains(&fill)), "{state}");
    }
    let shown = net.admin("/denied").and_then(|answer| answer.json()).expect("JSON");
    assert_eq!(shown["rules"][0]["rule"], "192.0.2.3/32");

    // A trusted proxy is served, and judged by the client it forwards.
    settings(&net, &[BLOCK, TRUST]);
    process.wait_for_log(CHANGED, 2).expect("it changes");
    for (family, _, blocked) in CLIENTS {
        assert_eq!(get(&net, blocked, family, "").expect("an answer"), 403);
        assert_eq!(get(&net, blocked, family, "x-forwarded-for: 198.51.100.9\r\n").expect("an answer"), 200);
        assert_eq!(get(&net, blocked, family, "x-forwarded-for: 192.0.2.3\r\n").expect("an answer"), 403);
    }

    settings(&net, &[]);
    let mut open = Vec::new();
    for (family, _, blocked) in CLIENTS {
        let serves = || (get(&net, blocked, family, "").ok()? == 200).then_some(());
        until("the list is taken back", serves).expect("served again");
        until("a datagram is answered", || udp_services::ask(&datagrams(&net, blocked, family), "x"))
            .expect("served again");
        let mut stream = connect(&net, blocked, family).expect("connected");
        stream.write_all(HEAD).expect("sent");
        let (mut head, mut byte) = (Vec::new(), [0; 1]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).expect("an answer");
            head.extend(byte);
        }
        assert!(head.starts_with(b"HTTP/1.1 200"));
        open.push(stream);
    }
    assert_eq!(command(&net, &["deny", "list", "--output", "json"]), "[]\n");

    // The list applies to connections that are older than it, too.
    settings(&net, &[BLOCK]);
    process.wait_for_log(CHANGED, 3).expect("it changes");
    for stream in &mut open {
        let before = denied(&net);
        stream.write_all(HEAD).expect("sent");
        wait_for_drop(&net, before);
        stream.set_nonblocking(true).expect("non-blocking");
        let silence = stream.read(&mut [0; 64]).expect_err("no answer");
        assert_eq!(silence.kind(), std::io::ErrorKind::WouldBlock);
    }
}

#[test]
fn clients_beyond_the_deny_list_are_refused_by_the_proxy() {
    let Some((net, mut process)) = serving("deny-full", &[]) else { return };
    // Every other address, because neighbours would merge into one network; all of them sort before the client.
    let filler: String = (0..DENY_MAX).map(|n| format!("a::{:x}:{:x} ", n >> 15, (n & 0x7fff) * 2)).collect();
    let full = format!("block-cidrs: \"{filler}192.0.2.3 2001:db8:1::3\"");
    settings(&net, &[full.as_str()]);
    let is_told = || {
        let log = process.log();
        log.lines().find(|line| line.contains("than the kernel part has room for")).map(str::to_owned)
    };
    let said = until_within(READY, "a full list", is_told)
        .unwrap_or_else(|error| panic!("{error:#}\n{}", process.log_tail(20)));
    assert!(said.contains("left_out=1") && said.contains("merge or remove networks"), "{said}");
    let said = attention(&net);
    let words = "map `deny6` is 100 % full: the proxy, not XDP, refuses further denied networks";
    assert!(said.contains(words) && said.contains("name larger networks in `block-cidrs`"), "{said}");

    let [(_, client_v4, dropped), (_, client_v6, left_out)] = CLIENTS;
    assert_eq!(get(&net, left_out, Family::V6, "").expect("an answer of the proxy"), 403);
    until("a datagram is answered", || udp_services::ask(&datagrams(&net, left_out, Family::V6), "x"))
        .expect("services of UDP serve all that the kernel lets in");
    assert_eq!(get(&net, client_v4, Family::V4, "").expect("an answer"), 200);
    assert_eq!(get(&net, client_v6, Family::V6, "").expect("an answer"), 200);
    let is_shut_out = |from, family| {
        let before = denied(&net);
        let shut_out = socket(&net, from, Type::STREAM);
        shut_out.set_nonblocking(true).expect("non-blocking");
        assert!(shut_out.connect(&http(family).into()).is_err(), "in progress");
        wait_for_drop(&net, before);
        assert!(shut_out.peer_addr().is_err());
    };
    is_shut_out(dropped, Family::V4);

    settings(&net, &[BLOCK]);
    process.wait_for_log(CHANGED, 2).expect("it changes");
    is_shut_out(left_out, Family::V6);
    assert_eq!(attention(&net), "");
}
