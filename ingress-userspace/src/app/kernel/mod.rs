//! Looks after the kernel part while the process runs: which interfaces, which addresses, which slots, the heartbeat.

use std::{
    convert::Infallible,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use ingress_common::{HostL7Cell, WorkerCell, steer::SLOTS_PER_PORT};
use ingress_userspace::{
    datapath::{self, Datapath, DebugLog, Interfaces, Owner, ProgramReport, Report, SteeredPort},
    model::HostId,
    proxy::{FlowTable, Pulse, Shared, WorkerListeners},
};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tracing::{info, warn};

use crate::{
    config::settings,
    delivery::{ADVICE, Delivery},
    node::{Addresses, Node},
    rewriting::{Rewriting, Unfit},
};

mod deny;
mod escalation;
mod limits;
mod nics;
mod ownership;
mod steering;

use deny::Denied;
use limits::Limited;
use nics::Chosen;
use steering::steered;

/// XDP takes three missed beats for a hung process (`HEARTBEAT_STALE_NS`).
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How often a process looks whether the node is still its own, or has come free. A load from memory where it is.
const OWNER: Duration = Duration::from_millis(200);
/// How often the programs' log is read, if it is on.
const LOG: Duration = Duration::from_millis(100);
/// How often the flows of processes that have died are removed, one scan of the map, and whether requests are
/// delivered.
const SWEEP: Duration = Duration::from_mins(1);

/// The groups of slots: that of each port for HTTP, and the one that the ports of TCP services share.
const HTTP: u32 = 0;
const HTTPS: u32 = 1;
const STREAMS: u32 = 2;

/// The kernel part of this process.
pub(super) struct Kernel {
    datapath: Arc<Datapath>,
    /// What the programs log, if `--bpf-log` asks for it.
    log: Option<DebugLog>,
    node: Node,
    chosen: Chosen,
    interfaces: Interfaces,
    /// Default routes may have changed since they were read.
    rerouted: bool,
    /// The programs may not be where `interfaces` says.
    astray: bool,
    addresses: Addresses,
    /// The kernel does not know of `addresses` yet.
    stale: bool,
    /// Those for HTTP.
    ports: [SteeredPort; 2],
    /// What the kernel was told last, if it has not refused.
    told: Vec<SteeredPort>,
    /// What it has no room for.
    left_out: Vec<SteeredPort>,
    /// Which ports packets get, if they do.
    rewriting: Option<Rewriting>,
    /// Why those of some ports do not.
    unfit: Vec<Unfit>,
    /// Whom it was told to drop, if it has not refused.
    denied: Option<Denied>,
    /// How far it was told to limit clients, if it has not refused.
    limited: Option<Limited>,
    /// The latest snapshot may have other ports, or deny or limit others.
    changed: bool,
    delivery: Delivery,
    workers: u32,
    steers: bool,
    slots: Vec<Slot>,
}

/// A listener and the slot it is meant for.
struct Slot {
    number: u32,
    listener: OwnedFd,
}

impl Kernel {
    /// Loads or adopts programs and maps and attaches to the interfaces. Nothing is steered yet.
    ///
    /// # Errors
    /// If the machine lacks something, named in the error, or an interface does not exist.
    pub(super) async fn open(
        settings: settings::Kernel,
        ports: [u16; 2],
        workers: u32,
        host_capacity: u32,
    ) -> anyhow::Result<Self> {
        let settings::Kernel { bpffs, interfaces, xdp_mode, lookup, rewriting, log } = settings;
        let node = Node::open()?;
        let chosen = Chosen::new(xdp_mode, interfaces, &node).await?;
        let links = node.links().await?;
        let addresses = node.addresses(&links).await?;
        let interfaces = chosen.interfaces(&links);
        let options = datapath::Options {
            bpffs,
            interfaces: interfaces.clone(),
            xdp_mode,
            tc_hook: None,
            lookup,
            rewrites: rewriting.is_some(),
            host_capacity,
            debug_log: log,
            measure: false,
        };
        let mut datapath = Datapath::open(&options)
            .context("cannot set up the kernel part (`--steer bind --xdp-mode off` runs without it)")?;
        report(datapath.report(), host_capacity);
        let workers = if lookup { workers } else { 0 };
        let [http, https] = ports;
        let ports = [steered(http, HTTP, workers), steered(https, HTTPS, workers)];
        let log = datapath.debug_log();
        let datapath = Arc::new(datapath);
        Ok(Self {
            datapath,
            log,
            node,
            chosen,
            interfaces,
            rerouted: false,
            astray: true,
            addresses,
            stale: true,
            ports,
            told: Vec::new(),
            left_out: Vec::new(),
            rewriting,
            unfit: Vec::new(),
            denied: None,
            limited: None,
            changed: true,
            delivery: Delivery::default(),
            workers,
            steers: lookup,
            slots: Vec::new(),
        })
    }

    /// Keeps duplicates of the listeners for their slots; the workers own the originals.
    ///
    /// # Errors
    /// If there are no file descriptors left.
    pub(super) fn hold(&mut self, listeners: &[WorkerListeners]) -> anyhow::Result<()> {
        if !self.steers {
            return Ok(());
        }
        for (worker, WorkerListeners { http, https, streams }) in (0_u32..).zip(listeners) {
            for (group, listener) in [(HTTP, Some(http)), (HTTPS, Some(https)), (STREAMS, streams.as_ref())] {
                let Some(listener) = listener else { continue };
                let listener = listener.as_fd().try_clone_to_owned().context("cannot duplicate a listener")?;
                self.slots.push(Slot { number: group * SLOTS_PER_PORT + worker, listener });
            }
        }
        Ok(())
    }

    /// Gives the duplicates up: with the workers' own listeners closed, the slots empty themselves.
    pub(super) fn release(&mut self) {
        self.slots.clear();
    }

    /// Whether connections come through slots rather than bound ports.
    pub(super) fn steers(&self) -> bool {
        self.steers
    }

    pub(super) fn epoch(&self) -> u32 {
        self.datapath.report().epoch
    }

    pub(super) fn host_cells(&self) -> &'static [HostL7Cell] {
        self.datapath.host_cells()
    }

    pub(super) fn worker_cells(&self) -> &'static [WorkerCell] {
        self.datapath.worker_cells()
    }

    pub(super) fn datapath(&self) -> Arc<Datapath> {
        Arc::clone(&self.datapath)
    }

    pub(super) fn flow_table(&self) -> Box<dyn FlowTable> {
        Box::new(Flows(self.datapath.flows()))
    }

    /// Keeps the heart beating while this process drains, and leaves the admin address to a successor. It takes no node
    /// back.
    pub(super) async fn attend(&self, wanted: &watch::Sender<bool>, pulse: &Pulse) -> Infallible {
        let (mut heartbeat, mut look) = (interval(HEARTBEAT), interval(OWNER));
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = heartbeat.tick() => {
                    pulse.beat();
                    self.beat();
                }
                _ = look.tick() => {
                    let left = self.datapath.owner() == Owner::Other;
                    wanted.send_if_modified(|wanted| left && std::mem::replace(wanted, false));
                }
            }
        }
    }

    /// Keeps the heart beating, the programs on their interfaces, the addresses true and the flows clean. Tells `owner`
    /// when the node comes to belong to another process, and when that one dies or ends and it belongs to this one
    /// again.
    ///
    /// # Errors
    /// If netlink ends.
    pub(super) async fn look_after(
        &mut self,
        owner: &watch::Sender<bool>,
        pulse: &Pulse,
        shared: &Shared,
    ) -> anyhow::Result<()> {
        let mut published = shared.published();
        // Something may have been published since the node was taken.
        self.changed = true;
        let (mut heartbeat, mut look) = (interval(HEARTBEAT), interval(OWNER));
        let (mut sweep, mut drain) = (interval(SWEEP), interval(LOG));
        for timer in [&mut heartbeat, &mut look] {
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        loop {
            tokio::select! {
                _ = heartbeat.tick() => {
                    pulse.beat();
                    self.beat();
                    self.escalate(shared);
                    self.refresh(owner, shared);
                }
                Ok(()) = published.changed() => {
                    self.changed = true;
                    self.refresh(owner, shared);
                }
                _ = look.tick() => self.look(owner, shared),
                _ = sweep.tick() => {
                    self.sweep();
                    self.watch_delivery();
                }
                _ = drain.tick(), if self.log.is_some() => {
                    if let Some(log) = &mut self.log {
                        log.drain();
                    }
                }
                change = self.node.changed() => {
                    let change = change.context("netlink no longer reports changes of the node's addresses")?;
                    self.read_node(change).await;
                    self.refresh(owner, shared);
                }
            }
        }
    }

    fn beat(&self) {
        if let Err(error) = self.datapath.heartbeat() {
            warn!(%error, "cannot add lost flows to the totals; they are added with the next heartbeat");
        }
    }

    /// Says so if nothing that XDP lets in arrives.
    fn watch_delivery(&mut self) {
        let Ok(totals) = self.datapath.totals() else { return };
        if let Some(requests) = self.delivery.lost(|total| totals.get(total).packets) {
            warn!(requests, "none of the latest connection requests has come to sk_lookup: {ADVICE}");
        }
    }

    fn sweep(&self) {
        match self.datapath.sweep() {
            Ok(0) => {}
            Ok(flows) => info!(flows, "removed what dead processes had left"),
            Err(error) => warn!(%error, "cannot remove what dead processes may have left"),
        }
    }
}

/// What was found and done, for the log: no mode is taken silently.
fn report(report: &Report, wanted: u32) {
    let Report { epoch, has_predecessor, interfaces, lookup, host_capacity, programs } = report;
    for ProgramReport { name, verified_instructions, translated_instructions } in programs {
        info!(name, verified_instructions, translated_instructions, "program loaded");
    }
    interfaces.iter().for_each(nics::report);
    info!(epoch, has_predecessor, ?lookup, host_capacity, "kernel part open");
    if *host_capacity != wanted {
        warn!(
            host_capacity,
            wanted,
            "the pinned maps keep their capacity; for another one run `xdp-ingress unload` first, which forgets the counters"
        );
    }
}

/// Lets the proxy write flows without knowing of maps.
struct Flows(datapath::Flows);

impl FlowTable for Flows {
    fn insert(&self, remote: SocketAddr, local: SocketAddr, host: HostId) {
        self.0.insert(remote, local, host.0);
    }

    fn remove(&self, remote: SocketAddr, local: SocketAddr) {
        self.0.remove(remote, local);
    }
}
