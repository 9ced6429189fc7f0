//! Limits of clients on real links: who asks for too many connections waits, and nobody else does; a dry run and trust
//! let everybody through.

use std::net::{IpAddr, Ipv4Addr};

use ingress_common::Total;
use serde_json::{Value, json};
use socket2::{Socket, Type};
use xtask::lab::{
    topology::{CLIENT_V4, Family},
    until,
};

use crate::{
    deny::{CLIENTS, TRUST, command, get, serving, settings, socket},
    net::{Net, http},
};

/// Far fewer than a client asks for that is in a hurry, on however slow a machine.
const LIMIT: &str = "client-syns-per-second: \"1\", client-syn-burst: \"3\"";
const DRY_RUN: &str = "client-limits-dry-run: \"true\"";
/// What the process logs when the kernel's limits have become others.
const CHANGED: &str = "the node's limits of clients";
const HURRIED_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 3));

fn count(net: &Net, total: Total) -> u64 {
    net.maps().read().expect("maps").total(total).packets
}

/// A connection that is asked for, and not waited for.
fn begin(net: &Net, from: IpAddr, family: Family) -> Socket {
    let socket = socket(net, from, Type::STREAM);
    socket.set_nonblocking(true).expect("non-blocking");
    assert!(socket.connect(&http(family).into()).is_err(), "in progress");
    socket
}

#[test]
fn who_asks_for_too_many_connections_waits_and_nobody_else() {
    let Some((net, mut process)) = serving("limits", &[LIMIT]) else { return };
    process.wait_for_log(CHANGED, 1).expect("they change");
    for (family, _, hurried) in CLIENTS {
        let before = count(&net, Total::LimitedSyn);
        let mut begun = Vec::new();
        let is_dropped = || {
            begun.push(begin(&net, hurried, family));
            (count(&net, Total::LimitedSyn) > before).then_some(())
        };
        until("a connection is too much", is_dropped).expect("it is dropped");
    }
    let before = count(&net, Total::LimitedSyn);
    assert_eq!(get(&net, CLIENT_V4.into(), Family::V4, "").expect("an answer"), 200, "the neighbour is served");
    let counts = net.settled();
    assert_eq!(counts.received(), counts.total(Total::Accepted), "what is dropped is no host's");

    let shown: Value = serde_json::from_str(&command(&net, &["clients", "--output", "json"])).expect("JSON");
    assert_eq!(shown["limits"], json!({ "syns": { "per_second": 1, "burst": 3 }, "packets": null, "dry_run": false }));
    let clients = shown["clients"].as_array().expect("a list");
    let of = |name: &str| clients.iter().find(|client| client["client"] == name).map(|client| &client["syns"]);
    let (v4, v6) = (of("192.0.2.3/32").and_then(Value::as_u64), of("2001:db8:1::/64").and_then(Value::as_u64));
    assert!(v4 >= Some(1) && v6 >= Some(1) && clients.len() == 2, "{shown}");
    assert!(v4.unwrap_or_default() + v6.unwrap_or_default() >= before, "all that was dropped: {shown}");
    assert!(command(&net, &["clients"]).contains("each client may send 1 SYNs per second, 3 at once"));
    let state: Value = serde_json::from_str(&command(&net, &["status", "--output", "json"])).expect("JSON");
    assert!(state["attention"].to_string().contains("limits dropped packets of 2 clients"), "{state}");
    let totals = net.admin("/totals").and_then(|answer| answer.json()).expect("JSON");
    assert!(totals["limited_syn"]["packets"].as_u64() >= Some(before), "{totals}");

    // What would be dropped is counted, and answered.
    settings(&net, &[LIMIT, DRY_RUN]);
    process.wait_for_log(CHANGED, 2).expect("they change");
    let dropped = count(&net, Total::LimitedSyn);
    for (family, _, hurried) in CLIENTS {
        let before = count(&net, Total::WouldLimitSyn);
        let is_counted = || {
            assert_eq!(get(&net, hurried, family, "").expect("an answer"), 200);
            (count(&net, Total::WouldLimitSyn) > before).then_some(())
        };
        until("a connection would be too much", is_counted).expect("it is counted");
    }
    assert_eq!(count(&net, Total::LimitedSyn), dropped);

    // Whoever may speak for others is many clients, and not limited.
    settings(&net, &[LIMIT, TRUST]);
    process.wait_for_log(CHANGED, 3).expect("they change");
    for (family, _, hop) in CLIENTS {
        for _ in 0..20 {
            assert_eq!(get(&net, hop, family, "").expect("an answer"), 200);
        }
    }
    assert_eq!(count(&net, Total::LimitedSyn), dropped);
    assert!(command(&net, &["deny", "test", "192.0.2.3"]).starts_with("passes by 192.0.2.0/24"));

    settings(&net, &[]);
    process.wait_for_log(CHANGED, 4).expect("they change");
    for _ in 0..20 {
        assert_eq!(get(&net, HURRIED_V4, Family::V4, "").expect("an answer"), 200);
    }
    assert_eq!(count(&net, Total::LimitedSyn), dropped);
    assert!(command(&net, &["clients"]).starts_with("clients are not limited\n0 of 0 clients"));
    assert!(command(&net, &["deny", "test", "192.0.2.3"]).starts_with("passes; no entry"));
}
