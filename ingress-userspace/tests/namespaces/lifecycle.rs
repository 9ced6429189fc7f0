//! Crashes, restarts, updates and removal, seen from clients.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    process::Command,
    time::{Duration, Instant},
};

use ingress_common::{Total, map};
use ingress_lab::{
    client::{Ask, Connection, Protocol, Trust, block_on},
    controller::Controller,
    load::{Connections, Load},
    topology::{CLIENT_V4, Family},
    until, until_within,
};
use nix::sys::signal::Signal;

use crate::{
    deny::connect,
    generation::Generation,
    inspect::attention,
    net::{Net, http},
};

#[test]
fn restart_adopts_pinned_state() {
    let Some((net, mut proxy)) = Net::serving("restart") else { return };
    let web = Ask::get("web.test", "/");
    for _ in 0..10 {
        net.ask(&net.topology.client, http(Family::V4), &web);
    }
    let before = net.settled();
    assert_eq!(before.hosts["web.test"].l7.requests.success, 10);

    let killed = Instant::now();
    proxy.process.kill().expect("the proxy is killed");
    let refused = until("a refusal", || net.try_ask(&net.topology.client, http(Family::V4), &web).err());
    let (refused, refused_after) = (refused.expect("a dead proxy refuses"), killed.elapsed());
    assert!(format!("{refused:#}").contains("refused"), "refused, not hanging: {refused:#}");
    let said = attention(&net);
    assert!(
        said.contains("has ended; new connections are refused") && said.contains("start `xdp-ingress run`"),
        "{said}"
    );
    let meanwhile = net.maps().read().expect("pinned maps are readable without a process");
    assert_eq!(meanwhile.hosts["web.test"].l7.requests, before.hosts["web.test"].l7.requests);
    assert!(meanwhile.total(Total::SlotEmpty).packets > 0);

    let restarted = Instant::now();
    let _second = net.start("second", 9110);
    let (answer, _) = net.ask(&net.topology.client, http(Family::V4), &web);
    let served_after = restarted.elapsed();
    assert_eq!(answer.status, 200);
    let after = net.settled();
    assert_eq!(after.hosts["web.test"].id, before.hosts["web.test"].id, "a host keeps its number");
    assert_eq!(after.hosts["web.test"].l7.requests.success, 11, "counters go on");
    println!(
        "kill -9: refused after {} ms; restart: served after {} ms",
        refused_after.as_millis(),
        served_after.as_millis()
    );
}

#[test]
fn a_hung_process_is_reported_and_its_clients_wait() {
    let Some(net) = Net::build("stopped") else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let process = Generation::start(&net, "stopped", &[]);
    process.process.signal(Signal::SIGSTOP).expect("it is stopped");
    until_within(Duration::from_secs(30), "a stale heartbeat", || {
        attention(&net).contains("has given no heartbeat for").then_some(())
    })
    .expect("it is told");
    let said = attention(&net);
    assert!(said.contains("it hangs or gets no CPU") && said.contains("restart it"), "{said}");
    let said = process.probe("live").expect_err("it hangs");
    assert!(said.contains("the process hangs or is still starting"), "{said}");

    let stale = || net.maps().read().expect("maps").total(Total::HeartbeatStale).packets;
    let before = stale();
    let mut waiting = connect(&net, CLIENT_V4.into(), Family::V4).expect("accepted by the kernel, not refused");
    assert!(stale() > before, "XDP has left the choice to the default rule");
    waiting.write_all(b"GET / HTTP/1.1\r\nhost: web.test\r\nconnection: close\r\n\r\n").expect("sent");
    waiting.set_nonblocking(true).expect("non-blocking");
    let silence = waiting.read(&mut [0; 64]).expect_err("no answer");
    assert_eq!(silence.kind(), ErrorKind::WouldBlock, "and no end of the connection");

    process.process.signal(Signal::SIGCONT).expect("it goes on");
    waiting.set_nonblocking(false).expect("blocking");
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    until_within(Duration::from_secs(30), "a heartbeat", || attention(&net).is_empty().then_some(()))
        .expect("all is well");
    until("the probe", || process.probe("live").ok()).expect("it is well again");
}

#[test]
fn two_processes_overlap_without_a_failed_request() {
    let Some((net, mut first)) = Net::serving("overlap") else { return };
    let load = |connections| {
        let ask = Ask::get("web.test", "/");
        Load::start(&net.topology.client, http(Family::V4), ask, 2, connections).expect("load starts")
    };
    let loads = [load(Connections::New), load(Connections::Kept)];

    let mut second = net.start("second", 9111);
    loads.iter().for_each(|load| load.pass(200).expect("requests are answered by the second process"));
    first.process.terminate(Duration::from_secs(40)).expect("the first process drains and ends");
    loads.iter().for_each(|load| load.pass(200).expect("requests are answered after the first is gone"));

    // And once more: the address of the first is free again.
    let _third = net.start("third", 9110);
    second.process.terminate(Duration::from_secs(40)).expect("the second process drains and ends");
    loads.iter().for_each(|load| load.pass(200).expect("requests are answered after the second is gone"));
    for (load, name) in loads.into_iter().zip(["new connections", "kept connections"]) {
        let report = load.stop().expect("load ends");
        println!("two hand-overs, {name}: {} answered, {} failed", report.answered, report.failed);
        assert_eq!(report.failed, 0, "{name}: {:?}", report.reasons);
    }
}

#[test]
fn the_remaining_process_takes_the_node_back() {
    let Some((net, mut first)) = Net::serving("back") else { return };
    let web = Ask::get("web.test", "/");
    let mut second = net.start("second", 9111);
    net.ask(&net.topology.client, http(Family::V4), &web);
    second.process.kill().expect("the owner is killed");
    let killed = Instant::now();
    until("the first process serves again", || net.try_ask(&net.topology.client, http(Family::V4), &web).ok())
        .expect("it takes the node back");
    println!("owner killed: its predecessor serves again after {} ms", killed.elapsed().as_millis());
    let words = "the process that owned the node died or is stopping; took the node back";
    first.process.wait_for_log(words, 1).expect("it is told");
    // New hosts are numbered and served by it as well.
    net.write("late.yaml", &net.site("late", &[2]));
    let late = Ask::get("late.test", "/");
    until("a new host is served", || {
        net.try_ask(&net.topology.client, http(Family::V4), &late).ok().filter(|(answer, _)| answer.status == 200)
    })
    .expect("it is served");
    assert!(net.settled().hosts.contains_key("late.test"));
    drop(first);
}

#[test]
fn a_successor_that_fails_to_start_disturbs_no_process() {
    let Some((net, _first)) = Net::serving("stillborn") else { return };
    let web = Ask::get("web.test", "/");
    let mut options = net.options("second", 9111);
    options.manifests = net.lab.home().join("missing");
    let second = Controller::start(&net.lab, &net.topology.node, &options);
    assert!(second.is_err(), "there is nothing to serve");
    net.ask(&net.topology.client, http(Family::V4), &web);
    net.write("late.yaml", &net.site("late", &[2]));
    let late = Ask::get("late.test", "/");
    until("a new host is served", || {
        net.try_ask(&net.topology.client, http(Family::V4), &late).ok().filter(|(answer, _)| answer.status == 200)
    })
    .expect("it is served");
    let counts = net.settled();
    assert_eq!(counts.total(Total::HeartbeatStale).packets, 0);
    assert_eq!(counts.total(Total::Undecided).packets, 0);
}

#[test]
fn a_download_survives_the_removal_of_any_link() {
    let Some((net, proxy)) = Net::serving("links") else { return };
    drop(proxy);
    let links = net.bpffs.join(map::LAYOUT).join("links");
    let names = || -> Vec<_> {
        let entries = fs::read_dir(&links).expect("links are pinned");
        entries.map(|entry| entry.expect("an entry").file_name()).collect()
    };
    let pinned = names();
    assert!(pinned.len() >= 2, "XDP and sk_lookup: {pinned:?}");
    for link in pinned {
        let _proxy = net.start("again", 9110);
        let len = 20_000_000;
        let download = net.topology.client.run(|| {
            block_on(async {
                let mut connection =
                    Connection::open(http(Family::V4), Protocol::Http1, "web.test", &Trust::none()).await?;
                let mut body = connection.start(&Ask::get("web.test", &format!("/bytes/{len}"))).await?;
                // The first piece shows that the download runs; the rest is far more than all buffers hold.
                let first = body.next().await?.map_or(0, |data| data.len() as u64);
                fs::remove_file(links.join(&link))?;
                let rest = body.rest().await?;
                Ok(first + rest)
            })
        });
        assert_eq!(download.expect("the download goes on"), len, "without {link:?}");
    }
}

#[test]
fn unload_leaves_nothing_behind() {
    let Some((net, proxy)) = Net::serving("unload") else { return };
    drop(proxy);
    assert!(net.maps().read().is_ok(), "a normal end keeps the pinned state");
    let mut unload = Command::new(env!("CARGO_BIN_EXE_xdp-ingress"));
    unload.arg("unload").arg("--bpffs").arg(&net.bpffs);
    let status = net.topology.node.run(move || Ok(unload.status()?)).expect("unload runs");
    assert!(status.success());
    let left = fs::read_dir(net.bpffs.join(map::LAYOUT)).map_or(0, Iterator::count);
    assert_eq!(left, 0, "no pin is left");
    let refused = net.try_ask(&net.topology.client, http(Family::V4), &Ask::get("web.test", "/"));
    assert!(format!("{:#}", refused.expect_err("nobody listens")).contains("refused"));
}
