//! HTTP/3 through the whole product: requests, updates and roll-backs while clients change their addresses, crashes, and
//! starts that cannot have the port.

use std::{
    net::UdpSocket,
    process::Command,
    time::{Duration, Instant},
};

use http::StatusCode;
use ingress_common::Total;
use ingress_lab::{
    client::{Ask, Connection, Protocol, Trust, block_on},
    controller::DataPath,
    credentials::Authority,
    maps::Counts,
    nft,
    topology::{Family, node_addr},
    until, until_within,
};
use nix::sys::signal::Signal;

use crate::{
    generation::{Generation, under},
    http3_client::{Client, Failure, MovingLoad, Report},
    net::{Net, http},
};

/// Flags of a process with HTTP/3, and with keys that it shares with its successors.
pub(crate) const FLAGS: [&str; 4] = ["--http3", "on", "--tls-ticket-secret", "default/tickets"];

/// A network that serves `web.test` over TLS; no process runs yet.
pub(crate) fn network(name: &str) -> Option<(Net, Trust)> {
    let net = Net::build(name)?;
    let authority = Authority::generate().expect("an authority");
    let secret = authority.secret("default", "web", &["web.test"]).expect("a secret");
    net.write_tls_site(&[0, 1], &secret);
    let key = "7".repeat(80);
    let tickets =
        "apiVersion: v1\nkind: Secret\nmetadata: {name: tickets, namespace: default}\nstringData:\n  tickets.key: ";
    net.write("tickets.yaml", &format!("{tickets}\"{key}\"\n"));
    Some((net, authority.trust().expect("a usable authority")))
}

/// Starts a process whose sockets for HTTP/3 are open.
pub(crate) fn start(net: &Net, name: &str) -> Generation {
    let mut generation = Generation::start(net, name, &FLAGS);
    generation.process.wait_for_log("HTTP/3 open", 1).expect("the sockets are open");
    generation
}

/// Returns the value of a series of the owner's metrics.
pub(crate) fn metric(net: &Net, series: &str) -> Option<u64> {
    let text = String::from_utf8(net.admin("/metrics").ok()?.text).expect("text");
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    value.parse().ok()
}

/// Returns how often each event of `ingress_quic` has happened.
fn event(net: &Net, event: Total) -> u64 {
    net.maps().read().expect("counts").total(event).packets
}

#[track_caller]
fn assert_no_panic(process: &Generation) {
    let log = process.process.log();
    assert!(!log.contains("panic"), "{log}");
}

/// Runs `work` in the namespace of the client.
fn as_client<T: Send>(net: &Net, work: impl Future<Output = anyhow::Result<T>> + Send) -> T {
    net.topology.client.run(|| block_on(work)).unwrap_or_else(|error| panic!("{error:#}"))
}

/// Returns `alt-svc` of a response over HTTP/2.
fn offered(net: &Net, trust: &Trust) -> Option<String> {
    let response = as_client(net, async {
        let address = (node_addr(Family::V4), 443).into();
        let mut connection = Connection::open(address, Protocol::Https2, "web.test", trust).await?;
        connection.send(&Ask::get("web.test", "/")).await
    });
    assert_eq!(response.status, StatusCode::OK);
    response.headers.get("alt-svc").map(|value| value.to_str().expect("text").to_owned())
}

fn answered(response: Result<(StatusCode, Vec<u8>), Failure>) -> anyhow::Result<()> {
    match response {
        Ok((StatusCode::OK, _body)) => Ok(()),
        other => anyhow::bail!("no good response: {other:?}"),
    }
}

/// The number of rounds: small unless `XDP_INGRESS_HTTP3_UPDATES` gives another one.
pub(crate) fn rounds() -> usize {
    std::env::var("XDP_INGRESS_HTTP3_UPDATES").map_or(3, |rounds| rounds.parse().expect("a number"))
}

pub(crate) fn print(what: &str, report: &Report) {
    let Report { answered, connections, moves, slowest, failures } = report;
    println!(
        "{what}: {answered} answered, {} failed, {connections} connections, {moves} changes of ports, slowest {} ms",
        failures.len(),
        slowest.as_millis()
    );
}

#[test]
fn requests_are_served_over_both_families_from_changing_ports() {
    let Some((net, trust)) = network("h3") else { return };
    let _process = start(&net, "first");
    for family in [Family::V4, Family::V6] {
        as_client(&net, async {
            let mut client = Client::connect(&trust, family).await?;
            for _ in 0..5 {
                answered(client.get("/").await)?;
                client.change_port()?;
            }
            answered(client.get("/").await)
        });
    }
    until("the connections", || (metric(&net, "xdp_ingress_http3_handshakes_total")? == 2).then_some(()))
        .expect("they are counted");
    until("the moves", || (metric(&net, "xdp_ingress_http3_migrations_total")? == 10).then_some(()))
        .expect("they are counted");
    until("readiness", || (metric(&net, "xdp_ingress_http3_ready")? == 1).then_some(())).expect("it answers");
    assert_eq!(metric(&net, "xdp_ingress_http3_workers"), Some(2));
    assert_eq!(metric(&net, "xdp_ingress_http3_requests_total"), Some(12));
    assert_eq!(event(&net, Total::QuicUnchosen), 0);
    assert!(event(&net, Total::QuicNew) >= 2 && event(&net, Total::QuicById) > 12);
    let counts = net.settled();
    assert_eq!(counts.hosts["web.test"].l7.requests.success, 12);
    let mut status = Command::new(env!("CARGO_BIN_EXE_xdp-ingress"));
    let status = status.args(["status", "--bpffs"]).arg(&net.bpffs).output().expect("it runs");
    let status = String::from_utf8(status.stdout).expect("text");
    assert!(status.contains("443/udp: HTTP/3, 2 sockets by connection ID"), "{status}");
    assert!(status.contains("http3      sockets of process 1"), "{status}");
}

#[test]
fn packets_count_for_their_host_also_after_a_change_of_the_port() {
    let Some((net, trust)) = network("h3-packets") else { return };
    let _process = start(&net, "first");
    for family in [Family::V4, Family::V6] {
        as_client(&net, async {
            let mut client = Client::connect(&trust, family).await?;
            for round in 0..4 {
                // The first request attributes the connection, and the first packets from a new port move it.
                answered(client.get("/").await)?;
                let before = net.settled();
                for _ in 0..5 {
                    answered(client.get("/").await)?;
                }
                let after = net.settled();
                let of = |counts: &Counts| counts.hosts["web.test"].net;
                let received = of(&after).rx_packets - of(&before).rx_packets;
                let accepted = after.total(Total::Accepted).packets - before.total(Total::Accepted).packets;
                assert_eq!(received, accepted, "{family:?}, round {round}: the client is the only one");
                let sent = of(&after).tx_packets - of(&before).tx_packets;
                let transmitted = after.total(Total::Transmitted).packets - before.total(Total::Transmitted).packets;
                assert_eq!(sent, transmitted, "{family:?}, round {round}");
                assert!(received >= 5 && sent >= 5, "{family:?}, round {round}: {received} received, {sent} sent");
                client.change_port()?;
            }
            Ok(())
        });
    }
}

#[test]
fn updates_and_roll_backs_lose_no_request_of_clients_that_move() {
    let Some((net, trust)) = network("h3-updates") else { return };
    let mut old = start(&net, "generation-0");
    let load = MovingLoad::start(&net, &trust, 8);
    for number in 1..=rounds() {
        // An update that is undone, and then one that stays.
        let mut undone = start(&net, &format!("undone-{number}"));
        load.pass(50);
        undone.process.signal(Signal::SIGTERM).expect("the kubelet ends the new one");
        until("the old one to be ready", || old.probe("ready").ok()).expect("it takes the node back");
        load.pass(50);
        assert!(undone.ended().success());
        assert_no_panic(&undone);
        let mut new = start(&net, &format!("generation-{number}"));
        load.pass(50);
        old.process.signal(Signal::SIGTERM).expect("the kubelet ends the old one");
        load.pass(50);
        assert!(old.ended().success());
        assert_no_panic(&old);
        std::mem::swap(&mut old, &mut new);
    }
    let report = load.stop();
    print(&format!("{} updates and roll-backs", rounds()), &report);
    assert!(report.failures.is_empty(), "{:#?}", report.failures);
    assert!(report.moves > 0);
    assert_eq!(event(&net, Total::QuicUnchosen), 0, "each packet has its socket by its ID, or an owner");
    assert_eq!(event(&net, Total::QuicUnknown), 0, "each packet has an ID of this node");
    assert_eq!(event(&net, Total::QuicShort), 0, "first packets fill their datagrams");
}

#[test]
fn clients_of_a_killed_process_are_reset_at_once() {
    let Some((net, trust)) = network("h3-crash") else { return };
    let old = start(&net, "old");
    let mut new = start(&net, "new");
    as_client(&net, async {
        let mut client = Client::connect(&trust, Family::V4).await?;
        answered(client.get("/").await)?;
        new.process.kill()?;
        until("the old one to be ready", || old.probe("ready").ok())?;
        let asked = Instant::now();
        let lost = client.get("/").await;
        let reset = tokio::time::timeout(Duration::from_secs(5), client.quic.closed()).await?;
        println!("reset {} ms after the first packet since the crash", asked.elapsed().as_millis());
        anyhow::ensure!(matches!(reset, quinn::ConnectionError::Reset), "closed by {reset:?}, and {lost:?}");
        anyhow::ensure!(matches!(lost, Err(Failure::Lost(_))), "{lost:?}");
        answered(Client::connect(&trust, Family::V4).await?.get("/").await)
    });
    assert!(event(&net, Total::QuicGone) > 0);
}

#[test]
fn a_successor_without_http3_leaves_open_connections_to_their_process() {
    let Some((net, trust)) = network("h3-off") else { return };
    let _old = start(&net, "old");
    as_client(&net, async {
        let mut client = Client::connect(&trust, Family::V6).await?;
        answered(client.get("/").await)?;
        let _new = Generation::start(&net, "new", &[]);
        for _ in 0..3 {
            client.change_port()?;
            answered(client.get("/").await)?;
        }
        Ok(())
    });
}

#[test]
fn without_the_kernel_part_workers_hand_datagrams_on() {
    let Some((net, trust)) = network("h3-bind") else { return };
    let mut options = net.options("first", 9110);
    options.path = DataPath::Bind { http: 80, https: 443 };
    let mut command = options.command();
    command.args(FLAGS);
    let mut process = net.lab.spawn(&net.topology.node, "first", command).expect("the process starts");
    process.wait_for_log("no connection of HTTP/3 survives an update of this process", 1).expect("it says so");
    as_client(&net, async {
        let mut clients = Vec::new();
        for family in [Family::V4, Family::V6] {
            clients.push(Client::connect(&trust, family).await?);
        }
        // The kernel chooses a worker by the port; of 20 ports, some lead to another one.
        for _ in 0..10 {
            for client in &mut clients {
                client.change_port()?;
                answered(client.get("/").await)?;
            }
        }
        Ok(())
    });
    until("the count", || (metric(&net, "xdp_ingress_http3_foreign_datagrams_total")? > 0).then_some(()))
        .expect("datagrams were handed on");
}

#[test]
fn a_taken_port_leaves_tcp_alone_and_is_said_once() {
    let Some((net, trust)) = network("h3-taken") else { return };
    let taken = net.topology.node.run(|| Ok(UdpSocket::bind(("::", 443))?)).expect("bound");
    let mut process = Generation::start(&net, "first", &FLAGS);
    process.process.wait_for_log("HTTP/3 is off, and TCP serves on", 1).expect("it says so");
    let log = process.process.log();
    assert!(log.contains("another process has UDP port 443 (`ss -lunp 'sport = :443'` shows it)"), "{log}");
    assert_eq!(log.matches("HTTP/3").count(), 1, "{log}");
    assert_eq!(metric(&net, "xdp_ingress_http3_ready"), Some(0));
    let (answer, _) = net.ask(&net.topology.client, http(Family::V4), &Ask::get("web.test", "/"));
    assert!(answer.status.is_success(), "{}", answer.status);
    assert_eq!(offered(&net, &trust), None, "nothing is offered");
    drop(taken);
}

#[test]
fn http3_is_used_if_it_works_with_auto() {
    let Some((net, trust)) = network("h3-auto") else { return };
    let flags = FLAGS.map(|flag| if flag == "on" { "auto" } else { flag });
    let taken = net.topology.node.run(|| Ok(UdpSocket::bind(("::", 443))?)).expect("bound");
    let mut process = Generation::start(&net, "without", &flags);
    process.process.wait_for_log("HTTP/3 is off, and TCP serves on", 1).expect("it says so");
    let log = process.process.log();
    let line = log.lines().find(|line| line.contains("HTTP/3 is off")).expect("a line");
    assert!(line.contains("INFO") && !line.contains("WARN"), "{line}");
    assert_eq!(metric(&net, "xdp_ingress_http3_ready"), None, "no alert for it");
    assert_eq!(offered(&net, &trust), None);
    drop(taken);
    process.process.signal(Signal::SIGTERM).expect("it ends");
    assert!(process.ended().success());
    let _process = Generation::start(&net, "with", &flags);
    until("readiness", || (metric(&net, "xdp_ingress_http3_ready")? == 1).then_some(())).expect("it works");
    assert_eq!(offered(&net, &trust).as_deref(), Some("h3=\":443\"; ma=86400"));
}

#[test]
fn a_blocked_port_is_not_offered_until_it_answers() {
    let Some((net, trust)) = network("h3-blocked") else { return };
    let rules = |name: &str, rules: &str| {
        nft::apply(&net.topology.node, &net.lab.home().join(name), rules).expect("the rules are taken");
    };
    let chain = "chain input { type filter hook input priority 0; udp dport 443 drop; }";
    rules("block.nft", &format!("table inet blocked {{\n{chain}\n}}\n"));
    let mut process = start(&net, "first");
    process.process.wait_for_log("HTTP/3 does not answer this process, so it is not offered", 1).expect("it says so");
    assert_eq!(offered(&net, &trust), None);
    assert_eq!(metric(&net, "xdp_ingress_http3_ready"), Some(0));
    assert_eq!(metric(&net, "xdp_ingress_http3_workers"), Some(2), "they cannot know");
    rules("open.nft", "delete table inet blocked\n");
    let is_ready = || (metric(&net, "xdp_ingress_http3_ready")? == 1).then_some(());
    until_within(Duration::from_secs(60), "readiness", is_ready).expect("it is asked again");
    assert_eq!(offered(&net, &trust).as_deref(), Some("h3=\":443\"; ma=86400"));
    assert_eq!(metric(&net, "xdp_ingress_http3_connection_attempts_total{result=\"accepted\"}"), Some(0));
    let log = process.process.log();
    assert_eq!(log.matches("HTTP/3 does not answer").count(), 1, "{log}");
}

#[test]
fn a_process_without_the_right_to_the_port_says_so() {
    let Some((net, _trust)) = network("h3-rights") else { return };
    let rights = ["--bounding-set=-all,+net_admin,+perfmon,+bpf", "--inh-caps=-all", "--no-new-privs"];
    let mut process =
        Generation::spawn_in(&net, "first", &FLAGS, |command| under("setpriv", &rights.map(Into::into), &command));
    process.process.wait_for_log("need CAP_NET_BIND_SERVICE; add it (`deploy/http3`", 1).expect("it says so");
    until_within(Duration::from_secs(30), "readiness", || process.probe("ready").ok()).expect("TCP serves");
    assert_eq!(metric(&net, "xdp_ingress_http3_ready"), Some(0));
}
