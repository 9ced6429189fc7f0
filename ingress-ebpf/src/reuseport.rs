//! `ingress_quic`: chooses the socket of each packet for a port of QUIC, among the sockets of all processes of the node
//! that are bound to it. The kernel runs it when it has found the group of these sockets.
//!
//! A packet is never dropped here, because the kernel answers a drop with an ICMP error. Without a choice the kernel
//! takes a socket of the group by hash.

use aya_ebpf::{
    EbpfContext as _, bindings::sk_action::SK_PASS, helpers::generated::bpf_skb_load_bytes, macros::sk_reuseport,
    programs::SkReuseportContext,
};
use ingress_common::{FlowKey, PortKey, PortRule, Total, flow::PROTO_UDP};
use ingress_ebpf::{
    decide::Node as _,
    quic::{Destination, HEAD_LENGTH, begin, destination, first_key, preferred},
};

use crate::{
    count, handoffs,
    maps::QUIC_SOCKETS,
    node::{Maps, count_choice},
};

/// Length of the header of UDP.
const UDP_LENGTH: usize = 8;
/// Words that hold both headers.
const WORDS: usize = (UDP_LENGTH + HEAD_LENGTH).div_ceil(8);

#[sk_reuseport]
fn ingress_quic(ctx: SkReuseportContext) -> u32 {
    // Events have no bytes.
    count::total(select(&ctx), 0);
    SK_PASS
}

/// Chooses the socket, and returns the event to count.
#[inline(always)]
fn select(ctx: &SkReuseportContext) -> Total {
    let Some([udp, a, b, c]) = direct(ctx).or_else(|| copied(ctx)) else { return Total::QuicUnchosen };
    let [_, _, high, low, ..] = udp.to_ne_bytes();
    let ([a0, a1, a2, a3, a4, a5, a6, a7], [b0, b1, b2, b3, b4, b5, b6, b7]) = (a.to_ne_bytes(), b.to_ne_bytes());
    let [c0, c1, c2, c3, c4, c5, ..] = c.to_ne_bytes();
    let head = [a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7, c0, c1, c2, c3, c4, c5];
    let destination = destination(&Maps, &Maps, &head);
    match destination {
        Destination::Issued(socket) if takes(ctx, socket) => return Total::QuicById,
        Destination::Noted(socket) if takes(ctx, socket) => return Total::QuicNoted,
        _ => {}
    }
    // Only now: packets of known connections need no rule.
    let rule = Maps.rule(&PortKey { port_be: u16::from_ne_bytes([high, low]), proto: PROTO_UDP, pad: 0 });
    let rule = rule.unwrap_or_default();
    match destination {
        Destination::Issued(_) | Destination::Gone => to_preferred_worker(ctx, &rule, Total::QuicGone),
        Destination::Noted(_) | Destination::First => to_new(ctx, &rule, &first_key(&head)),
        Destination::Other => to_preferred_worker(ctx, &rule, Total::QuicOther),
    }
}

/// Reads the headers in place, if they are in the first buffer of the packet. Copying them would take 27 ns more.
#[inline(always)]
fn direct(ctx: &SkReuseportContext) -> Option<[u64; WORDS]> {
    let start = ctx.data();
    if start + UDP_LENGTH + HEAD_LENGTH > ctx.data_end() {
        return None;
    }
    // SAFETY: within the packet, as checked above; the verifier has seen it.
    let word = |offset: usize| unsafe { ((start + offset) as *const u64).read_unaligned() };
    // The last word ends with the headers, so it overlaps the one before by two bytes; the target is little-endian.
    Some([word(0), word(8), word(16), word(UDP_LENGTH + HEAD_LENGTH - 8) >> 16])
}

/// Copies the headers, which may be in several buffers.
#[inline(always)]
fn copied(ctx: &SkReuseportContext) -> Option<[u64; WORDS]> {
    let mut words = [0_u64; WORDS];
    // A datagram that is too short for QUIC has a port nevertheless; its head stays zero.
    if !load(ctx, &mut words, UDP_LENGTH + HEAD_LENGTH) && !load(ctx, &mut words, UDP_LENGTH) {
        return None;
    }
    // Read as whole words: the verifier refuses unaligned reads on the stack, which the compiler would make of bytes.
    Some(words.each_ref().map(read))
}

/// Delivers the first packet of a connection to one of the owner's workers, and notes the choice.
#[inline(always)]
fn to_new(ctx: &SkReuseportContext, rule: &PortRule, first: &FlowKey) -> Total {
    let Some(choice) = begin(&Maps, rule) else { return Total::QuicUnchosen };
    if !takes(ctx, choice.worker) {
        return Total::QuicUnchosen;
    }
    handoffs::leave(first, &choice.handoff);
    count_choice(choice.worker);
    Total::QuicNew
}

/// Delivers a packet to the owner's worker for this CPU. Returns `event` if that worker has a socket.
#[inline(always)]
fn to_preferred_worker(ctx: &SkReuseportContext, rule: &PortRule, event: Total) -> Total {
    match preferred(&Maps, rule) {
        Some(socket) if takes(ctx, socket) => event,
        _ => Total::QuicUnchosen,
    }
}

/// Selects a socket. Returns `false` if there is none at this index, or one that is bound to another address.
#[inline(always)]
fn takes(ctx: &SkReuseportContext, socket: u32) -> bool {
    QUIC_SOCKETS.select_reuseport(ctx, socket).is_ok()
}

/// Reads the first `length` bytes from the header of UDP on; `false` if the packet is shorter.
#[inline(always)]
fn load(ctx: &SkReuseportContext, words: &mut [u64; WORDS], length: usize) -> bool {
    // SAFETY: `words` are writable for `length` bytes, which both callers keep within them.
    unsafe { bpf_skb_load_bytes(ctx.as_ptr().cast(), 0, words.as_mut_ptr().cast(), length as u32) == 0 }
}

/// Reads a whole word exactly here.
#[inline(always)]
fn read(word: &u64) -> u64 {
    // SAFETY: a reference is valid for reads.
    unsafe { core::ptr::from_ref(word).read_volatile() }
}
