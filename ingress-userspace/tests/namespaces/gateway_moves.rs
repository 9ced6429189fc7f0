//! Planned moves of addresses between two nodes: no connection is cut when a node is drained, and none when it comes back or
//! starts meanwhile, or the other one is drained, too. Nodes with a key trust only each other.
//! `XDP_INGRESS_CONNECTIONS=1000` opens more connections.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use ingress_common::Total;
use ingress_lab::{
    Namespace, Process,
    client::{Ask, Protocol, Trust},
    controller::{XdpMode, get},
    credentials::Authority,
    load::{Clients, Connections, Load, Target},
    until, until_within,
};
use nix::sys::signal::Signal;
use socket2::{Domain, Socket, Type};

use crate::{
    gateway_addresses::{Node, WITH_POOL, all_are_served, attach_at_router, pool, second_node, shared, shown},
    net::{Net, stop_all},
    offload::fill_in_checksums,
};

/// Keys of nodes.
const KEYS: [&str; 2] = ["0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"];
/// Number of connections to open, if not [`CONNECTIONS`].
const COUNT: &str = "XDP_INGRESS_CONNECTIONS";
const CONNECTIONS: usize = 100;
/// Pause of each of [`CONNECTIONS`] clients between two requests, since they share two CPUs with both nodes. It grows with
/// their number.
const PAUSE: Duration = Duration::from_millis(50);
/// Size of a download, and its time at the pace of [`download`].
const DOWNLOAD: usize = 100_000_000;
const TAKES: Duration = Duration::from_secs(10);
/// Time of a download during which another node starts.
const TAKES_LONG: Duration = Duration::from_secs(25);
/// Silence of a node after which nothing is forwarded to it.
const SILENCE: Duration = Duration::from_secs(1);
/// Port of clients that connect again from the port of an ended connection. The kernel gives it to nobody by itself.
const REUSED_PORT: u16 = 20_000;
/// Longest wait for an answer to such a client.
const ANSWER: Duration = Duration::from_secs(30);
/// Longest wait for a step.
const LIMIT: Duration = Duration::from_secs(60);

/// A site with and without TLS.
fn site(net: &Net) -> Trust {
    let authority = Authority::generate().expect("an authority");
    let secret = authority.secret("default", "web", &["web.test"]).expect("a certificate");
    net.write_tls_site(&[0, 1], &secret);
    authority.trust().expect("a usable authority")
}

/// Downloads slowly, so that the node with the connection leaves meanwhile. Fails unless all of it arrives.
fn download(client: &Namespace, to: SocketAddr, size: usize, takes: Duration) -> JoinHandle<anyhow::Result<()>> {
    let work = move || {
        let mut stream = TcpStream::connect(to)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let request = format!("GET /bytes/{size} HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let (mut buffer, mut count, began) = (vec![0; 1 << 18], 0, Instant::now());
        loop {
            let read = stream.read(&mut buffer).with_context(|| format!("after {count} bytes"))?;
            if read == 0 {
                ensure!(count > size, "{count} bytes");
                return Ok(());
            }
            count += read;
            let due = takes.mul_f64(count as f64 / size as f64);
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
    };
    client.thread("download", work).expect("starts")
}

/// Opens a connection from [`REUSED_PORT`].
fn connect_again(client: &Namespace, to: SocketAddr) -> anyhow::Result<TcpStream> {
    let from: SocketAddr = if to.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, REUSED_PORT).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, REUSED_PORT).into()
    };
    client.run(move || {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        if to.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        // The end of the connection before may still be on its way.
        socket.set_reuse_address(true)?;
        socket.bind(&from.into())?;
        socket.connect(&to.into())?;
        socket.set_read_timeout(Some(ANSWER))?;
        Ok(socket.into())
    })
}

/// Asks on a connection, and reads the response.
fn ask(stream: &mut TcpStream, connection: &str) -> anyhow::Result<()> {
    const BODY: usize = 9;
    write!(stream, "GET /bytes/{BODY} HTTP/1.1\r\nHost: web.test\r\nConnection: {connection}\r\n\r\n")?;
    let (mut response, mut buffer) = (Vec::new(), [0; 1024]);
    let end = b"\r\n\r\n";
    while response
        .windows(end.len())
        .position(|bytes| bytes == end)
        .is_none_or(|at| response.len() < at + end.len() + BODY)
    {
        let read = stream.read(&mut buffer).with_context(|| format!("after `{}`", response.escape_ascii()))?;
        ensure!(read > 0, "the response ends with `{}`", response.escape_ascii());
        response.extend_from_slice(&buffer[..read]);
    }
    ensure!(response.starts_with(b"HTTP/1.1 200"), "{}", response.escape_ascii());
    Ok(())
}

/// Asks for a download, and reads nothing of it: the node with the connection drains as long as it is open.
fn hold(client: &Namespace, to: SocketAddr) -> anyhow::Result<TcpStream> {
    client.run(move || {
        let mut stream = TcpStream::connect(to)?;
        write!(stream, "GET /bytes/{DOWNLOAD} HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n")?;
        Ok(stream)
    })
}

/// Starts the load. Returns the number of its connections, too.
fn loads(net: &Net, addresses: &[IpAddr], trust: &Trust) -> (usize, Vec<(String, Load)>) {
    let count = std::env::var(COUNT).map_or(CONNECTIONS, |count| count.parse().expect("a number"));
    let mut kinds = Vec::new();
    for address in addresses {
        let of = |port, protocol| Target { addr: (*address, port).into(), protocol, trust: trust.clone() };
        kinds.extend([
            (format!("kept, {address}"), of(80, Protocol::Http1), Connections::Kept),
            (format!("new, {address}"), of(80, Protocol::Http1), Connections::New),
            (format!("WebSockets, {address}"), of(80, Protocol::Http1), Connections::WebSockets),
            (format!("TLS, {address}"), of(443, Protocol::Https1), Connections::Kept),
        ]);
    }
    let each = count.div_ceil(kinds.len());
    let pause = PAUSE.mul_f64((count as f64 / CONNECTIONS as f64).max(1.0));
    let start = |(name, target, connections): (String, Target, Connections)| {
        let ask = Ask::get("web.test", "/");
        let clients = Clients { target, ask, count: each, from: Vec::new(), connections, pause };
        let load = Load::of(&net.topology.client, clients).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        (name, load)
    };
    (each * kinds.len(), kinds.into_iter().map(start).collect())
}

#[track_caller]
fn go_on(loads: &[(String, Load)]) {
    for (name, load) in loads {
        let goal = load.answered() + 100;
        until_within(LIMIT, "the load to go on", || (load.answered() >= goal).then_some(()))
            .unwrap_or_else(|error| panic!("{name}: {error:#}"));
    }
}

fn is_whole(download: JoinHandle<anyhow::Result<()>>) -> anyhow::Result<()> {
    download.join().expect("no panic")
}

fn cuts_no_connection(name: &str, mode: XdpMode) {
    let Some(net) = Net::build(name) else { return };
    let trust = site(&net);
    let namespace = second_node(&net);
    let _router = attach_at_router(&net, &["eth1", "eth2"]);
    if mode == XdpMode::Native {
        // What leaves by `XDP_TX` has the checksum with which it arrived.
        for interface in ["eth1", "eth2"] {
            fill_in_checksums(&net.topology.router, interface).unwrap_or_else(|error| panic!("{error:#}"));
        }
    }
    let nodes =
        [Node::of(&net), Node { namespace: &namespace, bpffs: net.lab.bpffs().expect("mounted").join("node2") }];
    let forwarding = [&WITH_POOL[..], &["--gateway-address-forwarding"]].concat();
    let start = |index: usize, name| nodes[index].start(&net, name, mode, 9110, &forwarding);
    let mut processes = [start(0, "first"), start(1, "second")];
    let announced = until("a choice", || shared(&nodes)).expect("both hear of each other");
    all_are_served(&net);
    let addresses: Vec<IpAddr> = announced[0].iter().map(|address| address.parse().expect("an address")).collect();
    assert!(addresses.iter().any(IpAddr::is_ipv4) && addresses.iter().any(IpAddr::is_ipv6), "{addresses:?}");
    let (connections, loads) = loads(&net, &addresses, &trust);
    let downloads = || -> Vec<_> {
        addresses.iter().map(|address| download(&net.topology.client, (*address, 80).into(), DOWNLOAD, TAKES)).collect()
    };
    let of_first = downloads();
    let again = |address: &IpAddr| {
        connect_again(&net.topology.client, (*address, 80).into())
            .unwrap_or_else(|error| panic!("{address}: {error:#}"))
    };
    go_on(&loads);
    // The node ends these connections first, so it keeps them in the state TIME_WAIT, and the clients keep nothing.
    for address in &addresses {
        let mut stream = again(address);
        ask(&mut stream, "close").unwrap_or_else(|error| panic!("{address}: {error:#}"));
        assert_eq!(stream.read(&mut [0]).expect("its end"), 0);
    }

    // The first node is drained: the other one takes the addresses, and sends it what it still has.
    processes[0].signal(Signal::SIGTERM).expect("asked to end");
    nodes[1].announces(&pool());
    go_on(&loads);
    until_within(LIMIT, "its end", || processes[0].exited()).expect("its connections end");
    until_within(2 * SILENCE, "the end of the moves", || (!nodes[1].has_moves()).then_some(())).expect("it is silent");
    let forwarded = nodes[1].total(Total::Forwarded);
    for download in of_first {
        is_whole(download).unwrap_or_else(|error| panic!("a download from the drained node: {error:#}"));
    }
    go_on(&loads);
    assert_eq!(nodes[1].total(Total::Forwarded), forwarded, "packets are forwarded to the ended process");

    // It comes back: the other one keeps its connections, and gets their packets from it.
    let of_second = downloads();
    let mut reused: Vec<_> = addresses.iter().map(again).collect();
    let mut ask_again = || {
        for (stream, address) in reused.iter_mut().zip(&addresses) {
            ask(stream, "keep-alive")
                .unwrap_or_else(|error| panic!("{address} from the port of an ended connection: {error:#}"));
        }
    };
    ask_again();
    processes[0] = start(0, "third");
    assert_eq!(until("the same choice", || shared(&nodes)).expect("both hear of each other"), announced);
    go_on(&loads);
    ask_again();
    for download in of_second {
        is_whole(download).unwrap_or_else(|error| panic!("a download from the other node: {error:#}"));
    }
    go_on(&loads);
    let returned = nodes[0].total(Total::Forwarded);

    let total = stop_all(loads);
    println!(
        "{mode:?}, {connections} connections: {} requests and messages while a node was drained and came back, {} failed; {forwarded} and {returned} \
         packets forwarded",
        total.answered, total.failed
    );
    assert_eq!(total.failed, 0, "{:?} {}", total.reasons, shown(&net.topology.router, "neigh show"));
    assert!(forwarded > 0 && returned > 0, "{forwarded} and {returned} packets forwarded");
}

fn downloads_outlast_the_only_node(name: &str, mode: XdpMode) {
    let Some(net) = Net::build(name) else { return };
    let _trust = site(&net);
    let namespace = second_node(&net);
    let _router = attach_at_router(&net, &["eth1", "eth2"]);
    let nodes =
        [Node::of(&net), Node { namespace: &namespace, bpffs: net.lab.bpffs().expect("mounted").join("node2") }];
    let forwarding = [&WITH_POOL[..], &["--gateway-address-forwarding"]].concat();
    let mut first = nodes[0].start(&net, "first", mode, 9110, &forwarding);
    nodes[0].announces(&pool());
    all_are_served(&net);
    let connections = || nodes[0].total(Total::Accepted);
    let before = connections();
    let of_first = ["203.0.113.81", "2001:db8:3::81"].map(|address| {
        let address: IpAddr = address.parse().expect("an address");
        download(&net.topology.client, (address, 80).into(), DOWNLOAD, TAKES_LONG)
    });
    until("the downloads", || (connections() > before + 200).then_some(())).expect("they begin");

    // It drains alone, and announces until another node has started.
    first.signal(Signal::SIGTERM).expect("asked to end");
    first.wait_for_log("draining", 1).expect("it drains");
    assert_eq!(nodes[0].held().0, pool());
    let _second = nodes[1].start(&net, "second", mode, 9111, &forwarding);
    nodes[1].announces(&pool());
    assert!(of_first.iter().all(|download| !download.is_finished()), "the other node started too late for this test");
    nodes[0].announces(&BTreeSet::new());
    all_are_served(&net);
    let ended = of_first.map(is_whole);
    until_within(LIMIT, "its end", || first.exited()).expect("its connections end");
    for download in ended {
        download.unwrap_or_else(|error| panic!("a download from the drained node: {error:#}"));
    }
    let forwarded = nodes[1].total(Total::Forwarded);
    assert!(forwarded > 0, "nothing was forwarded");
}

/// The second node sends no hellos while it drains as the last one. It announces and forwards nevertheless, and the first one
/// is to hear it also with a key that is changed meanwhile.
#[test]
fn downloads_from_a_drained_node_end_whole_if_the_next_one_drains_too() {
    let Some(net) = Net::build("gm-both") else { return };
    let _trust = site(&net);
    let namespace = second_node(&net);
    let _router = attach_at_router(&net, &["eth1", "eth2"]);
    let nodes =
        [Node::of(&net), Node { namespace: &namespace, bpffs: net.lab.bpffs().expect("mounted").join("node2") }];
    let file = net.lab.home().join("keys");
    fs::write(&file, KEYS[0]).expect("written");
    let path = file.display().to_string();
    let keyed = ["--gateway-address-forwarding", "--gateway-address-key-file", &path];
    let flags = [&WITH_POOL[..], &keyed].concat();
    let start = |index: usize, name| nodes[index].start(&net, name, XdpMode::Generic, 9110, &flags);
    let [mut first, mut second] = [start(0, "first"), start(1, "second")];
    let announced = until("a choice", || shared(&nodes)).expect("both hear of each other");
    all_are_served(&net);
    let accepted = |index: usize| nodes[index].total(Total::Accepted);
    let before = accepted(0);
    let at = |address: &String| (address.parse::<IpAddr>().expect("an address"), 80).into();
    let of_first: Vec<_> =
        announced[0].iter().map(|address| download(&net.topology.client, at(address), DOWNLOAD, TAKES_LONG)).collect();
    until("the downloads", || (accepted(0) > before + 200).then_some(())).expect("they begin");

    first.signal(Signal::SIGTERM).expect("asked to end");
    nodes[1].announces(&pool());
    all_are_served(&net);
    let held = announced[1].first().map(at).expect("its own share");
    let held = hold(&net.topology.client, held).expect("connected");
    second.signal(Signal::SIGTERM).expect("asked to end");
    second.wait_for_log("draining", 1).expect("it drains");
    fs::write(&file, KEYS.join("\n")).expect("written");
    assert!(of_first.iter().all(|download| !download.is_finished()), "the other node drains too late for this test");
    for download in of_first {
        is_whole(download).unwrap_or_else(|error| panic!("a download from the node that was drained first: {error:#}"));
    }
    assert!(second.exited().is_none(), "the other node ended too early for this test");
    drop(held);
    until_within(LIMIT, "its end", || first.exited()).expect("its connections end");
    assert!(nodes[1].total(Total::Forwarded) > 0, "nothing was forwarded");
    assert!(first.log().contains("keys of `--gateway-address-key-file` changed"), "a draining process reads no key");
}

/// The addresses stay until the kernel has sent all that the process has written, because no other node could answer.
#[test]
fn the_only_node_holds_its_addresses_until_the_last_bytes_are_sent() {
    /// Bytes that a client reads in one and a half seconds: less than the wait for the last bytes, wherever they are.
    const SIZE: usize = 1_500_000;
    let Some(net) = Net::build("gm-last") else { return };
    // What a client has not read yet waits in the kernel of the node.
    net.topology.client.sysctl("ipv4/tcp_rmem", "4096 32768 65536").expect("a small window");
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let node = Node::of(&net);
    let mut process = node.start(&net, "only", XdpMode::Generic, 9110, &WITH_POOL);
    node.announces(&pool());
    all_are_served(&net);
    let accepted = || node.total(Total::Accepted);
    let before = accepted();
    let takes = Duration::from_millis(1_500);
    let downloads = ["203.0.113.81", "2001:db8:3::81"].map(|address| {
        let address: IpAddr = address.parse().expect("an address");
        download(&net.topology.client, (address, 80).into(), SIZE, takes)
    });
    until("the downloads", || (accepted() > before + 20).then_some(())).expect("they begin");
    process.signal(Signal::SIGTERM).expect("asked to end");
    for download in downloads {
        is_whole(download).unwrap_or_else(|error| panic!("{error:#}"));
    }
    until_within(LIMIT, "its end", || process.exited()).expect("its connections end");
}

#[test]
fn downloads_of_the_only_node_end_whole_if_another_one_starts_meanwhile() {
    downloads_outlast_the_only_node("gm-alone", XdpMode::Generic);
}

#[test]
fn a_planned_move_cuts_no_connection_with_generic_xdp() {
    cuts_no_connection("gm-generic", XdpMode::Generic);
}

#[test]
fn a_planned_move_cuts_no_connection_with_native_xdp() {
    cuts_no_connection("gm-native", XdpMode::Native);
}

#[test]
fn a_planned_move_cuts_no_connection_with_tc() {
    cuts_no_connection("gm-tc", XdpMode::Tcx);
}

#[test]
fn nodes_share_addresses_only_with_nodes_that_have_their_key() {
    let Some(net) = Net::build("gm-keys") else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let namespace = second_node(&net);
    let nodes =
        [Node::of(&net), Node { namespace: &namespace, bpffs: net.lab.bpffs().expect("mounted").join("node2") }];
    let files = ["key-1", "key-2"].map(|name| net.lab.home().join(name));
    let write = |index: usize, keys: &[&str]| fs::write(&files[index], keys.join("\n")).expect("written");
    let start = |index: usize, name| {
        write(index, &[KEYS[index]]);
        let file = files[index].display().to_string();
        let flags = [&WITH_POOL[..], &["--gateway-address-key-file", &file]].concat();
        nodes[index].start(&net, name, XdpMode::Generic, 9110, &flags)
    };
    let mut processes = [start(0, "first"), start(1, "second")];
    for process in &mut processes {
        process.wait_for_log("the node has another key", 1).expect("it is told");
    }
    nodes.iter().for_each(|node| node.announces(&pool()));
    let admin = (Ipv4Addr::LOCALHOST, 9110).into();
    let metrics = get(nodes[0].namespace, admin, "/metrics").expect("answered").text;
    let refused = "xdp_ingress_gateway_datagrams_refused_total{reason=\"unknown_key\"} ";
    let count = String::from_utf8(metrics).expect("text");
    let count = count.lines().find_map(|line| line.strip_prefix(refused)?.parse::<u64>().ok());
    assert!(count.is_some_and(|count| count > 0), "{count:?}");

    // Each gets the other's key, too, and later one for both.
    write(0, &KEYS);
    write(1, &[KEYS[1], KEYS[0]]);
    let announced = until_within(LIMIT, "a choice", || shared(&nodes)).expect("both hear of each other");
    write(1, &[KEYS[0]]);
    processes[1].wait_for_log("keys of `--gateway-address-key-file` changed", 2).expect("it is read again");
    write(0, &[KEYS[0]]);
    processes[0].wait_for_log("keys of `--gateway-address-key-file` changed", 2).expect("it is read again");
    assert_eq!(until("the same choice", || shared(&nodes)).expect("both hear of each other"), announced);
    let refusals = |process: &Process| process.log().matches("ignored a datagram").count();
    assert!(processes.iter().all(|process| refusals(process) <= 2), "at most once a minute");
}
