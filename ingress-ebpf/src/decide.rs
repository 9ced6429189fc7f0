//! Decides what becomes of a packet or a lookup from what the node knows; counts nothing and changes
//! nothing, but for the buckets of a client, which whoever is asked about it looks after.

use ingress_common::{
    DenyRule, FlowKey, Handoff, PortKey, PortRule, Total, WorkerLoad,
    flow::PROTO_TCP,
    steer::{
        CHOSEN_BY_LOOKUP, CHOSEN_BY_XDP, DENY_PASS, HANDOFF_FRESH_NS, HEARTBEAT_STALE_NS, PORT_COUNT_ONLY, PORT_DENIES,
        PORT_LIMITS_PACKETS, PORT_LIMITS_SYNS, default_worker, fresh,
    },
};

use crate::{choose::choose, parse::Segment};

/// What decisions rest on. Asked lazily, cheapest question first; every answer is of this moment.
pub trait Node {
    /// The rule of a steered port.
    fn rule(&self, port: &PortKey) -> Option<PortRule>;
    /// Whether `addr` (IPv4 as v4-mapped) is an address of this node.
    fn holds(&self, addr: &[u8; 16]) -> bool;
    /// What the deny list has for `addr` (IPv4 as v4-mapped), by the longest prefix: a rule or [`DENY_PASS`].
    fn deny_entry(&self, addr: &[u8; 16]) -> Option<DenyRule>;
    /// How busy a worker is, by its index in the map of workers; `None` beyond the end of it.
    fn worker(&self, index: u32) -> Option<WorkerLoad>;
    /// Time of the proxy's latest heartbeat; 0 for none.
    fn heartbeat_ns(&self) -> u64;
    /// `CLOCK_MONOTONIC`.
    fn now_ns(&self) -> u64;
    /// The CPU that runs this.
    fn cpu(&self) -> u32;
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Not for this ingress: count the verdict and pass.
    Leave(Total),
    /// Its sender may not talk to us: count as denied, for this rule and for no host, and drop.
    Deny(DenyRule),
    /// Its sender has sent too much: count the verdict, for no host, and drop.
    Limit(Total),
    /// Count as accepted, for its host, and pass.
    Accept,
    /// As [`Decision::Accept`], and leave this choice of a worker for the lookup.
    Steer(Choice),
    /// As [`Decision::Accept`], but a connection request that nobody should be chosen for: the proxy hangs.
    Stale,
}

/// A worker for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Index in the map of workers.
    pub worker: u32,
    /// The note that says so.
    pub handoff: Handoff,
}

/// Where a lookup goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Not ours: the stack's own lookup decides.
    Leave,
    /// XDP's choice.
    Chosen(u32),
    /// By the default rule, for XDP's choice is too old, or not within the rule. Nothing is to come of it in most
    /// cases: the connection is gone.
    Late(u32),
    /// By the default rule, as before.
    Kept(u32),
    /// By the default rule: XDP left no choice. To be kept, so that the ACK of a SYN cookie finds the listener that
    /// sent the cookie.
    Default(Choice),
}

/// The verdict on one packet. `limited` is asked what becomes of a packet that its client's limits hold for, at the
/// time that it is given, and takes account of it.
///
/// Limits do not hold for those that the deny list lets pass, who speak for others, nor while the proxy hangs: then
/// nobody knows any more whether they are what an operator wants.
#[inline(always)]
pub fn decide(node: &impl Node, segment: &Segment, limited: impl FnOnce(u64) -> Option<Total>) -> Decision {
    let Segment { flow, tcp_flags: _ } = segment;
    let Some(rule) = node.rule(&port_key(flow)) else { return Decision::Leave(Total::OtherPort) };
    if !node.holds(&flow.local_addr) {
        return Decision::Leave(Total::Transit);
    }
    // Whatever the packet is, also one of a connection that is older than the rule, and whether or not the heart beats.
    let entry = if rule.flags & PORT_DENIES != 0 { node.deny_entry(&flow.remote_addr) } else { None };
    let is_limited = match entry {
        Some(DENY_PASS) => false,
        Some(rule) => return Decision::Deny(rule),
        None => limits(&rule, segment),
    };
    let is_steered = segment.is_request() && steers(&rule);
    if !is_limited && !is_steered {
        return Decision::Accept;
    }
    let now = node.now_ns();
    if !fresh(now, node.heartbeat_ns(), HEARTBEAT_STALE_NS) {
        return if is_steered { Decision::Stale } else { Decision::Accept };
    }
    if is_limited && let Some(verdict) = limited(now) {
        return Decision::Limit(verdict);
    }
    if !is_steered {
        return Decision::Accept;
    }
    let worker = choose(node, &rule, node.cpu() % rule.workers);
    Decision::Steer(choice(&rule, worker, CHOSEN_BY_XDP, now))
}

/// The connection of a packet that leaves, named as its received packets name it; `None` unless a steered port of this
/// node sends it.
#[inline(always)]
pub fn sent(node: &impl Node, segment: &Segment) -> Option<FlowKey> {
    let flow = segment.flow.reversed();
    let is_ours = node.rule(&port_key(&flow)).is_some() && node.holds(&flow.local_addr);
    is_ours.then_some(flow)
}

/// Where the lookup for `flow` goes; `handoff` is asked only for a connection that is ours.
#[inline(always)]
pub fn route(node: &impl Node, flow: &FlowKey, handoff: impl FnOnce() -> Option<Handoff>) -> Route {
    if flow.proto != PROTO_TCP {
        return Route::Leave;
    }
    let Some(rule) = node.rule(&port_key(flow)) else { return Route::Leave };
    if !steers(&rule) || !node.holds(&flow.local_addr) {
        return Route::Leave;
    }
    let now = node.now_ns();
    let home = default_worker(flow, rule.workers);
    if let Some(Handoff { slot, chosen_by, time_ns }) = handoff() {
        // The slot is checked because the ports may have been laid out anew since the SYN.
        let holds = slot.wrapping_sub(rule.first_slot) < rule.workers && fresh(now, time_ns, HANDOFF_FRESH_NS);
        match (chosen_by, holds) {
            (CHOSEN_BY_LOOKUP, true) => return Route::Kept(slot),
            (CHOSEN_BY_LOOKUP, false) => {}
            (_, true) => return Route::Chosen(slot),
            (_, false) => return Route::Late(rule.first_slot.wrapping_add(home)),
        }
    }
    Route::Default(choice(&rule, choose(node, &rule, home), CHOSEN_BY_LOOKUP, now))
}

#[inline(always)]
const fn choice(rule: &PortRule, worker: u32, chosen_by: u32, time_ns: u64) -> Choice {
    let handoff = Handoff { slot: rule.first_slot.wrapping_add(worker), chosen_by, time_ns };
    Choice { worker: rule.first_worker.wrapping_add(worker), handoff }
}

/// Whether there is a limit for such packets.
#[inline(always)]
const fn limits(rule: &PortRule, segment: &Segment) -> bool {
    let of_segment = if segment.is_request() { PORT_LIMITS_SYNS | PORT_LIMITS_PACKETS } else { PORT_LIMITS_PACKETS };
    rule.flags & of_segment != 0
}

#[inline(always)]
const fn steers(rule: &PortRule) -> bool {
    rule.workers != 0 && rule.flags & PORT_COUNT_ONLY == 0
}

#[inline(always)]
const fn port_key(flow: &FlowKey) -> PortKey {
    PortKey { port_be: flow.local_port_be, proto: flow.proto, pad: 0 }
}

#[cfg(test)]
mod tests {
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
        check_packet(
            &Fake { rule, holds: false, deny_entry: Some(1), ..serving() },
            SYN,
            Decision::Leave(Total::Transit),
        );
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
}
