//! Packets that hide their port, under the verifier: first fragments without a whole TCP header, and more extension
//! headers than the programs follow. They are dropped where the decision depends on the sender; otherwise they are
//! treated as before.

use std::num::NonZeroU32;

use ingress_common::Total;
use ingress_datapath::{ClientLimits, Datapath, DenyConfig, PacketRate, RunOptions, TestProgram};

use crate::{
    deny::{deny, nets, serving},
    packets::{Packet, SYN, extension, fragment},
    sandbox::sandboxed,
    verdicts::{TCX_DROP, TCX_NEXT, XDP_DROP, XDP_PASS},
};

const PROGRAMS: [(TestProgram, u32, u32); 3] = [
    (TestProgram::Ingress, XDP_PASS, XDP_DROP),
    (TestProgram::Linear, XDP_PASS, XDP_DROP),
    (TestProgram::Stack, TCX_NEXT, TCX_DROP),
];

/// Shortens the datagram's declared length by `missing` bytes. The frame keeps its length, as short ones are padded,
/// with bytes that look like the rest of the header.
fn ended(mut frame: Vec<u8>, missing: u16) -> Vec<u8> {
    let length = if frame[12..14] == [0x08, 0x00] { 16..18 } else { 18..20 };
    let whole = u16::from_be_bytes([frame[length.start], frame[length.start + 1]]);
    frame[length].copy_from_slice(&(whole - missing).to_be_bytes());
    frame
}

/// SYNs for port 80 from `v4` and `v6`, in a form that hides the port from the programs.
fn hidden(v4: &str, v6: &str, node_v4: &str, node_v6: &str) -> Vec<(&'static str, Vec<u8>)> {
    let syn4 = Packet::tcp(&format!("{v4}:40000"), &format!("{node_v4}:80"), SYN);
    let syn6 = Packet::tcp(&format!("[{v6}]:40000"), &format!("[{node_v6}]:80"), SYN);
    let first4 = Packet { fragment: 0x2000, ..syn4 }.frame();
    let first6 = Packet { extensions: vec![(44, fragment(0))], ..syn6.clone() }.frame();
    let seven = Packet { extensions: vec![(60, extension(0)); 7], ..syn6 }.frame();
    vec![
        ("v4, 8 bytes", ended(first4.clone(), 12)),
        ("v4, 16 bytes", ended(first4, 4)),
        ("v6, 8 bytes", ended(first6.clone(), 12)),
        ("v6, 16 bytes", ended(first6, 4)),
        ("v6, seven extensions", seven),
    ]
}

/// Checks the verdict of all programs on all such packets; `None` means that they pass as malformed.
#[track_caller]
fn check(datapath: &Datapath, frames: &[(&str, Vec<u8>)], expect: Option<Total>) {
    let verdicts = || {
        let totals = datapath.totals().expect("totals");
        let verdicts = totals.iter().filter(|(total, ..)| total.is_verdict());
        verdicts.map(|(total, _, traffic)| (total, traffic.packets)).collect::<Vec<_>>()
    };
    for (what, frame) in frames {
        for (program, pass, drop) in PROGRAMS {
            let before = verdicts();
            let ran = datapath.test_run(program, RunOptions { frame, repeat: 1, live: None }).expect("runs");
            assert_eq!(ran.verdict, if expect.is_some() { drop } else { pass }, "{what} by {program:?}");
            for ((total, before), (_, after)) in before.into_iter().zip(verdicts()) {
                let is_it = total == expect.unwrap_or(Total::Malformed);
                assert_eq!(after - before, u64::from(is_it), "{what} by {program:?}: {total:?}");
            }
        }
    }
}

#[test]
fn hidden_ports_do_not_evade_the_deny_list() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        let (ours_v4, ours_v6) = ("198.51.100.7", "2001:db8::7");
        let denied = hidden("192.0.2.1", "2001:db8::1", ours_v4, ours_v6);
        check(&datapath, &denied, None);
        deny(&datapath, "192.0.2.0/24 2001:db8::/64", "192.0.2.9/32 2001:db8::9/128");
        check(&datapath, &denied, Some(Total::Denied));
        check(&datapath, &hidden("203.0.113.1", "2001:db8:1::1", ours_v4, ours_v6), None);
        check(&datapath, &hidden("192.0.2.9", "2001:db8::9", ours_v4, ours_v6), None);
        check(&datapath, &hidden("192.0.2.1", "2001:db8::1", "198.51.100.8", "2001:db8::8"), None);
        let dropped: u64 = datapath.deny_list().view().expect("readable").rules.iter().map(|r| r.dropped.packets).sum();
        assert_eq!(dropped, 15, "each counts for its rule");
    });
}

#[test]
fn hidden_ports_do_not_evade_the_limits() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        datapath.heartbeat().expect("beats");
        let hops = DenyConfig::sparing(Vec::new(), nets("192.0.2.9/32 2001:db8::9/128"));
        datapath.deny_list().set(&hops).expect("the list is taken");
        let (ours_v4, ours_v6) = ("198.51.100.7", "2001:db8::7");
        let client = hidden("192.0.2.1", "2001:db8::1", ours_v4, ours_v6);
        let many = PacketRate { per_second: NonZeroU32::MAX, burst: NonZeroU32::MAX };
        for (syns, packets, is_dry_run, expect) in [
            (None, None, false, None),
            (Some(many), None, false, Some(Total::HiddenPort)),
            (None, Some(many), false, Some(Total::HiddenPort)),
            (Some(many), Some(many), true, None),
        ] {
            datapath.client_limits().set(ClientLimits { syns, packets, is_dry_run }).expect("limits");
            datapath.heartbeat().expect("beats");
            check(&datapath, &client, expect);
            check(&datapath, &hidden("192.0.2.9", "2001:db8::9", ours_v4, ours_v6), None);
            check(&datapath, &hidden("192.0.2.1", "2001:db8::1", "198.51.100.8", "2001:db8::8"), None);
        }
    });
}
