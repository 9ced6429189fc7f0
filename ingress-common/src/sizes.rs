//! Numbers of entries of the BPF maps, and the numbers that they follow from.

/// Slots reserved for each steered port, so that processes with different numbers of workers never share a slot between
/// two ports; also the most workers a process can have.
pub const SLOTS_PER_PORT: u32 = 64;
/// Maximum number of steered ports.
pub const PORTS_MAX: u32 = 64;
/// Maximum number of addresses of a node.
pub const NODE_ADDRS_MAX: u32 = 1024;
/// Maximum number of interfaces with a program, including the interfaces above those.
pub const NICS_MAX: u32 = 64;
/// Entries of [`crate::map::NIC_MACS`].
pub const NIC_MACS_MAX: u32 = NICS_MAX;
/// Maximum number of entries of [`crate::map::MOVES`]: as many addresses as a node can have, on each of four interfaces.
pub const MOVES_MAX: u32 = 4 * NODE_ADDRS_MAX;
/// Entries of [`crate::map::PROBING`].
pub const PROBING_MAX: u32 = 1;
/// Entries of [`crate::map::NIC_NET`]: the interfaces, [`crate::map::NIC_OTHER`] and [`crate::map::NIC_GONE`].
pub const NIC_NET_MAX: u32 = NICS_MAX + 2;
/// Entries of [`crate::map::TOTALS`]. The map has spare entries, so that a new reason needs no new layout.
pub const TOTALS_MAX: u32 = 64;
/// Maximum number of connections with a host at one time. Packets of further connections count for host 0
/// ([`crate::Total::FlowsFull`]).
pub const FLOWS_MAX: u32 = 1 << 20;
/// Default number of hosts with their own counters, unless `--host-capacity` sets another.
pub const HOSTS_DEFAULT: u32 = 16_384;
/// Entries of [`crate::map::HANDOFFS`]: far more than the connections between the packet that chose a worker and the
/// lookup that uses the choice. A power of two.
pub const HANDOFFS_MAX: u32 = 65_536;
/// Maximum number of listening sockets: ports × workers. All processes on the node share the slots.
pub const LISTENERS_MAX: u32 = 256;
/// Number of processes that can have entries of their own in [`crate::map::WORKERS`] at one time: far more than follow
/// each other while the first one still drains.
pub const WORKER_GROUPS: u32 = 8;
/// Entries of [`crate::map::WORKERS`].
pub const WORKERS_MAX: u32 = WORKER_GROUPS * SLOTS_PER_PORT;
/// Entries of [`crate::map::QUIC`].
pub const QUIC_MAX: u32 = 1;
/// Entries of [`crate::map::QUIC_SOCKETS`]: one for each of [`crate::map::WORKERS`], with the same index.
pub const QUIC_SOCKETS_MAX: u32 = WORKERS_MAX;
/// Entries of [`crate::map::ALIVE`].
pub const ALIVE_MAX: u32 = 2;
/// Maximum number of prefixes of one family in the deny list.
pub const DENY_MAX: u32 = 100_000;
/// Deny rules with a counter, including [`crate::steer::DENY_OTHERS`].
pub const DENY_RULES_MAX: u32 = 4096;
/// Entries of [`crate::map::DENY_VERDICTS`] for each CPU, 64 KiB. A power of two.
pub const DENY_VERDICTS_MAX: u32 = 2048;
/// Entries of [`crate::map::DENY_CHANGED`].
pub const DENY_CHANGED_MAX: u32 = 1;
/// Entries of [`crate::map::SHARE`].
pub const SHARE_MAX: u32 = 1;
/// Entries of [`crate::map::SYN_COOKIES`].
pub const SYN_COOKIES_MAX: u32 = 1;
/// Entries of [`crate::map::SYN_FLOOD`].
pub const SYN_FLOOD_MAX: u32 = 1;
/// Entries of [`crate::map::SYN_COUNTS`].
pub const SYN_COUNTS_MAX: u32 = 1;
/// Entries of [`crate::map::SYN_STAMPS`]: one for each slot.
pub const SYN_STAMPS_MAX: u32 = LISTENERS_MAX;
/// Entries of the memory of the program that sends SYN cookies.
pub const SYN_SCRATCH_MAX: u32 = 1;
/// Entries of [`crate::map::LIMITS`].
pub const LIMITS_MAX: u32 = 1;
/// Maximum number of clients with buckets at one time; a new client replaces the one that has been silent for longest.
pub const CLIENTS_MAX: u32 = 65_536;
/// Maximum number of entries of [`crate::map::DENIALS`].
pub const DENIALS_MAX: u32 = 16_384;
/// Maximum number of networks that the configuration denies or trusts: more than both tries of the deny list together
/// hold.
pub const DENY_CONFIG_MAX: u32 = 262_144;
