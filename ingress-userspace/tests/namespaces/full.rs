//! Full maps: all clients are served, elements without room are reported, and there is room again once the obstacle is
//! gone. (For the deny list and denials, see `deny` and `escalation`.)

use std::net::Ipv6Addr;

use aya::{
    Pod,
    maps::{Array, HashMap, Map, MapData, MapError},
};
use ingress_common::{
    Flow, FlowKey, Handoff, HandoffEntry, Total,
    flow::PROTO_TCP,
    map::{FLOWS, FLOWS_MAX, HANDOFFS, HANDOFFS_MAX, LAYOUT},
};
use ingress_lab::{client::Ask, maps::UNATTRIBUTED_NAME, topology::Family, until};

use crate::{
    faults::{none_failed, steady},
    generation::Generation,
    inspect::{attention, status},
    net::{Net, http},
};

/// A pinned hash with write access, as of any other program on the node.
pub(crate) fn pinned<K: Pod, V: Pod>(net: &Net, name: &str) -> HashMap<MapData, K, V> {
    map(net, name).try_into().expect("a hash")
}

fn map(net: &Net, name: &str) -> Map {
    let data = MapData::from_pin(net.bpffs.join(LAYOUT).join("maps").join(name)).expect("pinned");
    Map::from_map_data(data).expect("a map of a known kind")
}

/// Fills a hash of room `capacity` element by element, until it is full.
pub(crate) fn fill<K: Pod, V: Pod>(map: &mut HashMap<MapData, K, V>, capacity: u32, element: impl Fn(u32) -> (K, V)) {
    let is_full = |result: Result<(), MapError>| match result {
        Err(MapError::SyscallError(error)) => error.io_error.raw_os_error() == Some(libc::E2BIG),
        // Other errors mean that the kernel must allocate memory first; the next element is tried.
        Ok(()) | Err(_) => false,
    };
    let has_filled = (0..capacity.saturating_mul(4)).any(|number| {
        let (key, value) = element(number);
        is_full(map.insert(key, value, 0))
    });
    assert!(has_filled, "it takes more than {capacity}");
}

/// A key of one of many unused connections.
fn flow_key(number: u32) -> FlowKey {
    let remote = Ipv6Addr::from(0x2001_0db8_ffff_u128 << 80 | u128::from(number));
    FlowKey { remote_addr: remote.octets(), proto: PROTO_TCP, ..FlowKey::default() }
}

fn is_served(net: &Net, host: &str) {
    assert_eq!(net.ask(&net.topology.client, http(Family::V4), &Ask::get(host, "/")).0.status, 200, "{host}");
}

#[test]
fn hosts_beyond_capacity_are_served_and_unattributed() {
    let Some(net) = Net::build("full-hosts") else { return };
    for name in ["api", "web"] {
        net.write(&format!("{name}.yaml"), &net.site(name, &[0]));
    }
    // Host 0 and one more.
    let mut process = Generation::start(&net, "first", &["--host-capacity", "2"]);
    for host in ["api.test", "web.test"] {
        (0..3).for_each(|_| is_served(&net, host));
    }
    let counts = net.settled();
    let requests: Vec<_> = counts.hosts.values().map(|host| host.l7.requests.success).collect();
    assert!(requests == [3, 3] && counts.hosts.contains_key(UNATTRIBUTED_NAME), "{:?}", counts.hosts);
    let words =
        "1 hosts are counted as unattributed; run `xdp-ingress unload`, then start with a larger `--host-capacity`";
    process.process.wait_for_log(words, 1).expect("it is told");
    assert!(process.process.log().contains("HostCapacity"), "{}", process.process.log_tail(20));
    let said = attention(&net);
    let words = "map `host_ids` is 100 % full: further hosts count for host 0; raise `--host-capacity` after";
    assert!(said.contains(words), "{said}");
}

#[test]
fn connections_beyond_the_flow_map_are_served_for_host_0() {
    let Some((net, mut first)) = Net::serving("full-flows") else { return };
    is_served(&net, "web.test");
    let mut flows = pinned::<FlowKey, Flow>(&net, FLOWS);
    until("its end", || flows.keys().next().is_none().then_some(())).expect("the proxy forgets the connection");
    let before = net.settled();
    // No sweep removes the flows of a live process.
    let epoch = status(&net)["processes"][0]["epoch"].as_u64().and_then(|epoch| u32::try_from(epoch).ok());
    let flow = Flow { host_id: before.hosts["web.test"].id, epoch: epoch.expect("an owner") };
    fill(&mut flows, FLOWS_MAX, |number| (flow_key(number), flow));
    (0..3).for_each(|_| is_served(&net, "web.test"));
    until("what had no room is counted", || {
        (net.maps().read().ok()?.total(Total::FlowsFull).packets >= 3).then_some(())
    })
    .expect("it is, with a heartbeat");
    let (before, counts) = (before.hosts["web.test"], net.settled());
    let after = counts.hosts["web.test"];
    assert_eq!(after.l7.requests.success, before.l7.requests.success + 3, "requests are exact");
    assert_eq!(after.net.rx_packets, before.net.rx_packets, "packets are those of host 0");
    let said = attention(&net);
    let words = "map `flows` is 100 % full: packets of further connections count for host 0, but all are served";
    assert!(said.contains(words), "{said}");

    // The successor removes the flows that a dead process leaves behind.
    first.process.kill().expect("it crashes");
    let _second = net.start("second", 9110);
    until("room", || (!attention(&net).contains("`flows`")).then_some(())).expect("there is some");
    is_served(&net, "web.test");
    let again = net.settled().hosts["web.test"];
    assert!(again.net.rx_packets > after.net.rx_packets, "{again:?}");
}

/// The attention list stays empty because nothing is refused: where all places are taken, the older of two notes gives
/// way.
#[test]
fn a_full_handoff_map_fails_no_connection() {
    let Some((net, _proxy)) = Net::serving("full-handoffs") else { return };
    let mut notes: Array<MapData, HandoffEntry> = map(&net, HANDOFFS).try_into().expect("an array");
    let load = steady(&net);
    for round in 0..4 {
        for place in 0..HANDOFFS_MAX {
            let handoff = Handoff { time_ns: u64::MAX, ..Handoff::default() };
            let entry = HandoffEntry { flow: flow_key(place), handoff };
            notes.set(place, entry, 0).unwrap_or_else(|error| panic!("{round}, {place}: {error}"));
        }
        load.pass(20).expect("connections are made");
    }
    none_failed(load);
    let counts = net.settled();
    assert!(counts.total(Total::LookupDecided).packets > 0, "notes are found among those of others");
    assert_eq!(attention(&net), "");
}
