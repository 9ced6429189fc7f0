//! Names and sizes of the BPF maps. Userspace pins each under `<bpffs>/xdp-ingress/<LAYOUT>/maps/<name>`.

use crate::steer::SLOTS_PER_PORT;

/// Version of all layouts in this crate together; a change that is not byte-compatible takes the next one.
pub const LAYOUT: &str = "v1";

/// Port → listener slots ([`crate::PortKey`] → [`crate::PortRule`]), hash.
pub const PORTS: &str = "ports";
/// Addresses of this node, IPv4 as v4-mapped (`[u8; 16]` → [`crate::NodeAddr`]), hash.
pub const NODE_ADDRS: &str = "node_addrs";
/// Interfaces whose packets `ingress_xdp` or `ingress_tc_in` sees (ifindex `u32` → [`crate::Nic`]), hash.
pub const NICS: &str = "nics";
/// Packets and bytes by [`crate::Total`], per-CPU array of [`crate::Traffic`].
pub const TOTALS: &str = "totals";
/// Connection → host ([`crate::FlowKey`] → [`crate::Flow`]), hash without preallocation.
pub const FLOWS: &str = "flows";
/// Packets and bytes per host id, per-CPU array of [`crate::HostNet`].
pub const HOST_NET: &str = "host_net";
/// Packets and bytes per interface (ifindex `u32`, [`NIC_OTHER`] or [`NIC_GONE`] → [`crate::NicNet`]), per-CPU hash.
/// Userspace makes the entries, programs only add to them.
pub const NIC_NET: &str = "nic_net";
/// Requests and body bytes per host id, memory-mappable array of [`crate::HostL7`].
pub const HOST_L7: &str = "host_l7";
/// Host name → host id ([`crate::HostName`] → `u32`), hash.
pub const HOST_IDS: &str = "host_ids";
/// The worker that XDP, or the default rule, has chosen for each new connection, array of [`crate::HandoffEntry`] at
/// one of the connection's [`crate::steer::handoff_places`].
pub const HANDOFFS: &str = "handoffs";
/// Slot → listening socket, sockmap.
pub const LISTENERS: &str = "listeners";
/// How busy each worker is ([`crate::WorkerLoad`]), memory-mappable array: process by process, see
/// [`WORKER_GROUPS`], and worker by worker, see [`crate::PortRule::first_worker`].
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
/// What the deny list has for addresses that have sent something lately, by [`crate::steer::deny_verdict_place`],
/// per-CPU array of [`crate::DenyVerdict`].
pub const DENY_VERDICTS: &str = "deny_verdicts";
/// When the deny list was changed last (`u64`, `CLOCK_MONOTONIC`), array of one.
pub const DENY_CHANGED: &str = "deny_changed";
/// How many packets each client may send, array of one [`crate::Limits`].
pub const LIMITS: &str = "limits";
/// Token buckets of each client, and how often they were empty ([`crate::ClientKey`] → [`crate::Client`]), LRU hash.
pub const CLIENTS: &str = "clients";
/// Who is denied for some time, and why ([`crate::DenialKey`] → [`crate::Denial`]), hash without preallocation.
pub const DENIALS: &str = "denials";
/// Networks that the configuration denies or trusts ([`crate::DenyKey6`] of v4-mapped addresses → bits of
/// [`crate::denial`]`::CONFIG_*`), LPM trie: empty, it takes no memory.
pub const DENY_CONFIG: &str = "deny_config";

/// Most steered ports.
pub const PORTS_MAX: u32 = 64;
/// Most addresses of a node.
pub const NODE_ADDRS_MAX: u32 = 1024;
/// Most interfaces with a program, and above those.
pub const NICS_MAX: u32 = 64;
/// Entries of [`NIC_NET`]: the interfaces, [`NIC_OTHER`] and [`NIC_GONE`].
pub const NIC_NET_MAX: u32 = NICS_MAX + 2;
/// Key in [`NIC_NET`] of interfaces that have no entry. The kernel numbers interfaces from 1.
pub const NIC_OTHER: u32 = 0;
/// Key in [`NIC_NET`] of what was counted for interfaces that no longer have a program. No program writes it.
pub const NIC_GONE: u32 = u32::MAX;
/// Entries of [`TOTALS`]; more than there are reasons, so that a new reason needs no new layout.
pub const TOTALS_MAX: u32 = 64;
/// Most connections with a host at one time; beyond it packets count for host 0 ([`crate::Total::FlowsFull`]).
pub const FLOWS_MAX: u32 = 1 << 20;
/// Hosts with counters of their own unless `--host-capacity` says otherwise.
pub const HOSTS_DEFAULT: u32 = 16_384;
/// Entries of [`HANDOFFS`]: far more than there are connections between the packet that chose a worker and the lookup
/// that uses the choice. A power of two.
pub const HANDOFFS_MAX: u32 = 65_536;
/// Most listening sockets: (processes on the node share the slots) ports × workers.
pub const LISTENERS_MAX: u32 = 256;
/// Processes that may have entries of their own in [`WORKERS`] at one time: far more than follow each other while the
/// first still drains.
pub const WORKER_GROUPS: u32 = 8;
/// Entries of [`WORKERS`].
pub const WORKERS_MAX: u32 = WORKER_GROUPS * SLOTS_PER_PORT;
/// Entries of [`ALIVE`].
pub const ALIVE_MAX: u32 = 2;
/// Index of the process that owns the node.
pub const ALIVE_CURRENT: u32 = 0;
/// Index of the predecessor that is finishing its connections.
pub const ALIVE_DRAINING: u32 = 1;
/// Most prefixes of one family in the deny list.
pub const DENY_MAX: u32 = 100_000;
/// Deny rules with a counter, [`crate::steer::DENY_OTHERS`] among them.
pub const DENY_RULES_MAX: u32 = 4096;
/// Entries of [`DENY_VERDICTS`] for each CPU, 64 KiB. A power of two.
pub const DENY_VERDICTS_MAX: u32 = 2048;
/// Entries of [`DENY_CHANGED`].
pub const DENY_CHANGED_MAX: u32 = 1;
/// The only one.
pub const DENY_CHANGED_ALL: u32 = 0;
/// Entries of [`LIMITS`].
pub const LIMITS_MAX: u32 = 1;
/// The only one.
pub const LIMITS_ALL: u32 = 0;
/// Most clients with buckets at one time; another one takes the place of whoever has sent nothing for longest.
pub const CLIENTS_MAX: u32 = 65_536;
/// Most entries of [`DENIALS`].
pub const DENIALS_MAX: u32 = 16_384;
/// Most networks that the configuration denies or trusts: as many as both tries of the deny list hold, and more.
pub const DENY_CONFIG_MAX: u32 = 262_144;
