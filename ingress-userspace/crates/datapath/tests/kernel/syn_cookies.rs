//! SYN cookies of XDP: SYNs of a flood get an answer that the stack accepts later, segments of no connection are dropped,
//! and nothing changes without a flood.

use std::{net::TcpListener, num::NonZeroU32, os::fd::AsFd as _};

use aya::maps::{Array, Map};
use ingress_common::{
    Alive, SynFlood, SynStamp, Total,
    flow::PROTO_TCP,
    map::{ALIVE, ALIVE_CURRENT, SYN_FLOOD, SYN_FLOOD_ONLY, SYN_STAMPS},
    syn_cookies::STAMP_FRESH_NS,
};
use ingress_datapath::{
    Claim, ClientShare, Datapath, Interfaces, NodeShare, Options, Renewal, RunOptions, SteeredPort, SynCookieOptions,
    SynCookieState, SynThreshold, TestProgram, monotonic_ns,
};

use crate::{
    frames::{CLIENT4, CLIENT6, NODE4, NODE6, check_sum, serving_with},
    packets::{ACK, FIN, Packet, RST, SYN},
    sandbox::{Sandbox, sandboxed},
    verdicts::{XDP_DROP, XDP_PASS, XDP_TX},
};

/// The first number of the client's bytes.
pub(crate) const NUMBER: u32 = 0xfeed_f00d;
/// MSS of 1460, SACK, timestamps, window scale of 7.
pub(crate) const LINUX: [u8; 20] = [2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7];
/// Every SYN is answered.
pub(crate) const ALWAYS: SynCookieOptions = SynCookieOptions { threshold: SynThreshold::EverySyn, is_dry_run: false };
pub(crate) const BOTH: [(&str, &str); 2] = [(CLIENT4, NODE4), (CLIENT6, NODE6)];

pub(crate) const COOKIES: &str = "ingress_xdp_cookies";

pub(crate) fn per_second(number: u32) -> SynThreshold {
    SynThreshold::PerSecond(NonZeroU32::new(number).expect("positive"))
}

fn is_ready(datapath: &Datapath, options: bool, fills: bool) -> bool {
    let state = datapath.syn_cookies().state();
    matches!(state, SynCookieState::Ready { has_options, fills_queues } if has_options == options && fills_queues == fills)
}

pub(crate) fn sysctl(name: &str, value: u32) {
    std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value.to_string()).expect("a setting of this namespace");
}

/// A node whose slots have a listener.
pub(crate) fn node(sandbox: &Sandbox, wanted: Option<SynCookieOptions>) -> (Datapath, TcpListener) {
    let options = Options { syn_cookies: wanted, ..sandbox.options(&[]) };
    let datapath = serving_with(&options);
    let listener = TcpListener::bind("[::]:0").expect("listens");
    (0..2).for_each(|slot| datapath.register_listener(slot, listener.as_fd()).expect("registered"));
    datapath.syn_cookies().apply().expect("switched");
    datapath.heartbeat().expect("beats");
    (datapath, listener)
}

/// Returns the frame with these numbers and options in its TCP header.
pub(crate) fn frame(packet: &Packet, numbers: [u32; 2], options: &[u8]) -> Vec<u8> {
    let mut frame = packet.frame();
    let tcp = frame.len() - 20;
    for (place, number) in [4, 8].into_iter().zip(numbers) {
        frame[tcp + place..tcp + place + 4].copy_from_slice(&number.to_be_bytes());
    }
    frame[tcp + 12] = u8::try_from(5 + options.len() / 4).expect("short") << 4;
    let length = if packet.local.is_ipv4() { tcp - 20 + 2 } else { tcp - 40 + 4 };
    let changed = u16::from_be_bytes([frame[length], frame[length + 1]]) + u16::try_from(options.len()).expect("short");
    frame[length..length + 2].copy_from_slice(&changed.to_be_bytes());
    frame.extend(options);
    frame
}

/// Runs the program on a frame, and checks that exactly these counters count it. Returns the frame that is left.
#[track_caller]
pub(crate) fn run(datapath: &Datapath, frame: &[u8], verdict: u32, counters: &[Total]) -> Vec<u8> {
    let before = datapath.totals().expect("totals");
    let result = datapath.test_run(TestProgram::Ingress, RunOptions { frame, repeat: 1, live: None }).expect("runs");
    let after = datapath.totals().expect("totals");
    for ((total, name, before), (_, _, after)) in before.iter().zip(after.iter()) {
        let packets = u64::from(counters.contains(&total));
        assert_eq!(after.packets - before.packets, packets, "{name}, verdict {}", result.verdict);
    }
    assert_eq!(result.verdict, verdict);
    result.frame
}

fn sum(bytes: &[u8]) -> u16 {
    let mut sum: u64 = bytes.chunks(2).map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("folded")
}

/// Checks an answer to a SYN of `packet` with the options of Linux, and returns its cookie.
#[track_caller]
fn cookie(packet: &Packet, answer: &[u8]) -> u32 {
    let start = 14 + 4 * packet.tags.len();
    let is_v4 = packet.local.is_ipv4();
    let at = start + if is_v4 { 20 } else { 40 };
    let (ip, tcp) = (&answer[start..at], &answer[at..at + 40]);
    assert_eq!(tcp[..2], packet.local.port().to_be_bytes());
    assert_eq!(tcp[2..4], packet.remote.port().to_be_bytes());
    assert_eq!(tcp[8..12], (NUMBER + 1).to_be_bytes());
    assert_eq!(tcp[12..14], [10 << 4, SYN | ACK]);
    // Loopback's MTU is 65536.
    assert_eq!(tcp[20..22], [2, 4]);
    assert_eq!(tcp[24..28], [4, 2, 8, 10]);
    assert_eq!(tcp[31] & 0x3f, 0x17, "window scale of 7 and SACK");
    assert_eq!(tcp[32..36], [1, 2, 3, 4], "the client's timestamp");
    assert_eq!(tcp[36..39], [1, 3, 3]);
    let addresses = if is_v4 { &ip[12..20] } else { &ip[8..40] };
    assert_eq!(sum(&[addresses, &[0, 6, 0, 40], tcp].concat()), 0xffff, "of the segment");
    assert!(!is_v4 || sum(ip) == 0xffff, "of the header");
    u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]])
}

#[test]
fn syns_of_a_flood_get_cookies_and_only_their_confirmations_pass() {
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 2);
        sysctl("tcp_timestamps", 2);
        let (datapath, _listener) = node(sandbox, Some(ALWAYS));
        assert!(is_ready(&datapath, true, false));
        for (client, local) in BOTH {
            for tags in [&[][..], &[0x8100], &[0x88a8, 0x8100]] {
                let with = |flags| Packet { tags: tags.to_vec(), ..Packet::tcp(client, local, flags) };
                let syn = frame(&with(SYN), [NUMBER, 0], &LINUX);
                let answer = run(&datapath, &syn, XDP_TX, &[Total::SynCookieSent]);
                let cookie = cookie(&with(SYN), &answer);
                let confirmed = |flags, more: u32| {
                    frame(&with(flags), [NUMBER + 1, cookie.wrapping_add(1).wrapping_add(more)], &[])
                };
                for (flags, more) in [(ACK, 1 << 8), (RST, 0), (FIN, 0), (SYN | ACK, 0)] {
                    run(&datapath, &confirmed(flags, more), XDP_DROP, &[Total::SynCookieInvalid]);
                }
                let accepted = [Total::Accepted, Total::SynCookieValid, Total::Decided];
                run(&datapath, &confirmed(ACK, 0), XDP_PASS, &accepted);
                // The stack may open the connection after the next segment has arrived.
                run(&datapath, &confirmed(ACK, 1 << 8), XDP_PASS, &[Total::Accepted]);
                // Another client's segment is none of this connection.
                let mut other = with(ACK);
                other.remote.set_port(40_001 + u16::try_from(tags.len()).expect("few"));
                run(&datapath, &other.frame(), XDP_DROP, &[Total::SynCookieInvalid]);
                forget(sandbox);
            }
        }
        check_sum(&datapath);
    });
}

/// Clears the choices of workers.
pub(crate) fn forget(sandbox: &Sandbox) {
    use ingress_common::{HandoffEntry, map::HANDOFFS};
    let mut handoffs: Array<_, HandoffEntry> = Map::Array(sandbox.map(HANDOFFS)).try_into().expect("an array");
    for place in 0..handoffs.len() {
        if handoffs.get(&place, 0).expect("read").handoff.time_ns != 0 {
            handoffs.set(place, HandoffEntry::default(), 0).expect("written");
        }
    }
}

#[test]
fn segments_of_connections_and_hosts_pass_in_a_flood() {
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 2);
        let (datapath, _listener) = node(sandbox, Some(ALWAYS));
        for (client, local) in BOTH {
            let packet = Packet::tcp(client, local, ACK);
            run(&datapath, &packet.frame(), XDP_DROP, &[Total::SynCookieInvalid]);
            datapath.flows().insert(packet.remote, packet.local, 1);
            for flags in [ACK, ACK | FIN, RST] {
                run(&datapath, &Packet::tcp(client, local, flags).frame(), XDP_PASS, &[Total::Accepted]);
            }
            // Ports that are not steered, and other addresses, are no matter of the flood.
            let counted = Packet { local: (packet.local.ip(), 8443).into(), ..packet.clone() };
            run(&datapath, &counted.frame(), XDP_PASS, &[Total::Accepted]);
            let other = Packet { local: (packet.local.ip(), 22).into(), ..packet };
            run(&datapath, &other.frame(), XDP_PASS, &[Total::OtherPort]);
        }
        check_sum(&datapath);
    });
}

#[test]
fn syns_with_ip_options_are_dropped_in_a_flood() {
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 2);
        let (datapath, _listener) = node(sandbox, Some(ALWAYS));
        let syn = Packet { options: 4, ..Packet::tcp(CLIENT4, NODE4, SYN) };
        run(&datapath, &syn.frame(), XDP_DROP, &[Total::SynCookieInvalid]);
    });
}

#[test]
fn syns_that_the_stack_would_drop_are_not_answered() {
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 2);
        let (datapath, _listener) = node(sandbox, Some(ALWAYS));
        let drops = |frame: &[u8]| run(&datapath, frame, XDP_DROP, &[Total::SynCookieInvalid]);
        for (client, local) in BOTH {
            let syn = frame(&Packet::tcp(client, local, SYN), [NUMBER, 0], &LINUX);
            for destination in [[0xff; 6], [0x01, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1]] {
                drops(&[&destination[..], &syn[6..]].concat());
            }
        }
        for (client, local) in [
            ("224.0.0.1:40000", NODE4),
            ("255.255.255.255:40000", NODE4),
            ("127.0.0.1:40000", NODE4),
            ("0.0.0.0:40000", NODE4),
            ("[ff02::1]:40000", NODE6),
        ] {
            drops(&frame(&Packet::tcp(client, local, SYN), [NUMBER, 0], &LINUX));
        }
        // Reserved, but the stack accepts it.
        let reserved = frame(&Packet::tcp("240.0.0.1:40000", NODE4, SYN), [NUMBER, 0], &LINUX);
        run(&datapath, &reserved, XDP_TX, &[Total::SynCookieSent]);
        check_sum(&datapath);
    });
}

/// The requests and other segments pass as they do without the option.
#[track_caller]
fn passes(datapath: &Datapath, event: &[Total]) {
    for (client, local) in BOTH {
        let counters = [&[Total::Accepted], event].concat();
        let syn = frame(&Packet::tcp(client, local, SYN), [NUMBER, 0], &LINUX);
        assert_eq!(run(datapath, &syn, XDP_PASS, &counters), syn);
        let mut ack = Packet::tcp(client, local, ACK);
        ack.remote.set_port(39_999);
        run(datapath, &ack.frame(), XDP_PASS, &[Total::Accepted]);
    }
}

#[test]
fn nothing_changes_without_cookies_a_flood_or_a_living_process() {
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 2);
        let (datapath, _listener) = node(sandbox, None);
        assert_eq!(datapath.syn_cookies().state().as_str(), "off");
        let programs = datapath.report().programs.iter().map(|program| program.name);
        assert!(programs.clone().any(|name| name == "ingress_xdp") && programs.clone().all(|name| name != COOKIES));
        passes(&datapath, &[Total::Decided]);
    });
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 2);
        let (datapath, _listener) = node(sandbox, Some(SynCookieOptions { threshold: per_second(10_000), ..ALWAYS }));
        passes(&datapath, &[Total::Decided]);
    });
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 2);
        let (datapath, _listener) = node(sandbox, Some(SynCookieOptions { is_dry_run: true, ..ALWAYS }));
        passes(&datapath, &[Total::Decided, Total::WouldSendSynCookie]);
    });
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 2);
        let (datapath, _listener) = node(sandbox, Some(ALWAYS));
        let mut alive: Array<_, Alive> = Map::Array(sandbox.map(ALIVE)).try_into().expect("an array");
        let now = alive.get(&ALIVE_CURRENT, 0).expect("an entry");
        alive.set(ALIVE_CURRENT, Alive { heartbeat_ns: 1, ..now }, 0).expect("aged");
        passes(&datapath, &[Total::HeartbeatStale]);
    });
}

#[test]
fn cookies_that_the_stack_would_refuse_are_not_sent() {
    sandboxed(|sandbox| {
        // The stack accepts cookies only if it has sent some, which it does only with a full queue.
        sysctl("tcp_syncookies", 1);
        let (datapath, _listener) = node(sandbox, Some(ALWAYS));
        assert!(is_ready(&datapath, false, true));
        let syn = frame(&Packet::tcp(CLIENT4, NODE4, SYN), [NUMBER, 0], &LINUX);
        run(&datapath, &syn, XDP_PASS, &[Total::Accepted, Total::Decided]);
    });
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 0);
        let (datapath, _listener) = node(sandbox, Some(ALWAYS));
        assert_eq!(datapath.syn_cookies().state().as_str(), "refused");
        passes(&datapath, &[Total::Decided]);
        // Settings of the stack may change while the process runs.
        sysctl("tcp_syncookies", 2);
        datapath.syn_cookies().tend().expect("tended");
        let syn = frame(&Packet::tcp(CLIENT4, NODE4, SYN), [NUMBER, 0], &LINUX);
        run(&datapath, &syn, XDP_TX, &[Total::SynCookieSent]);
        sysctl("tcp_syncookies", 0);
        datapath.syn_cookies().tend().expect("tended");
        passes(&datapath, &[Total::Decided]);
    });
}

#[test]
fn a_flood_begins_with_its_rate_and_ends_with_its_time() {
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 2);
        let wanted = SynCookieOptions { threshold: per_second(1000), is_dry_run: false };
        let (datapath, _listener) = node(sandbox, Some(wanted));
        let syn = frame(&Packet::tcp(CLIENT4, NODE4, SYN), [NUMBER, 0], &LINUX);
        run(&datapath, &syn, XDP_PASS, &[Total::Accepted, Total::Decided]);
        // Enough for a window, also if another one begins meanwhile.
        datapath.test_run(TestProgram::Ingress, RunOptions { frame: &syn, repeat: 1000, live: None }).expect("runs");
        run(&datapath, &syn, XDP_TX, &[Total::SynCookieSent]);
        let mut flood: Array<_, SynFlood> = Map::Array(sandbox.map(SYN_FLOOD)).try_into().expect("an array");
        let now = flood.get(&SYN_FLOOD_ONLY, 0).expect("an entry");
        assert!(now.until_ns > monotonic_ns());
        flood.set(SYN_FLOOD_ONLY, SynFlood { until_ns: 1, ..now }, 0).expect("aged");
        run(&datapath, &syn, XDP_PASS, &[Total::Accepted, Total::Decided]);
        assert_eq!(flood.get(&SYN_FLOOD_ONLY, 0).expect("an entry").until_ns, 0, "the next packet needs no clock");
        let view = datapath.syn_cookies().tend().expect("tended");
        assert_eq!((view.threshold, view.is_flood), (Some(1000), false));
        sysctl("tcp_syncookies", 0);
        assert_eq!(datapath.syn_cookies().tend().expect("tended").threshold, None, "the stack refuses cookies");
    });
}

/// Two CPUs may add a batch each to one window by chance.
#[test]
fn a_few_batches_of_requests_are_no_flood() {
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 2);
        let wanted = SynCookieOptions { threshold: per_second(1), is_dry_run: false };
        let (datapath, _listener) = node(sandbox, Some(wanted));
        let syn = frame(&Packet::tcp(CLIENT4, NODE4, SYN), [NUMBER, 0], &LINUX);
        datapath.test_run(TestProgram::Ingress, RunOptions { frame: &syn, repeat: 128, live: None }).expect("runs");
        run(&datapath, &syn, XDP_PASS, &[Total::Accepted, Total::Decided]);
    });
}

#[test]
fn an_ack_is_left_only_to_a_listener_with_a_note() {
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 2);
        let (datapath, _listener) = node(sandbox, Some(ALWAYS));
        let (client, local) = BOTH[0];
        let syn = frame(&Packet::tcp(client, local, SYN), [NUMBER, 0], &LINUX);
        let answer = run(&datapath, &syn, XDP_TX, &[Total::SynCookieSent]);
        let number = u32::from_be_bytes(answer[38..42].try_into().expect("four bytes"));
        let ack = frame(&Packet::tcp(client, local, ACK), [NUMBER + 1, number.wrapping_add(1)], &[]);
        // As at a takeover: other listeners are in the slots, to which the kernel has not sent cookies.
        let other = TcpListener::bind("[::]:0").expect("listens");
        (0..2).for_each(|slot| datapath.register_listener(slot, other.as_fd()).expect("registered"));
        let stamps: Array<_, SynStamp> = Map::Array(sandbox.map(SYN_STAMPS)).try_into().expect("an array");
        let is_fresh =
            || (0..2).any(|slot| stamps.get(&slot, 0).expect("read").is_within(STAMP_FRESH_NS, monotonic_ns()));
        assert!(!is_fresh());
        sysctl("tcp_syncookies", 1);
        run(&datapath, &ack, XDP_DROP, &[Total::SynCookieInvalid]);
        assert!(!is_fresh());
        sysctl("tcp_syncookies", 2);
        run(&datapath, &ack, XDP_PASS, &[Total::Accepted, Total::SynCookieValid, Total::Decided]);
        assert!(is_fresh());
    });
}

/// The settings apply to whichever process owns the node, also after a roll-back.
#[test]
fn processes_of_an_update_agree() {
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 2);
        let syn = frame(&Packet::tcp(CLIENT4, NODE4, SYN), [NUMBER, 0], &LINUX);
        let (before, _listener) = node(sandbox, Some(ALWAYS));
        run(&before, &syn, XDP_TX, &[Total::SynCookieSent]);
        let (after, _other) = node(sandbox, None);
        run(&after, &syn, XDP_PASS, &[Total::Accepted, Total::Decided]);
        run(&before, &syn, XDP_PASS, &[Total::Accepted, Total::Decided]);
        before
            .take_over_with(Claim::Any, || {
                before.renew_programs(&Interfaces::default())?;
                before.syn_cookies().apply()
            })
            .expect("takes back");
        before.heartbeat().expect("beats");
        run(&before, &syn, XDP_TX, &[Total::SynCookieSent]);
        drop(after);
    });
}

#[test]
fn rewritten_ports_are_answered_from_the_port_that_clients_use() {
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 2);
        sysctl("tcp_timestamps", 2);
        let (datapath, _listener) = node(sandbox, Some(ALWAYS));
        let share = NodeShare::open(&sandbox.bpffs()).expect("opens");
        share.set(ClientShare::NONE, Renewal::Caller);
        let syn = Packet::tcp(CLIENT4, NODE4, SYN);
        let first = frame(&syn, [NUMBER, 0], &LINUX);
        run(&datapath, &first, XDP_PASS, &[Total::Accepted, Total::Left]);
        // A rewritten port takes all clients, whatever the share is.
        let port =
            SteeredPort { port: 80, proto: PROTO_TCP, first_slot: 0, workers: 2, flags: 0, rewritten: Some(30_080) };
        datapath.set_ports(&[port]).expect("set");
        let answer = run(&datapath, &first, XDP_TX, &[Total::SynCookieSent]);
        cookie(&syn, &answer);
    });
}
