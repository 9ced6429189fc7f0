//! Connections are spread over the workers, independent of the receiving CPU. `cargo xtask bench kernel` measures the
//! difference to `SO_REUSEPORT`.

use ingress_common::Total;
use ingress_lab::{
    Namespace,
    balance::{Kept, Senders, most_held},
    controller::{Controller, DataPath},
    topology::{Family, NODE_NIC},
    until,
};

use crate::{
    generation::Generation,
    net::{Net, http},
};

/// Workers of every process here.
const WORKERS: u32 = 2;
const CONNECTIONS: usize = 120;

/// Opens connections and keeps them.
#[track_caller]
fn keep(from: &Namespace, senders: Senders, count: usize) -> Kept {
    Kept::open(from, http(Family::V4), senders, count).expect("the node takes connections")
}

/// Returns the connections of each worker from `first` on, once they add up to `total` and none is pending.
#[track_caller]
fn held(net: &Net, first: u32, total: usize) -> Vec<u64> {
    net.maps().held(first, WORKERS, total).unwrap_or_else(|error| panic!("{error:#}"))
}

#[test]
fn connections_of_one_cpu_are_not_all_on_one_worker() {
    let Some((net, _proxy)) = Net::serving("balance") else { return };
    let first = net.maps().first_worker().expect("a rule");
    held(&net, first, 0);
    for senders in Senders::ALL {
        let connections = keep(&net.topology.client, senders, CONNECTIONS);
        let held_now = held(&net, first, CONNECTIONS);
        println!("{CONNECTIONS} connections, {senders:?}: {held_now:?}");
        let most = most_held(CONNECTIONS as u64, u64::from(WORKERS));
        assert!(held_now.iter().all(|&held| held <= most), "{held_now:?}, at most {most}");
        drop(connections);
        held(&net, first, 0);
    }
    // Connections of the node itself follow the default rule.
    let connections = keep(&net.topology.node, Senders::EveryCpu, CONNECTIONS);
    let held_now = held(&net, first, CONNECTIONS);
    assert!(held_now.iter().all(|&held| held > 0), "{held_now:?}");
    drop(connections);
    held(&net, first, 0);
    let counts = net.settled();
    assert_eq!(counts.total(Total::Undecided).packets, 0);
    assert_eq!(counts.total(Total::SlotEmpty).packets, 0);
}

#[test]
fn a_successor_starts_at_zero_and_its_predecessor_keeps_counting() {
    let Some(net) = Net::build("balances") else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let client = &net.topology.client;
    let _first = Generation::start(&net, "first", &[]);
    let of_first = net.maps().first_worker().expect("a rule");
    let old = keep(client, Senders::OneCpu, 20);
    held(&net, of_first, 20);
    let mut second = Generation::start(&net, "second", &[]);
    let of_second = until("the node is the second's", || {
        let now = net.maps().first_worker().expect("a rule");
        (now != of_first).then_some(now)
    })
    .expect("it takes over");
    let new = keep(client, Senders::OneCpu, 20);
    let of_new = held(&net, of_second, 20);
    assert!(of_new.iter().all(|&held| held > 0), "{of_new:?}");
    drop(old);
    held(&net, of_first, 0);
    held(&net, of_second, 20);

    // A crashed process leaves its published load behind; the next owner of the node is not misled by it.
    second.process.kill().expect("it crashes");
    drop(new);
    until("the first has the node again", || (net.maps().first_worker().expect("a rule") == of_first).then_some(()))
        .expect("it takes the node back");
    let again = keep(client, Senders::OneCpu, 20);
    let of_again = held(&net, of_first, 20);
    assert!(of_again.iter().all(|&held| held > 0), "{of_again:?}");
    drop(again);
}

/// Workers publish their load also where the kernel spreads connections over shared ports and XDP only counts.
#[test]
fn all_connections_are_counted_and_answered_in_every_mode() {
    const TIMES: usize = 3;
    let Some(net) = Net::build("reuseport") else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let (steered, mut bound) = (net.options("steered", 9110), net.options("bound", 9110));
    bound.path = DataPath::Count { interface: NODE_NIC.into(), bpffs: net.bpffs.clone() };
    for (options, is_steered) in [(steered, true), (bound, false)] {
        // Dropping it ends the process.
        let _proxy = Controller::start(&net.lab, &net.topology.node, &options).expect("the proxy is ready");
        let first = net.maps().first_worker().expect("a rule");
        for senders in Senders::ALL {
            held(&net, first, 0);
            let mut connections = keep(&net.topology.client, senders, CONNECTIONS);
            held(&net, first, CONNECTIONS);
            if let Err(error) = connections.ask_at_once("web.test", TIMES) {
                panic!("{}, {senders:?}: {error:#}", options.name);
            }
            let loads = net.maps().workers(first, WORKERS).expect("what each tells");
            let chosen: u64 = loads.iter().map(|load| load.chosen).sum();
            assert_eq!(chosen > 0, is_steered, "{}, {senders:?}: the programs chose {chosen} times", options.name);
        }
    }
}
