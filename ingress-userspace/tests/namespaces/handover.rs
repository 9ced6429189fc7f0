//! From one process of a node to the next, under load: updates, roll-backs, and possible failures meanwhile.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use ingress_datapath::{Hook, Pinned};
use ingress_lab::{
    client::{Ask, Protocol, Trust},
    credentials::Authority,
    load::{Connections, Load, Target},
    topology::{Family, node_addr},
    until, until_within,
};
use nix::sys::signal::Signal;

use crate::{
    generation::{Download, Generation},
    net::{Net, http},
};

const UPDATES: usize = 12;
/// Time in which the owner restores its programs after a crash. It looks each second; a busy machine needs longer.
const PROGRAM_RETURNS: Duration = Duration::from_secs(5);

/// A network that serves `web.test` with and without TLS; no process runs yet.
fn network(name: &str) -> Option<(Net, Trust)> {
    let net = Net::build(name)?;
    let authority = Authority::generate().expect("an authority");
    let secret = authority.secret("default", "web", &["web.test"]).expect("a secret");
    net.write_tls_site(&[0, 1], &secret);
    Some((net, authority.trust().expect("a usable authority")))
}

/// Clients of every kind: HTTP/1.1 and HTTP/2, with and without TLS, kept connections and new ones.
pub(crate) struct Clients(Vec<(&'static str, Load)>);

impl Clients {
    pub(crate) fn start(net: &Net, trust: &Trust) -> Self {
        let over = |protocol| Target { addr: (node_addr(Family::V4), 443).into(), protocol, trust: trust.clone() };
        let plain = || Target::from(http(Family::V4));
        let kinds = [
            ("HTTP/1.1, kept", plain(), Connections::Kept),
            ("HTTP/1.1, new", plain(), Connections::New),
            ("HTTP/1.1 over TLS, new", over(Protocol::Https1), Connections::New),
            ("HTTP/2, kept", over(Protocol::Https2), Connections::Kept),
            ("HTTP/2, new", over(Protocol::Https2), Connections::New),
        ];
        Self(
            kinds
                .map(|(name, target, connections)| {
                    let load = Load::start(&net.topology.client, target, Ask::get("web.test", "/"), 2, connections);
                    (name, load.unwrap_or_else(|error| panic!("{name}: {error:#}")))
                })
                .into(),
        )
    }

    /// Waits until every kind has been answered some more.
    pub(crate) fn pass(&self, requests: u64) {
        for (name, load) in &self.0 {
            load.pass(requests).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        }
    }

    /// Ends the load; none may have failed. Returns the number of answers.
    pub(crate) fn stop(self, what: &str) -> u64 {
        let mut answered = 0;
        let mut failures = Vec::new();
        for (name, load) in self.0 {
            let report = load.stop().expect("load ends");
            println!("{what}: {name}: {} answered, {} failed", report.answered, report.failed);
            answered += report.answered;
            failures.extend(report.reasons.into_iter().map(|reason| format!("{name}: {reason}")));
        }
        assert!(failures.is_empty(), "{what}: {failures:#?}");
        answered
    }
}

/// Returns whether the admin address reports a ready process.
fn admin_is_ready(net: &Net) -> bool {
    net.admin("/readyz").is_ok_and(|answer| answer.status.is_success())
}

/// Waits until `process` reports that its successor owns the node.
fn superseded(process: &Generation) {
    let said = process.probe("ready").expect_err("its successor is ready, so it is not");
    assert!(said.ends_with("not ready: another process owns the node"), "{said}");
    process.probe("live").expect("it lives on");
    process.probe("started").expect("it has started");
    let words = "a newer process owns the node; serving the remaining connections until SIGTERM";
    until("the log", || process.process.log().contains(words).then_some(())).expect("it says what it goes on with");
}

#[test]
fn updates_fail_no_request_and_lose_no_count() {
    let Some((net, trust)) = network("updates") else { return };
    let mut old = Generation::start(&net, "generation-0", &[]);
    until("the admin address", || admin_is_ready(&net).then_some(())).expect("it is taken");
    let clients = Clients::start(&net, &trust);
    let (mut downloads, mut admin, mut exits) = (0, Vec::new(), Vec::new());
    for number in 1..=UPDATES {
        let download = Download::begin(&net, "web.test");
        let mut new = Generation::start(&net, &format!("generation-{number}"), &[]);
        let owned = Instant::now();
        until("the admin address", || admin_is_ready(&net).then_some(())).expect("the successor takes it");
        admin.push(owned.elapsed());
        superseded(&old);
        clients.pass(20);
        old.process.signal(Signal::SIGTERM).expect("the kubelet ends the old one");
        until("unready at once", || {
            old.probe("ready").expect_err("not ready").ends_with("not ready: draining").then_some(())
        })
        .expect("it says why");
        clients.pass(20);
        assert_eq!(old.process.exited(), None, "a download is left");
        assert_eq!(download.finish().expect("it outlives the process's replacement"), Download::LEN);
        downloads += 1;
        let finished = Instant::now();
        assert!(old.ended().success());
        exits.push(finished.elapsed());
        assert!(!old.socket.exists(), "the socket goes with its process");
        std::mem::swap(&mut old, &mut new);
    }
    let answered = clients.stop(&format!("{UPDATES} updates"));
    let counts = net.settled();
    assert_eq!(counts.hosts["web.test"].l7.requests.success, answered + downloads, "counters go on exactly");
    assert_eq!(counts.hosts["web.test"].l7.requests.aborted, 0);
    let longest = |times: &[Duration]| times.iter().max().copied().unwrap_or_default().as_millis();
    println!("admin address of the successor after at most {} ms", longest(&admin));
    println!("exit at most {} ms after the last connection", longest(&exits));
    // The bound allows for one look of the old process for its successor, one attempt of the new one at the address,
    // and a busy machine.
    assert!(longest(&admin) < 2000);
}

#[test]
fn a_roll_back_fails_no_request() {
    let Some((net, trust)) = network("rollback") else { return };
    let old = Generation::start(&net, "old", &[]);
    let clients = Clients::start(&net, &trust);
    for number in 0..5 {
        let mut new = Generation::start(&net, &format!("new-{number}"), &[]);
        superseded(&old);
        clients.pass(20);
        let download = Download::begin(&net, "web.test");
        // The update is undone: the new pod goes, and the old one, which was not asked to end, stays.
        new.process.signal(Signal::SIGTERM).expect("the kubelet ends the new one");
        until("the old one to be ready", || old.probe("ready").ok()).expect("it takes the node back");
        clients.pass(20);
        assert_eq!(download.finish().expect("the new one drains"), Download::LEN);
        assert!(new.ended().success());
        clients.pass(20);
    }
    clients.stop("5 roll-backs");
}

/// Returns the pinned links with their modes and programs.
fn programs(net: &Net) -> Vec<(Hook, u32)> {
    let links = Pinned::open(&net.bpffs).and_then(|pins| pins.links()).expect("pinned links");
    links.into_iter().map(|link| (link.hook, link.program_id)).collect()
}

/// Returns the command with another value of an option that it has. No interface can be named with `--xdp-mode off`.
fn with_value(command: &Command, option: &str, value: &str) -> Command {
    let mut changed = Command::new(command.get_program());
    let mut arguments = command.get_args();
    while let Some(argument) = arguments.next() {
        if value == "off" && argument == "--interface" {
            arguments.next();
            continue;
        }
        changed.arg(argument);
        if argument == option {
            arguments.next();
            changed.arg(value);
        }
    }
    changed
}

/// Spawns a process with another value of an option, and kills it as soon as its programs are attached.
fn crashes_early(net: &Net, name: &str, option: &str, value: &str) {
    let mut new = Generation::spawn_in(net, name, &[], |command| with_value(&command, option, value));
    until_within(Duration::from_secs(30), "the kernel part", || {
        new.process.log().contains("kernel part open").then_some(())
    })
    .expect("it comes that far");
    new.process.kill().expect("it crashes");
}

#[test]
fn a_crash_of_a_process_in_another_mode_leaves_the_owners_programs() {
    let Some((net, trust)) = network("modes") else { return };
    net.topology.node.ip("link add xk-a type veth peer name xk-b").expect("a further interface");
    let old = Generation::start(&net, "old", &[]);
    let before = programs(&net);
    let clients = Clients::start(&net, &trust);
    for (option, value) in
        [("--xdp-mode", "generic"), ("--xdp-mode", "tcx"), ("--interface", "xk-a"), ("--xdp-mode", "native")]
    {
        crashes_early(&net, &format!("mode-{value}"), option, value);
        until_within(PROGRAM_RETURNS, "the old one's programs", || (programs(&net) == before).then_some(()))
            .unwrap_or_else(|error| panic!("{option} {value}: {error:#}\n{}", old.process.log_tail(20)));
        clients.pass(20);
    }
    clients.stop("4 crashes with other options");
    let counts = net.settled();
    assert_eq!(counts.hosts["web.test"].l7.requests.aborted, 0);
}

#[test]
fn a_crash_of_a_process_without_programs_is_not_noticed() {
    let Some((net, trust)) = network("bound") else { return };
    let old = Generation::start(&net, "old", &[]);
    let before = programs(&net);
    let clients = Clients::start(&net, &trust);
    for (option, value) in [("--steer", "bind"), ("--xdp-mode", "off")] {
        crashes_early(&net, &format!("without-{value}"), option, value);
        let hooks = |programs: Vec<(Hook, u32)>| programs.into_iter().map(|(hook, _)| hook).collect::<Vec<_>>();
        assert_eq!(hooks(programs(&net)), hooks(before.clone()), "{option} {value} detaches nothing");
        clients.pass(20);
        until_within(PROGRAM_RETURNS, "the old one's programs", || (programs(&net) == before).then_some(()))
            .unwrap_or_else(|error| panic!("{option} {value}: {error:#}\n{}", old.process.log_tail(20)));
        clients.pass(20);
    }
    clients.stop("2 crashes of processes without programs");
}

#[test]
fn updates_to_bound_ports_and_back_fail_no_request() {
    let Some((net, trust)) = network("rebound") else { return };
    let mut old = Generation::start(&net, "old", &[]);
    let steered = programs(&net).len();
    let clients = Clients::start(&net, &trust);
    let mut bound = Generation::spawn_in(&net, "bound", &[], |command| with_value(&command, "--steer", "bind"));
    until("the bound one", || bound.probe("ready").ok()).expect("it takes the node over");
    superseded(&old);
    assert_eq!(programs(&net).len(), steered - 1, "sk_lookup is detached");
    clients.pass(20);
    assert!(old.process.terminate(Duration::from_secs(40)).expect("it ends").success());
    clients.pass(20);
    let _new = Generation::start(&net, "new", &[]);
    superseded(&bound);
    clients.pass(20);
    assert!(bound.process.terminate(Duration::from_secs(40)).expect("it ends").success());
    clients.stop("updates to bound ports and back");
}

#[test]
fn a_crash_looping_successor_leaves_the_node_to_its_predecessor() {
    let Some((net, trust)) = network("crashes") else { return };
    let old = Generation::start(&net, "old", &[]);
    let ask = Ask::get("web.test", "/");
    let before = programs(&net);
    // Crashes before readiness have no effect on clients.
    let clients = Clients::start(&net, &trust);
    for number in 0..5 {
        let mut new = Generation::spawn(&net, &format!("early-{number}"), &[]);
        // Its kernel part is open: the programs are its own by now.
        until_within(Duration::from_secs(30), "the kernel part", || {
            new.process.log().contains("kernel part open").then_some(())
        })
        .expect("it comes that far");
        new.process.kill().expect("it crashes");
        clients.pass(5);
    }
    clients.stop("5 crashes before readiness");
    until_within(PROGRAM_RETURNS, "the old one's programs", || (programs(&net) == before).then_some(()))
        .expect("they are attached again");
    // A process that owns the node takes its accepted connections down; then the old one serves again.
    let mut longest = Duration::ZERO;
    for number in 0..5 {
        let mut new = Generation::start(&net, &format!("late-{number}"), &[]);
        superseded(&old);
        net.ask(&net.topology.client, http(Family::V4), &ask);
        new.process.kill().expect("it crashes");
        let killed = Instant::now();
        until("an answer", || net.try_ask(&net.topology.client, http(Family::V4), &ask).ok())
            .expect("the old one serves");
        longest = longest.max(killed.elapsed());
        until("readiness", || old.probe("ready").ok()).expect("it owns the node again");
    }
    println!("5 crashes of an owner: its predecessor serves after at most {} ms", longest.as_millis());
    assert!(longest < Duration::from_secs(2));
}

#[test]
fn a_crash_while_draining_disturbs_no_other_process() {
    let Some((net, trust)) = network("cut-drain") else { return };
    let mut old = Generation::start(&net, "old", &[]);
    let download = Download::begin(&net, "web.test");
    let _new = Generation::start(&net, "new", &[]);
    old.process.signal(Signal::SIGTERM).expect("it is asked to end");
    until("the drain", || old.process.log().contains("draining;").then_some(())).expect("it drains");
    // Connections that the old one had accepted are gone by its own drain, except the download.
    let clients = Clients::start(&net, &trust);
    old.process.kill().expect("it is killed");
    assert!(download.finish().is_err(), "its client sees that it broke off");
    clients.pass(50);
    clients.stop("kill -9 while draining");
}

#[test]
fn two_terminated_processes_both_drain() {
    let Some((net, _trust)) = network("both") else { return };
    let mut old = Generation::start(&net, "old", &[]);
    let through_old = Download::begin(&net, "web.test");
    let mut new = Generation::start(&net, "new", &[]);
    let through_new = Download::begin(&net, "web.test");
    for process in [&old, &new] {
        process.process.signal(Signal::SIGTERM).expect("it is asked to end");
    }
    let ask = Ask::get("web.test", "/");
    // A connection in progress when a listener closes may be reset or closed; an unanswered one takes longer than this
    // waits.
    until("a refusal", || {
        let refused = net.try_ask(&net.topology.client, http(Family::V4), &ask).err();
        refused.filter(|error| format!("{error:#}").contains("refused"))
    })
    .expect("nobody is left, which is told at once");
    for download in [through_old, through_new] {
        assert_eq!(download.finish().expect("both drain"), Download::LEN);
    }
    assert!(old.ended().success() && new.ended().success());
}

#[test]
fn a_process_started_during_a_drain_owns_node_and_admin_address() {
    let Some((net, trust)) = network("late") else { return };
    let mut old = Generation::start(&net, "old", &[]);
    until("the admin address", || admin_is_ready(&net).then_some(())).expect("it is taken");
    let download = Download::begin(&net, "web.test");
    old.process.signal(Signal::SIGTERM).expect("it is asked to end");
    until("the drain", || old.process.log().contains("draining;").then_some(())).expect("it drains");
    let mut new = Generation::start(&net, "new", &[]);
    until("the admin address", || admin_is_ready(&net).then_some(())).expect("a drain does not hold it");
    let clients = Clients::start(&net, &trust);
    assert_eq!(download.finish().expect("the old one drains"), Download::LEN);
    assert!(old.ended().success());
    clients.pass(20);
    new.probe("ready").expect("the end of the old one is none of its business");
    clients.stop("a start while another drains");
    assert!(new.process.terminate(Duration::from_secs(40)).expect("it ends").success());
}

#[test]
fn three_generations_live_side_by_side() {
    let Some((net, trust)) = network("three") else { return };
    let mut processes = Vec::new();
    let mut downloads = Vec::new();
    for name in ["first", "second", "third"] {
        processes.push(Generation::start(&net, name, &[]));
        downloads.push(Download::begin(&net, "web.test"));
    }
    let mut third = processes.pop().expect("three");
    let through_third = downloads.pop().expect("three");
    processes.iter().for_each(superseded);
    let clients = Clients::start(&net, &trust);
    for process in &processes {
        process.process.signal(Signal::SIGTERM).expect("it is asked to end");
    }
    clients.pass(50);
    for (mut process, download) in processes.into_iter().zip(downloads) {
        assert_eq!(download.finish().expect("each drains its own"), Download::LEN);
        assert!(process.ended().success());
    }
    clients.pass(50);
    clients.stop("two of three end");
    assert_eq!(through_third.finish().expect("the third goes on"), Download::LEN);
    assert!(third.process.terminate(Duration::from_secs(40)).expect("it ends").success());
}

#[test]
fn requests_are_served_in_the_grace_period_until_a_second_signal() {
    let Some((net, trust)) = network("grace") else { return };
    let mut process = Generation::start(&net, "patient", &["--shutdown-grace-period", "60"]);
    let clients = Clients::start(&net, &trust);
    process.process.signal(Signal::SIGTERM).expect("it is asked to end");
    until("unready", || process.probe("ready").err()).expect("at once");
    clients.pass(50);
    clients.stop("within the grace period");
    let again = Instant::now();
    assert!(process.process.terminate(Duration::from_secs(10)).expect("a second signal ends it").success());
    assert!(again.elapsed() < Duration::from_secs(10));
}
