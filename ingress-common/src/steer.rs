//! What decides where a connection goes: ports, addresses, the worker chosen, the heartbeat.

use core::sync::atomic::AtomicU64;

use crate::{
    FlowKey,
    map::{DENY_VERDICTS_MAX, HANDOFFS_MAX},
};

/// Key of [`crate::map::PORTS`]. Aligned as [`FlowKey`] is, for the same reason.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct PortKey {
    pub port_be: u16,
    /// IP protocol number: 6 TCP, 17 UDP.
    pub proto: u8,
    pub pad: u8,
}

/// Value of [`crate::map::PORTS`]: the slots `first_slot .. first_slot + workers` of [`crate::map::LISTENERS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PortRule {
    pub first_slot: u32,
    /// Number of slots; 0 counts the port's packets without steering them.
    pub workers: u32,
    /// Bits of `PORT_*`.
    pub flags: u16,
    /// Of a port that clients know: the one that their packets get in its place, 0 for none. With [`PORT_REWRITTEN`]:
    /// the one that clients know. In network byte order; of TCP alone.
    ///
    /// On little-endian machines this is the upper half of what was once all flags, of which no version used a bit.
    pub rewrite_be: u16,
    /// Index in [`crate::map::WORKERS`] of the worker whose listener is in `first_slot`; those of the others follow.
    pub first_worker: u32,
}

/// Slots reserved for each steered port, so that processes with different numbers of workers never share a slot between
/// two ports; also the most workers a process can have.
pub const SLOTS_PER_PORT: u32 = 64;

/// Count this port's packets but leave delivery to the stack (a bound UDP socket).
pub const PORT_COUNT_ONLY: u16 = 1;
/// Look the sources of this port's packets up in the deny list. Set while that holds anything, so that an empty list
/// costs a packet one branch.
pub const PORT_DENIES: u16 = 2;
/// Limit how many SYNs each client sends to this port. Set while there is such a limit, so that none costs one branch.
pub const PORT_LIMITS_SYNS: u16 = 4;
/// As [`PORT_LIMITS_SYNS`], of packets.
pub const PORT_LIMITS_PACKETS: u16 = 8;
/// This is the port that packets for another one get on this node ([`PortRule::rewrite_be`]); no client may ask for it.
pub const PORT_REWRITTEN: u16 = 16;

impl PortRule {
    /// The port that packets for this one are to get on their way in, in network byte order.
    #[must_use]
    #[inline(always)]
    pub const fn rewritten(&self) -> Option<u16> {
        if self.rewrite_be == 0 || self.flags & PORT_REWRITTEN != 0 { None } else { Some(self.rewrite_be) }
    }

    /// The port that clients know this one by, if that is another one, in network byte order.
    #[must_use]
    #[inline(always)]
    pub const fn public(&self) -> Option<u16> {
        if self.flags & PORT_REWRITTEN != 0 { Some(self.rewrite_be) } else { None }
    }
}

/// Value of [`crate::map::NODE_ADDRS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NodeAddr {
    /// Interface that holds the address.
    pub ifindex: u32,
    pub flags: u32,
}

/// Value of [`crate::map::NICS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Nic {
    /// One of [`NIC_NATIVE`], [`NIC_GENERIC`], [`NIC_TCX`], [`NIC_CLSACT`] and [`NIC_ABOVE`].
    pub mode: u32,
    /// 0 or [`NIC_TRANSMITS`].
    pub flags: u32,
}

/// `ingress_xdp` in the driver.
pub const NIC_NATIVE: u32 = 1;
/// `ingress_xdp` in the stack.
pub const NIC_GENERIC: u32 = 2;
/// `ingress_tc_in` by tcx.
pub const NIC_TCX: u32 = 3;
/// `ingress_tc_in` by clsact.
pub const NIC_CLSACT: u32 = 4;
/// No program of its own: what it receives comes by interfaces below it that have one, as the ports of a bond.
pub const NIC_ABOVE: u32 = 5;

/// `ingress_tc_out` sees what the interface sends: what is rewritten on its way in is put right on its way out.
pub const NIC_TRANSMITS: u32 = 1;

/// Value of [`crate::map::HANDOFFS`]: a choice, and the connection that it is for.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HandoffEntry {
    pub flow: FlowKey,
    pub handoff: Handoff,
}

/// The choice of a worker.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Handoff {
    pub slot: u32,
    /// One of `CHOSEN_*`.
    pub chosen_by: u32,
    /// `bpf_ktime_get_ns` of the SYN, or of the lookup that chose; 0 for no choice.
    pub time_ns: u64,
}

/// XDP has chosen, for the lookup that follows.
pub const CHOSEN_BY_XDP: u32 = 0;
/// The default rule has chosen, for its own later lookups of the same connection.
pub const CHOSEN_BY_LOOKUP: u32 = 1;

/// Value of [`crate::map::WORKERS`]: how busy one worker of one process is.
///
/// Two sides write, each its own fields, and neither waits for the other: what is read is true of about now.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WorkerLoad {
    /// Connections that the worker holds, or [`WORKER_ABSENT`]. The worker's field.
    pub open: u64,
    /// Those of `chosen` that the worker has accepted or no longer waits for. The worker's field.
    pub settled: u64,
    /// How often the programs have chosen the worker. The programs' field; one of two that choose at the same moment
    /// may be lost.
    pub chosen: u64,
}

/// In the place of [`WorkerLoad::open`]: there is no such worker, or it takes nothing any more.
pub const WORKER_ABSENT: u64 = u64::MAX;

/// [`WorkerLoad`] as a worker sees it; the same bytes, touched by atomic operations only.
#[repr(C)]
#[derive(Debug, Default)]
pub struct WorkerCell {
    pub open: AtomicU64,
    pub settled: AtomicU64,
    pub chosen: AtomicU64,
}

impl WorkerLoad {
    /// The connections that the worker holds and those that are on their way to it; `None` if it takes none.
    #[must_use]
    #[inline(always)]
    pub const fn connections(&self) -> Option<u64> {
        if self.open == WORKER_ABSENT {
            return None;
        }
        // More may be settled than chosen, where a choice was lost.
        Some(self.open + self.chosen.saturating_sub(self.settled))
    }
}

/// Value of [`crate::map::ALIVE`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Alive {
    /// `CLOCK_MONOTONIC` of the latest heartbeat, the clock of `bpf_ktime_get_ns`; 0 for none.
    pub heartbeat_ns: u64,
    /// Number of the process: one more than its predecessor's on this node.
    pub epoch: u32,
    /// One of `ALIVE_*`.
    pub state: u32,
}

pub const ALIVE_NONE: u32 = 0;
pub const ALIVE_SERVING: u32 = 1;
pub const ALIVE_DRAINING: u32 = 2;

/// Value of [`crate::map::DENY4`] and [`crate::map::DENY6`]: the number under which [`crate::map::DENY_HITS`] counts
/// what a prefix has dropped, below [`crate::map::DENY_RULES_MAX`]; or [`DENY_PASS`]. A prefix keeps its number while
/// it is listed.
pub type DenyRule = u32;

/// The rule of all prefixes for which no number of their own was left.
pub const DENY_OTHERS: DenyRule = 0;
/// In the place of a rule: what comes from this prefix passes, although a shorter one is denied.
pub const DENY_PASS: DenyRule = u32::MAX;
/// In the place of a rule of [`DenyVerdict`]: no prefix holds the address.
pub const DENY_NONE: DenyRule = u32::MAX - 1;

/// Key of [`crate::map::DENY4`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DenyKey4 {
    pub prefix_len: u32,
    pub addr: [u8; 4],
}

/// Key of [`crate::map::DENY6`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DenyKey6 {
    pub prefix_len: u32,
    pub addr: [u8; 16],
}

/// Value of [`crate::map::DENY_VERDICTS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DenyVerdict {
    /// IPv4 as v4-mapped.
    pub addr: [u8; 16],
    /// What [`crate::map::DENY_CHANGED`] had before the list was asked; as long as it has that the verdict holds. 0 for
    /// no verdict.
    pub changed_ns: u64,
    /// The rule of the longest prefix that holds the address, [`DENY_PASS`] or [`DENY_NONE`].
    pub rule: DenyRule,
    pub pad: u32,
}

/// A heartbeat older than this counts as a hung proxy: limits and worker choice stop.
pub const HEARTBEAT_STALE_NS: u64 = 3_000_000_000;
/// A choice older than this is not used. As long as the kernel accepts SYN cookies of one handshake in practice, so
/// that the ACK of a cookie reaches the listener that sent the cookie.
pub const HANDOFF_FRESH_NS: u64 = 3_000_000_000;

/// Whether a heartbeat or a choice made at `then` is at most `max_age` old at `now`. A `then` in the future (the two
/// are read on different CPUs) is fresh.
#[must_use]
#[inline(always)]
pub const fn fresh(now: u64, then: u64, max_age: u64) -> bool {
    then != 0 && now.saturating_sub(then) <= max_age
}

/// Where the default rule begins to choose a worker for a connection: the same for every packet of it.
#[must_use]
#[inline(always)]
pub const fn default_worker(key: &FlowKey, workers: u32) -> u32 {
    if workers == 0 {
        return 0;
    }
    let a = &key.remote_addr;
    let addr = u32::from_ne_bytes([a[12], a[13], a[14], a[15]]) ^ u32::from_ne_bytes([a[4], a[5], a[6], a[7]]);
    // Fibonacci hashing (Knuth, TAOCP 3, 6.4): the high bits of the product depend on all bits of the input.
    let mixed = (addr ^ ((key.remote_port_be as u32) << 16 | key.remote_port_be as u32)).wrapping_mul(0x9E37_79B1);
    (mixed >> 16) % workers
}

/// Where the choice for a connection may stand in [`crate::map::HANDOFFS`]: in the one of two neighbours that had the
/// older choice when it was made.
///
/// Connections that meet in one place are as rare as the ports of a client let them be, and lose no more than the
/// choice: the default rule makes another one.
#[must_use]
#[inline(always)]
pub const fn handoff_places(flow: &FlowKey) -> [u32; 2] {
    let place = mixed(&flow.remote_addr, flow.remote_port_be) % HANDOFFS_MAX;
    [place, place ^ 1]
}

/// Where the verdict on an address may stand in [`crate::map::DENY_VERDICTS`].
#[must_use]
#[inline(always)]
pub const fn deny_verdict_place(addr: &[u8; 16]) -> u32 {
    mixed(addr, 0) % DENY_VERDICTS_MAX
}

/// 16 bits that all bits of the address and of the port have a say in. Fibonacci hashing, as in [`default_worker`];
/// thrice, because the high bits of a factor do not move the low ones of a product.
#[inline(always)]
const fn mixed(addr: &[u8; 16], port_be: u16) -> u32 {
    /// 2⁶⁴ divided by the golden ratio.
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let addr = u128::from_ne_bytes(*addr);
    let (high, low) = ((addr >> 64) as u64, addr as u64);
    let addr = (high.wrapping_mul(GOLDEN) ^ low).wrapping_mul(GOLDEN) >> 32;
    ((addr ^ port_be as u64).wrapping_mul(GOLDEN) >> 48) as u32
}

const _: () = assert!(HANDOFFS_MAX.is_power_of_two() && HANDOFFS_MAX <= 1 << 16);
const _: () = assert!(DENY_VERDICTS_MAX.is_power_of_two() && DENY_VERDICTS_MAX <= 1 << 16);
const _: () = assert!(size_of::<DenyVerdict>() == 32 && align_of::<DenyVerdict>() == 8);
const _: () = assert!(size_of::<HandoffEntry>() == 56 && align_of::<HandoffEntry>() == 8);
const _: () = assert!(size_of::<PortKey>() == 4 && align_of::<PortKey>() == 4);
const _: () = assert!(size_of::<PortRule>() == 16 && align_of::<PortRule>() == 4);
const _: () = assert!(size_of::<NodeAddr>() == 8 && align_of::<NodeAddr>() == 4);
const _: () = assert!(size_of::<Nic>() == 8 && align_of::<Nic>() == 4);
const _: () = assert!(size_of::<Handoff>() == 16 && align_of::<Handoff>() == 8);
const _: () = assert!(size_of::<WorkerLoad>() == 24 && align_of::<WorkerLoad>() == 8);
const _: () = assert!(size_of::<WorkerCell>() == 24 && align_of::<WorkerCell>() == 8);
const _: () = assert!(size_of::<Alive>() == 16 && align_of::<Alive>() == 8);
const _: () = assert!(size_of::<DenyKey4>() == 8 && align_of::<DenyKey4>() == 4);
const _: () = assert!(size_of::<DenyKey6>() == 20 && align_of::<DenyKey6>() == 4);
