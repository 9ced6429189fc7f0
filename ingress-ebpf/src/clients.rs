//! Takes tokens from the buckets of clients, and counts for whom there were none. Programs on all CPUs share them.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use aya_ebpf::bindings::BPF_NOEXIST;
use ingress_common::{Client, ClientKey, FlowKey, Limits, Total, limit::LIMITS_DRY_RUN, map::LIMITS_ALL};
use ingress_ebpf::limit::{Draw, Draws, Limited, limit};

use crate::{
    count,
    maps::{CLIENTS, LIMITS},
};

/// The kernel's EEXIST, from an insertion that came second.
const EXISTS: i32 = -17;

/// What a packet is to be counted as that is dropped because its client has sent too much; `None` if it goes on. Takes
/// its tokens, or counts it for its client.
#[inline(always)]
pub(crate) fn limited(flow: &FlowKey, is_request: bool, now_ns: u64, bytes: u64) -> Option<Total> {
    let limits = LIMITS.get(LIMITS_ALL)?;
    let key = ClientKey::of(&flow.remote_addr);
    let Some(client) = CLIENTS.get_ptr_mut(&key) else {
        enter(&key, limits, is_request, now_ns, bytes);
        return None;
    };
    // SAFETY: the verifier checked `client` against null. Other CPUs may write while it is copied, each word in one
    // store.
    let seen = unsafe { client.read() };
    match limit(limits, &seen, is_request, now_ns) {
        Ok(Draws { syns, packets }) => {
            // SAFETY: as above.
            draw(unsafe { &raw mut (*client).syns_full_ns }, syns);
            // SAFETY: as above.
            draw(unsafe { &raw mut (*client).packets_full_ns }, packets);
            None
        }
        Err(limited) => {
            // SAFETY: as above.
            write(unsafe { &raw mut (*client).limited_ns }, now_ns);
            let is_dry_run = limits.flags & LIMITS_DRY_RUN != 0;
            let total = match limited {
                Limited::Syn => {
                    // SAFETY: as above.
                    add(unsafe { &raw mut (*client).limited_syns }, 1);
                    if is_dry_run { Total::WouldLimitSyn } else { Total::LimitedSyn }
                }
                Limited::Packet => {
                    // SAFETY: as above.
                    add(unsafe { &raw mut (*client).limited_packets }, 1);
                    if is_dry_run { Total::WouldLimitPacket } else { Total::LimitedPacket }
                }
            };
            if is_dry_run {
                count::total(total, bytes);
                return None;
            }
            Some(total)
        }
    }
}

/// Whether clients are limited, and not only counted.
#[inline(always)]
pub(crate) fn are_limited() -> bool {
    let Some(limits) = LIMITS.get(LIMITS_ALL) else { return false };
    (limits.syns.is_limit() || limits.packets.is_limit()) && limits.flags & LIMITS_DRY_RUN == 0
}

/// Gives a client that is not known full buckets, and takes what this packet needs of them: its first one always
/// passes.
///
/// If another CPU comes first, this packet costs nothing.
#[inline(always)]
fn enter(key: &ClientKey, limits: &Limits, is_request: bool, now_ns: u64, bytes: u64) {
    let mut client = Client::default();
    if let Ok(Draws { syns, packets }) = limit(limits, &client, is_request, now_ns) {
        client.syns_full_ns = begun(syns);
        client.packets_full_ns = begun(packets);
    }
    match CLIENTS.insert(key, &client, u64::from(BPF_NOEXIST)) {
        Ok(()) | Err(EXISTS) => {}
        Err(_) => count::total(Total::ClientsFull, bytes),
    }
}

/// What stands in a bucket that was full.
#[inline(always)]
const fn begun(draw: Draw) -> u64 {
    match draw {
        Draw::Leave => 0,
        Draw::Add(ns) | Draw::Set(ns) => ns,
    }
}

/// An addition is the only change that CPUs make at one time without losing any, so that a flood that comes in by many
/// queues gets no more than one that comes in by one. [`Draw::Set`] may lose those of others, once for each time that
/// the client had sent nothing for so long that its bucket was full.
#[inline(always)]
fn draw(full_ns: *mut u64, draw: Draw) {
    match draw {
        Draw::Leave => {}
        Draw::Add(token_ns) => add(full_ns, token_ns),
        Draw::Set(ns) => write(full_ns, ns),
    }
}

#[inline(always)]
fn add(sum: *mut u64, number: u64) {
    // SAFETY: all callers pass an aligned field of a value in the map. The map may have given the place of a client to
    // another one since the lookup; then that one pays, for one packet.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(sum, number) };
}

#[inline(always)]
fn write(to: *mut u64, number: u64) {
    // SAFETY: as in `add`; volatile because other CPUs read the word at any time.
    unsafe { to.write_volatile(number) };
}
