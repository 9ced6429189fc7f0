//! The choice of a worker: for SYNs through `ingress_xdp`, and for real connections through `ingress_lookup`.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd as _,
    sync::atomic::Ordering::Relaxed,
};

use ingress_common::{
    Handoff, Total, WorkerLoad,
    flow::PROTO_TCP,
    map::WORKER_GROUPS,
    steer::{CHOSEN_BY_LOOKUP, CHOSEN_BY_XDP, WORKER_ABSENT},
};
use ingress_datapath::{Datapath, RunOptions, SteeredPort, TestProgram, flow_key};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

use crate::{
    handoffs::Handoffs,
    packets::{Packet, SYN},
    sandbox::{Sandbox, ip, sandboxed},
};

const NODE: &str = "198.51.100.7:80";
/// First slot of the port.
const SLOT: u32 = 4;

/// A node with so many workers for port 80, which have not published their load.
fn serving(sandbox: &Sandbox, workers: u32) -> Datapath {
    let datapath = Datapath::open(&sandbox.options(&[])).expect("opens");
    datapath.take_over().expect("takes over");
    let port = SteeredPort { port: 80, proto: PROTO_TCP, first_slot: SLOT, workers, flags: 0, rewritten: None };
    datapath.set_ports(&[port]).expect("ports");
    let node: SocketAddr = NODE.parse().expect("an address");
    datapath.set_node_addrs(&[(node.ip(), 1)]).expect("addresses");
    datapath
}

/// Sets the open connections of the workers, with none pending.
fn hold(datapath: &Datapath, open: &[u64]) {
    for (cell, open) in datapath.worker_cells().iter().zip(open) {
        cell.open.store(*open, Relaxed);
        cell.settled.store(cell.chosen.load(Relaxed), Relaxed);
    }
}

/// Returns the load of the first `count` workers in the maps.
fn loads(datapath: &Datapath, count: usize) -> Vec<WorkerLoad> {
    let (_, rule) = datapath.maps().ports().expect("ports")[0];
    let workers = datapath.maps().workers().expect("workers");
    workers[rule.first_worker as usize..][..count].to_vec()
}

/// Pins this thread to one CPU, and with it the programs that it runs. Returns the CPU.
fn on_one_cpu() -> u32 {
    let this = Pid::from_raw(0);
    let may = sched_getaffinity(this).expect("the CPUs of this thread");
    let cpu = (0..CpuSet::count()).find(|&cpu| may.is_set(cpu) == Ok(true)).expect("a CPU");
    let mut one = CpuSet::new();
    one.set(cpu).expect("it exists");
    sched_setaffinity(this, &one).expect("it may run there");
    u32::try_from(cpu).expect("few CPUs")
}

/// Returns the worker chosen for a SYN from `port`.
fn worker_of_syn(datapath: &Datapath, handoffs: &Handoffs, port: u16) -> u32 {
    let packet = Packet::tcp(&format!("192.0.2.1:{port}"), NODE, SYN);
    let run = RunOptions { frame: &packet.frame(), repeat: 1, live: None };
    datapath.heartbeat().expect("beats");
    datapath.test_run(TestProgram::Ingress, run).expect("runs");
    let note = handoffs.of(flow_key(packet.remote, packet.local));
    assert_eq!(note.chosen_by, CHOSEN_BY_XDP);
    note.slot - SLOT
}

#[test]
fn a_burst_of_syns_on_one_cpu_is_spread_over_all_workers() {
    sandboxed(|sandbox| {
        const WORKERS: usize = 5;
        let preferred = on_one_cpu() as usize % WORKERS;
        let datapath = serving(sandbox, 5);
        hold(&datapath, &[0; WORKERS]);
        let handoffs = Handoffs::pinned(sandbox);
        let mut given = [0; WORKERS];
        for port in 10_000..10_500 {
            given[worker_of_syn(&datapath, &handoffs, port) as usize] += 1;
        }
        let loads = loads(&datapath, WORKERS);
        let chosen: Vec<u64> = loads.iter().map(|load| load.chosen).collect();
        assert_eq!(chosen, given, "what is given is counted");
        // The preferred worker gets a quarter above the mean of 100, plus one at most; the others share the rest.
        assert!((120..=126).contains(&given[preferred]), "{given:?}, at hand {preferred}");
        for (worker, given) in given.iter().enumerate().filter(|(worker, _)| *worker != preferred) {
            assert!((93..=96).contains(given), "worker {worker}: {given}");
        }
        assert_eq!(datapath.totals().expect("totals").get(Total::Decided).packets, 500);
    });
}

#[test]
fn busy_and_absent_workers_get_no_connections() {
    sandboxed(|sandbox| {
        let preferred = on_one_cpu() as usize % 4;
        let datapath = serving(sandbox, 4);
        let handoffs = Handoffs::pinned(sandbox);
        // Workers in turn, beginning with the preferred one.
        let cases: [([u64; 4], usize); 7] = [
            ([WORKER_ABSENT; 4], 0),
            ([125, 75, 100, 100], 0),
            ([126, 74, 100, 100], 1),
            ([126, 100, 100, 74], 3),
            ([126, 100, WORKER_ABSENT, 74], 3),
            ([WORKER_ABSENT, 100, 99, 100], 2),
            ([99, 0, 99, 99], 1),
        ];
        for (number, (open, expected)) in (0_u16..).zip(cases) {
            let mut held = [0; 4];
            for (after, open) in open.into_iter().enumerate() {
                held[(preferred + after) % 4] = open;
            }
            hold(&datapath, &held);
            let chosen = worker_of_syn(&datapath, &handoffs, 20_000 + number) as usize;
            assert_eq!(chosen, (preferred + expected) % 4, "{open:?}, at hand {preferred}");
        }
        // The preferred worker is skipped until it is at most a quarter above the mean, and then chosen again.
        let mut held = [100; 4];
        held[preferred] = 200;
        let passed_over = (0_u16..100).find(|&port| {
            hold(&datapath, &held);
            held[preferred] -= 1;
            worker_of_syn(&datapath, &handoffs, 30_000 + port) as usize == preferred
        });
        // 136 × 4 ≤ 436 × 1.25
        assert_eq!(passed_over, Some(200 - 136));
    });
}

#[test]
fn the_default_rule_skips_busy_workers_and_keeps_its_choice() {
    sandboxed(|sandbox| {
        ip("addr add 198.51.100.7/32 dev lo");
        let datapath = serving(sandbox, 2);
        let listeners = [(); 2].map(|()| TcpListener::bind("[::]:0").expect("listens"));
        for (slot, listener) in (SLOT..).zip(&listeners) {
            datapath.register_listener(slot, listener.as_fd()).expect("registered");
        }
        let mut handoffs = Handoffs::pinned(sandbox);
        // Connections stay open to the end, so that no segment arrives after its connection is gone.
        let mut connections = Vec::new();
        let node: SocketAddr = NODE.parse().expect("an address");
        for (open, expected) in [([1000, 0], 1), ([0, 1000], 0), ([WORKER_ABSENT, 1000], 1), ([1000, WORKER_ABSENT], 0)]
        {
            hold(&datapath, &open);
            for _ in 0..20 {
                let stream = TcpStream::connect(node).expect("connects");
                let local = stream.local_addr().expect("an address");
                let (accepted, peer) = listeners[expected].accept().expect("accepts");
                assert_eq!(peer.port(), local.port(), "{open:?}");
                let note = handoffs.of(flow_key(local, node));
                assert_eq!((note.slot - SLOT) as usize, expected);
                assert_eq!(note.chosen_by, CHOSEN_BY_LOOKUP);
                connections.push((stream, accepted));
            }
        }
        let totals = datapath.totals().expect("totals");
        let lookups = [Total::LookupDefault, Total::LookupDecided, Total::SlotEmpty].map(|t| totals.get(t).packets);
        assert_eq!(lookups, [80, 0, 0]);
        let chosen: u64 = loads(&datapath, 2).iter().map(|load| load.chosen).sum();
        assert_eq!(chosen, 80);
        // A note of its own is followed regardless of load; here a note for a future connection.
        hold(&datapath, &[1000, 0]);
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::new(node.ip(), 0).into()).expect("bound");
        let local = socket.local_addr().expect("an address").as_socket().expect("of IP");
        // The time is in the future, so the note stays fresh however long this takes.
        let kept = Handoff { slot: SLOT, chosen_by: CHOSEN_BY_LOOKUP, time_ns: u64::MAX };
        handoffs.lay(flow_key(local, node), kept);
        socket.connect(&node.into()).expect("connects");
        assert_eq!(listeners[0].accept().expect("accepts").1.port(), local.port());
        assert_eq!(datapath.totals().expect("totals").get(Total::LookupDefault).packets, 81);
    });
}

#[test]
fn each_process_starts_with_its_own_empty_load_entries() {
    sandboxed(|sandbox| {
        let first = serving(sandbox, 2);
        assert!(loads(&first, 64).iter().all(|load| load.connections().is_none()), "nobody has told of itself");
        hold(&first, &[7, 8]);
        let second = serving(sandbox, 2);
        assert_eq!(loads(&second, 2)[0].connections(), None, "the rule leads to the entries of the owner");
        hold(&second, &[1, 2]);
        let open = |datapath: &Datapath| -> Vec<u64> {
            datapath.worker_cells()[..2].iter().map(|cell| cell.open.load(Relaxed)).collect()
        };
        assert_eq!((open(&first), open(&second)), (vec![7, 8], vec![1, 2]));
        drop(first);
        drop(second);
        // All entries are reused in turn, and the values that dead processes left there are cleared.
        for _ in 0..WORKER_GROUPS {
            let next = serving(sandbox, 2);
            assert!(loads(&next, 64).iter().all(|load| load.connections().is_none()));
            hold(&next, &[9, 9]);
        }
    });
}
