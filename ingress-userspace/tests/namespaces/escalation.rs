//! From refusals to a denial on real links: a client that is refused too often gets no answer any more until the denial
//! is removed. A client that is refused less often, or that is a trusted proxy, is left alone. Denials that an operator
//! adds by hand are covered as well.

use std::net::IpAddr;

use ingress_common::{
    DenialKey, DenialValue,
    denial::ORIGIN_OPERATOR,
    flow::v4_mapped,
    map::{DENIALS, DENIALS_MAX},
};
use ingress_lab::{
    topology::{CLIENT_V4, Family},
    until,
};
use serde_json::Value;
use socket2::Type;

use crate::{
    deny::{BLOCKED_V4, BLOCKED_V6, TRUST, command, denied, get, run, serving, settings, socket, wait_for_drop},
    full,
    inspect::attention,
    net::{Net, http},
};

const CLIENT: IpAddr = IpAddr::V4(CLIENT_V4);
const VIOLATOR: IpAddr = IpAddr::V4(BLOCKED_V4);
const VIOLATOR_V6: IpAddr = IpAddr::V6(BLOCKED_V6);

const BLOCK: &str = "block-user-agents: evil";
const ESCALATE: &str =
    "escalate-also: blocked, escalate-after: \"3\", escalate-within: \"3600\", escalate-for: \"3600\"";
const DRY_RUN: &str = "escalate-dry-run: \"true\"";

/// Sends a request that is refused.
fn offend(net: &Net, from: IpAddr, family: Family) {
    assert_eq!(get(net, from, family, "user-agent: evil\r\n").expect("an answer"), 403);
}

/// Sends a request that is served.
fn is_served(net: &Net, from: IpAddr, family: Family) {
    assert_eq!(get(net, from, family, "").expect("an answer"), 200);
}

fn is_shut_out(net: &Net, from: IpAddr, family: Family) {
    let before = denied(net);
    let shut_out = socket(net, from, Type::STREAM);
    shut_out.set_nonblocking(true).expect("non-blocking");
    assert!(shut_out.connect(&http(family).into()).is_err(), "in progress");
    wait_for_drop(net, before);
    assert!(shut_out.peer_addr().is_err());
}

/// Returns the value of a metric, by its name and labels.
fn metric(net: &Net, name: &str) -> f64 {
    let text = net.admin("/metrics").expect("answers").text;
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}: {text}")).parse().expect("a number")
}

fn escalations(net: &Net, result: &str) -> f64 {
    metric(net, &format!("xdp_ingress_escalations_total{{result=\"{result}\"}}"))
}

fn violations(net: &Net) -> f64 {
    metric(net, "xdp_ingress_violations_total{reason=\"blocked\"}")
}

fn wait_for_escalation(net: &Net, result: &str, count: f64) {
    until("an escalation", || (escalations(net, result) >= count).then_some(())).expect("it comes");
}

/// Applies other settings, and waits until they take effect.
fn change(net: &Net, rows: &[&str]) {
    let generation = || metric(net, "xdp_ingress_snapshot_generation");
    let before = generation();
    settings(net, rows);
    until("other settings", || (generation() > before).then_some(())).expect("they hold");
}

/// Returns prefix and origins of each line of the list.
fn list(net: &Net) -> Vec<(String, Vec<String>)> {
    let list: Value = serde_json::from_str(&command(net, &["deny", "list", "--output", "json"])).expect("JSON");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let rows = list.as_array().expect("a list").iter().map(|row| {
        let origins = row["origins"].as_array().expect("a list").iter();
        (text(&row["prefix"]), origins.map(|origin| text(&origin["origin"])).collect())
    });
    rows.collect()
}

fn line(prefix: &str, origin: &str) -> (String, Vec<String>) {
    (prefix.to_owned(), vec![origin.to_owned()])
}

#[test]
fn repeat_violators_are_denied_until_the_denial_is_removed() {
    let Some((net, mut process)) = serving("escalation", &[BLOCK, ESCALATE]) else { return };
    is_served(&net, VIOLATOR, Family::V4);
    offend(&net, VIOLATOR, Family::V4);
    offend(&net, CLIENT, Family::V4);
    offend(&net, VIOLATOR, Family::V4);
    is_served(&net, VIOLATOR, Family::V4);
    offend(&net, VIOLATOR, Family::V4);
    wait_for_escalation(&net, "denied", 1.0);
    is_shut_out(&net, VIOLATOR, Family::V4);
    is_served(&net, CLIENT, Family::V4);
    assert_eq!((violations(&net), escalations(&net, "denied")), (4.0, 1.0));
    assert_eq!(list(&net), [line("192.0.2.3/32", "escalation")]);
    let table = command(&net, &["deny", "list"]);
    assert!(table.contains("refused 3 times in 3600 s: blocked"), "{table}");
    assert!(process.log().contains("denied a client that was refused too often"), "{}", process.log_tail(20));
    assert!(command(&net, &["deny", "test", "192.0.2.3"]).starts_with("denied by 192.0.2.3/32"));

    // Neither the settings nor another list take it back.
    change(&net, &[BLOCK, "block-cidrs: \"198.51.100.0/24\""]);
    is_shut_out(&net, VIOLATOR, Family::V4);
    change(&net, &[BLOCK, ESCALATE]);

    let said = command(&net, &["deny", "remove", "192.0.2.3"]);
    assert_eq!(said, "removed 192.0.2.3/32 (escalation)\n");
    is_served(&net, VIOLATOR, Family::V4);
    process.wait_for_log("a denial has ended or was removed", 1).expect("the process notices");
    // Counting restarts at zero.
    offend(&net, VIOLATOR, Family::V4);
    offend(&net, VIOLATOR, Family::V4);
    offend(&net, VIOLATOR, Family::V4);
    wait_for_escalation(&net, "denied", 2.0);
    is_shut_out(&net, VIOLATOR, Family::V4);

    // For IPv6, the whole /64 is denied.
    for _ in 0..3 {
        offend(&net, VIOLATOR_V6, Family::V6);
    }
    wait_for_escalation(&net, "denied", 3.0);
    is_shut_out(&net, VIOLATOR_V6, Family::V6);
    assert_eq!(list(&net), [line("192.0.2.3/32", "escalation"), line("2001:db8:1::/64", "escalation")]);
    assert_eq!(metric(&net, "xdp_ingress_denials{origin=\"escalation\"}"), 2.0);
}

#[test]
fn a_dry_run_denies_no_client_and_ignores_trusted_proxies() {
    let Some((net, process)) = serving("escalate-dry", &[BLOCK, ESCALATE, DRY_RUN]) else { return };
    for _ in 0..3 {
        offend(&net, VIOLATOR, Family::V4);
    }
    wait_for_escalation(&net, "dry_run", 1.0);
    assert!(process.log().contains("would deny a client"), "{}", process.log_tail(20));
    is_served(&net, VIOLATOR, Family::V4);
    assert!(list(&net).is_empty());

    // The forwarded client makes no difference: the kernel sees only the proxy.
    change(&net, &[BLOCK, ESCALATE, TRUST]);
    for fields in ["user-agent: evil\r\n", "user-agent: evil\r\nx-forwarded-for: 203.0.113.9\r\n"] {
        for _ in 0..6 {
            assert_eq!(get(&net, VIOLATOR, Family::V4, fields).expect("an answer"), 403);
        }
    }
    assert_eq!(violations(&net), 3.0, "those from before");
    is_served(&net, VIOLATOR, Family::V4);
    assert_eq!((list(&net), escalations(&net, "denied")), (vec![], 0.0));
    let said = until("the kernel part knows whom to trust", || {
        let said = run(&net, &["deny", "add", "192.0.2.3"]);
        if said.is_ok() {
            run(&net, &["deny", "remove", "192.0.2.3"]).expect("it was added");
        }
        said.err()
    });
    let said = said.expect("it refuses");
    assert!(said.contains("`192.0.2.3/32` is in `192.0.2.0/24`, a network of trusted proxies"), "{said}");
    assert!(list(&net).is_empty());

    // Without the setting no refusals are counted, either.
    change(&net, &[BLOCK]);
    for _ in 0..6 {
        offend(&net, VIOLATOR, Family::V4);
    }
    assert_eq!(violations(&net), 3.0);
    is_served(&net, VIOLATOR, Family::V4);
}

#[test]
fn operator_denials_apply_with_and_without_a_process() {
    let Some((net, mut process)) = serving("deny-add", &[BLOCK]) else { return };
    is_served(&net, VIOLATOR, Family::V4);
    let said = command(&net, &["deny", "add", "192.0.2.3", "--for", "1h", "--reason", "ticket 4711"]);
    assert_eq!(said, "denied 192.0.2.3/32 for 1h00m\n");
    is_shut_out(&net, VIOLATOR, Family::V4);
    is_served(&net, CLIENT, Family::V4);
    assert_eq!(list(&net), [line("192.0.2.3/32", "operator")]);
    assert!(command(&net, &["deny", "list"]).contains("ticket 4711"));
    until("the process knows", || {
        let denied = net.admin("/denied").ok()?.json().ok()?;
        (denied["rules"][0]["rule"] == "192.0.2.3/32").then_some(())
    })
    .expect("it does");

    change(&net, &[BLOCK, "block-cidrs: \"192.0.2.3/32\""]);
    until("the settings name it, too", || (list(&net)[0].1 == ["settings", "operator"]).then_some(()))
        .expect("they do");
    let said = command(&net, &["deny", "remove", "192.0.2.3"]);
    assert!(said.contains("`block-cidrs` of the settings still denies it"), "{said}");
    let said = run(&net, &["deny", "remove", "192.0.2.3"]).expect_err("nothing of ours is left");
    assert!(said.contains("remove it from the ConfigMap"), "{said}");
    is_shut_out(&net, VIOLATOR, Family::V4);
    change(&net, &[BLOCK]);
    until("it is let in", || (get(&net, VIOLATOR, Family::V4, "").ok()? == 200).then_some(())).expect("served again");

    command(&net, &["deny", "add", "192.0.2.3", "--for", "2s"]);
    until("its time is over", || (get(&net, VIOLATOR, Family::V4, "").ok()? == 200).then_some(()))
        .expect("served again");
    assert!(list(&net).is_empty());

    process.kill().expect("the process is killed");
    command(&net, &["deny", "add", "2001:db8:1::3"]);
    command(&net, &["deny", "add", "192.0.2.0/25", "--for", "1h"]);
    assert!(command(&net, &["deny", "test", "192.0.2.77"]).starts_with("denied by 192.0.2.0/25"));
    command(&net, &["deny", "remove", "192.0.2.0/25"]);
    assert_eq!(list(&net), [line("2001:db8:1::3/128", "operator")]);
}

#[test]
fn the_proxy_keeps_refusing_when_denials_are_full() {
    let Some((net, mut process)) = serving("denials-full", &[BLOCK, ESCALATE]) else { return };
    // Operator denials for 10.0.0.0, 10.0.0.1 and so on, until they are removed.
    full::fill(&mut full::pinned(&net, DENIALS), DENIALS_MAX, |number| {
        let [_, a, b, c] = number.to_be_bytes();
        (DenialKey { origin: ORIGIN_OPERATOR, prefix_len: 128, addr: v4_mapped([10, a, b, c]) }, DenialValue::default())
    });
    for _ in 0..3 {
        offend(&net, VIOLATOR, Family::V4);
    }
    wait_for_escalation(&net, "failed", 1.0);
    let words = "could not deny a client that was refused too often; without an error above, the list has no room: \
     remove denials, or merge networks of `block-cidrs`";
    process.wait_for_log(words, 1).expect("it is told");
    offend(&net, VIOLATOR, Family::V4);
    is_served(&net, VIOLATOR, Family::V4);
    let said = run(&net, &["deny", "add", "192.0.2.3"]).expect_err("there is no room");
    let words = format!("there are {DENIALS_MAX} denials already; remove some that `xdp-ingress deny list` shows");
    assert!(said.contains(&words), "{said}");
    let said = attention(&net);
    let words = "map `denials` is 100 % full: further denials are refused; remove some with `xdp-ingress deny remove`";
    assert!(said.contains(words), "{said}");

    command(&net, &["deny", "remove", "10.0.0.1"]);
    command(&net, &["deny", "add", "192.0.2.3"]);
    is_shut_out(&net, VIOLATOR, Family::V4);
}
