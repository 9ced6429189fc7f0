//! The maps, with the layouts of `ingress-common`. They are BTF definitions, so that `bpftool map dump` prints field
//! names. Userspace pins each map and sets the capacity of the host maps at load time.

use aya_ebpf::{
    bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC},
    btf_maps::{
        Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, PerCpuHashMap, ReusePortSockArray, SockMap, lpm_trie::Key,
    },
    macros::btf_map,
};
use ingress_common::{
    Alive, ClientEntry, ClientKey, DenialKey, DenialValue, DenyKey4, DenyKey6, DenyRule, DenyVerdict, Flow, FlowKey,
    HandoffEntry, HostL7, HostName, HostNet, LimitBuckets, Move, MoveKey, Nic, NicMac, NicNet, NodeAddr, PortKey,
    PortRule, QuicState, Share, SynCookies, SynFlood, SynStamp, Traffic, WorkerLoad, map,
};

use crate::syn_cookies::SynScratch;

#[btf_map(name = "ports")]
pub(crate) static PORTS: HashMap<PortKey, PortRule, { map::PORTS_MAX as usize }> = HashMap::new();

#[btf_map(name = "node_addrs")]
pub(crate) static NODE_ADDRS: HashMap<[u8; 16], NodeAddr, { map::NODE_ADDRS_MAX as usize }> = HashMap::new();

#[btf_map(name = "nics")]
pub(crate) static NICS: HashMap<u32, Nic, { map::NICS_MAX as usize }> = HashMap::new();

#[btf_map(name = "nic_macs")]
pub(crate) static NIC_MACS: HashMap<u32, NicMac, { map::NIC_MACS_MAX as usize }> = HashMap::new();

// Not preallocated: it is empty on a node without addresses that moved here.
#[btf_map(name = "moves")]
pub(crate) static MOVES: HashMap<MoveKey, Move, { map::MOVES_MAX as usize }, { BPF_F_NO_PREALLOC as usize }> =
    HashMap::new();

#[btf_map(name = "probing")]
pub(crate) static PROBING: PerCpuArray<u32, { map::PROBING_MAX as usize }> = PerCpuArray::new();

#[btf_map(name = "totals")]
pub(crate) static TOTALS: PerCpuArray<Traffic, { map::TOTALS_MAX as usize }> = PerCpuArray::new();

// Not preallocated: a million entries would hold 80 MB on a node that has a thousand connections.
#[btf_map(name = "flows")]
pub(crate) static FLOWS: HashMap<FlowKey, Flow, { map::FLOWS_MAX as usize }, { BPF_F_NO_PREALLOC as usize }> =
    HashMap::new();

#[btf_map(name = "host_net")]
pub(crate) static HOST_NET: PerCpuArray<HostNet, { map::HOSTS_DEFAULT as usize }> = PerCpuArray::new();

#[btf_map(name = "nic_net")]
pub(crate) static NIC_NET: PerCpuHashMap<u32, NicNet, { map::NIC_NET_MAX as usize }> = PerCpuHashMap::new();

/// Written only by userspace; declared here so that the object carries all layouts.
#[btf_map(name = "host_l7")]
pub(crate) static HOST_L7: Array<HostL7, { map::HOSTS_DEFAULT as usize }, { BPF_F_MMAPABLE as usize }> = Array::new();

/// Written only by userspace, like `HOST_L7`.
#[btf_map(name = "host_ids")]
pub(crate) static HOST_IDS: HashMap<HostName, u32, { map::HOSTS_DEFAULT as usize }, { BPF_F_NO_PREALLOC as usize }> =
    HashMap::new();

// Not an LRU hash, which would make a SYN wait for eviction: ADR 0029.
#[btf_map(name = "handoffs")]
pub(crate) static HANDOFFS: Array<HandoffEntry, { map::HANDOFFS_MAX as usize }> = Array::new();

#[btf_map(name = "listeners")]
pub(crate) static LISTENERS: SockMap<{ map::LISTENERS_MAX as usize }> = SockMap::new();

// Mapped into the proxy's memory, so that a worker reports a connection with a store instead of a system call.
#[btf_map(name = "workers")]
pub(crate) static WORKERS: Array<WorkerLoad, { map::WORKERS_MAX as usize }, { BPF_F_MMAPABLE as usize }> = Array::new();

// Mapped into the proxy's memory, so that workers, which may not call bpf(2), know which processes have sockets.
#[btf_map(name = "quic")]
pub(crate) static QUIC: Array<QuicState, { map::QUIC_MAX as usize }, { BPF_F_MMAPABLE as usize }> = Array::new();

#[btf_map(name = "quic_sockets")]
pub(crate) static QUIC_SOCKETS: ReusePortSockArray<{ map::QUIC_SOCKETS_MAX as usize }> = ReusePortSockArray::new();

// Mapped into the proxy's memory, so that a heartbeat is a store instead of a system call.
#[btf_map(name = "alive")]
pub(crate) static ALIVE: Array<Alive, { map::ALIVE_MAX as usize }, { BPF_F_MMAPABLE as usize }> = Array::new();

#[btf_map(name = "deny4")]
pub(crate) static DENY4: LpmTrie<[u8; 4], DenyRule, { map::DENY_MAX as usize }> = LpmTrie::new();

#[btf_map(name = "deny6")]
pub(crate) static DENY6: LpmTrie<[u8; 16], DenyRule, { map::DENY_MAX as usize }> = LpmTrie::new();

#[btf_map(name = "deny_hits")]
pub(crate) static DENY_HITS: PerCpuArray<Traffic, { map::DENY_RULES_MAX as usize }> = PerCpuArray::new();

#[btf_map(name = "deny_verdicts")]
pub(crate) static DENY_VERDICTS: PerCpuArray<DenyVerdict, { map::DENY_VERDICTS_MAX as usize }> = PerCpuArray::new();

/// Written only by userspace.
#[btf_map(name = "deny_changed")]
pub(crate) static DENY_CHANGED: Array<u64, { map::DENY_CHANGED_MAX as usize }> = Array::new();

// Mapped into the memory of userspace, so that a renewal never undoes another process's change (ADR 0056).
#[btf_map(name = "share")]
pub(crate) static SHARE: Array<Share, { map::SHARE_MAX as usize }, { BPF_F_MMAPABLE as usize }> = Array::new();

#[btf_map(name = "syn_cookies")]
pub(crate) static SYN_COOKIES: Array<SynCookies, { map::SYN_COOKIES_MAX as usize }> = Array::new();

#[btf_map(name = "syn_flood")]
pub(crate) static SYN_FLOOD: Array<SynFlood, { map::SYN_FLOOD_MAX as usize }> = Array::new();

#[btf_map(name = "syn_counts")]
pub(crate) static SYN_COUNTS: PerCpuArray<u64, { map::SYN_COUNTS_MAX as usize }> = PerCpuArray::new();

#[btf_map(name = "syn_stamps")]
pub(crate) static SYN_STAMPS: Array<SynStamp, { map::SYN_STAMPS_MAX as usize }> = Array::new();

// Not pinned: it holds nothing from one packet to the next.
#[btf_map(name = "syn_scratch")]
pub(crate) static SYN_SCRATCH: PerCpuArray<SynScratch, { map::SYN_SCRATCH_MAX as usize }> = PerCpuArray::new();

#[btf_map(name = "limits")]
pub(crate) static LIMITS: Array<LimitBuckets, { map::LIMITS_MAX as usize }> = Array::new();

#[btf_map(name = "clients")]
pub(crate) static CLIENTS: LruHashMap<ClientKey, ClientEntry, { map::CLIENTS_MAX as usize }> = LruHashMap::new();

/// Written only by userspace, like `HOST_L7`.
#[btf_map(name = "denials")]
pub(crate) static DENIALS: HashMap<
    DenialKey,
    DenialValue,
    { map::DENIALS_MAX as usize },
    { BPF_F_NO_PREALLOC as usize },
> = HashMap::new();

/// Written only by userspace, like `HOST_L7`.
#[btf_map(name = "deny_config")]
pub(crate) static DENY_CONFIG: LpmTrie<[u8; 16], u32, { map::DENY_CONFIG_MAX as usize }> = LpmTrie::new();

// aya's keys have the layout that userspace writes: the length of the prefix, then the address.
const _: () = assert!(size_of::<Key<[u8; 4]>>() == size_of::<DenyKey4>());
const _: () = assert!(size_of::<Key<[u8; 16]>>() == size_of::<DenyKey6>());
