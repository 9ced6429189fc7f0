//! Reads the pinned maps like any other tool: by their names and the layouts of `ingress-common`. It never writes. It
//! shares no code with the product's own readers, so that it can serve as an independent check of them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, PerCpuHashMap};
use ingress_common::{
    HostL7, HostName, HostNet, NicNet, PortKey, PortRule, Total, Traffic, WorkerLoad,
    flow::{PROTO_TCP, UNATTRIBUTED},
    map,
};

use super::{until, until_within};

/// Name for host 0 in output.
pub const UNATTRIBUTED_NAME: &str = "(unattributed)";

/// The pinned maps below one bpffs directory.
pub struct Maps {
    dir: PathBuf,
    host_ids: HashMap<MapData, HostName, u32>,
    host_net: PerCpuArray<MapData, HostNet>,
    host_l7: Array<MapData, HostL7>,
    totals: PerCpuArray<MapData, Traffic>,
    nic_net: PerCpuHashMap<MapData, u32, NicNet>,
    ports: HashMap<MapData, PortKey, PortRule>,
    workers: Array<MapData, WorkerLoad>,
}

/// Counters of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    pub id: u32,
    pub net: HostNet,
    pub l7: HostL7,
}

/// All counters at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Named hosts and [`UNATTRIBUTED_NAME`].
    pub hosts: BTreeMap<String, Host>,
    /// Every total by name; empty without the kernel part.
    pub totals: BTreeMap<&'static str, Traffic>,
}

// === impl Maps ===

impl Maps {
    /// Opens the maps pinned below `bpffs`, the directory given to `--bpffs`.
    ///
    /// # Errors
    /// Fails if a map is not pinned there or is of another type.
    pub fn open(bpffs: &Path) -> anyhow::Result<Self> {
        let dir = bpffs.join(map::LAYOUT).join("maps");
        Ok(Self {
            host_ids: pinned(&dir, map::HOST_IDS)?,
            host_net: pinned(&dir, map::HOST_NET)?,
            host_l7: pinned(&dir, map::HOST_L7)?,
            totals: pinned(&dir, map::TOTALS)?,
            nic_net: pinned(&dir, map::NIC_NET)?,
            ports: pinned(&dir, map::PORTS)?,
            workers: pinned(&dir, map::WORKERS)?,
            dir,
        })
    }

    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the current counters; each value is read separately.
    ///
    /// # Errors
    /// Fails if the kernel refuses a read.
    pub fn read(&self) -> anyhow::Result<Counts> {
        let mut hosts = BTreeMap::from([(UNATTRIBUTED_NAME.to_owned(), self.host(UNATTRIBUTED)?)]);
        for entry in self.host_ids.iter() {
            let (name, id) = entry.context("cannot read `host_ids`")?;
            if name.is_counted() {
                hosts.insert(name.to_string(), self.host(id)?);
            }
        }
        let totals = Total::ALL.iter().map(|&(total, name)| anyhow::Ok((name, self.total(total)?)));
        Ok(Counts { hosts, totals: totals.collect::<anyhow::Result<_>>()? })
    }

    /// Returns the sum over all interfaces, including those that are gone.
    ///
    /// # Errors
    /// Fails if the kernel refuses a read.
    pub fn nics(&self) -> anyhow::Result<NicNet> {
        let mut all = NicNet::default();
        for entry in self.nic_net.iter() {
            let (_, per_cpu) = entry.context("cannot read `nic_net`")?;
            per_cpu.iter().for_each(|one| all += *one);
        }
        Ok(all)
    }

    /// Returns the index of the first worker of the process that owns the node.
    ///
    /// # Errors
    /// Fails if TCP port 80 is not steered on the node, or the kernel refuses a read.
    pub fn first_worker(&self) -> anyhow::Result<u32> {
        let http = PortKey { port_be: 80_u16.to_be(), proto: PROTO_TCP, pad: 0 };
        let PortRule { first_worker, .. } = self.ports.get(&http, 0).context("cannot read the rule of port 80")?;
        Ok(first_worker)
    }

    /// Returns the loads of `count` workers, starting at `first`.
    ///
    /// # Errors
    /// Fails if the kernel refuses a read.
    pub fn workers(&self, first: u32, count: u32) -> anyhow::Result<Vec<WorkerLoad>> {
        let load = |index| self.workers.get(&index, 0).with_context(|| format!("cannot read worker {index}"));
        (first..first + count).map(load).collect()
    }

    /// Returns the connections that each of `count` workers holds, starting at `first`, once they add up to `total` and
    /// none is on its way.
    ///
    /// # Errors
    /// Fails if that has not happened after 30 seconds, or the kernel refuses a read.
    pub fn held(&self, first: u32, count: u32, total: usize) -> anyhow::Result<Vec<u64>> {
        let mut last = Vec::new();
        let held = until(&format!("workers that hold {total} connections"), || {
            last = match self.workers(first, count) {
                Ok(workers) => workers,
                Err(error) => return Some(Err(error)),
            };
            let is_settled = last.iter().all(|load| load.connections() == Some(load.open));
            let open: Vec<u64> = last.iter().map(|load| load.open).collect();
            (is_settled && open.iter().sum::<u64>() == total as u64).then_some(Ok(open))
        });
        held.flatten().with_context(|| format!("the workers last told {last:?}"))
    }

    /// Returns the counters once they add up and no longer change.
    ///
    /// # Errors
    /// Fails if after five seconds they still change, or Σ `host_net` is not `totals.accepted` and
    /// `totals.transmitted`, or if the kernel refuses a read.
    pub fn settled(&self) -> anyhow::Result<Counts> {
        let mut before = None;
        let settled = until_within(Duration::from_secs(5), "the counters to stand still and add up", || {
            let now = match self.read() {
                Ok(now) => now,
                Err(error) => return Some(Err(error)),
            };
            let still = before.replace(now.clone()).is_some_and(|before| before == now);
            (still && now.adds_up()).then_some(Ok(now))
        });
        settled.flatten().with_context(|| {
            let last = before.unwrap_or_default();
            let totals = [Total::Accepted, Total::Transmitted].map(|total| last.total(total));
            format!("Σ host_net is {:?} and {:?}, totals {totals:?}", last.received(), last.transmitted())
        })
    }

    fn host(&self, id: u32) -> anyhow::Result<Host> {
        let per_cpu = self.host_net.get(&id, 0).with_context(|| format!("cannot read `host_net` of host {id}"))?;
        let mut net = HostNet::default();
        for HostNet { rx_packets, rx_bytes, tx_packets, tx_bytes } in per_cpu.iter() {
            net.rx_packets += rx_packets;
            net.rx_bytes += rx_bytes;
            net.tx_packets += tx_packets;
            net.tx_bytes += tx_bytes;
        }
        let l7 = self.host_l7.get(&id, 0).with_context(|| format!("cannot read `host_l7` of host {id}"))?;
        Ok(Host { id, net, l7 })
    }

    fn total(&self, total: Total) -> anyhow::Result<Traffic> {
        let per_cpu = self.totals.get(&(total as u32), 0).with_context(|| format!("cannot read total {total:?}"))?;
        Ok(per_cpu.iter().fold(Traffic::default(), |sum, &Traffic { packets, bytes }| Traffic {
            packets: sum.packets + packets,
            bytes: sum.bytes + bytes,
        }))
    }
}

/// Opens the map `name`, pinned in `dir`, as a `T`.
fn pinned<T: TryFrom<Map, Error = MapError>>(dir: &Path, name: &str) -> anyhow::Result<T> {
    let path = dir.join(name);
    let data = MapData::from_pin(&path).with_context(|| format!("cannot open `{}`", path.display()))?;
    let map = Map::from_map_data(data).with_context(|| format!("`{}` is of an unknown type", path.display()))?;
    T::try_from(map).with_context(|| format!("`{}` is of another type", path.display()))
}

// === impl Counts ===

impl Counts {
    /// Returns one total; zero without the kernel part.
    #[must_use]
    pub fn total(&self, total: Total) -> Traffic {
        let name = Total::ALL.iter().find(|(each, _)| *each == total).map(|(_, name)| *name);
        name.and_then(|name| self.totals.get(name)).copied().unwrap_or_default()
    }

    /// Returns the received traffic of all hosts together, including host 0.
    #[must_use]
    pub fn received(&self) -> Traffic {
        self.hosts.values().fold(Traffic::default(), |sum, host| Traffic {
            packets: sum.packets + host.net.rx_packets,
            bytes: sum.bytes + host.net.rx_bytes,
        })
    }

    /// Returns the transmitted traffic of all hosts together, including host 0.
    #[must_use]
    pub fn transmitted(&self) -> Traffic {
        self.hosts.values().fold(Traffic::default(), |sum, host| Traffic {
            packets: sum.packets + host.net.tx_packets,
            bytes: sum.bytes + host.net.tx_bytes,
        })
    }

    /// Returns `true` if the hosts add up to the totals of both directions.
    #[must_use]
    pub fn adds_up(&self) -> bool {
        self.received() == self.total(Total::Accepted) && self.transmitted() == self.total(Total::Transmitted)
    }
}
