//! The pinned maps, opened with their types, and what can be read from them. Everything here is a read.

use std::{collections::BTreeMap, path::Path};

use ingress_common::{
    Alive, DenyKey4, DenyKey6, DenyRule, Flow, FlowKey, HostL7, HostL7Cell, HostName, HostNet, Nic, NicNet, NodeAddr,
    PortKey, PortRule, Total, Traffic, map,
};

use super::{
    deny::DenyEntry,
    error::Error,
    pins::Pins,
    sys::{Access, Mapping},
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
    pub(super) alive: Table<u32, Alive>,
    pub(super) deny4: Trie<DenyKey4, DenyRule>,
    pub(super) deny6: Trie<DenyKey6, DenyRule>,
    pub(super) deny_hits: PerCpu<Traffic>,
}

/// Packets and bytes by reason, summed over the CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals(Vec<Traffic>);

// === impl Maps ===

impl Maps {
    /// Opens the pins below `bpffs` for reading.
    ///
    /// # Errors
    /// [`Error::Kernel`] if there are none (no process has run, or `unload` has), [`Error::Layout`] if another version made
    /// them.
    pub fn open_pinned(bpffs: &Path) -> Result<Self, Error> {
        Self::open(&Pins::new(bpffs))
    }

    pub(super) fn open(pins: &Pins) -> Result<Self, Error> {
        Ok(Self {
            ports: Table::open(pins, map::PORTS)?,
            node_addrs: Table::open(pins, map::NODE_ADDRS)?,
            nics: Table::open(pins, map::NICS)?,
            nic_net: PerCpu::open(pins, map::NIC_NET)?,
            totals: PerCpu::open(pins, map::TOTALS)?,
            flows: Table::open(pins, map::FLOWS)?,
            host_net: PerCpu::open(pins, map::HOST_NET)?,
            host_l7: Table::open(pins, map::HOST_L7)?,
            host_ids: Table::open(pins, map::HOST_IDS)?,
            listeners: Table::open(pins, map::LISTENERS)?,
            alive: Table::open(pins, map::ALIVE)?,
            deny4: Trie::open(pins, map::DENY4)?,
            deny6: Trie::open(pins, map::DENY6)?,
            deny_hits: PerCpu::open(pins, map::DENY_HITS)?,
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
        self.totals.folded(add).map(Totals)
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

    /// Packets and bytes that each deny rule has dropped, by its number, summed over the CPUs.
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn deny_hits(&self) -> Result<Vec<Traffic>, Error> {
        self.deny_hits.folded(add)
    }

    /// Wire traffic by host id, summed over the CPUs. One call reads all ids, 512 per system call.
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn host_net(&self) -> Result<Vec<HostNet>, Error> {
        let add = |sum: &mut HostNet, HostNet { rx_packets, rx_bytes, tx_packets, tx_bytes }: &HostNet| {
            sum.rx_packets += rx_packets;
            sum.rx_bytes += rx_bytes;
            sum.tx_packets += tx_packets;
            sum.tx_bytes += tx_bytes;
        };
        self.host_net.folded(add)
    }

    /// Requests and body bytes by host id.
    ///
    /// # Errors
    /// If the map cannot be mapped into memory.
    pub fn host_l7(&self) -> Result<Vec<HostL7>, Error> {
        Ok(self.map_host_l7(Access::Read)?.as_slice().iter().map(HostL7Cell::load).collect())
    }

    /// Host ids by name. Host 0, the unattributed traffic, has no name; the empty name's number is the latest id, left out here.
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

    /// Interfaces with the program, by index.
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
        Ok(self.nic_net.entries(|sum, value| *sum += *value)?.into_iter().collect())
    }

    /// Steered ports.
    ///
    /// # Errors
    /// If the kernel refuses the read.
    pub fn ports(&self) -> Result<Vec<(PortKey, PortRule)>, Error> {
        self.ports.entries()
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

    pub(super) fn map_host_l7(&self, access: Access) -> Result<Mapping<HostL7Cell>, Error> {
        let length = usize::try_from(self.host_capacity()).unwrap_or(0);
        Mapping::new(self.host_l7.fd(), length, access).map_err(|source| Error::kernel("map", map::HOST_L7, source))
    }
}

fn add(sum: &mut Traffic, Traffic { packets, bytes }: &Traffic) {
    sum.packets += packets;
    sum.bytes += bytes;
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
