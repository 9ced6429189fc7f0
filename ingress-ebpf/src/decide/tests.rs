//! What becomes of packets and lookups, for nodes that know this or that.

use ingress_common::flow::{PROTO_UDP, v4_mapped};

use super::*;

const NOW: u64 = 100_000_000_000;
const RULE: PortRule = PortRule { first_slot: 8, workers: 4, flags: 0, first_worker: 64 };
const BUSY: WorkerLoad = WorkerLoad { open: 9, settled: 0, chosen: 0 };

struct Fake {
    rule: Option<PortRule>,
    holds: bool,
    deny_entry: Option<DenyRule>,
    heartbeat_ns: u64,
    cpu: u32,
    /// A worker that is busy, among others that do nothing.
    busy: Option<u32>,
}

impl Node for Fake {
    fn rule(&self, _: &PortKey) -> Option<PortRule> {
        self.rule
    }
    fn holds(&self, _: &[u8; 16]) -> bool {
        self.holds
    }
    fn deny_entry(&self, addr: &[u8; 16]) -> Option<DenyRule> {
        assert_eq!(*addr, flow(PROTO_TCP).remote_addr, "the sender is looked up");
        let is_enforced = self.rule.is_some_and(|rule| rule.flags & PORT_DENIES != 0);
        assert!(is_enforced && self.holds, "an empty list, or a packet that is not ours, costs no lookup");
        self.deny_entry
    }
    fn worker(&self, index: u32) -> Option<WorkerLoad> {
        assert!((64..68).contains(&index), "no worker of the rule: {index}");
        Some(if self.busy == Some(index - 64) { BUSY } else { WorkerLoad::default() })
    }
    fn heartbeat_ns(&self) -> u64 {
        self.heartbeat_ns
    }
    fn now_ns(&self) -> u64 {
        NOW
    }
    fn cpu(&self) -> u32 {
        self.cpu
    }
}

const fn serving() -> Fake {
    Fake { rule: Some(RULE), holds: true, deny_entry: None, heartbeat_ns: NOW - 1, cpu: 0, busy: None }
}

fn flow(proto: u8) -> FlowKey {
    FlowKey {
        remote_addr: v4_mapped([192, 0, 2, 1]),
        local_addr: v4_mapped([198, 51, 100, 1]),
        remote_port_be: 40_000_u16.to_be(),
        local_port_be: 80_u16.to_be(),
        proto,
        pad: [0; 3],
    }
}

#[track_caller]
fn check_packet(node: &Fake, tcp_flags: u8, expected: Decision) {
    let limited = |_| -> Option<Total> { panic!("without limits nobody is asked about a client") };
    assert_eq!(decide(node, &Segment { flow: flow(PROTO_TCP), tcp_flags }, limited), expected);
}

#[track_caller]
fn check_lookup(node: &Fake, proto: u8, handoff: Option<Handoff>, expected: Route) {
    assert_eq!(route(node, &flow(proto), || handoff), expected);
}

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

fn chosen(worker: u32, chosen_by: u32) -> Choice {
    Choice { worker: 64 + worker, handoff: Handoff { slot: 8 + worker, chosen_by, time_ns: NOW } }
}

fn steer(worker: u32) -> Decision {
    Decision::Steer(chosen(worker, CHOSEN_BY_XDP))
}

fn by_default(worker: u32) -> Route {
    Route::Default(chosen(worker, CHOSEN_BY_LOOKUP))
}

#[test]
fn port_is_asked_before_address() {
    check_packet(&Fake { rule: None, holds: false, ..serving() }, SYN, Decision::Leave(Total::OtherPort));
    check_packet(&Fake { holds: false, ..serving() }, SYN, Decision::Leave(Total::Transit));
}

#[test]
fn only_a_connection_request_is_steered() {
    check_packet(&serving(), SYN, steer(0));
    check_packet(&serving(), SYN | ACK, Decision::Accept);
    check_packet(&serving(), SYN | 0x04, Decision::Accept);
    check_packet(&serving(), SYN | 0x01, Decision::Accept);
    check_packet(&serving(), ACK, Decision::Accept);
    // ECN-setup SYN (RFC 3168, 6.1.1) and data with TCP Fast Open are requests too.
    check_packet(&serving(), SYN | 0xc0, steer(0));
    check_packet(&serving(), SYN | 0x08, steer(0));
}

#[test]
fn worker_is_the_one_of_the_cpu_that_took_the_packet() {
    for (cpu, worker) in [(0, 0), (3, 3), (4, 0), (u32::MAX, 3)] {
        check_packet(&Fake { cpu, ..serving() }, SYN, steer(worker));
    }
}

#[test]
fn a_worker_that_is_too_busy_is_passed_over_by_xdp_and_by_the_default_rule() {
    for (cpu, next) in [(0, 1), (2, 3), (3, 0)] {
        check_packet(&Fake { cpu, busy: Some(cpu), ..serving() }, SYN, steer(next));
        check_packet(&Fake { cpu, busy: Some(next), ..serving() }, SYN, steer(cpu));
    }
    let home = default_worker(&flow(PROTO_TCP), 4);
    check_lookup(&Fake { busy: Some(home), ..serving() }, PROTO_TCP, None, by_default((home + 1) % 4));
}

#[test]
fn stale_or_missing_heartbeat_stops_steering_and_nothing_else() {
    for heartbeat_ns in [0, NOW - HEARTBEAT_STALE_NS - 1] {
        check_packet(&Fake { heartbeat_ns, ..serving() }, SYN, Decision::Stale);
        check_packet(&Fake { heartbeat_ns, ..serving() }, ACK, Decision::Accept);
    }
    for heartbeat_ns in [NOW - HEARTBEAT_STALE_NS, NOW, NOW + 5] {
        check_packet(&Fake { heartbeat_ns, ..serving() }, SYN, steer(0));
    }
}

#[test]
fn port_without_workers_is_counted_but_not_steered() {
    for rule in [PortRule { workers: 0, ..RULE }, PortRule { flags: PORT_COUNT_ONLY, ..RULE }] {
        let node = Fake { rule: Some(rule), ..serving() };
        check_packet(&node, SYN, Decision::Accept);
        check_lookup(&node, PROTO_TCP, None, Route::Leave);
    }
}

#[test]
fn who_is_denied_is_denied_whatever_comes() {
    let denying = PortRule { flags: PORT_DENIES, ..RULE };
    let uncounted = PortRule { flags: PORT_DENIES | PORT_COUNT_ONLY, workers: 0, ..RULE };
    for deny_entry in [0, 7, 4095] {
        for (rule, heartbeat_ns) in [(denying, NOW), (denying, 0), (uncounted, NOW)] {
            let node = Fake { rule: Some(rule), deny_entry: Some(deny_entry), heartbeat_ns, ..serving() };
            for flags in [SYN, ACK, SYN | ACK] {
                check_packet(&node, flags, Decision::Deny(deny_entry));
            }
        }
    }
    let udp = Segment { flow: flow(PROTO_UDP), tcp_flags: 0 };
    let node = Fake { rule: Some(uncounted), deny_entry: Some(3), ..serving() };
    assert_eq!(decide(&node, &udp, |_| panic!("nor about one that is denied")), Decision::Deny(3));
}

#[test]
fn limits_hold_for_the_packets_that_they_are_about() {
    const SYNS: u32 = PORT_LIMITS_SYNS;
    const PACKETS: u32 = PORT_LIMITS_PACKETS;
    let segment = |proto, tcp_flags| Segment { flow: flow(proto), tcp_flags };
    let (syn, ack, udp) = (segment(PROTO_TCP, SYN), segment(PROTO_TCP, ACK), segment(PROTO_UDP, 0));
    let (syns, packets) = (Some(Total::LimitedSyn), Some(Total::LimitedPacket));
    for (flags, segment, answer, expected) in [
        (SYNS, &syn, Some(syns), Decision::Limit(Total::LimitedSyn)),
        (SYNS, &syn, Some(None), steer(0)),
        (SYNS, &ack, None, Decision::Accept),
        (SYNS, &udp, None, Decision::Accept),
        (PACKETS, &syn, Some(packets), Decision::Limit(Total::LimitedPacket)),
        (PACKETS, &ack, Some(packets), Decision::Limit(Total::LimitedPacket)),
        (PACKETS, &udp, Some(packets), Decision::Limit(Total::LimitedPacket)),
        (PACKETS, &ack, Some(None), Decision::Accept),
        (SYNS | PACKETS, &syn, Some(None), steer(0)),
        // A port that is only counted is limited, too, as the deny list holds for it.
        (SYNS | PORT_COUNT_ONLY, &syn, Some(syns), Decision::Limit(Total::LimitedSyn)),
        (PACKETS | PORT_COUNT_ONLY, &syn, Some(None), Decision::Accept),
        // The list is asked first, and has nothing to say.
        (PACKETS | PORT_DENIES, &ack, Some(packets), Decision::Limit(Total::LimitedPacket)),
    ] {
        let node = Fake { rule: Some(PortRule { flags, ..RULE }), ..serving() };
        let limited = |now| {
            assert_eq!(now, NOW);
            answer.expect("asked only about what is limited")
        };
        assert_eq!(decide(&node, segment, limited), expected, "{flags:#x} {segment:?}");
    }
}

#[test]
fn limits_spare_hops_and_end_with_the_heartbeat() {
    let unasked = |_| -> Option<Total> { panic!("no limit holds") };
    let flags = PORT_LIMITS_SYNS | PORT_LIMITS_PACKETS;
    let rule = Some(PortRule { flags: flags | PORT_DENIES, ..RULE });
    let segment = |tcp_flags| Segment { flow: flow(PROTO_TCP), tcp_flags };
    let hop = Fake { rule, deny_entry: Some(DENY_PASS), ..serving() };
    assert_eq!(decide(&hop, &segment(SYN), unasked), steer(0));
    assert_eq!(decide(&hop, &segment(ACK), unasked), Decision::Accept);
    let denied = Fake { rule, deny_entry: Some(3), ..serving() };
    assert_eq!(decide(&denied, &segment(SYN), unasked), Decision::Deny(3));
    let rule = Some(PortRule { flags, ..RULE });
    let hung = Fake { rule, heartbeat_ns: NOW - HEARTBEAT_STALE_NS - 1, ..serving() };
    assert_eq!(decide(&hung, &segment(SYN), unasked), Decision::Stale);
    assert_eq!(decide(&hung, &segment(ACK), unasked), Decision::Accept);
    let elsewhere = Fake { rule, holds: false, ..serving() };
    assert_eq!(decide(&elsewhere, &segment(SYN), unasked), Decision::Leave(Total::Transit));
}

#[test]
fn what_no_rule_denies_goes_on_as_ever() {
    let rule = Some(PortRule { flags: PORT_DENIES, ..RULE });
    for deny_entry in [None, Some(DENY_PASS)] {
        let node = Fake { rule, deny_entry, ..serving() };
        check_packet(&node, SYN, steer(0));
        check_packet(&node, ACK, Decision::Accept);
        check_packet(&Fake { heartbeat_ns: 0, rule, deny_entry, ..serving() }, SYN, Decision::Stale);
    }
    // The fake refuses to be asked in either case.
    check_packet(&Fake { deny_entry: Some(1), ..serving() }, SYN, steer(0));
    check_packet(&Fake { rule, holds: false, deny_entry: Some(1), ..serving() }, SYN, Decision::Leave(Total::Transit));
    let default = by_default(default_worker(&flow(PROTO_TCP), 4));
    check_lookup(&Fake { rule, deny_entry: Some(1), ..serving() }, PROTO_TCP, None, default);
}

#[test]
fn what_leaves_is_known_by_its_source_and_named_by_its_client() {
    let answer = |proto| Segment { flow: flow(proto).reversed(), tcp_flags: ACK };
    let counted = Fake { rule: Some(PortRule { workers: 0, flags: PORT_COUNT_ONLY, ..RULE }), ..serving() };
    for node in [serving(), counted, Fake { heartbeat_ns: 0, ..serving() }] {
        for proto in [PROTO_TCP, PROTO_UDP] {
            assert_eq!(sent(&node, &answer(proto)), Some(flow(proto)));
        }
    }
    assert_eq!(sent(&Fake { rule: None, ..serving() }, &answer(PROTO_TCP)), None);
    assert_eq!(sent(&Fake { holds: false, ..serving() }, &answer(PROTO_TCP)), None);
}

#[test]
fn ports_and_addresses_of_both_ends_change_places() {
    let there = flow(PROTO_TCP);
    let back = there.reversed();
    assert_eq!((back.remote_addr, back.remote_port_be), (there.local_addr, there.local_port_be));
    assert_eq!((back.local_addr, back.local_port_be), (there.remote_addr, there.remote_port_be));
    assert_eq!(back.reversed(), there);
}

#[test]
fn lookup_leaves_what_is_not_ours() {
    check_lookup(&serving(), PROTO_UDP, None, Route::Leave);
    check_lookup(&Fake { rule: None, ..serving() }, PROTO_TCP, None, Route::Leave);
    check_lookup(&Fake { holds: false, ..serving() }, PROTO_TCP, None, Route::Leave);
}

#[test]
fn lookup_takes_a_fresh_choice_within_the_rule_and_else_the_default() {
    let home = default_worker(&flow(PROTO_TCP), 4);
    let (late, default) = (Route::Late(8 + home), by_default(home));
    let stale = NOW - HANDOFF_FRESH_NS - 1;
    for (slot, time_ns, by_xdp, by_lookup) in [
        (8, NOW, Route::Chosen(8), Route::Kept(8)),
        (11, NOW - HANDOFF_FRESH_NS, Route::Chosen(11), Route::Kept(11)),
        (11, stale, late, default),
        (7, NOW, late, default),
        (12, NOW, late, default),
    ] {
        for (chosen_by, expected) in [(CHOSEN_BY_XDP, by_xdp), (CHOSEN_BY_LOOKUP, by_lookup)] {
            check_lookup(&serving(), PROTO_TCP, Some(Handoff { slot, chosen_by, time_ns }), expected);
        }
    }
    check_lookup(&serving(), PROTO_TCP, None, default);
}
