//! Takes tokens from the buckets of clients, and counts packets above the limit for each client. Programs on all CPUs
//! share the buckets.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use aya_ebpf::bindings::BPF_NOEXIST;
use ingress_common::{ClientEntry, ClientKey, LimitBuckets, Total, limit::LIMITS_DRY_RUN, map::LIMITS_ALL};
use ingress_ebpf::limit::{Draw, Draws, Limited, limit};

use crate::{
    count,
    maps::{CLIENTS, LIMITS},
};

/// The kernel's EEXIST, returned to the later of two insertions.
const EXISTS: i32 = -17;

/// Takes tokens for a packet, or counts it for its client. Returns the verdict to count if the packet is dropped
/// because its client is above a limit; `None` if it passes. `key` is that of the client, or of its open connections.
#[inline(always)]
pub(crate) fn limited(key: &ClientKey, is_request: bool, now_ns: u64, bytes: u64) -> Option<Total> {
    let limits = LIMITS.get(LIMITS_ALL)?;
    let Some(client) = CLIENTS.get_ptr_mut(key) else {
        enter(key, limits, is_request, now_ns, bytes);
        return None;
    };
    // SAFETY: the verifier checked `client` against null. Other CPUs may write during the copy, each word in one store.
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

/// Returns `true` if limits are enforced, rather than only counted.
#[inline(always)]
pub(crate) fn are_limited() -> bool {
    let Some(limits) = LIMITS.get(LIMITS_ALL) else { return false };
    (limits.syns.is_limit() || limits.packets.is_limit()) && limits.flags & LIMITS_DRY_RUN == 0
}

/// Enters a new client with full buckets, minus the tokens for this packet: the first packet of a client always passes.
///
/// If another CPU inserts the client first, this packet takes no tokens.
#[inline(always)]
fn enter(key: &ClientKey, limits: &LimitBuckets, is_request: bool, now_ns: u64, bytes: u64) {
    let mut client = ClientEntry::default();
    if let Ok(Draws { syns, packets }) = limit(limits, &client, is_request, now_ns) {
        client.syns_full_ns = begun(syns);
        client.packets_full_ns = begun(packets);
    }
    match CLIENTS.insert(key, &client, u64::from(BPF_NOEXIST)) {
        Ok(()) | Err(EXISTS) => {}
        Err(_) => count::total(Total::ClientsFull, bytes),
    }
}

/// Returns the value of a bucket that was full before this draw.
#[inline(always)]
const fn begun(draw: Draw) -> u64 {
    match draw {
        Draw::Leave => 0,
        Draw::Add(ns) | Draw::Set(ns) => ns,
    }
}

/// Applies a draw to a bucket. Addition is the only change that several CPUs can make at once without losing one, so a
/// flood that arrives on many queues gets no more than a flood on one queue. [`Draw::Set`] may lose the draws of other
/// CPUs, but at most once for each time that the client was silent long enough to fill its bucket.
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
    // SAFETY: all callers pass an aligned field of a value in the map. Since the lookup the map may have given the
    // entry to another client; then that client pays, for one packet.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(sum, number) };
}

#[inline(always)]
fn write(to: *mut u64, number: u64) {
    // SAFETY: as in `add`; volatile because other CPUs read the word at any time.
    unsafe { to.write_volatile(number) };
}
