//! Decisions about rewritten ports.

use super::*;
use crate::parse::FieldOffsets;

/// Returns the rules of port 80 and of the port that replaces it.
fn rewriting() -> [PortRule; 2] {
    let (public, inner) = (80_u16.to_be(), 10_080_u16.to_be());
    [PortRule { rewrite_be: inner, ..RULE }, PortRule { rewrite_be: public, flags: PORT_REWRITTEN, ..RULE }]
}

fn at_rewritten_port() -> FlowKey {
    FlowKey { local_port_be: 10_080_u16.to_be(), ..flow(PROTO_TCP) }
}

#[test]
fn requests_for_the_rewritten_port_are_dropped() {
    let [public, inner] = rewriting();
    check_packet(&Fake { rule: Some(public), ..serving() }, SYN, steer(0));
    let inner = Fake { rule: Some(inner), ..serving() };
    check_packet(&inner, SYN, Decision::Drop(Total::RewrittenPort));
    check_packet(&Fake { heartbeat_ns: 0, ..inner }, SYN, Decision::Drop(Total::RewrittenPort));
    check_action(&Fake { holds: false, ..inner }, SYN, Err(Total::Transit));
    // Packets of a masqueraded connection pass, and the deny list still applies to them.
    for tcp_flags in [ACK, SYN | ACK] {
        check_packet(&inner, tcp_flags, Decision::Accept);
    }
    let flags = PORT_REWRITTEN | PORT_DENIES;
    let rule = inner.rule.map(|rule| PortRule { flags, ..rule });
    check_packet(&Fake { rule, deny_entry: Some(3), ..inner }, ACK, Decision::Deny(3));
}

#[test]
fn connections_are_named_by_their_public_port() {
    let [public, inner] = rewriting();
    let inner = Fake { rule: Some(inner), ..serving() };
    let expected = Handoff { slot: 9, chosen_by: CHOSEN_BY_XDP, time_ns: NOW };
    let mut looked_up = at_rewritten_port();
    let asked = |flow: &FlowKey| (*flow == self::flow(PROTO_TCP)).then_some(expected);
    assert_eq!(route(&inner, &mut looked_up, |_| None, asked), LookupTarget::Chosen(9));
    assert_eq!(looked_up, flow(PROTO_TCP));

    let answer = Segment { flow: at_rewritten_port().reversed(), ..segment(PROTO_TCP, ACK) };
    let public_be = Some(80_u16.to_be());
    assert_eq!(sent(&inner, &answer), Some(Sent { flow: flow(PROTO_TCP), public_be }));
    // A node-local packet, or one on an interface that does not rewrite.
    let public = Fake { rule: Some(public), ..serving() };
    let answer = Segment { flow: flow(PROTO_TCP).reversed(), ..segment(PROTO_TCP, ACK) };
    assert_eq!(sent(&public, &answer), Some(Sent { flow: flow(PROTO_TCP), public_be: None }));
}

#[test]
fn icmp_errors_get_the_port_of_the_stack() {
    let [public, inner] = rewriting();
    let quoted = Quoted {
        sender: flow(PROTO_TCP).local_addr,
        port_be: 80_u16.to_be(),
        place: FieldOffsets { port: 62, checksum: 36 },
    };
    let public = Fake { rule: Some(public), ..serving() };
    assert_eq!(rewritten(&public, &quoted), Some(10_080_u16.to_be()));
    assert_eq!(rewritten(&Fake { holds: false, ..public }, &quoted), None, "somebody else's segment");
    for rule in [None, Some(RULE), Some(inner)] {
        assert_eq!(rewritten(&Fake { rule, ..serving() }, &quoted), None, "{rule:?}");
    }
}
