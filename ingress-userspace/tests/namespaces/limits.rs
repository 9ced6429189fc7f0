//! Client limits on real links: a client that opens too many connections waits, and no other client does. A dry run and
//! trusted proxies let all packets through. Packets spoofed with a client's address do not stop its open connections.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use ingress_common::Total;
use ingress_lab::{
    topology::{CLIENT_V4, Family, node_addr},
    until,
};
use serde_json::{Value, json};
use socket2::{Socket, Type};

use crate::{
    deny::{CLIENTS, TRUST, command, connect, get, serving, settings, socket},
    net::{Net, http},
};

/// Far below the demand of a client in a hurry, on however slow a machine.
const LIMIT: &str = "client-syns-per-second: \"1\", client-syn-burst: \"3\"";
/// Enough for a connection with some requests, and far less than a flood.
const PACKETS: &str = "client-packets-per-second: \"200\"";
const DRY_RUN: &str = "client-limits-dry-run: \"true\"";
/// Log line of the process for a change of the kernel's limits.
const CHANGED: &str = "the node's limits of clients";
const HURRIED_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 3));

fn count(net: &Net, total: Total) -> u64 {
    net.maps().read().expect("maps").total(total).packets
}

/// Begins to connect without waiting.
fn begin(net: &Net, from: IpAddr, family: Family) -> Socket {
    let socket = socket(net, from, Type::STREAM);
    socket.set_nonblocking(true).expect("non-blocking");
    assert!(socket.connect(&http(family).into()).is_err(), "in progress");
    socket
}

#[test]
fn only_clients_over_their_limit_wait_for_connections() {
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

    // A dry run counts the packets that it would drop, and answers them.
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

    // A trusted proxy stands for many clients, and is not limited.
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

/// Sends one request on a connection that stays open, and reads the whole answer.
fn ask(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"GET / HTTP/1.1\r\nhost: web.test\r\n\r\n")?;
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut piece)?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend_from_slice(&piece[..count]);
        let text = String::from_utf8_lossy(&answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.to_ascii_lowercase();
        let length = length.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
        if length.is_some_and(|length: usize| body.len() >= length) {
            assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            return Ok(());
        }
    }
}

/// Ends a flood, also when the test fails meanwhile.
struct Over<'f>(&'f AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        let Self(is_over) = self;
        is_over.store(true, Relaxed);
    }
}

#[test]
fn spoofed_packets_do_not_stop_open_connections() {
    let Some((net, mut process)) = serving("limits-spoofed", &[PACKETS]) else { return };
    process.wait_for_log(CHANGED, 1).expect("they change");
    for (family, _, victim) in CLIENTS {
        let mut open = connect(&net, victim, family).expect("a connection");
        ask(&mut open).expect("an answer");
        let flood: UdpSocket = socket(&net, victim, Type::DGRAM).into();
        flood.connect((node_addr(family), 53)).expect("connected");
        let before = count(&net, Total::LimitedPacket);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    // Errors from the missing listener do not matter to the flood.
                    (0..20).for_each(|_| drop(flood.send(b"x")));
                    thread::sleep(Duration::from_millis(5));
                }
            });
            let _over = Over(&is_over);
            let is_flooded = || (count(&net, Total::LimitedPacket) > before + 500).then_some(());
            until("the client's bucket is empty", is_flooded).expect("the flood is dropped");
            (0..20).try_for_each(|_| ask(&mut open)).expect("the open connection goes on within the flood");
        });
    }
    let counts = net.settled();
    assert_eq!(counts.received(), counts.total(Total::Accepted), "what is dropped is no host's");
}
