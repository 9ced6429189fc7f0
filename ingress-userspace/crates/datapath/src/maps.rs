//! The pinned maps with their types, and functions that read them. Maps are not changed here, but mapped into memory
//! for the proxy's writes without system calls.

use std::{collections::BTreeMap, iter};

use ingress_common::{
    Alive, ClientEntry, ClientKey, DenialKey, DenialValue, DenyKey4, DenyKey6, DenyRule, Flow, FlowKey, HostL7,
    HostL7Cell, HostName, HostNet, LimitBuckets, Nic, NicNet, NodeAddr, PortKey, PortRule, RawHostId, Total, Traffic,
    WorkerCell, WorkerLoad, flow::UNATTRIBUTED, map,
};

use super::{
    error::Error,
    pins::Pins,
    sys::{Mapping, PinAccess},
    table::{MapTable, PerCpu, Trie},
};

/// The pinned maps of a node, readable by tools whether or not a process serves.
#[derive(Debug)]
pub struct Maps {
    pub(super) ports: MapTable<PortKey, PortRule>,
    pub(super) node_addrs: MapTable<[u8; 16], NodeAddr>,
    pub(super) nics: MapTable<u32, Nic>,
    pub(super) nic_net: PerCpu<NicNet>,
    pub(super) totals: PerCpu<Traffic>,
    pub(super) flows: MapTable<FlowKey, Flow>,
    pub(super) host_net: PerCpu<HostNet>,
    pub(super) host_l7: MapTable<u32, HostL7>,
    pub(super) host_ids: MapTable<HostName, u32>,
    pub(super) listeners: MapTable<u32, u32>,
    pub(super) workers: MapTable<u32, WorkerLoad>,
    pub(super) alive: MapTable<u32, Alive>,
    pub(super) deny4: Trie<DenyKey4, DenyRule>,
    pub(super) deny6: Trie<DenyKey6, DenyRule>,
    pub(super) deny_hits: PerCpu<Traffic>,
    pub(super) deny_changed: MapTable<u32, u64>,
    pub(super) limits: MapTable<u32, LimitBuckets>,
    pub(super) clients: MapTable<ClientKey, ClientEntry>,
    pub(super) denials: MapTable<DenialKey, DenialValue>,
    pub(super) deny_config: Trie<DenyKey6, u32>,
}

/// Counters of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCounts {
    /// `None` for host 0, the unattributed traffic.
    pub name: Option<String>,
    pub id: RawHostId,
    pub l7: HostL7,
    /// Sum over the CPUs.
    pub net: HostNet,
}

/// Packets and bytes by reason, summed over the CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals(Vec<Traffic>);

// === impl Maps ===

impl Maps {
    pub(super) fn open(pins: &Pins, access: PinAccess) -> Result<Self, Error> {
        Ok(Self {
            ports: MapTable::open(pins, map::PORTS, access)?,
            node_addrs: MapTable::open(pins, map::NODE_ADDRS, access)?,
            nics: MapTable::open(pins, map::NICS, access)?,
            nic_net: PerCpu::open(pins, map::NIC_NET, access)?,
            totals: PerCpu::open(pins, map::TOTALS, access)?,
            flows: MapTable::open(pins, map::FLOWS, access)?,
            host_net: PerCpu::open(pins, map::HOST_NET, access)?,
            host_l7: MapTable::open(pins, map::HOST_L7, access)?,
            host_ids: MapTable::open(pins, map::HOST_IDS, access)?,
            listeners: MapTable::open(pins, map::LISTENERS, access)?,
            workers: MapTable::open(pins, map::WORKERS, access)?,
            alive: MapTable::open(pins, map::ALIVE, access)?,
            deny4: Trie::open(pins, map::DENY4, access)?,
            deny6: Trie::open(pins, map::DENY6, access)?,
            deny_hits: PerCpu::open(pins, map::DENY_HITS, access)?,
            deny_changed: MapTable::open(pins, map::DENY_CHANGED, access)?,
            limits: MapTable::open(pins, map::LIMITS, access)?,
            clients: MapTable::open(pins, map::CLIENTS, access)?,
            denials: MapTable::open(pins, map::DENIALS, access)?,
            deny_config: Trie::open(pins, map::DENY_CONFIG, access)?,
        })
    }

    /// Returns the number of host ids, including host 0.
    #[must_use]
    pub fn host_capacity(&self) -> u32 {
        self.host_net.capacity()
    }

    /// Returns packets and bytes by reason.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn totals(&self) -> Result<Totals, Error> {
        self.totals.sums(self.totals.capacity()).map(Totals)
    }

    /// Returns the packets and bytes dropped by each deny rule, by its number, summed over the CPUs.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn deny_hits(&self) -> Result<Vec<Traffic>, Error> {
        self.deny_hits.sums(self.deny_hits.capacity())
    }

    /// Returns wire traffic by host id, summed over the CPUs. One call reads all ids, 512 per system call. Before Linux
    /// 5.13, each id takes two system calls.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn host_net(&self) -> Result<Vec<HostNet>, Error> {
        self.first_host_net(self.host_capacity())
    }

    /// Returns the wire traffic of one host id, summed over the CPUs; zero if there is no such id.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn host_net_of(&self, host: RawHostId) -> Result<HostNet, Error> {
        self.host_net.sum(host)
    }

    fn first_host_net(&self, count: u32) -> Result<Vec<HostNet>, Error> {
        self.host_net.sums(count)
    }

    /// Returns requests and body bytes by host id.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn host_l7(&self) -> Result<Vec<HostL7>, Error> {
        self.host_l7.values(self.host_capacity())
    }

    /// Returns the counters of host 0 and of every host with a name, in the order of names. Reads no further than the
    /// latest number.
    ///
    /// # Errors
    /// Fails if the kernel refuses a read.
    pub fn hosts(&self) -> Result<Vec<HostCounts>, Error> {
        let ids = self.host_ids()?;
        let latest = ids.values().copied().max().unwrap_or(UNATTRIBUTED);
        let count = latest.saturating_add(1).min(self.host_capacity());
        let (l7, net) = (self.host_l7.values(count)?, self.first_host_net(count)?);
        let named = ids.into_iter().map(|(name, id)| (Some(name), id));
        let all = iter::once((None, UNATTRIBUTED)).chain(named).map(|(name, id)| {
            let index = usize::try_from(id).unwrap_or(usize::MAX);
            HostCounts {
                name,
                id,
                l7: l7.get(index).copied().unwrap_or_default(),
                net: net.get(index).copied().unwrap_or_default(),
            }
        });
        Ok(all.collect())
    }

    /// Returns host ids by name. Host 0, the unattributed traffic, has no name. [`ingress_common::flow::GONE`] is
    /// included if numbers were released; free numbers and the latest one are not.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn host_ids(&self) -> Result<BTreeMap<String, u32>, Error> {
        let mut ids = BTreeMap::new();
        self.host_ids.scan(|name, id| {
            if name.is_counted() {
                ids.insert(name.to_string(), *id);
            }
        })?;
        Ok(ids)
    }

    /// Returns the number of entries in the map of ids, without those of free numbers.
    pub(super) fn taken_host_ids(&self) -> Result<usize, Error> {
        let mut count = 0;
        self.host_ids.scan(|name, _| count += usize::from(name.is_counted() || *name == HostName::default()))?;
        Ok(count)
    }

    /// Returns the connections currently attributed to a host.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn flows(&self) -> Result<Vec<(FlowKey, Flow)>, Error> {
        self.flows.entries()
    }

    /// Returns the interfaces with a program, and those above them, by index.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn nics(&self) -> Result<Vec<(u32, Nic)>, Error> {
        self.nics.entries()
    }

    /// Returns wire traffic by interface index, summed over the CPUs. With the keys [`map::NIC_OTHER`] and
    /// [`map::NIC_GONE`], the values add up to the totals since the first version that counted per interface.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn nic_net(&self) -> Result<BTreeMap<u32, NicNet>, Error> {
        Ok(self.nic_net.entries()?.into_iter().collect())
    }

    /// Returns the steered ports.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn ports(&self) -> Result<Vec<(PortKey, PortRule)>, Error> {
        self.ports.entries()
    }

    /// Returns the load of the workers of all processes: see [`PortRule::first_worker`].
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn workers(&self) -> Result<Vec<WorkerLoad>, Error> {
        self.workers.values(self.workers.capacity())
    }

    /// Returns the addresses of the node, with IPv4 as v4-mapped.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn node_addrs(&self) -> Result<Vec<([u8; 16], NodeAddr)>, Error> {
        self.node_addrs.entries()
    }

    /// Returns the process that owns the node ([`map::ALIVE_CURRENT`]) or the draining one ([`map::ALIVE_DRAINING`]).
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn alive(&self, index: u32) -> Result<Alive, Error> {
        Ok(self.alive.get(&index)?.unwrap_or_default())
    }

    /// Returns the kernel's id of the map of totals. The id changes after `unload`, when counting starts over at 0.
    #[must_use]
    pub fn totals_id(&self) -> u32 {
        self.totals.id()
    }

    pub(super) fn map_host_l7(&self) -> Result<Mapping<HostL7Cell>, Error> {
        let length = usize::try_from(self.host_capacity()).unwrap_or(0);
        Mapping::new(self.host_l7.fd(), length).map_err(|source| Error::kernel("map", map::HOST_L7, source))
    }

    pub(super) fn map_workers(&self) -> Result<Mapping<WorkerCell>, Error> {
        let length = usize::try_from(self.workers.capacity()).unwrap_or(0);
        Mapping::new(self.workers.fd(), length).map_err(|source| Error::kernel("map", map::WORKERS, source))
    }
}

// === impl Totals ===

impl Totals {
    /// Returns packets and bytes of one reason.
    #[must_use]
    pub fn get(&self, total: Total) -> Traffic {
        self.0.get(total as usize).copied().unwrap_or_default()
    }

    /// Iterates over all reasons with their names.
    pub fn iter(&self) -> impl Iterator<Item = (Total, &'static str, Traffic)> {
        Total::ALL.iter().map(|&(total, name)| (total, name, self.get(total)))
    }

    pub(super) fn add(&mut self, total: Total, packets: u64) {
        if let Some(entry) = self.0.get_mut(total as usize) {
            entry.packets += packets;
        }
    }
}
