//! The view of tools on a node from outside, with or without a process.

use std::sync::atomic::Ordering::Relaxed;

use ingress_common::{flow::PROTO_TCP, map::DENY_MAX};
use ingress_datapath::{
    Datapath, DenyConfig, Error, Fill, Hook, LinkState, NicMode, Pinned, Role, RunOptions, SteeredPort, TestProgram,
    unload,
};
use ipnet::IpNet;

use crate::{
    packets::{ACK, Packet},
    sandbox::{Sandbox, ip, sandboxed},
};

fn pinned(sandbox: &Sandbox) -> Pinned {
    Pinned::open(&sandbox.bpffs()).expect("pins")
}

/// Returns epoch, role and liveness of each process.
fn processes(sandbox: &Sandbox) -> Vec<(u32, Role, Option<bool>)> {
    let processes = pinned(sandbox).processes().expect("readable");
    processes.into_iter().map(|process| (process.epoch, process.role, process.lives)).collect()
}

#[test]
fn counters_are_readable_by_others_and_outlast_the_process() {
    sandboxed(|sandbox| {
        let first = Datapath::open(&sandbox.options(&[])).expect("opens");
        let port = SteeredPort { port: 80, proto: PROTO_TCP, first_slot: 0, workers: 1, flags: 0, rewritten: None };
        first.set_ports(&[port]).expect("ports");
        first.set_node_addrs(&[("198.51.100.7".parse().expect("an address"), 1)]).expect("addresses");
        assert_eq!(first.host_ids().assign("b.example").expect("an id"), 1);
        assert_eq!(first.host_ids().assign("a.example").expect("an id"), 2);
        first.host_cells()[2].requests[0].fetch_add(7, Relaxed);
        first.host_cells()[2].bytes_out.fetch_add(u64::from(u32::MAX) + 1, Relaxed);
        let frame = Packet::tcp("192.0.2.1:40000", "198.51.100.7:80", ACK).frame();
        let run = RunOptions { frame: &frame, repeat: 3, live: None };
        first.test_run(TestProgram::Ingress, run).expect("runs");

        let own = (first.maps().hosts().expect("hosts"), first.totals().expect("totals"));
        let seen = || {
            let pinned = pinned(sandbox);
            (pinned.maps().hosts().expect("hosts"), pinned.maps().totals().expect("totals"))
        };
        assert_eq!(seen(), own, "beside the process");
        drop(first);
        assert_eq!(seen(), own, "after it");
        let (hosts, _) = own;
        let names: Vec<_> = hosts.iter().map(|host| (host.name.as_deref(), host.id)).collect();
        assert_eq!(names, [(None, 0), (Some("a.example"), 2), (Some("b.example"), 1)]);
        assert_eq!((hosts[1].l7.requests.success, hosts[1].l7.bytes_out), (7, 1 << 32));
        assert_eq!(hosts[0].net.rx_packets, 3, "no connection is known");
    });
}

#[test]
fn owner_draining_and_dead_processes_are_distinguished() {
    sandboxed(|sandbox| {
        let options = sandbox.options(&[]);
        let first = Datapath::open(&options).expect("opens");
        assert!(processes(sandbox).is_empty(), "opening takes nothing over");
        first.take_over().expect("takes over");
        assert_eq!(processes(sandbox), [(1, Role::Owner, Some(true))]);
        let second = Datapath::open(&options).expect("opens");
        second.take_over().expect("takes over");
        assert_eq!(processes(sandbox), [(2, Role::Owner, Some(true)), (1, Role::Draining, Some(true))]);
        second.give_up().expect("gives it up");
        assert_eq!(processes(sandbox)[0], (2, Role::Offering, Some(true)));
        drop(first);
        assert_eq!(processes(sandbox), [(2, Role::Offering, Some(true))], "who has drained and ended is nobody");
        drop(second);
        assert_eq!(processes(sandbox), [(2, Role::Offering, Some(false))]);
    });
}

#[test]
fn links_report_their_hooks_and_maps_their_fill() {
    sandboxed(|sandbox| {
        ip("link add xk-a type veth peer name xk-b");
        let datapath = Datapath::open(&sandbox.options(&["xk-a"])).expect("opens");
        let hooks = |pinned: &Pinned| -> Vec<_> {
            pinned.links().expect("links").into_iter().map(|link| (link.hook, link.state)).collect()
        };
        let native = Hook::Xdp { interface: "xk-a".into(), mode: Some(NicMode::Native) };
        let pinned = pinned(sandbox);
        let sends = Hook::TcOut { interface: "xk-a".into() };
        assert_eq!(hooks(&pinned), [Hook::Lookup, native, sends.clone()].map(|hook| (hook, LinkState::Attached)));
        datapath.host_ids().assign("a.example").expect("an id");
        let nets = |text: &str| -> Vec<IpNet> { text.split(' ').map(|net| net.parse().expect("a network")).collect() };
        let wanted = DenyConfig::new(nets("10.0.0.0/8 192.0.2.0/24 2001:db8:bad::/48"), nets("10.1.0.0/16"));
        datapath.deny_list().set(&wanted).expect("the list is taken");
        let fills = pinned.fills().expect("fills");
        let fill = |map: &str| fills.iter().find(|fill| fill.map == map).copied();
        // The second entry is the latest number.
        assert_eq!(fill("host_ids"), Some(Fill { map: "host_ids", entries: 2, capacity: 64 }));
        assert_eq!(fill("nics").map(|fill| fill.entries), Some(1));
        // A trusted proxy inside a denied network needs an entry, too.
        assert_eq!(fill("deny4"), Some(Fill { map: "deny4", entries: 3, capacity: DENY_MAX }));
        assert_eq!(fill("deny6"), Some(Fill { map: "deny6", entries: 1, capacity: DENY_MAX }));

        ip("link del xk-a");
        let gone = Hook::Xdp { interface: "xk-a".into(), mode: None };
        assert_eq!(hooks(&pinned)[1..], [gone, sends].map(|hook| (hook, LinkState::Detached)));
    });
}

#[test]
fn missing_pins_are_an_error_and_new_pins_are_distinct() {
    sandboxed(|sandbox| {
        let nothing = |what: &str| {
            let error = Pinned::open(&sandbox.bpffs()).expect_err(what);
            assert!(matches!(error, Error::NothingPinned(_)), "{what}: {error}");
        };
        nothing("before the first start");
        drop(Datapath::open(&sandbox.options(&[])).expect("opens"));
        let totals = pinned(sandbox).maps().totals_id();
        unload(&sandbox.bpffs()).expect("unloads");
        nothing("after `unload`");
        drop(Datapath::open(&sandbox.options(&[])).expect("opens"));
        assert_ne!(pinned(sandbox).maps().totals_id(), totals, "other maps, which count from 0");
    });
}
