//! Names of the BPF maps, with their sizes. Userspace pins each under `<bpffs>/xdp-ingress/<LAYOUT>/maps/<name>`.

pub use crate::sizes::*;

/// Version of all layouts in this crate together; a change that is not byte-compatible takes the next one.
pub const LAYOUT: &str = "v1";

/// Port → listener slots ([`crate::PortKey`] → [`crate::PortRule`]), hash.
pub const PORTS: &str = "ports";
/// Addresses of this node, IPv4 as v4-mapped (`[u8; 16]` → [`crate::NodeAddr`]), hash.
pub const NODE_ADDRS: &str = "node_addrs";
/// Interfaces that pass their packets to `ingress_xdp` or `ingress_tc_in` (ifindex `u32` → [`crate::Nic`]), hash.
pub const NICS: &str = "nics";
/// Ethernet addresses of the interfaces that answer for addresses which no interface has (ifindex `u32` →
/// [`crate::NicMac`]), hash. Versions before it use the other maps as they are.
pub const NIC_MACS: &str = "nic_macs";
/// Addresses that another node announced before this one, by interface ([`crate::MoveKey`] → [`crate::Move`]), hash
/// without preallocation. Versions before it use the other maps as they are.
pub const MOVES: &str = "moves";
/// Whether a program of an interface looks up a socket on this CPU right now (`u32`: 1 if it does), per-CPU array of
/// one. Such a lookup is no connection.
pub const PROBING: &str = "probing";
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
/// Keys of the connection IDs of QUIC, and the processes with sockets for it, memory-mappable array of one
/// [`crate::QuicState`]. Versions before it use the other maps as they are.
pub const QUIC: &str = "quic";
/// Socket for QUIC of each worker of each process, by the same index as in [`WORKERS`], array of sockets for reuseport.
pub const QUIC_SOCKETS: &str = "quic_sockets";
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
/// Share of the clients whose new connections are taken, memory-mappable array of one [`crate::Share`]. Versions before it
/// take all, and use the other maps as they are.
pub const SHARE: &str = "share";
/// Settings of SYN cookies, array of one [`crate::SynCookies`]. Versions before it use the other maps as they are.
pub const SYN_COOKIES: &str = "syn_cookies";
/// Whether there is a flood of SYNs, array of one [`crate::SynFlood`].
pub const SYN_FLOOD: &str = "syn_flood";
/// Requests that a CPU has counted, for the rate (`u64`), per-CPU array of one.
pub const SYN_COUNTS: &str = "syn_counts";
/// Latest time at which the kernel noted that the listener in a slot sends cookies, array of [`crate::SynStamp`].
pub const SYN_STAMPS: &str = "syn_stamps";
/// Packet limits of every client, array of one [`crate::LimitBuckets`].
pub const LIMITS: &str = "limits";
/// Token buckets of each client, and how often they were empty ([`crate::ClientKey`] → [`crate::ClientEntry`]), LRU
/// hash.
pub const CLIENTS: &str = "clients";
/// Temporary denials and their reasons ([`crate::DenialKey`] → [`crate::DenialValue`]), hash without preallocation.
pub const DENIALS: &str = "denials";
/// Networks that the configuration denies or trusts ([`crate::DenyKey6`] of v4-mapped addresses → bits of
/// [`crate::denial`]`::CONFIG_*`), LPM trie, which takes no memory while it is empty.
pub const DENY_CONFIG: &str = "deny_config";

/// Key in [`NIC_NET`] for interfaces without an entry of their own. The kernel numbers interfaces from 1.
pub const NIC_OTHER: u32 = 0;
/// Key in [`NIC_NET`] for the counts of interfaces that no longer have a program. Programs never write this entry.
pub const NIC_GONE: u32 = u32::MAX;
/// Index of the process that owns the node.
pub const ALIVE_CURRENT: u32 = 0;
/// Index of the predecessor that is finishing its connections.
pub const ALIVE_DRAINING: u32 = 1;
/// Index of the only entry.
pub const PROBING_ONLY: u32 = 0;
/// Index of the only entry.
pub const DENY_CHANGED_ALL: u32 = 0;
/// Index of the only entry.
pub const QUIC_ONLY: u32 = 0;
/// Index of the only entry.
pub const SHARE_ONLY: u32 = 0;
/// Index of the only entry.
pub const SYN_COOKIES_ONLY: u32 = 0;
/// Index of the only entry.
pub const SYN_FLOOD_ONLY: u32 = 0;
/// Index of the only entry.
pub const SYN_COUNTS_ONLY: u32 = 0;
/// Index of the only entry of the memory of the program that sends SYN cookies.
pub const SYN_SCRATCH_ONLY: u32 = 0;
/// Index of the only entry.
pub const LIMITS_ALL: u32 = 0;
