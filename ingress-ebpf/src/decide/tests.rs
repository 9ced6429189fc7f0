//! Decisions about packets, lookups and ICMP errors, on nodes with various configurations.

use ingress_common::{
    Share, WorkerLoad,
    flow::{PROTO_UDP, v4_mapped},
    share::{SHARE_KEPT, SHARE_UNSET},
    steer::{NO_SLOT, PORT_REWRITTEN},
};

use super::*;

mod rewrite;

const NOW: u64 = 100_000_000_000;
const RULE: PortRule = PortRule { first_slot: 8, workers: 4, flags: 0, rewrite_be: 0, first_worker: 64 };
const TAKES_ALL: Share = Share { expires_s: 0, taken: 0, state: SHARE_UNSET };
const TAKES_NONE: Share = Share { expires_s: 0, taken: 0, state: SHARE_KEPT };
const BUSY: WorkerLoad = WorkerLoad { open: 9, settled: 0, chosen: 0 };

#[derive(Clone, Copy)]
struct Fake {
    rule: Option<PortRule>,
    holds: bool,
    deny_entry: Option<DenyRule>,
    heartbeat_ns: u64,
    cpu: u32,
    /// A busy worker among idle ones.
    busy: Option<u32>,
    share: Share,
}

impl Node for Fake {
    fn rule(&self, _: &PortKey) -> Option<PortRule> {
        self.rule
    }
    fn address_flags(&self, _: &[u8; 16]) -> Option<u32> {
        self.holds.then_some(0)
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
    fn share(&self) -> Share {
        self.share
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
    Fake {
        rule: Some(RULE),
        holds: true,
        deny_entry: None,
        heartbeat_ns: NOW - 1,
        cpu: 0,
        busy: None,
        share: TAKES_ALL,
    }
}

fn flow(proto: u8) -> FlowKey {
    FlowKey {
        remote_addr: v4_mapped([192, 0, 2, 1]),
        local_addr: v4_mapped([198, 51, 100, 1]),
        remote_port_be: 40_000_u16.to_be(),
        local_port_be: 80_u16.to_be(),
        proto,
        pad: 0,
        pad_end: 0,
    }
}

fn segment(proto: u8, tcp_flags: u8) -> Segment {
    Segment { flow: flow(proto), tcp_flags, offset: 34 }
}

/// Decides about a packet, and about its limits; an error is the verdict on one that is not for this ingress.
fn action(node: &Fake, segment: &Segment, limited: impl Fn(u64) -> Option<Total>) -> Result<Decision, Total> {
    let (rule, _) = ours(node, &segment.flow)?;
    Ok(match decide(node, &rule, segment, &limited) {
        Decision::Metered(now) => {
            assert!(!segment.is_request());
            limited(now).map_or(Decision::Accept, Decision::Drop)
        }
        decision => decision,
    })
}

#[track_caller]
fn check_action(node: &Fake, tcp_flags: u8, expected: Result<Decision, Total>) {
    let limited = |_| -> Option<Total> { panic!("without limits nobody is asked about a client") };
    assert_eq!(action(node, &segment(PROTO_TCP, tcp_flags), limited), expected);
}

#[track_caller]
fn check_packet(node: &Fake, tcp_flags: u8, expected: Decision) {
    check_action(node, tcp_flags, Ok(expected));
}

#[track_caller]
fn check_lookup(node: &Fake, proto: u8, handoff: Option<Handoff>, expected: LookupTarget) {
    assert_eq!(route(node, &mut flow(proto), |addr| node.deny_entry(addr), |_| handoff), expected);
}

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

fn chosen(worker: u32, chosen_by: u32) -> WorkerChoice {
    WorkerChoice { worker: 64 + worker, handoff: Handoff { slot: 8 + worker, chosen_by, time_ns: NOW } }
}

fn steer(worker: u32) -> Decision {
    Decision::Steer(chosen(worker, CHOSEN_BY_XDP))
}

fn by_default(worker: u32) -> LookupTarget {
    LookupTarget::Default(chosen(worker, CHOSEN_BY_LOOKUP))
}

#[test]
fn the_port_is_looked_up_before_the_address() {
    check_action(&Fake { rule: None, holds: false, ..serving() }, SYN, Err(Total::OtherPort));
    check_action(&Fake { holds: false, ..serving() }, SYN, Err(Total::Transit));
}

#[test]
fn only_a_connection_request_is_steered() {
    check_packet(&serving(), SYN, steer(0));
    check_packet(&serving(), SYN | ACK, Decision::Accept);
    check_packet(&serving(), SYN | 0x04, Decision::Accept);
    check_packet(&serving(), SYN | 0x01, Decision::Accept);
    check_packet(&serving(), ACK, Decision::Accept);
    // ECN-setup SYN (RFC 3168, 6.1.1) and data with TCP Fast Open are requests, too.
    check_packet(&serving(), SYN | 0xc0, steer(0));
    check_packet(&serving(), SYN | 0x08, steer(0));
}

#[test]
fn the_worker_is_that_of_the_receiving_cpu() {
    for (cpu, worker) in [(0, 0), (3, 3), (4, 0), (u32::MAX, 3)] {
        check_packet(&Fake { cpu, ..serving() }, SYN, steer(worker));
    }
}

#[test]
fn busy_workers_are_skipped_by_xdp_and_the_default_rule() {
    for (cpu, next) in [(0, 1), (2, 3), (3, 0)] {
        check_packet(&Fake { cpu, busy: Some(cpu), ..serving() }, SYN, steer(next));
        check_packet(&Fake { cpu, busy: Some(next), ..serving() }, SYN, steer(cpu));
    }
    let preferred = default_worker(&flow(PROTO_TCP), 4);
    check_lookup(&Fake { busy: Some(preferred), ..serving() }, PROTO_TCP, None, by_default((preferred + 1) % 4));
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

const LEFT: Handoff = Handoff { slot: NO_SLOT, chosen_by: LEFT_BY_SHARE, time_ns: NOW };

#[test]
fn a_client_outside_the_share_gets_no_worker() {
    let node = Fake { share: TAKES_NONE, ..serving() };
    check_packet(&node, SYN, Decision::Leave(LEFT));
    check_packet(&node, ACK, Decision::Accept);
    check_packet(&Fake { heartbeat_ns: 0, ..node }, SYN, Decision::Stale);
    check_lookup(&node, PROTO_TCP, None, LookupTarget::Share(Some(LEFT)));
    check_lookup(&Fake { heartbeat_ns: 0, ..node }, PROTO_TCP, None, LookupTarget::Share(Some(LEFT)));
    check_lookup(&node, PROTO_UDP, None, LookupTarget::Leave);
    let rule = Some(PortRule { rewrite_be: 10_080_u16.to_be(), ..RULE });
    check_packet(&Fake { rule, ..node }, SYN, steer(0));
}

#[test]
fn a_fresh_choice_holds_for_any_share_and_an_old_one_does_not() {
    let (none, all) = (Fake { share: TAKES_NONE, ..serving() }, serving());
    let old_ns = NOW - HANDOFF_FRESH_NS - 1;
    let preferred = default_worker(&flow(PROTO_TCP), 4);
    let (left, late) = (LookupTarget::Share(Some(LEFT)), LookupTarget::Late(8 + preferred));
    for (node, slot, chosen_by, time_ns, expected) in [
        (&none, 9, CHOSEN_BY_XDP, NOW, LookupTarget::Chosen(9)),
        (&none, 9, CHOSEN_BY_LOOKUP, NOW, LookupTarget::Kept(9)),
        (&none, 9, CHOSEN_BY_XDP, old_ns, left),
        (&none, 9, CHOSEN_BY_LOOKUP, old_ns, left),
        (&none, NO_SLOT, LEFT_BY_SHARE, old_ns, left),
        (&all, NO_SLOT, LEFT_BY_SHARE, NOW, LookupTarget::Share(None)),
        (&all, NO_SLOT, LEFT_BY_SHARE, old_ns, by_default(preferred)),
        (&all, 9, CHOSEN_BY_XDP, old_ns, late),
    ] {
        check_lookup(node, PROTO_TCP, Some(Handoff { slot, chosen_by, time_ns }), expected);
    }
}

#[test]
fn port_without_workers_is_counted_but_not_steered() {
    for rule in [PortRule { workers: 0, ..RULE }, PortRule { flags: PORT_COUNT_ONLY, ..RULE }] {
        let node = Fake { rule: Some(rule), ..serving() };
        check_packet(&node, SYN, Decision::Accept);
        check_lookup(&node, PROTO_TCP, None, LookupTarget::Leave);
    }
}

#[test]
fn denied_senders_are_dropped_for_every_packet() {
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
    let node = Fake { rule: Some(uncounted), deny_entry: Some(3), ..serving() };
    let action = action(&node, &segment(PROTO_UDP, 0), |_| panic!("nor about one that is denied"));
    assert_eq!(action, Ok(Decision::Deny(3)));
}

#[test]
fn limits_apply_only_to_their_kind_of_packet() {
    const SYNS: u16 = PORT_LIMITS_SYNS;
    const PACKETS: u16 = PORT_LIMITS_PACKETS;
    let (syn, ack, udp) = (segment(PROTO_TCP, SYN), segment(PROTO_TCP, ACK), segment(PROTO_UDP, 0));
    let (syns, packets) = (Some(Total::LimitedSyn), Some(Total::LimitedPacket));
    for (flags, segment, answer, expected) in [
        (SYNS, &syn, Some(syns), Decision::Drop(Total::LimitedSyn)),
        (SYNS, &syn, Some(None), steer(0)),
        (SYNS, &ack, None, Decision::Accept),
        (SYNS, &udp, None, Decision::Accept),
        (PACKETS, &syn, Some(packets), Decision::Drop(Total::LimitedPacket)),
        (PACKETS, &ack, Some(packets), Decision::Drop(Total::LimitedPacket)),
        (PACKETS, &udp, Some(packets), Decision::Drop(Total::LimitedPacket)),
        (PACKETS, &ack, Some(None), Decision::Accept),
        (SYNS | PACKETS, &syn, Some(None), steer(0)),
        // Limits apply to a port that is only counted, too, like the deny list.
        (SYNS | PORT_COUNT_ONLY, &syn, Some(syns), Decision::Drop(Total::LimitedSyn)),
        (PACKETS | PORT_COUNT_ONLY, &syn, Some(None), Decision::Accept),
        // The list is looked up first and has no entry.
        (PACKETS | PORT_DENIES, &ack, Some(packets), Decision::Drop(Total::LimitedPacket)),
    ] {
        let node = Fake { rule: Some(PortRule { flags, ..RULE }), ..serving() };
        let limited = |now| {
            assert_eq!(now, NOW);
            answer.expect("asked only about what is limited")
        };
        assert_eq!(action(&node, segment, limited), Ok(expected), "{flags:#x} {segment:?}");
    }
}

#[test]
fn limits_exempt_trusted_proxies_and_end_with_the_heartbeat() {
    let unasked = |_| -> Option<Total> { panic!("no limit holds") };
    let flags = PORT_LIMITS_SYNS | PORT_LIMITS_PACKETS;
    let rule = Some(PortRule { flags: flags | PORT_DENIES, ..RULE });
    let of = |node: &Fake, tcp_flags| action(node, &segment(PROTO_TCP, tcp_flags), unasked);
    let hop = Fake { rule, deny_entry: Some(DENY_PASS), ..serving() };
    assert_eq!(of(&hop, SYN), Ok(steer(0)));
    assert_eq!(of(&hop, ACK), Ok(Decision::Accept));
    let denied = Fake { rule, deny_entry: Some(3), ..serving() };
    assert_eq!(of(&denied, SYN), Ok(Decision::Deny(3)));
    let rule = Some(PortRule { flags, ..RULE });
    let hung = Fake { rule, heartbeat_ns: NOW - HEARTBEAT_STALE_NS - 1, ..serving() };
    assert_eq!(of(&hung, SYN), Ok(Decision::Stale));
    assert_eq!(of(&hung, ACK), Ok(Decision::Accept));
    let elsewhere = Fake { rule, holds: false, ..serving() };
    assert_eq!(of(&elsewhere, SYN), Err(Total::Transit));
}

#[test]
fn packets_without_a_deny_rule_are_not_affected() {
    let rule = Some(PortRule { flags: PORT_DENIES, ..RULE });
    for deny_entry in [None, Some(DENY_PASS)] {
        let node = Fake { rule, deny_entry, ..serving() };
        check_packet(&node, SYN, steer(0));
        check_packet(&node, ACK, Decision::Accept);
        check_packet(&Fake { heartbeat_ns: 0, rule, deny_entry, ..serving() }, SYN, Decision::Stale);
    }
    // The fake panics on a lookup in either case.
    check_packet(&Fake { deny_entry: Some(1), ..serving() }, SYN, steer(0));
    check_action(&Fake { rule, holds: false, deny_entry: Some(1), ..serving() }, SYN, Err(Total::Transit));
    let default = by_default(default_worker(&flow(PROTO_TCP), 4));
    for deny_entry in [None, Some(DENY_PASS)] {
        check_lookup(&Fake { rule, deny_entry, ..serving() }, PROTO_TCP, None, default);
    }
    // The fake panics on a lookup.
    check_lookup(&Fake { deny_entry: Some(1), ..serving() }, PROTO_TCP, None, default);
}

#[test]
fn lookup_checks_the_deny_list_again_after_any_choice_of_xdp() {
    let chosen = Some(Handoff { slot: 8, chosen_by: CHOSEN_BY_XDP, time_ns: NOW });
    let denying = PortRule { flags: PORT_DENIES, ..RULE };
    for rule in [denying, PortRule { flags: PORT_DENIES | PORT_REWRITTEN, rewrite_be: 80_u16.to_be(), ..RULE }] {
        let node = Fake { rule: Some(rule), deny_entry: Some(7), ..serving() };
        check_lookup(&node, PROTO_TCP, None, LookupTarget::Deny);
        check_lookup(&node, PROTO_TCP, chosen, LookupTarget::Deny);
        check_lookup(&node, PROTO_UDP, None, LookupTarget::Leave);
        check_lookup(&Fake { holds: false, ..node }, PROTO_TCP, None, LookupTarget::Leave);
        check_lookup(&Fake { deny_entry: Some(DENY_PASS), ..node }, PROTO_TCP, chosen, LookupTarget::Chosen(8));
    }
}

#[test]
fn hidden_ports_are_dropped_if_their_sender_is_denied_or_limited() {
    let ends = Ends { remote_addr: flow(PROTO_TCP).remote_addr, local_addr: flow(PROTO_TCP).local_addr };
    let rule = Some(PortRule { flags: PORT_DENIES, ..RULE });
    let ours = Fake { rule, ..serving() };
    let hung = Fake { heartbeat_ns: 1, ..ours };
    let hidden = Some(Decision::Drop(Total::HiddenPort));
    for (node, are_limited, expected) in [
        (ours, false, None),
        (ours, true, hidden),
        (hung, true, None),
        (Fake { deny_entry: Some(3), ..ours }, false, Some(Decision::Deny(3))),
        (Fake { deny_entry: Some(3), ..hung }, true, Some(Decision::Deny(3))),
        (Fake { deny_entry: Some(DENY_PASS), ..ours }, true, None),
        (Fake { deny_entry: Some(3), holds: false, ..ours }, true, None),
    ] {
        assert_eq!(decide_hidden(&node, &ends, || are_limited), expected, "{are_limited}");
    }
}

#[test]
fn sent_packets_match_by_source_and_are_named_by_client() {
    let answer = |proto| Segment { flow: flow(proto).reversed(), ..segment(proto, ACK) };
    let counted = Fake { rule: Some(PortRule { workers: 0, flags: PORT_COUNT_ONLY, ..RULE }), ..serving() };
    for node in [serving(), counted, Fake { heartbeat_ns: 0, ..serving() }] {
        for proto in [PROTO_TCP, PROTO_UDP] {
            assert_eq!(sent(&node, &answer(proto)), Some(Sent { flow: flow(proto), public_be: None }));
        }
    }
    assert_eq!(sent(&Fake { rule: None, ..serving() }, &answer(PROTO_TCP)), None);
    assert_eq!(sent(&Fake { holds: false, ..serving() }, &answer(PROTO_TCP)), None);
}

#[test]
fn reversing_a_flow_swaps_both_ends() {
    let there = flow(PROTO_TCP);
    let back = there.reversed();
    assert_eq!((back.remote_addr, back.remote_port_be), (there.local_addr, there.local_port_be));
    assert_eq!((back.local_addr, back.local_port_be), (there.remote_addr, there.remote_port_be));
    assert_eq!(back.reversed(), there);
}

#[test]
fn lookup_ignores_other_ports_and_addresses() {
    check_lookup(&serving(), PROTO_UDP, None, LookupTarget::Leave);
    check_lookup(&Fake { rule: None, ..serving() }, PROTO_TCP, None, LookupTarget::Leave);
    check_lookup(&Fake { holds: false, ..serving() }, PROTO_TCP, None, LookupTarget::Leave);
}

#[test]
fn lookup_uses_a_fresh_valid_choice_or_else_the_default() {
    let preferred = default_worker(&flow(PROTO_TCP), 4);
    let (late, default) = (LookupTarget::Late(8 + preferred), by_default(preferred));
    let stale = NOW - HANDOFF_FRESH_NS - 1;
    for (slot, time_ns, by_xdp, by_lookup) in [
        (8, NOW, LookupTarget::Chosen(8), LookupTarget::Kept(8)),
        (11, NOW - HANDOFF_FRESH_NS, LookupTarget::Chosen(11), LookupTarget::Kept(11)),
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
