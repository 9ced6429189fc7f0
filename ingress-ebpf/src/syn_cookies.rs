//! The part of `ingress_xdp_cookies` for TCP packets of steered ports during a flood of SYNs (ADR 0063).
//!
//! The program answers SYNs by SYN cookies of the kernel, without state. An ACK that confirms a cookie gets a worker and
//! passes; the stack then opens the connection. Other segments pass if they belong to a connection, and are dropped if
//! not.
//!
//! The stack accepts a cookie only from a listener that has noted to send cookies, at most two minutes ago. So a packet is
//! answered or confirmed here only if the note of its listener is recent. If it is not, the kernel is asked to send a
//! cookie for that listener, which makes the note. It refuses while the listener's queue is not full, if it sends cookies
//! only then: the SYN passes, and an ACK is dropped, so that its client sends it again.

use core::hint::black_box;

use aya_ebpf::{
    helpers::generated::{bpf_xdp_adjust_tail, bpf_xdp_load_bytes},
    programs::XdpContext,
};
use ingress_common::{
    ClientKey, FlowKey, Handoff, PortRule, Total,
    flow::UNATTRIBUTED,
    map::{SYN_COOKIES_ONLY, SYN_SCRATCH_ONLY},
    steer::{CHOSEN_BY_XDP, HANDOFF_FRESH_NS, HEARTBEAT_STALE_NS, LEFT_BY_SHARE, default_worker, fresh},
    syn_cookies::{STAMP_FRESH_NS, STAMP_VALID_NS, SYN_COOKIES_DRY_RUN, SYN_COOKIES_OPTIONS},
};
use ingress_ebpf::{
    decide::{Decision, Node as _, WorkerChoice, admit, choice},
    parse::Segment,
    share::left,
    syn_answer::{Offer, Reading, SynAck, TCP_HEADER, is_unanswerable, plain, timestamp, write},
};

use crate::{
    client_limits, count, handoffs,
    linear::Linear,
    maps::{SYN_COOKIES, SYN_SCRATCH, SYN_STAMPS},
    node::{Maps, count_choice, known_host},
    receive::{PacketAction, Received},
    sockets::{IpHeader, TCP_LENGTH, ip_header},
    syn_helpers::{Syn, ask, cookie, is_confirmed, is_connection, own_mss, ports, simplify},
    syn_rate::{is_flood, now_ns},
};

/// Smallest frame of Ethernet, without its checksum.
const FRAME_MIN: usize = 60;

/// A request that is answered if the listener has a note.
const ANSWER: u8 = 0;
/// An ACK that confirms a cookie.
const CONFIRM: u8 = 1;
/// A request that is not answered.
const STEER: u8 = 2;

/// A packet and its values, in a map: the verifier knows no value there, so that it walks the rest of the program once,
/// and not once for each path to it. The stack of a program has little room as well.
#[repr(C, align(8))]
pub(crate) struct SynScratch {
    segment: Segment,
    rule: PortRule,
    client: ClientKey,
    /// Time at which a worker is chosen.
    now_ns: u64,
    /// Port that the stack sees.
    port_be: u16,
    /// Next step, one of the three above.
    step: u8,
    syn: Syn,
    ip: IpHeader,
    offer: Offer,
    reading: Reading,
}

/// Decides about a packet during a flood, and carries the decision out. Returns `None` without a flood. Counts requests for
/// the rate.
#[inline(always)]
pub(crate) fn in_flood(packet: &XdpContext, segment: &Segment, rule: &PortRule, bytes: u64) -> Option<PacketAction> {
    if !is_flood(segment.is_request()) {
        return None;
    }
    let scratch = SYN_SCRATCH.get_ptr_mut(SYN_SCRATCH_ONLY)?;
    // SAFETY: checked against null; the value belongs to this CPU.
    let scratch = unsafe { &mut *scratch };
    scratch.segment = *segment;
    scratch.rule = *rule;
    // Forgets what the parser knew, as in `neighbours.rs`.
    Some(act(black_box(packet), black_box(scratch), bytes))
}

/// Does the work of `act` in `receive.rs`.
#[inline(always)]
fn act(packet: &XdpContext, scratch: &mut SynScratch, bytes: u64) -> PacketAction {
    scratch.port_be = scratch.segment.flow.local_port_be;
    if let Some(rewritten_be) = scratch.rule.rewritten()
        && packet.is_rewritten()
    {
        packet.rewrite(scratch.segment.destination_port(), scratch.port_be, rewritten_be);
        scratch.port_be = rewritten_be;
    }
    let scratch = black_box(scratch);
    if let Some(action) = decide(packet, scratch, bytes) {
        return action;
    }
    let scratch = black_box(scratch);
    if scratch.step != STEER {
        let is_noted = note(packet, scratch);
        let scratch = black_box(&mut *scratch);
        if scratch.step == ANSWER {
            if is_noted && let Some(action) = answer(packet, scratch, bytes) {
                return action;
            }
        } else if is_noted {
            count::total(Total::SynCookieValid, bytes);
        } else {
            return drop(Total::SynCookieInvalid, bytes);
        }
    }
    let scratch = black_box(scratch);
    steer(scratch, bytes);
    accept(packet, &scratch.segment.flow, bytes)
}

/// Carries the decision about a packet out. Returns `None` for one that needs another step.
#[inline(always)]
fn decide(packet: &XdpContext, scratch: &mut SynScratch, bytes: u64) -> Option<PacketAction> {
    let SynScratch { segment, rule, client, .. } = scratch;
    *client = ClientKey::of(&segment.flow.remote_addr);
    let client = black_box(client);
    let limited = |now_ns| client_limits::limited(client, true, now_ns, bytes);
    match admit(&Maps, rule, segment, limited) {
        Err(Decision::Deny(rule)) => {
            count::denied(rule, bytes);
            Some(PacketAction::Drop)
        }
        Err(Decision::Drop(verdict)) => Some(drop(verdict, bytes)),
        Err(Decision::Stale) => {
            count::total(Total::HeartbeatStale, bytes);
            Some(accept(packet, &segment.flow, bytes))
        }
        Ok(now) => {
            scratch.now_ns = now;
            request(black_box(packet), black_box(scratch), bytes)
        }
        Err(decision) => {
            if let Decision::Metered(now) = decision {
                if known_host(&segment.flow).is_some() {
                    *client = client.open();
                }
                let client = black_box(client);
                if let Some(verdict) = client_limits::limited(client, false, now, bytes) {
                    return Some(drop(verdict, bytes));
                }
            }
            check(packet, black_box(scratch), bytes)
        }
    }
}

/// Passes a segment other than a request that belongs to a connection, and drops any other one. Returns `None` for a
/// segment that confirms a cookie.
#[inline(always)]
fn check(packet: &XdpContext, scratch: &mut SynScratch, bytes: u64) -> Option<PacketAction> {
    let SynScratch { segment, port_be, .. } = scratch;
    let flow = &segment.flow;
    if let Some(host) = known_host(flow) {
        count::accepted(packet.nic(), host, bytes);
        return Some(PacketAction::Pass);
    }
    let now = now_ns();
    // The stack may still be opening the connection of an ACK that arrived just before, and so may the listener of a client
    // outside the share.
    let Handoff { time_ns, chosen_by, .. } = handoffs::find_or_default(flow);
    if matches!(chosen_by, CHOSEN_BY_XDP | LEFT_BY_SHARE) && fresh(now, time_ns, HANDOFF_FRESH_NS)
        || is_dry_run()
        || !fresh(now, Maps.heartbeat_ns(), HEARTBEAT_STALE_NS)
        || is_connection(packet, flow, *port_be)
    {
        return Some(accept(packet, flow, bytes));
    }
    if !is_confirmed(packet, segment, *port_be) {
        return Some(drop(Total::SynCookieInvalid, bytes));
    }
    scratch.now_ns = now;
    scratch.step = CONFIRM;
    let is_v4 = ip_header(flow).is_v4();
    simplify(&mut scratch.syn, is_v4, &Offer::NONE);
    None
}

/// Reads a request, and finds out whether it is answered.
#[inline(always)]
fn request(packet: &XdpContext, scratch: &mut SynScratch, bytes: u64) -> Option<PacketAction> {
    scratch.step = STEER;
    let SynScratch { segment, rule, now_ns, .. } = &*scratch;
    // A client outside the share gets another listener, which may send no cookies.
    if left(&Maps, rule, &segment.flow.remote_addr, *now_ns).is_some() {
        return None;
    }
    if is_dry_run() {
        count::total(Total::WouldSendSynCookie, bytes);
        return None;
    }
    let scratch = black_box(scratch);
    // Options of IP and extension headers are not in the SYNs of clients.
    if is_dropped(packet, scratch)
        || plain(&Linear::new(packet.data(), packet.data_end())).is_none()
        || !read(packet, black_box(&mut *scratch))
    {
        return Some(drop(Total::SynCookieInvalid, bytes));
    }
    let scratch = black_box(scratch);
    let offer = scratch.reading.offer();
    let scratch = black_box(scratch);
    scratch.offer = offer.kept(settings().0 & SYN_COOKIES_OPTIONS != 0);
    let is_v4 = ip_header(&scratch.segment.flow).is_v4();
    let SynScratch { syn, offer, .. } = scratch;
    simplify(syn, is_v4, offer);
    scratch.step = ANSWER;
    None
}

/// Returns `true` if the listener of this packet is noted to send cookies, if need be after asking the kernel.
#[inline(always)]
fn note(packet: &XdpContext, scratch: &mut SynScratch) -> bool {
    scratch.ip = ip_header(&scratch.segment.flow);
    let scratch = black_box(scratch);
    let SynScratch { segment, rule, now_ns, port_be, syn, ip, step, .. } = scratch;
    syn[0] = ports(&segment.flow, *port_be);
    let slot = slot(rule, &segment.flow);
    let Some(stamp) = SYN_STAMPS.get_ptr_mut(slot) else { return false };
    // SAFETY: checked against null, and aligned; volatile because others write it.
    let found = unsafe { stamp.read_volatile() };
    let age_ns = if *step == CONFIRM { STAMP_VALID_NS } else { STAMP_FRESH_NS };
    if found.is_within(age_ns, *now_ns) {
        return true;
    }
    let is_noted = ask(packet, &segment.flow, *port_be, ip, syn);
    if is_noted {
        // The number was read before the lookup: if the listener has changed since, the note is not for the new one.
        // SAFETY: as above.
        unsafe { (&raw mut (*stamp).noted).write_volatile(found.listener) };
        // SAFETY: as above.
        unsafe { (&raw mut (*stamp).time_ns).write_volatile(*now_ns) };
    }
    is_noted
}

/// Answers a request by a cookie. Returns `None` if the kernel makes none.
#[inline(always)]
fn answer(packet: &XdpContext, scratch: &mut SynScratch, bytes: u64) -> Option<PacketAction> {
    let SynScratch { segment, offer, now_ns, syn, ip, .. } = scratch;
    let cookie = cookie(ip, syn)?;
    // A rewritten port is restored, because no other program sees the answer.
    let answer = SynAck {
        cookie,
        offer: *offer,
        mss: own_mss(packet, ip.is_v4()),
        window_scale: settings().1 as u8,
        timestamp: timestamp(offer, *now_ns),
        port_be: segment.flow.local_port_be,
    };
    let packet = black_box(packet);
    let Some(length) = write(&mut Linear::new(packet.data(), packet.data_end()), &answer) else {
        return Some(drop(Total::SynCookieInvalid, bytes));
    };
    let excess = bytes.saturating_sub(length.max(FRAME_MIN) as u64);
    if excess != 0 {
        // SAFETY: the context is the one this program was called with. What stays is padding.
        let _stays = unsafe { bpf_xdp_adjust_tail(packet.ctx, -(excess as i32)) };
    }
    count::total(Total::SynCookieSent, bytes);
    Some(PacketAction::Transmit)
}

/// Chooses the worker whose listener a lookup would find for the SYN, because that one is noted to send cookies. Does not
/// compare the numbers of connections: the verifier would walk that loop once for each path to it.
#[inline(always)]
fn steer(scratch: &SynScratch, bytes: u64) {
    let SynScratch { segment, rule, now_ns, step, .. } = scratch;
    let flow = &segment.flow;
    if *step != CONFIRM
        && let Some(handoff) = left(&Maps, rule, &flow.remote_addr, *now_ns)
    {
        handoffs::leave(flow, &handoff);
        count::total(Total::Left, bytes);
        return;
    }
    let worker = slot(rule, flow).wrapping_sub(rule.first_slot);
    let WorkerChoice { worker, handoff } = choice(rule, worker, CHOSEN_BY_XDP, *now_ns);
    handoffs::leave(flow, &handoff);
    count_choice(worker);
    count::total(Total::Decided, bytes);
}

/// Returns `true` for a SYN that the stack would drop.
#[inline(always)]
fn is_dropped(packet: &XdpContext, scratch: &mut SynScratch) -> bool {
    let SynScratch { segment, syn, .. } = scratch;
    // SAFETY: the context is the one this program was called with, and `syn` has more bytes.
    let read = unsafe { bpf_xdp_load_bytes(packet.ctx, 0, syn.as_mut_ptr().cast(), 4) };
    let [destination, ..] = black_box(syn)[0].to_ne_bytes();
    read != 0 || black_box(is_unanswerable(destination, &segment.flow.remote_addr))
}

/// Reads the TCP header of a SYN, and its options. Returns `false` if the frame ends before.
#[inline(always)]
fn read(packet: &XdpContext, scratch: &mut SynScratch) -> bool {
    const OPTIONS_MAX: u32 = 40;
    let SynScratch { segment, syn, reading, .. } = scratch;
    let at = segment.offset as u32;
    // SAFETY: the context is the one this program was called with, and `syn` has more bytes.
    let read = unsafe { bpf_xdp_load_bytes(packet.ctx, at, syn.as_mut_ptr().cast(), TCP_LENGTH) };
    if read != 0 {
        return false;
    }
    let [words, ..] = syn[3].to_ne_bytes();
    let length = (u32::from(words >> 4) * 4).saturating_sub(TCP_LENGTH);
    reading.length = length as usize;
    if length == 0 {
        return true;
    }
    // The verifier loses the bounds of the number otherwise. Before Linux 6.8, it does not take a number other than 0 for
    // one of at least 1.
    let last = black_box(length - 1) & 0x3f;
    if last >= OPTIONS_MAX {
        return false;
    }
    let options = reading.options.as_mut_ptr().cast();
    // SAFETY: as above.
    unsafe { bpf_xdp_load_bytes(packet.ctx, at + TCP_HEADER as u32, options, last + 1) == 0 }
}

#[inline(always)]
fn accept(packet: &XdpContext, flow: &FlowKey, bytes: u64) -> PacketAction {
    count::accepted(packet.nic(), known_host(flow).unwrap_or(UNATTRIBUTED), bytes);
    PacketAction::Pass
}

#[inline(always)]
fn drop(verdict: Total, bytes: u64) -> PacketAction {
    count::total(verdict, bytes);
    PacketAction::Drop
}

/// Returns the bits of `SYN_COOKIES_*`, and the window scale of the stack.
#[inline(always)]
fn settings() -> (u32, u32) {
    SYN_COOKIES
        .get(SYN_COOKIES_ONLY)
        .map_or((SYN_COOKIES_DRY_RUN, 0), |settings| (settings.flags, settings.window_scale))
}

#[inline(always)]
fn is_dry_run() -> bool {
    settings().0 & SYN_COOKIES_DRY_RUN != 0
}

/// Returns the slot whose listener a lookup from here finds: that of an earlier choice, or the default.
#[inline(always)]
fn slot(rule: &PortRule, flow: &FlowKey) -> u32 {
    let Handoff { slot, .. } = handoffs::find_or_default(flow);
    if slot.wrapping_sub(rule.first_slot) < rule.workers {
        return slot;
    }
    rule.first_slot.wrapping_add(default_worker(flow, rule.workers))
}
