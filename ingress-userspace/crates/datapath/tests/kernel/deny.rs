//! The deny list under the verifier: drops and their counters. A change, a restart or a full map never admits a client
//! that is denied before and after it.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use ingress_common::{
    Total, Traffic,
    flow::{PROTO_TCP, PROTO_UDP},
    map::DENY_MAX,
    steer::{PORT_COUNT_ONLY, PORT_DENIES},
};
use ingress_datapath::{
    Applied, Datapath, DenyConfig, DenyCount, DenyEntry, Pinned, RunOptions, SteeredPort, TestProgram, unload,
};
use ipnet::{IpNet, Ipv4Net};

use crate::{
    packets::{ACK, Packet, SYN},
    sandbox::{Sandbox, sandboxed},
    verdicts::{XDP_DROP, XDP_PASS},
};

pub(crate) fn nets(text: &str) -> Vec<IpNet> {
    text.split_whitespace().map(|net| net.parse().expect("a network")).collect()
}

pub(crate) fn deny(datapath: &Datapath, denied: &str, trusted: &str) -> Applied {
    datapath.deny_list().set(&DenyConfig::new(nets(denied), nets(trusted))).expect("the list is taken")
}

/// Opens TCP on port 80 and UDP on port 443, on one address of each family.
pub(crate) fn serving(sandbox: &Sandbox) -> Datapath {
    let datapath = Datapath::open(&sandbox.options(&[])).expect("opens");
    datapath.take_over().expect("takes over");
    open_ports(&datapath);
    let addr = |text: &str| (text.parse().expect("an address"), 1);
    datapath.set_node_addrs(&[addr("198.51.100.7"), addr("2001:db8::7")]).expect("addresses");
    datapath
}

pub(crate) fn open_ports(datapath: &Datapath) {
    let port =
        |port, proto, workers, flags| SteeredPort { port, proto, first_slot: 0, workers, flags, rewritten: None };
    let ports = [port(80, PROTO_TCP, 2, 0), port(443, PROTO_UDP, 0, PORT_COUNT_ONLY)];
    datapath.set_ports(&ports).expect("ports");
}

fn node(from: &str, port: u16) -> String {
    if from.contains(':') { format!("[2001:db8::7]:{port}") } else { format!("198.51.100.7:{port}") }
}

fn socket(from: &str) -> String {
    if from.contains(':') { format!("[{from}]:40000") } else { format!("{from}:40000") }
}

/// A SYN, a segment of a connection, and a datagram.
fn packets(from: &str) -> [(&'static str, Vec<u8>); 3] {
    [
        ("SYN", Packet::tcp(&socket(from), &node(from, 80), SYN).frame()),
        ("ACK", Packet { payload: 100, ..Packet::tcp(&socket(from), &node(from, 80), ACK) }.frame()),
        ("UDP", Packet { payload: 30, ..Packet::udp(&socket(from), &node(from, 443)) }.frame()),
    ]
}

pub(crate) fn run(datapath: &Datapath, frame: &[u8]) -> u32 {
    datapath.test_run(TestProgram::Ingress, RunOptions { frame, repeat: 1, live: None }).expect("runs").verdict
}

/// Ends concurrent threads, also when the test has failed.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Sends packets from each sender while `change` runs and expects the verdict beside it. Returns the numbers of
/// packets.
fn run_while<const N: usize>(datapath: &Datapath, senders: [(&str, u32); N], change: impl FnOnce()) -> [u64; N] {
    let ended = AtomicBool::new(false);
    let run_on = |from: &str, expect: u32| {
        let mut runs = 0_u64;
        // At least once, however fast the changes are.
        while !ended.load(Relaxed) || runs == 0 {
            for (what, frame) in packets(from) {
                assert_eq!(run(datapath, &frame), expect, "{from} {what} after {runs} runs");
                runs += 1;
            }
        }
        runs
    };
    thread::scope(|scope| {
        let run_on = &run_on;
        let watches = senders.map(|(from, expect)| scope.spawn(move || run_on(from, expect)));
        let end = End(&ended);
        change();
        drop(end);
        watches.map(|watch| watch.join().expect("no packet took the wrong way"))
    })
}

pub(crate) fn is_denied(datapath: &Datapath, from: &str) -> bool {
    let verdicts = packets(from).map(|(_, frame)| run(datapath, &frame));
    assert!(verdicts.iter().all(|verdict| *verdict == verdicts[0]), "{from}: {verdicts:?}");
    verdicts[0] == XDP_DROP
}

/// Returns the drops of each prefix.
fn dropped(datapath: &Datapath) -> BTreeMap<Option<IpNet>, Traffic> {
    let view = datapath.deny_list().view().expect("readable");
    view.rules.into_iter().map(|DenyCount { prefix, dropped }| (prefix, dropped)).collect()
}

fn packets_dropped(datapath: &Datapath, prefix: &str) -> Option<u64> {
    dropped(datapath).get(&Some(nets(prefix)[0])).map(|traffic| traffic.packets)
}

/// Returns the flags of the ports in the kernel map.
fn flags(datapath: &Datapath) -> Vec<u16> {
    datapath.maps().ports().expect("ports").into_iter().map(|(_, rule)| rule.flags).collect()
}

#[test]
fn the_longest_prefix_decides_and_trusted_proxies_pass() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        let listed = "10.0.0.0/8 10.1.0.0/16 192.0.2.7/32 2001:db8:bad::/48 2001:db8:bad:1::/64";
        let applied = deny(&datapath, listed, "10.1.2.0/24 2001:db8:bad:2::1/128 203.0.113.0/24");
        assert_eq!(applied, Applied { added: 7, removed: 0, left_out: 0 }, "a hop that nothing denies needs no entry");
        for (from, rule) in [
            ("10.200.0.1", Some("10.0.0.0/8")),
            ("10.1.3.4", Some("10.1.0.0/16")),
            ("10.1.2.3", None),
            ("192.0.2.7", Some("192.0.2.7/32")),
            ("192.0.2.8", None),
            ("203.0.113.9", None),
            ("2001:db8:bad::1", Some("2001:db8:bad::/48")),
            ("2001:db8:bad:1::1", Some("2001:db8:bad:1::/64")),
            ("2001:db8:bad:2::1", None),
            ("2001:db8:bad:2::2", Some("2001:db8:bad::/48")),
            ("2001:db8:bae::1", None),
            // Such an address is invalid on the wire; an IPv4 network contains it, as in the proxy's list.
            ("::ffff:10.200.0.1", Some("10.0.0.0/8")),
        ] {
            let before = rule.and_then(|rule| packets_dropped(&datapath, rule));
            assert_eq!(is_denied(&datapath, from), rule.is_some(), "{from}");
            let after = rule.and_then(|rule| packets_dropped(&datapath, rule));
            assert_eq!(after, before.map(|packets| packets + 3), "{from}: counted for {rule:?}");
        }
    });
}

#[test]
fn dropped_packets_count_once_for_their_rule_and_for_no_host() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        // The flow is known, but its host does not count the dropped packets.
        let address = |text: &str| text.parse().expect("an address");
        datapath.flows().insert(address("10.0.0.1:40000"), address("198.51.100.7:80"), 5);
        deny(&datapath, "10.0.0.0/8 2001:db8:bad::/48", "");
        let mut expected = Traffic::default();
        for from in ["10.0.0.1", "2001:db8:bad::1"] {
            let mut of_rule = Traffic::default();
            for (what, frame) in packets(from) {
                let before = datapath.totals().expect("totals");
                let hosts = datapath.host_net().expect("host_net");
                let nics = datapath.maps().nic_net().expect("nic_net");
                assert_eq!(run(&datapath, &frame), XDP_DROP, "{from} {what}");
                of_rule.packets += 1;
                of_rule.bytes += frame.len() as u64;
                assert_eq!(datapath.host_net().expect("host_net"), hosts, "{from} {what}: for no host");
                assert_eq!(datapath.maps().nic_net().expect("nic_net"), nics, "{from} {what}: for no interface");
                let after = datapath.totals().expect("totals");
                for ((total, name, before), (_, _, after)) in before.iter().zip(after.iter()) {
                    let packets = u64::from(total == Total::Denied);
                    assert_eq!(after.packets - before.packets, packets, "{from} {what}: {name}");
                    assert_eq!(after.bytes - before.bytes, packets * frame.len() as u64, "{from} {what}: {name}");
                }
            }
            let prefix = if from.contains(':') { "2001:db8:bad::/48" } else { "10.0.0.0/8" };
            assert_eq!(dropped(&datapath).get(&Some(nets(prefix)[0])), Some(&of_rule), "{from}");
            expected.packets += of_rule.packets;
            expected.bytes += of_rule.bytes;
        }
        let sum = dropped(&datapath).values().fold(Traffic::default(), |sum, traffic| Traffic {
            packets: sum.packets + traffic.packets,
            bytes: sum.bytes + traffic.bytes,
        });
        assert_eq!((sum, datapath.totals().expect("totals").get(Total::Denied)), (expected, expected));
    });
}

#[test]
fn only_packets_for_steered_ports_are_looked_up() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        deny(&datapath, "0.0.0.0/0 ::/0", "");
        for (what, to, total) in [
            ("another port", "198.51.100.7:22", Total::OtherPort),
            ("another node", "203.0.113.9:80", Total::Transit),
            ("another port, v6", "[2001:db8::7]:22", Total::OtherPort),
            ("another node, v6", "[2001:db8::8]:80", Total::Transit),
        ] {
            let from = if to.starts_with('[') { "[2001:db8:bad::1]:40000" } else { "10.0.0.1:40000" };
            let before = datapath.totals().expect("totals").get(total).packets;
            assert_eq!(run(&datapath, &Packet::tcp(from, to, SYN).frame()), XDP_PASS, "{what}");
            assert_eq!(datapath.totals().expect("totals").get(total).packets, before + 1, "{what}");
        }
        assert!(is_denied(&datapath, "10.0.0.1") && is_denied(&datapath, "2001:db8:bad::1"));
    });
}

#[test]
fn an_empty_deny_list_is_not_looked_up() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        let enforced = |datapath: &Datapath| -> Vec<bool> {
            flags(datapath).into_iter().map(|flags| flags & PORT_DENIES != 0).collect()
        };
        assert_eq!(enforced(&datapath), [false, false]);
        deny(&datapath, "", "10.0.0.0/8");
        assert_eq!(enforced(&datapath), [false, false], "nobody is denied");
        deny(&datapath, "10.0.0.0/8", "");
        assert_eq!(enforced(&datapath), [true, true]);
        open_ports(&datapath);
        assert_eq!(enforced(&datapath), [true, true], "whatever the caller says of the port");
        assert!(flags(&datapath).contains(&(PORT_COUNT_ONLY | PORT_DENIES)), "the other flags stay");
        assert!(is_denied(&datapath, "10.0.0.1"));
        assert_eq!(deny(&datapath, "", ""), Applied { added: 0, removed: 1, left_out: 0 });
        assert_eq!(enforced(&datapath), [false, false]);
        assert!(!is_denied(&datapath, "10.0.0.1"));
    });
}

#[test]
fn networks_in_both_lists_stay_denied_during_an_update() {
    const ROUNDS: usize = 200;
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        // Each list has the blocked senders, by different prefixes, and the trusted proxy, by different ones as well.
        let lists = [
            ("10.0.0.0/8 192.0.2.0/24 2001:db8:bad::/48", "192.0.2.77/32"),
            ("10.0.0.0/9 10.128.0.0/9 192.0.2.0/25 2001:db8:bad::/47", "192.0.2.76/31"),
            ("10.1.2.3/32 192.0.0.0/16 11.0.0.0/8 2001:db8:bad::1/128", "192.0.2.64/26"),
        ];
        deny(&datapath, lists[0].0, lists[0].1);
        let senders = [("10.1.2.3", XDP_DROP), ("2001:db8:bad::1", XDP_DROP), ("192.0.2.77", XDP_PASS)];
        let runs = run_while(&datapath, senders, || {
            for round in 1..=ROUNDS {
                let (denied, trusted) = lists[round % lists.len()];
                assert_eq!(deny(&datapath, denied, trusted).left_out, 0);
            }
        });
        let denied = datapath.totals().expect("totals").get(Total::Denied).packets;
        assert_eq!(denied, runs[0] + runs[1], "each counted once");
    });
}

#[test]
fn prefixes_keep_their_counts_and_reused_rules_start_at_zero() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        deny(&datapath, "10.0.0.0/8 11.0.0.0/8", "");
        assert!(is_denied(&datapath, "10.0.0.1") && is_denied(&datapath, "11.0.0.1"));
        deny(&datapath, "11.0.0.0/8 2001:db8:bad::/48", "");
        deny(&datapath, "11.0.0.0/8 12.0.0.0/8", "");
        assert_eq!(packets_dropped(&datapath, "11.0.0.0/8"), Some(3));
        assert_eq!(packets_dropped(&datapath, "12.0.0.0/8"), Some(0), "whatever 10.0.0.0/8 dropped");
        assert!(is_denied(&datapath, "12.0.0.1") && is_denied(&datapath, "11.0.0.1"));
        assert_eq!(packets_dropped(&datapath, "11.0.0.0/8"), Some(6));
        assert_eq!(packets_dropped(&datapath, "12.0.0.0/8"), Some(3));
        assert!(!is_denied(&datapath, "10.0.0.1"));
    });
}

#[test]
fn a_new_process_adopts_and_continues_the_deny_list() {
    sandboxed(|sandbox| {
        let first = serving(sandbox);
        deny(&first, "10.0.0.0/8 11.0.0.0/8 12.0.0.0/8", "11.0.0.1/32");
        assert!(is_denied(&first, "10.0.0.1") && is_denied(&first, "11.0.0.2"));
        drop(first);

        let second = Datapath::open(&sandbox.options(&[])).expect("opens");
        assert!(is_denied(&second, "10.0.0.1") && !is_denied(&second, "11.0.0.1"), "before it is told anything");
        assert_eq!(packets_dropped(&second, "10.0.0.0/8"), Some(6), "it counts on");
        second.take_over().expect("takes over");
        open_ports(&second);
        assert!(is_denied(&second, "10.0.0.1"), "ports that are set anew heed the list that is there");
        let applied = deny(&second, "10.0.0.0/8 12.0.0.0/8 13.0.0.0/8", "");
        assert_eq!(applied, Applied { added: 1, removed: 2, left_out: 0 }, "by differences");
        assert!(is_denied(&second, "10.0.0.1") && is_denied(&second, "13.0.0.1") && !is_denied(&second, "11.0.0.2"));
        assert_eq!(packets_dropped(&second, "10.0.0.0/8"), Some(12));
        assert_eq!(deny(&second, "10.0.0.0/8 12.0.0.0/8 13.0.0.0/8", ""), Applied::default());

        // The view of `xdp-ingress deny`.
        let pinned = Pinned::open(&sandbox.bpffs()).expect("pins");
        let entries = pinned.maps().deny_entries().expect("entries");
        let prefixes: Vec<_> = entries.iter().map(|entry| entry.prefix).collect();
        assert_eq!(prefixes, nets("10.0.0.0/8 12.0.0.0/8 13.0.0.0/8"));
        let rule = DenyEntry::deciding(&entries, [10, 9, 8, 7].into()).and_then(|entry| entry.rule).expect("a rule");
        assert_eq!(pinned.maps().deny_hits().expect("hits")[rule as usize].packets, 12);
        unload(&sandbox.bpffs()).expect("unloads");
        assert!(Pinned::open(&sandbox.bpffs()).is_err());
    });
}

/// Returns one of many addresses, from 10.0.0.0 on.
fn filler(n: u32) -> IpNet {
    IpNet::V4(Ipv4Net::new((0x0a00_0000 + n).into(), 32).expect("a length"))
}

#[test]
fn a_trusted_proxy_passes_during_an_update_of_a_full_list() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        let denied = nets("192.0.2.0/24").into_iter().chain((0..DENY_MAX - 2).map(filler));
        let full = datapath.deny_list().set(&DenyConfig::new(denied, nets("192.0.2.64/26")));
        assert_eq!(full.expect("the list is taken"), Applied { added: DENY_MAX as usize, removed: 0, left_out: 0 });
        // The proxy's entry has no room before one of the many goes; until then its network must not be denied.
        run_while(&datapath, [("192.0.2.77", XDP_PASS), ("192.0.2.1", XDP_DROP)], || {
            let applied = deny(&datapath, "192.0.2.0/24 192.0.2.64/26", "192.0.2.77/32");
            assert_eq!(applied, Applied { added: 2, removed: DENY_MAX as usize - 2, left_out: 0 });
        });
        assert!(is_denied(&datapath, "192.0.2.76") && !is_denied(&datapath, "192.0.2.77"));
    });
}

#[test]
fn entries_beyond_capacity_are_reported_and_added_later() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        let set = |from: u32, count: u32, trusted: &str| {
            let wanted = DenyConfig::new((from..from + count).map(filler), nets(trusted));
            datapath.deny_list().set(&wanted).expect("the list is taken")
        };
        assert_eq!(set(0, DENY_MAX + 7, "").left_out, 7);
        let kept = datapath.maps().deny_entries().expect("entries");
        assert_eq!(kept.len(), DENY_MAX as usize, "all that the kernel takes, read in whole");
        assert_eq!(datapath.deny_list().view().expect("readable").left_out, 7);
        assert!(is_denied(&datapath, "10.0.0.1"));
        assert!(packets_dropped(&datapath, "10.0.0.1/32").is_some());
        assert!(dropped(&datapath).contains_key(&None), "some share a rule");
        // A full map: new entries wait for the removal of old ones.
        let applied = set(50_000, DENY_MAX, "10.0.200.0/32");
        assert_eq!(applied.left_out, 0, "one of them is a hop");
        assert_eq!(datapath.maps().deny_entries().expect("entries").len(), DENY_MAX as usize - 1);
        assert!(!is_denied(&datapath, "10.0.0.1") && is_denied(&datapath, "10.1.0.0"));
        assert!(!is_denied(&datapath, "10.0.200.0"), "51,200 after the first");
        assert_eq!(set(0, 0, ""), Applied { added: 0, removed: DENY_MAX as usize - 1, left_out: 0 });
        assert!(datapath.maps().deny_entries().expect("entries").is_empty());
    });
}
