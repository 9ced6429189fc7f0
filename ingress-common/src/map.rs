//! Names and sizes of the BPF maps. Userspace pins each under `<bpffs>/xdp-ingress/<LAYOUT>/maps/<name>`.

use crate::steer::SLOTS_PER_PORT;

/// Version of all layouts in this crate together; a change that is not byte-compatible takes the next one.
pub const LAYOUT: &str = "v1";

/// Port → listener slots ([`crate::PortKey`] → [`crate::PortRule`]), hash.
pub const PORTS: &str = "ports";
/// Addresses of this node, IPv4 as v4-mapped (`[u8; 16]` → [`crate::NodeAddr`]), hash.
pub const NODE_ADDRS: &str = "node_addrs";
/// Interfaces that pass their packets to `ingress_xdp` or `ingress_tc_in` (ifindex `u32` → [`crate::Nic`]), hash.
pub const NICS: &str = "nics";
/// Packets and bytes by [`crate::Total`], per-CPU array of [`crate::Traffic`].
pub const TOTALS: &str = "totals";
/// Connection → host ([`crate::FlowKey`] → [`crate::Flow`]), hash without preallocation.
pub const FLOWS: &str = "flows";
/// Packets and bytes per host id, per-CPU array of [`crate::HostNet`].
pub const HOST_NET: &str = "host_net";
/// Packets and bytes per interface (ifindex `u32`, [`NIC_OTHER`] or [`NIC_GONE`] → [`crate::NicNet`]), per-CPU hash.
/// Userspace creates the entries, programs only add to them.
pub const NIC_NET: &str = "nic_net";
/// Requests and body bytes per host id, memory-mappable array of [`crate::HostL7`].
pub const HOST_L7: &str = "host_l7";
/// Host name → host id ([`crate::HostName`] → `u32`), hash.
pub const HOST_IDS: &str = "host_ids";
/// Worker chosen for each new connection by XDP or by the default rule, array of [`crate::HandoffEntry`]. An entry is
/// at one of the connection's [`crate::steer::handoff_places`].
pub const HANDOFFS: &str = "handoffs";
/// Slot → listening socket, sockmap.
pub const LISTENERS: &str = "listeners";
/// Load of each worker ([`crate::WorkerLoad`]), memory-mappable array. Each process has a group of entries, see
/// [`WORKER_GROUPS`]; within it each worker has one, see [`crate::PortRule::first_worker`].
pub const WORKERS: &str = "workers";
/// Heartbeat of the process ([`ALIVE_CURRENT`]) and of a draining predecessor ([`ALIVE_DRAINING`]),
/// array of [`crate::Alive`].
pub const ALIVE: &str = "alive";
/// IPv4 prefix → deny rule ([`crate::DenyKey4`] → [`crate::DenyRule`]), LPM trie.
pub const DENY4: &str = "deny4";
/// IPv6 prefix → deny rule ([`crate::DenyKey6`] → [`crate::DenyRule`]), LPM trie.
pub const DENY6: &str = "deny6";
/// Packets and bytes dropped per deny rule, per-CPU array of [`crate::Traffic`].
pub const DENY_HITS: &str = "deny_hits";
/// Cached results of deny list lookups for addresses that sent packets lately, by [`crate::steer::deny_verdict_place`],
/// per-CPU array of [`crate::DenyVerdict`].
pub const DENY_VERDICTS: &str = "deny_verdicts";
/// Time of the latest change of the deny list (`u64`, `CLOCK_MONOTONIC`), array of one.
pub const DENY_CHANGED: &str = "deny_changed";
/// Packet limits of every client, array of one [`crate::Limits`].
pub const LIMITS: &str = "limits";
/// Token buckets of each client, and how often they were empty ([`crate::ClientKey`] → [`crate::Client`]), LRU hash.
pub const CLIENTS: &str = "clients";
/// Temporary denials and their reasons ([`crate::DenialKey`] → [`crate::Denial`]), hash without preallocation.
pub const DENIALS: &str = "denials";
/// Networks that the configuration denies or trusts ([`crate::DenyKey6`] of v4-mapped addresses → bits of
/// [`crate::denial`]`::CONFIG_*`), LPM trie, which takes no memory while it is empty.
pub const DENY_CONFIG: &str = "deny_config";

/// Maximum number of steered ports.
pub const PORTS_MAX: u32 = 64;
/// Maximum number of addresses of a node.
pub const NODE_ADDRS_MAX: u32 = 1024;
/// Maximum number of interfaces with a program, including the interfaces above those.
pub const NICS_MAX: u32 = 64;
/// Entries of [`NIC_NET`]: the interfaces, [`NIC_OTHER`] and [`NIC_GONE`].
pub const NIC_NET_MAX: u32 = NICS_MAX + 2;
/// Key in [`NIC_NET`] for interfaces without an entry of their own. The kernel numbers interfaces from 1.
pub const NIC_OTHER: u32 = 0;
/// Key in [`NIC_NET`] for the counts of interfaces that no longer have a program. Programs never write this entry.
pub const NIC_GONE: u32 = u32::MAX;
/// Entries of [`TOTALS`]. The map has spare entries, so that a new reason needs no new layout.
pub const TOTALS_MAX: u32 = 64;
/// Maximum number of connections with a host at one time. Packets of further connections count for host 0
/// ([`crate::Total::FlowsFull`]).
pub const FLOWS_MAX: u32 = 1 << 20;
/// Default number of hosts with their own counters, unless `--host-capacity` sets another.
pub const HOSTS_DEFAULT: u32 = 16_384;
/// Entries of [`HANDOFFS`]: far more than the connections between the packet that chose a worker and the lookup that
/// uses the choice. A power of two.
pub const HANDOFFS_MAX: u32 = 65_536;
/// Maximum number of listening sockets: ports × workers. All processes on the node share the slots.
pub const LISTENERS_MAX: u32 = 256;
/// Number of processes that can have entries of their own in [`WORKERS`] at one time: far more than follow each other
/// while the first one still drains.
pub const WORKER_GROUPS: u32 = 8;
/// Entries of [`WORKERS`].
pub const WORKERS_MAX: u32 = WORKER_GROUPS * SLOTS_PER_PORT;
/// Entries of [`ALIVE`].
pub const ALIVE_MAX: u32 = 2;
/// Index of the process that owns the node.
pub const ALIVE_CURRENT: u32 = 0;
/// Index of the predecessor that is finishing its connections.
pub const ALIVE_DRAINING: u32 = 1;
/// Maximum number of prefixes of one family in the deny list.
pub const DENY_MAX: u32 = 100_000;
/// Deny rules with a counter, including [`crate::steer::DENY_OTHERS`].
pub const DENY_RULES_MAX: u32 = 4096;
/// Entries of [`DENY_VERDICTS`] for each CPU, 64 KiB. A power of two.
pub const DENY_VERDICTS_MAX: u32 = 2048;
/// Entries of [`DENY_CHANGED`].
pub const DENY_CHANGED_MAX: u32 = 1;
/// Index of the only entry.
pub const DENY_CHANGED_ALL: u32 = 0;
/// Entries of [`LIMITS`].
pub const LIMITS_MAX: u32 = 1;
/// Index of the only entry.
pub const LIMITS_ALL: u32 = 0;
/// Maximum number of clients with buckets at one time; a new client replaces the one that has been silent for longest.
pub const CLIENTS_MAX: u32 = 65_536;
/// Maximum number of entries of [`DENIALS`].
pub const DENIALS_MAX: u32 = 16_384;
/// Maximum number of networks that the configuration denies or trusts: more than both tries of the deny list together
/// hold.
pub const DENY_CONFIG_MAX: u32 = 262_144;
