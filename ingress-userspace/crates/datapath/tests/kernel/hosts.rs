//! Reuse of host numbers: each belongs to one host at a time, and past counts stay counted, once.

use std::{collections::BTreeMap, sync::atomic::Ordering::Relaxed};

use aya::maps::{HashMap, Map};
use ingress_common::{
    HostL7, HostName, RawHostId,
    flow::{FREE, GONE},
    map::HOST_IDS,
};
use ingress_datapath::{Datapath, Error, Given, HostCounts, Options, RunOptions, TestProgram};

use crate::{
    frames::{CLIENT4, NODE4, check_sum, serving_with},
    packets::{ACK, Packet},
    sandbox::{Sandbox, sandboxed},
};

/// Numbers of hosts, beside that of host 0.
const NUMBERS: u32 = 7;

fn options(sandbox: &Sandbox) -> Options {
    Options { host_capacity: NUMBERS + 1, ..sandbox.options(&[]) }
}

fn name(number: u32) -> String {
    format!("h{number}.test")
}

/// Counts three packets of a connection that belongs to `host`, and a request of as many bytes.
fn count_for(datapath: &Datapath, host: RawHostId) {
    let (client, node) = (CLIENT4.parse().expect("an address"), NODE4.parse().expect("an address"));
    datapath.flows().insert(client, node, host);
    let frame = Packet::tcp(CLIENT4, NODE4, ACK).frame();
    datapath.test_run(TestProgram::Ingress, RunOptions { frame: &frame, repeat: 3, live: None }).expect("runs");
    datapath.flows().remove(client, node);
    let cell = &datapath.host_cells()[host as usize];
    cell.requests[0].fetch_add(1, Relaxed);
    cell.bytes_out.fetch_add(u64::from(host), Relaxed);
}

fn hosts(datapath: &Datapath) -> BTreeMap<String, HostCounts> {
    let hosts = datapath.maps().hosts().expect("hosts");
    hosts.into_iter().map(|host| (host.name.clone().unwrap_or_default(), host)).collect()
}

/// Returns requests, bytes and packets of a host.
fn counted(datapath: &Datapath, name: &str) -> (u64, u64, u64) {
    let HostCounts { l7: HostL7 { requests, bytes_out, .. }, net, .. } = hosts(datapath)[name].clone();
    (requests.success, bytes_out, net.rx_packets)
}

/// Returns the sums over all hosts.
fn sum(datapath: &Datapath) -> (u64, u64, u64) {
    let each = hosts(datapath).into_keys().map(|name| counted(datapath, &name));
    each.fold((0, 0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1, sum.2 + one.2))
}

fn names(numbers: impl IntoIterator<Item = u32>) -> Vec<String> {
    numbers.into_iter().map(name).collect()
}

/// Asks twice, as the process does from minute to minute.
fn give_back(datapath: &Datapath, names: &[String]) -> Vec<RawHostId> {
    assert!(ask(datapath, names).is_empty(), "not at the first call");
    ask(datapath, names)
}

/// Which numbers one call gives back.
fn ask(datapath: &Datapath, names: &[String]) -> Vec<RawHostId> {
    let Given { ids, freed: _, error } = datapath.host_ids().give_back(names, usize::MAX);
    assert!(error.is_none(), "{error:?}");
    ids
}

/// Opens the map of ids with another program's write access.
fn ids(sandbox: &Sandbox) -> HashMap<aya::maps::MapData, HostName, u32> {
    Map::from_map_data(sandbox.map(HOST_IDS)).expect("a map").try_into().expect("a hash")
}

#[test]
fn ids_of_removed_hosts_are_reused_and_their_counts_are_kept() {
    sandboxed(|sandbox| {
        let datapath = serving_with(&options(sandbox));
        let assign = |name: &str| datapath.host_ids().assign(name);
        // Several times as many hosts as there are numbers.
        for round in 0..5 {
            let first = round * 100;
            // From the second round on, one number is in use for all hosts that have gone.
            let count = if round == 0 { NUMBERS } else { NUMBERS - 1 };
            for number in first..first + count {
                let id = assign(&name(number)).unwrap_or_else(|error| panic!("{round}, {number}: {error}"));
                assert_eq!(counted(&datapath, &name(number)), (0, 0, 0), "{round}: a new host begins at zero");
                count_for(&datapath, id);
                assert_eq!(counted(&datapath, &name(number)), (1, u64::from(id), 3), "{round}");
            }
            assert!(matches!(assign("another.test"), Err(Error::HostsFull { .. })), "{round}: all are taken");
            let before = sum(&datapath);
            let given = give_back(&datapath, &names(first..first + count));
            assert_eq!(given.len(), count as usize, "{round}");
            assert_eq!(hosts(&datapath).into_keys().collect::<Vec<_>>(), ["", GONE], "{round}");
            assert_eq!((counted(&datapath, GONE), sum(&datapath)), (before, before), "{round}: nothing is lost");
            check_sum(&datapath);
        }
        let fills = ingress_datapath::Pinned::open(&sandbox.bpffs()).expect("pins").fills().expect("fills");
        let fill = fills.iter().find(|fill| fill.map == HOST_IDS).expect("the map");
        assert_eq!(fill.entries, 2, "free numbers fill nothing: the latest, and those that have gone");
    });
}

#[test]
fn ids_in_use_by_flows_or_requests_are_kept() {
    sandboxed(|sandbox| {
        let datapath = serving_with(&options(sandbox));
        let [flowing, active, quiet] =
            [1, 2, 3].map(|number| datapath.host_ids().assign(&name(number)).expect("a number"));
        let (client, node) = (CLIENT4.parse().expect("an address"), NODE4.parse().expect("an address"));
        datapath.flows().insert(client, node, flowing);
        datapath.host_cells()[active as usize].active.fetch_add(1, Relaxed);
        let all = names(1..=3);
        assert_eq!(give_back(&datapath, &all), [quiet]);
        datapath.flows().remove(client, node);
        datapath.host_cells()[active as usize].active.fetch_sub(1, Relaxed);
        // A program may still count the packet whose flow it has found.
        assert!(ask(&datapath, &all).is_empty());
        datapath.flows().insert(client, node, flowing);
        assert_eq!(ask(&datapath, &all), [active], "it was in use again");
        datapath.flows().remove(client, node);
        assert_eq!(give_back(&datapath, &all), [flowing]);
    });
}

#[test]
fn ids_are_not_reassigned_while_two_processes_live() {
    sandboxed(|sandbox| {
        let old = serving_with(&options(sandbox));
        for number in 0..NUMBERS {
            let id = old.host_ids().assign(&name(number)).expect("a number");
            count_for(&old, id);
        }
        let all = names(0..NUMBERS);
        let new = serving_with(&options(sandbox));
        let mut known = new.host_ids().names();
        known.sort();
        assert_eq!(known, all, "what the old one has handed out");
        let before = hosts(&new);
        for datapath in [&old, &new, &old] {
            assert!(ask(datapath, &all).is_empty());
        }
        assert_eq!(hosts(&new), before);
        // A connection of the old process, which it leaves behind.
        let client = CLIENT4.parse().expect("an address");
        old.flows().insert(client, NODE4.parse().expect("an address"), before[&name(0)].id);
        drop(old);
        assert_eq!(give_back(&new, &all).len(), all.len() - 1, "the flow is still there");
        new.evict_dead().expect("sweeps");
        assert_eq!(give_back(&new, &all), [before[&name(0)].id]);
        assert_eq!(counted(&new, GONE).0, u64::from(NUMBERS));
        check_sum(&new);

        // Two processes that take free numbers at one time get different ones.
        let newest = serving_with(&options(sandbox));
        let assign = |datapath: &Datapath, name: &str| datapath.host_ids().assign(name).expect("a number");
        let [a, b] = [assign(&new, "a.test"), assign(&newest, "b.test")];
        assert_ne!(a, b);
        assert_eq!((assign(&newest, "a.test"), assign(&new, "b.test")), (a, b), "and both know of both");
    });
}

#[test]
fn interrupted_changes_are_repaired_at_the_next_start() {
    sandboxed(|sandbox| {
        let datapath = serving_with(&options(sandbox));
        for number in 0..NUMBERS {
            let id = datapath.host_ids().assign(&name(number)).expect("a number");
            count_for(&datapath, id);
        }
        let killed_after_names_of = |names: &[String]| {
            let mut map = ids(sandbox);
            names.iter().for_each(|name| map.remove(&HostName::new(name).expect("a key")).expect("was there"));
        };
        // A crash before the first number is given back.
        drop(datapath);
        killed_after_names_of(&[name(0)]);
        let datapath = serving_with(&options(sandbox));
        assert_eq!(counted(&datapath, GONE), (1, 1, 3));
        let given = give_back(&datapath, &names(1..3));
        assert_eq!(given, [2, 3]);
        drop(datapath);
        // A crash amid the next one, and where a free number was to be written or taken.
        killed_after_names_of(&[name(3), format!("{FREE}{}", given[1])]);
        let datapath = serving_with(&options(sandbox));
        assert_eq!((counted(&datapath, GONE), datapath.host_ids().names().len()), ((4, 10, 12), 3));
        let mut free = ["a.test", "b.test", "c.test"].map(|name| datapath.host_ids().assign(name).expect("a number"));
        free.sort_unstable();
        assert_eq!(free, [2, 3, 4]);
        assert!(matches!(datapath.host_ids().assign("d.test"), Err(Error::HostsFull { .. })));
        check_sum(&datapath);
    });
}
