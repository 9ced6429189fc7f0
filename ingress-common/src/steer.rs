//! Steering of connections: ports, node addresses, chosen workers, the heartbeat and the deny list.

use core::sync::atomic::AtomicU64;

use crate::{
    FlowKey,
    sizes::{DENY_VERDICTS_MAX, HANDOFFS_MAX},
};

pub use crate::sizes::SLOTS_PER_PORT;

/// Key of [`crate::map::PORTS`]. Aligned like [`FlowKey`], for the same reason.
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
    /// On a port that clients know: the port that replaces it in their packets, 0 for none. With [`PORT_REWRITTEN`]:
    /// the port that clients know. In network byte order; TCP only.
    ///
    /// On little-endian machines this field is the upper half of an older, wider `flags`; no version used a bit of that
    /// half.
    pub rewrite_be: u16,
    /// Index in [`crate::map::WORKERS`] of the worker that owns the listener in `first_slot`; the other workers follow
    /// in order.
    pub first_worker: u32,
}

/// Count this port's packets but leave delivery to the stack (a bound UDP socket).
pub const PORT_COUNT_ONLY: u16 = 1;
/// Look up the sources of this port's packets in the deny list. The flag is set while the list has entries, so that an
/// empty list costs one branch per packet.
pub const PORT_DENIES: u16 = 2;
/// Limit the number of SYNs that each client sends to this port. The flag is set while such a limit exists, so that a
/// node without one pays one branch.
pub const PORT_LIMITS_SYNS: u16 = 4;
/// Like [`PORT_LIMITS_SYNS`], for packets.
pub const PORT_LIMITS_PACKETS: u16 = 8;
/// This port replaces a public one in packets on this node ([`PortRule::rewrite_be`]); connection requests to it are
/// dropped.
pub const PORT_REWRITTEN: u16 = 16;
/// QUIC on a port of UDP: `ingress_quic` chooses among the sockets of this rule's workers for packets that no process
/// has asked for. Used with [`PORT_COUNT_ONLY`].
pub const PORT_QUIC: u16 = 32;
/// With [`PORT_QUIC`]: drop packets that no process of the node can have asked for, while the heartbeat is fresh and the
/// keys of all processes are known ([`crate::quic::KEY_LOST`]).
pub const PORT_QUIC_CHECKS: u16 = 64;

impl PortRule {
    /// Returns the port that replaces this one in received packets, in network byte order.
    #[must_use]
    #[inline(always)]
    pub const fn rewritten(&self) -> Option<u16> {
        if self.rewrite_be == 0 || self.flags & PORT_REWRITTEN != 0 { None } else { Some(self.rewrite_be) }
    }

    /// Returns the public port that clients use in place of this one, if there is one, in network byte order.
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
    /// Bits of `ADDR_*`.
    pub flags: u32,
}

/// Every node holds this address, by a local route, and no interface has it. The stack must not answer questions for its
/// link-layer address; the programs do, or drop them.
pub const ADDR_HELD: u32 = 1;
/// With [`ADDR_HELD`]: this node answers the questions.
pub const ADDR_ANNOUNCED: u32 = 2;
/// With [`ADDR_ANNOUNCED`]: another node announced the address before and may hold connections to it, and
/// [`crate::map::MOVES`] may have an entry.
pub const ADDR_MOVED: u32 = 4;

/// Key of [`crate::map::MOVES`]. Aligned like [`FlowKey`], for the same reason.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MoveKey {
    /// The address that moved; IPv4 as v4-mapped.
    pub addr: [u8; 16],
    /// Interface that receives the packets.
    pub nic: u32,
    pub pad: u32,
}

/// Value of [`crate::map::MOVES`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Move {
    /// Ethernet address on that link of the node that announced the address before.
    pub mac: [u8; 6],
    pub pad: [u8; 2],
    /// `CLOCK_MONOTONIC` from which packets are no longer forwarded: [`MOVE_NS`] after the begin of the move.
    pub until_ns: u64,
}

/// Longest time for which packets of a moved address are forwarded, in nanoseconds. Each costs both nodes work. Programs
/// reckon the begin of a move from it, also of entries that another version wrote: never change it without a new
/// [`LAYOUT`](crate::map::LAYOUT).
pub const MOVE_NS: u64 = 3_600 * 1_000_000_000;

/// Value of [`crate::map::NIC_MACS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NicMac {
    pub mac: [u8; 6],
    pub pad: [u8; 2],
}

/// Value of [`crate::map::NICS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Nic {
    /// Program and place of attachment: [`NIC_NATIVE`], [`NIC_GENERIC`], [`NIC_TCX`], [`NIC_CLSACT`] or [`NIC_ABOVE`].
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
/// No program of its own: its packets arrive through interfaces below it that have one, such as the ports of a bond.
pub const NIC_ABOVE: u32 = 5;

/// `ingress_tc_out` sees the packets that the interface sends, so ports rewritten on the way in are restored on the way
/// out.
pub const NIC_TRANSMITS: u32 = 1;

/// Value of [`crate::map::HANDOFFS`]: the choice of a worker and the connection that it is for.
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
    /// `CHOSEN_BY_XDP`, `CHOSEN_BY_LOOKUP`, `LEFT_BY_SHARE` or `CHOSEN_FOR_QUIC`.
    pub chosen_by: u32,
    /// `bpf_ktime_get_ns` at the SYN, or at the lookup that chose; 0 for no choice.
    pub time_ns: u64,
}

/// Chosen by XDP, for the lookup that follows.
pub const CHOSEN_BY_XDP: u32 = 0;
/// Chosen by the default rule, for its own later lookups of the same connection.
pub const CHOSEN_BY_LOOKUP: u32 = 1;
/// No worker: the connection is left to another listener of its port ([`crate::Share`]). The slot is [`NO_SLOT`].
pub const LEFT_BY_SHARE: u32 = 2;
/// Chosen for the first packets of a QUIC connection: the slot is an index in [`crate::map::QUIC_SOCKETS`], and the flow
/// has the connection ID that the client chose in place of its address.
pub const CHOSEN_FOR_QUIC: u32 = 3;
/// A slot that no port has.
pub const NO_SLOT: u32 = u32::MAX;

/// Value of [`crate::map::WORKERS`]: the load of one worker of one process.
///
/// The worker and the programs each write their own fields, without synchronisation. A reader gets approximate, recent
/// values.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WorkerLoad {
    /// Connections that the worker holds, or [`WORKER_ABSENT`]. Written by the worker.
    pub open: u64,
    /// Number of `chosen` connections that the worker has accepted or no longer waits for. Written by the worker.
    pub settled: u64,
    /// How often the programs have chosen the worker. Written by the programs; when two choose at the same moment, one
    /// count may be lost.
    pub chosen: u64,
}

/// Value of [`WorkerLoad::open`] for a worker that does not exist or takes no more connections.
pub const WORKER_ABSENT: u64 = u64::MAX;

/// [`WorkerLoad`] from the worker's side: the same bytes, accessed by atomic operations only.
#[repr(C)]
#[derive(Debug, Default)]
pub struct WorkerCell {
    pub open: AtomicU64,
    pub settled: AtomicU64,
    pub chosen: AtomicU64,
}

impl WorkerLoad {
    /// Returns the number of connections that the worker holds or that are on their way to it; `None` if it takes none.
    #[must_use]
    #[inline(always)]
    pub const fn connections(&self) -> Option<u64> {
        if self.open == WORKER_ABSENT {
            return None;
        }
        // `settled` can exceed `chosen` after a choice was lost.
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
    /// `ALIVE_NONE`, `ALIVE_SERVING` or `ALIVE_DRAINING`.
    pub state: u32,
}

pub const ALIVE_NONE: u32 = 0;
pub const ALIVE_SERVING: u32 = 1;
pub const ALIVE_DRAINING: u32 = 2;

/// Value of [`crate::map::DENY4`] and [`crate::map::DENY6`]: the number, below [`crate::map::DENY_RULES_MAX`], under
/// which [`crate::map::DENY_HITS`] counts the packets that a prefix has dropped; or [`DENY_PASS`]. A prefix keeps its
/// number while it is listed.
pub type DenyRule = u32;

/// Shared rule of all prefixes that got no number of their own, because all are in use.
pub const DENY_OTHERS: DenyRule = 0;
/// In place of a rule: packets from this prefix pass although a shorter prefix is denied.
pub const DENY_PASS: DenyRule = u32::MAX;
/// In place of a rule in [`DenyVerdict`]: no prefix contains the address.
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
    /// Value of [`crate::map::DENY_CHANGED`] before the list was looked up; the verdict is valid while the two are
    /// equal. 0 for no verdict.
    pub changed_ns: u64,
    /// Rule of the longest prefix that contains the address, [`DENY_PASS`] or [`DENY_NONE`].
    pub rule: DenyRule,
    pub pad: u32,
}

/// A heartbeat older than this marks the proxy as hung: limits and worker choice stop.
pub const HEARTBEAT_STALE_NS: u64 = 3_000_000_000;
/// A choice older than this is not used. In practice the kernel accepts the SYN cookies of a handshake for as long, so
/// the ACK of a cookie reaches the listener that sent the cookie.
pub const HANDOFF_FRESH_NS: u64 = 3_000_000_000;

/// Returns `true` if a heartbeat or a choice made at `then` is at most `max_age` old at `now`. A `then` in the future
/// is fresh, because the two clocks are read on different CPUs.
#[must_use]
#[inline(always)]
pub const fn fresh(now: u64, then: u64, max_age: u64) -> bool {
    then != 0 && now.saturating_sub(then) <= max_age
}

/// Returns the worker at which the default rule begins its choice; the same for every packet of a connection.
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

/// Returns the two places in [`crate::map::HANDOFFS`] where the choice for a connection may be. They are neighbours; a
/// new choice replaces the older of the two.
///
/// Connections with the same place are as rare as the hash of a client's address and port makes them. A connection that
/// finds its entry overwritten loses only the choice: the default rule makes another one.
#[must_use]
#[inline(always)]
pub const fn handoff_places(flow: &FlowKey) -> [u32; 2] {
    let place = mixed(&flow.remote_addr, flow.remote_port_be) % HANDOFFS_MAX;
    [place, place ^ 1]
}

/// Returns the place in [`crate::map::DENY_VERDICTS`] where the verdict on an address may be.
#[must_use]
#[inline(always)]
pub const fn deny_verdict_place(addr: &[u8; 16]) -> u32 {
    mixed(addr, 0) % DENY_VERDICTS_MAX
}

/// Mixes all bits of the address and of the port into 16 bits. Fibonacci hashing, as in [`default_worker`]; three
/// rounds, because the high bits of a factor do not change the low bits of a product.
#[inline(always)]
pub(crate) const fn mixed(addr: &[u8; 16], port_be: u16) -> u32 {
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
const _: () = assert!(size_of::<MoveKey>() == 24 && align_of::<MoveKey>() == 8);
const _: () = assert!(size_of::<Move>() == 16 && align_of::<Move>() == 8);
const _: () = assert!(size_of::<NicMac>() == 8 && align_of::<NicMac>() == 1);
const _: () = assert!(size_of::<Nic>() == 8 && align_of::<Nic>() == 4);
const _: () = assert!(size_of::<Handoff>() == 16 && align_of::<Handoff>() == 8);
const _: () = assert!(size_of::<WorkerLoad>() == 24 && align_of::<WorkerLoad>() == 8);
const _: () = assert!(size_of::<WorkerCell>() == 24 && align_of::<WorkerCell>() == 8);
const _: () = assert!(size_of::<Alive>() == 16 && align_of::<Alive>() == 8);
const _: () = assert!(size_of::<DenyKey4>() == 8 && align_of::<DenyKey4>() == 4);
const _: () = assert!(size_of::<DenyKey6>() == 20 && align_of::<DenyKey6>() == 4);
