//! Choices in a flood of SYNs: the worker of a confirmed client, clients outside the share, and the age of a note.

use std::{collections::BTreeSet, net::TcpListener, os::fd::AsFd as _};

use aya::maps::{Array, Map};
use ingress_common::{
    HandoffEntry, SynStamp, Total,
    map::{HANDOFFS, SYN_STAMPS},
};
use ingress_datapath::{ClientShare, Datapath, NodeShare, Renewal, monotonic_ns};

use crate::{
    packets::{ACK, Packet, SYN},
    sandbox::{Sandbox, sandboxed},
    syn_cookies::{ALWAYS, BOTH, LINUX, NUMBER, forget, frame, node, run, sysctl},
    verdicts::{XDP_DROP, XDP_PASS, XDP_TX},
};

/// Returns a segment of the IPv4 client with this port.
fn segment(port: u16, flags: u8) -> Packet {
    let (client, local) = BOTH[0];
    let mut packet = Packet::tcp(client, local, flags);
    packet.remote.set_port(port);
    packet
}

fn syn(port: u16) -> Vec<u8> {
    frame(&segment(port, SYN), [NUMBER, 0], &LINUX)
}

/// Gets a cookie, and returns the ACK that confirms it.
#[track_caller]
fn confirmation(datapath: &Datapath, port: u16) -> Vec<u8> {
    let answer = run(datapath, &syn(port), XDP_TX, &[Total::SynCookieSent]);
    let cookie = u32::from_be_bytes(answer[38..42].try_into().expect("four bytes"));
    frame(&segment(port, ACK), [NUMBER + 1, cookie.wrapping_add(1)], &[])
}

/// Returns the slots of all choices.
fn chosen(sandbox: &Sandbox) -> BTreeSet<u32> {
    let handoffs: Array<_, HandoffEntry> = Map::Array(sandbox.map(HANDOFFS)).try_into().expect("an array");
    let entries = (0..handoffs.len()).map(|place| handoffs.get(&place, 0).expect("read").handoff);
    entries.filter(|handoff| handoff.time_ns != 0).map(|handoff| handoff.slot).collect()
}

#[test]
fn confirmed_clients_and_a_dry_run_use_all_workers() {
    const CONFIRMED: [Total; 3] = [Total::Accepted, Total::SynCookieValid, Total::Decided];
    const DRY: [Total; 3] = [Total::Accepted, Total::WouldSendSynCookie, Total::Decided];
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 2);
        let (datapath, _listener) = node(sandbox, Some(ALWAYS));
        for port in 40_000..40_032 {
            let ack = confirmation(&datapath, port);
            run(&datapath, &ack, XDP_PASS, &CONFIRMED);
        }
        assert_eq!(chosen(sandbox), BTreeSet::from([0, 1]));
    });
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 2);
        let (datapath, _listener) =
            node(sandbox, Some(ingress_datapath::SynCookieOptions { is_dry_run: true, ..ALWAYS }));
        (40_000..40_032).for_each(|port| _ = run(&datapath, &syn(port), XDP_PASS, &DRY));
        assert_eq!(chosen(sandbox), BTreeSet::from([0, 1]));
    });
}

#[test]
fn clients_outside_a_share_are_left_to_their_listener_in_a_flood() {
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 2);
        let (datapath, _listener) = node(sandbox, Some(ALWAYS));
        let share = NodeShare::open(&sandbox.bpffs()).expect("opens");
        share.set(ClientShare::NONE, Renewal::Caller);
        run(&datapath, &syn(40_000), XDP_PASS, &[Total::Accepted, Total::Left]);
        // The other listener may still be opening the connection, and may have sent a cookie of its own.
        run(&datapath, &segment(40_000, ACK).frame(), XDP_PASS, &[Total::Accepted]);
    });
}

/// The stack accepts a cookie for two minutes after its listener's note. Its queue may be empty again by then, so that it
/// makes no new note.
#[test]
fn a_cookie_can_be_confirmed_for_longer_than_cookies_are_sent() {
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 2);
        let (datapath, _listener) = node(sandbox, Some(ALWAYS));
        let ack = confirmation(&datapath, 40_000);
        let mut stamps: Array<_, SynStamp> = Map::Array(sandbox.map(SYN_STAMPS)).try_into().expect("an array");
        for slot in 0..2 {
            let stamp = stamps.get(&slot, 0).expect("read");
            let time_ns = monotonic_ns().saturating_sub(60_000_000_000).max(1);
            stamps.set(slot, SynStamp { time_ns, noted: stamp.listener, ..stamp }, 0).expect("aged");
        }
        sysctl("tcp_syncookies", 1);
        run(&datapath, &syn(40_000), XDP_PASS, &[Total::Accepted, Total::Decided]);
        forget(sandbox);
        run(&datapath, &ack, XDP_PASS, &[Total::Accepted, Total::SynCookieValid, Total::Decided]);
    });
}

/// A changed configuration does that, and the queue of the listener may be empty by then.
#[test]
fn a_listener_that_gets_its_slot_again_keeps_its_note() {
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 2);
        let (datapath, listener) = node(sandbox, Some(ALWAYS));
        let ack = confirmation(&datapath, 40_000);
        let register = |listener: &TcpListener| {
            (0..2).for_each(|slot| datapath.register_listener(slot, listener.as_fd()).expect("registered"));
        };
        // Processes keep duplicates for the slots.
        register(&listener.try_clone().expect("a duplicate"));
        sysctl("tcp_syncookies", 1);
        run(&datapath, &ack, XDP_PASS, &[Total::Accepted, Total::SynCookieValid, Total::Decided]);
        forget(sandbox);
        register(&TcpListener::bind("[::]:0").expect("listens"));
        run(&datapath, &ack, XDP_DROP, &[Total::SynCookieInvalid]);
        // Another note may have been made for the other one, so the first has to get one anew.
        register(&listener);
        run(&datapath, &ack, XDP_DROP, &[Total::SynCookieInvalid]);
    });
}
