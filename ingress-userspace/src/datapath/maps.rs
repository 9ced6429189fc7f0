//! The pinned maps, opened with their types, and what can be read from them. Changes nothing itself; what
//! the proxy writes without a system call it maps here.

use std::{cmp::Reverse, collections::BTreeMap, iter};

use ingress_common::{
    Alive, Client, ClientKey, Denial, DenialKey, DenyKey4, DenyKey6, DenyRule, Flow, FlowKey, HostId, HostL7,
    HostL7Cell, HostName, HostNet, Limits, Nic, NicNet, NodeAddr, PortKey, PortRule, Total, Traffic, WorkerCell,
    WorkerLoad, flow::UNATTRIBUTED, map,
};

use super::{
    deny::{self, DenyConfig, DenyEntry},
    error::Error,
    limits::{ClientLimits, LimitedClient},
    pins::Pins,
    sys::{self, Access, Mapping},
    table::{PerCpu, Table, Trie},
};

/// The pinned maps of a node: what tools read, whether or not a process serves.
#[derive(Debug)]
pub struct Maps {
    pub(super) ports: Table<PortKey, PortRule>,
    pub(super) node_addrs: Table<[u8; 16], NodeAddr>,
    pub(super) nics: Table<u32, Nic>,
    pub(super) nic_net: PerCpu<NicNet>,
    pub(super) totals: PerCpu<Traffic>,
    pub(super) flows: Table<FlowKey, Flow>,
    pub(super) host_net: PerCpu<HostNet>,
    pub(super) host_l7: Table<u32, HostL7>,
    pub(super) host_ids: Table<HostName, u32>,
    pub(super) listeners: Table<u32, u32>,
    pub(super) workers: Table<u32, WorkerLoad>,
    pub(super) alive: Table<u32, Alive>,
    pub(super) deny4: Trie<DenyKey4, DenyRule>,
    pub(super) deny6: Trie<DenyKey6, DenyRule>,
    pub(super) deny_hits: PerCpu<Traffic>,
    pub(super) deny_changed: Table<u32, u64>,
    pub(super) limits: Table<u32, Limits>,
    pub(super) clients: Table<ClientKey, Client>,
    pub(super) denials: Table<DenialKey, Denial>,
    pub(super) deny_config: Trie<DenyKey6, u32>,
}

/// Counters of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCounts {
    /// `None` for host 0, the unattributed traffic.
    pub name: Option<String>,
    pub id: HostId,
    pub l7: HostL7,
    /// Summed over the CPUs.
    pub net: HostNet,
}

/// Packets and bytes by reason, summed over the CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals(Vec<Traffic>);

// === impl Maps ===

impl Maps {
    pub(super) fn open(pins: &Pins, access: Access) -> Result<Self, Error> {
        Ok(Self {
            ports: Table::open(pins, map::PORTS, access)?,
            node_addrs: Table::open(pins, map::NODE_ADDRS, access)?,
            nics: Table::open(pins, map::NICS, access)?,
            nic_net: PerCpu::open(pins, map::NIC_NET, access)?,
            totals: PerCpu::open(pins, map::TOTALS, access)?,
            flows: Table::open(pins, map::FLOWS, access)?,
            host_net: PerCpu::open(pins, map::HOST_NET, access)?,
            host_l7: Table::open(pins, map::HOST_L7, access)?,
            host_ids: Table::open(pins, map::HOST_IDS, access)?,
            listeners: Table::open(pins, map::LISTENERS, access)?,
            workers: Table::open(pins, map::WORKERS, access)?,
            alive: Table::open(pins, map::ALIVE, access)?,
            deny4: Trie::open(pins, map::DENY4, access)?,
            deny6: Trie::open(pins, map::DENY6, access)?,
            deny_hits: PerCpu::open(pins, map::DENY_HITS, access)?,
            deny_changed: Table::open(pins, map::DENY_CHANGED, access)?,
            limits: Table::open(pins, map::LIMITS, access)?,
            clients: Table::open(pins, map::CLIENTS, access)?,
            denials: Table::open(pins, map::DENIALS, access)?,
            deny_config: Trie::open(pins, map::DENY_CONFIG, access)?,
        })
    }

    /// Number of host ids, host 0 included.
    #[must_use]
    pub fn host_capacity(&self) -> u32 {
        self.host_net.capacity()
    }

    /// Packets and bytes by reason.
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn totals(&self) -> Result<Totals, Error> {
        self.totals.sums(self.totals.capacity()).map(Totals)
    }

    /// The deny list, sorted by prefix.
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn deny_entries(&self) -> Result<Vec<DenyEntry>, Error> {
        let v4 = self.deny4.entries()?.into_iter().filter_map(|(key, rule)| DenyEntry::v4(key, rule));
        let v6 = self.deny6.entries()?.into_iter().filter_map(|(key, rule)| DenyEntry::v6(key, rule));
        let mut entries: Vec<_> = v4.chain(v6).collect();
        entries.sort_by_key(|entry| entry.prefix);
        entries.dedup_by_key(|entry| entry.prefix);
        Ok(entries)
    }

    /// Denials of operators and escalations, sorted by network: those among them that have ended and wait for a process
    /// to remove them, too.
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn denials(&self) -> Result<Vec<deny::Denial>, Error> {
        deny::read_denials(self)
    }

    /// What the configuration says of the deny list, as the owner of the node has told it.
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn deny_config(&self) -> Result<DenyConfig, Error> {
        DenyConfig::read(self)
    }

    /// Packets and bytes that each deny rule has dropped, by its number, summed over the CPUs.
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn deny_hits(&self) -> Result<Vec<Traffic>, Error> {
        self.deny_hits.sums(self.deny_hits.capacity())
    }

    /// How much each client may send.
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn client_limits(&self) -> Result<ClientLimits, Error> {
        Ok(ClientLimits::from_kernel(self.limits.get(&map::LIMITS_ALL)?.unwrap_or_default()))
    }

    /// Clients that have sent more than they may, those first of whom most was above the limits. Reads all clients that
    /// have sent anything lately, about 0.1 µs for each.
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn limited_clients(&self) -> Result<Vec<LimitedClient>, Error> {
        let (now, mut limited) = (sys::now_ns(), Vec::new());
        self.clients.scan(|key, client| limited.extend(LimitedClient::of(*key, *client, now)))?;
        limited.sort_by_key(|client| (Reverse(client.limited()), client.client));
        Ok(limited)
    }

    /// Wire traffic by host id, summed over the CPUs. One call reads all ids, 512 per system call; before
    /// Linux 5.13 each by two.
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn host_net(&self) -> Result<Vec<HostNet>, Error> {
        self.first_host_net(self.host_capacity())
    }

    fn first_host_net(&self, count: u32) -> Result<Vec<HostNet>, Error> {
        self.host_net.sums(count)
    }

    /// Requests and body bytes by host id.
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn host_l7(&self) -> Result<Vec<HostL7>, Error> {
        self.host_l7.values(self.host_capacity())
    }

    /// Counters of host 0 and of every host with a name, in the order of names. Reads no further than the latest
    /// number.
    ///
    /// # Errors
    /// If the kernel refuses a read.
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

    /// Host ids by name. Host 0, the unattributed traffic, has no name; the empty name's number is the latest id, left
    /// out here.
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn host_ids(&self) -> Result<BTreeMap<String, u32>, Error> {
        let mut ids = BTreeMap::new();
        self.host_ids.scan(|name, id| {
            if *name != HostName::default() {
                ids.insert(name.to_string(), *id);
            }
        })?;
        Ok(ids)
    }

    /// Connections that are attributed to a host now.
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn flows(&self) -> Result<Vec<(FlowKey, Flow)>, Error> {
        self.flows.entries()
    }

    /// Interfaces with a program, and those above them, by index.
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn nics(&self) -> Result<Vec<(u32, Nic)>, Error> {
        self.nics.entries()
    }

    /// Wire traffic by index of the interface, summed over the CPUs; with the keys [`map::NIC_OTHER`] and
    /// [`map::NIC_GONE`] it adds up to the totals, as far as that goes back to a version that counted it.
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn nic_net(&self) -> Result<BTreeMap<u32, NicNet>, Error> {
        Ok(self.nic_net.entries()?.into_iter().collect())
    }

    /// Steered ports.
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn ports(&self) -> Result<Vec<(PortKey, PortRule)>, Error> {
        self.ports.entries()
    }

    /// How busy the workers are, of all processes: see [`PortRule::first_worker`].
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn workers(&self) -> Result<Vec<WorkerLoad>, Error> {
        self.workers.values(self.workers.capacity())
    }

    /// Addresses of the node, IPv4 as v4-mapped.
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn node_addrs(&self) -> Result<Vec<([u8; 16], NodeAddr)>, Error> {
        self.node_addrs.entries()
    }

    /// The process that owns the node ([`map::ALIVE_CURRENT`]) or the one that drains ([`map::ALIVE_DRAINING`]).
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn alive(&self, index: u32) -> Result<Alive, Error> {
        Ok(self.alive.get(&index)?.unwrap_or_default())
    }

    /// The kernel's number for the map of the totals: another one after `unload`, when everything is counted from 0
    /// again.
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
    /// Packets and bytes of one reason.
    #[must_use]
    pub fn get(&self, total: Total) -> Traffic {
        self.0.get(total as usize).copied().unwrap_or_default()
    }

    /// Every reason with its name.
    pub fn iter(&self) -> impl Iterator<Item = (Total, &'static str, Traffic)> {
        Total::ALL.iter().map(|&(total, name)| (total, name, self.get(total)))
    }

    pub(super) fn add(&mut self, total: Total, packets: u64) {
        if let Some(entry) = self.0.get_mut(total as usize) {
            entry.packets += packets;
        }
    }
}
