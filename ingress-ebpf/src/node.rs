//! Implements the questions of `decide` and `quic` with maps and helpers, and finds the host of a connection.

use core::hint::black_box;

use aya_ebpf::helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns};
use ingress_common::{
    DenyRule, FlowKey, Handoff, PortKey, PortRule, QuicState, RawHostId, Share, WorkerLoad,
    flow::UNATTRIBUTED,
    map::{ALIVE_CURRENT, QUIC_ONLY, SHARE_ONLY},
    quic::{KEY_LOST, KEYS, SealKey},
    sizes::WORKER_GROUPS,
};
use ingress_ebpf::{decide::Node, quic::QuicNode};

use crate::{
    deny, handoffs,
    maps::{ALIVE, FLOWS, NODE_ADDRS, PORTS, QUIC, SHARE, WORKERS},
};

/// This node as its maps describe it.
pub(crate) struct Maps;

/// Returns the host of the latest request on this connection.
#[inline(always)]
pub(crate) fn host(flow: &FlowKey) -> RawHostId {
    known_host(flow).unwrap_or(UNATTRIBUTED)
}

/// Like [`host`], but returns `None` for a connection that the proxy has not entered.
#[inline(always)]
pub(crate) fn known_host(flow: &FlowKey) -> Option<RawHostId> {
    // SAFETY: programs never write this map; an element freed meanwhile stays readable until the program ends (RCU).
    unsafe { FLOWS.get(flow) }.map(|flow| flow.host_id)
}

/// Counts a connection that is on its way to the worker at this index of `workers`, for other programs to see until the
/// worker itself counts it.
#[inline(always)]
pub(crate) fn count_choice(worker: u32) {
    let Some(load) = WORKERS.get_ptr_mut(worker) else { return };
    // SAFETY: `get_ptr_mut` has checked the pointer against null, and the field lies within the value.
    let chosen = unsafe { &raw mut (*load).chosen };
    // Deliberately not an atomic addition (`client_limits.rs` has some): every SYN would wait for the cache line. Two counts
    // made at once on two CPUs count as one until the connections are accepted.
    // SAFETY: aligned and in bounds; volatile because programs on other CPUs write the word.
    let count = unsafe { chosen.read_volatile() };
    // SAFETY: as above.
    unsafe { chosen.write_volatile(count.wrapping_add(1)) };
}

impl Node for Maps {
    #[inline(always)]
    fn rule(&self, port: &PortKey) -> Option<PortRule> {
        // SAFETY: the program never writes this map; a concurrent update by userspace replaces the whole element.
        unsafe { PORTS.get(port) }.copied()
    }

    #[inline(always)]
    fn address_flags(&self, addr: &[u8; 16]) -> Option<u32> {
        let addr = NODE_ADDRS.get_ptr(addr)?;
        // SAFETY: the verifier checked `addr` against null; userspace replaces the whole element.
        Some(unsafe { (*addr).flags })
    }

    #[inline(always)]
    fn holds(&self, addr: &[u8; 16]) -> bool {
        NODE_ADDRS.get_ptr(addr).is_some()
    }

    #[inline(always)]
    fn deny_entry(&self, addr: &[u8; 16]) -> Option<DenyRule> {
        deny::entry(addr)
    }

    #[inline(always)]
    fn worker(&self, index: u32) -> Option<WorkerLoad> {
        let load = WORKERS.get_ptr(index)?;
        let read = |field: *const u64| {
            // SAFETY: aligned and within a value that was checked against null; volatile because the worker and
            // programs on other CPUs write the word at any time, in one store.
            unsafe { field.read_volatile() }
        };
        // SAFETY: computes only the address of a field of that value.
        let open = read(unsafe { &raw const (*load).open });
        // SAFETY: as above.
        let settled = read(unsafe { &raw const (*load).settled });
        // SAFETY: as above.
        let chosen = read(unsafe { &raw const (*load).chosen });
        Some(WorkerLoad { open, settled, chosen })
    }

    #[inline(always)]
    fn share(&self) -> Share {
        let Some(share) = SHARE.get_ptr(SHARE_ONLY) else { return Share::default() };
        // SAFETY: checked against null, aligned and of the size of a word; volatile because userspace writes the word at
        // any time, in one store.
        Share::of(unsafe { share.cast::<u64>().read_volatile() })
    }

    #[inline(always)]
    fn heartbeat_ns(&self) -> u64 {
        let Some(alive) = ALIVE.get_ptr(ALIVE_CURRENT) else { return 0 };
        // SAFETY: the verifier checked `alive` against null.
        let heartbeat = unsafe { &raw const (*alive).heartbeat_ns };
        // SAFETY: aligned and in bounds; volatile because userspace writes the word at any time, in one store.
        unsafe { heartbeat.read_volatile() }
    }

    #[inline(always)]
    fn now_ns(&self) -> u64 {
        // SAFETY: the helper takes no arguments and always succeeds.
        unsafe { bpf_ktime_get_ns() }
    }

    #[inline(always)]
    fn cpu(&self) -> u32 {
        // SAFETY: as `now_ns`.
        unsafe { bpf_get_smp_processor_id() }
    }
}

impl QuicNode for Maps {
    #[inline(always)]
    fn key(&self, number: usize) -> SealKey {
        let Some(state) = state() else { return [0; 2] };
        // The compiler knows from an earlier comparison that the number is small, and may leave the remainder out. The
        // verifier does not connect the two, and then refuses the program.
        let number = black_box(number) % KEYS;
        // SAFETY: computes only the address of a field of a value that was checked against null; the index is within it.
        let words = unsafe { (&raw const (*state).keys).cast::<SealKey>().add(number) };
        // SAFETY: aligned and in bounds; volatile because userspace writes the words at any time.
        unsafe { words.read_volatile() }
    }

    #[inline(always)]
    fn epoch(&self, group: usize) -> u32 {
        let Some(state) = state() else { return 0 };
        // SAFETY: as in `key`.
        let epoch = unsafe { (&raw const (*state).epochs).cast::<u32>().add(group % WORKER_GROUPS as usize) };
        // SAFETY: as in `key`.
        unsafe { epoch.read_volatile() }
    }

    #[inline(always)]
    fn has_all_keys(&self) -> bool {
        let Some(state) = state() else { return false };
        // SAFETY: as in `key`.
        let flags = unsafe { &raw const (*state).flags };
        // SAFETY: as in `key`.
        unsafe { flags.read_volatile() & KEY_LOST == 0 }
    }

    #[inline(always)]
    fn note(&self, first: &FlowKey) -> Handoff {
        handoffs::find_or_default(first)
    }
}

#[inline(always)]
fn state() -> Option<*const QuicState> {
    QUIC.get_ptr(QUIC_ONLY)
}
