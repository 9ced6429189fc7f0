//! Planned moves of addresses between two nodes: no connection is cut when a node is drained, and none when it comes back.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpStream},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use ingress_common::Total;
use ingress_lab::{
    Namespace,
    client::{Ask, Protocol, Trust},
    controller::XdpMode,
    credentials::Authority,
    load::{Clients, Connections, Load, Report, Target},
    until, until_within,
};
use nix::sys::signal::Signal;

use crate::{
    gateway_addresses::{Node, WITH_POOL, all_are_served, polls, pool, second_node, shared, shown},
    net::{Net, ingress},
};

/// Number of connections to open, if not [`CONNECTIONS`].
const COUNT: &str = "XDP_INGRESS_CONNECTIONS";
const CONNECTIONS: usize = 100;
/// Pause of a client between two requests: so many clients share two CPUs with both nodes.
const PAUSE: Duration = Duration::from_millis(50);
/// Size of a download, and its time at the pace of [`download`].
const DOWNLOAD: usize = 100_000_000;
const TAKES: Duration = Duration::from_secs(10);
/// Silence of a node after which nothing is forwarded to it.
const SILENCE: Duration = Duration::from_secs(1);
/// Longest wait for a step.
const LIMIT: Duration = Duration::from_secs(60);

/// A site with and without TLS.
fn site(net: &Net) -> Trust {
    let authority = Authority::generate().expect("an authority");
    let secret = authority.secret("default", "web", &["web.test"]).expect("a certificate");
    let tls = format!("{}  tls: [{{hosts: [web.test], secretName: web}}]\n", ingress("web", "web.test", "web"))
        .replace(
            "namespace: default}",
            "namespace: default, annotations: {nginx.ingress.kubernetes.io/ssl-redirect: 'false'}}",
        );
    let site = net.site("web", &[0, 1]);
    let rest = site.split_once("---\n").expect("several documents").1;
    net.write("web.yaml", &format!("{tls}---\n{secret}---\n{rest}"));
    authority.trust().expect("a usable authority")
}

/// Downloads slowly, so that the node with the connection leaves meanwhile.
fn download(client: &Namespace, to: SocketAddr) -> JoinHandle<anyhow::Result<usize>> {
    let work = move || {
        let mut stream = TcpStream::connect(to)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let request = format!("GET /bytes/{DOWNLOAD} HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let (mut buffer, mut count, began) = (vec![0; 1 << 18], 0, Instant::now());
        loop {
            let read = stream.read(&mut buffer).with_context(|| format!("after {count} bytes"))?;
            if read == 0 {
                return Ok(count);
            }
            count += read;
            let due = TAKES.mul_f64(count as f64 / DOWNLOAD as f64);
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
    };
    client.thread("download", work).expect("starts")
}

fn loads(net: &Net, addresses: &[IpAddr], trust: &Trust) -> Vec<(String, Load)> {
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
    let start = |(name, target, connections): (String, Target, Connections)| {
        let ask = Ask::get("web.test", "/");
        let clients = Clients { target, ask, count: each, from: Vec::new(), connections, pause: PAUSE };
        let load = Load::of(&net.topology.client, clients).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        (name, load)
    };
    kinds.into_iter().map(start).collect()
}

#[track_caller]
fn go_on(loads: &[(String, Load)]) {
    for (name, load) in loads {
        let goal = load.answered() + 100;
        until_within(LIMIT, "the load to go on", || (load.answered() >= goal).then_some(()))
            .unwrap_or_else(|error| panic!("{name}: {error:#}"));
    }
}

fn is_whole(download: JoinHandle<anyhow::Result<usize>>) -> anyhow::Result<()> {
    let count = download.join().expect("no panic")?;
    ensure!(count > DOWNLOAD, "{count} bytes");
    Ok(())
}

fn cuts_no_connection(name: &str, mode: XdpMode) {
    let Some(net) = Net::build(name) else { return };
    let trust = site(&net);
    let namespace = second_node(&net);
    let _router = polls(&net, &["eth1", "eth2"]);
    let nodes =
        [Node::of(&net), Node { namespace: &namespace, bpffs: net.lab.bpffs().expect("mounted").join("node2") }];
    let forwarding = [&WITH_POOL[..], &["--gateway-address-forwarding"]].concat();
    let start = |index: usize, name| nodes[index].start(&net, name, mode, 9110, &forwarding);
    let mut processes = [start(0, "first"), start(1, "second")];
    let announced = until("a choice", || shared(&nodes)).expect("both hear of each other");
    all_are_served(&net);
    let addresses: Vec<IpAddr> = announced[0].iter().map(|address| address.parse().expect("an address")).collect();
    assert!(addresses.iter().any(IpAddr::is_ipv4) && addresses.iter().any(IpAddr::is_ipv6), "{addresses:?}");
    let loads = loads(&net, &addresses, &trust);
    let downloads = || -> Vec<_> {
        addresses.iter().map(|address| download(&net.topology.client, (*address, 80).into())).collect()
    };
    let of_first = downloads();
    go_on(&loads);

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
    processes[0] = start(0, "third");
    assert_eq!(until("the same choice", || shared(&nodes)).expect("both hear of each other"), announced);
    go_on(&loads);
    for download in of_second {
        is_whole(download).unwrap_or_else(|error| panic!("a download from the other node: {error:#}"));
    }
    go_on(&loads);
    let returned = nodes[0].total(Total::Forwarded);

    let mut total = Report::default();
    for (name, load) in loads {
        let report = load.stop().expect("load ends");
        println!("{name}: {} answered, {} failed", report.answered, report.failed);
        total.answered += report.answered;
        total.failed += report.failed;
        total.reasons.extend(report.reasons);
    }
    println!(
        "{mode:?}: {} requests and messages while a node was drained and came back, {} failed; {forwarded} and {returned} \
         packets forwarded",
        total.answered, total.failed
    );
    assert_eq!(total.failed, 0, "{:?} {}", total.reasons, shown(&net.topology.router, "neigh show"));
    assert!(forwarded > 0 && returned > 0, "{forwarded} and {returned} packets forwarded");
}

#[test]
fn a_planned_move_cuts_no_connection_with_generic_xdp() {
    cuts_no_connection("gm-generic", XdpMode::Generic);
}

#[test]
fn a_planned_move_cuts_no_connection_with_tc() {
    cuts_no_connection("gm-tc", XdpMode::Tcx);
}
