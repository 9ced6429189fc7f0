//! Maintains the kernel part while the process runs: interfaces, addresses, listener slots, and the heartbeat.

use std::{
    convert::Infallible,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use ingress_common::{HostL7Cell, WorkerCell, steer::SLOTS_PER_PORT};
use ingress_datapath::{Datapath, DebugLog, Interfaces, Owner, ProgramReport, Report, SteeredPort};
use ingress_model::{HostId, Transport};
use ingress_proxy::{FlowTable, Liveness, Shared, WorkerListeners};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tracing::{info, warn};

use crate::{
    config::settings,
    daemon::{
        netfilter_check::{ADVICE, NetfilterCheck},
        port_rewrite::{PortRewrite, Unfit},
    },
    node::{Addresses, HeldRoutes, NodeReader},
};

mod announce;
mod deny;
mod escalation;
mod failures;
mod handover;
mod limits;
mod nics;
mod quic;
mod steering;
mod syn_cookies;

use announce::{HELLO, Holding};
pub(super) use announce::{LEAVING, Refusals};
use deny::Denied;
use failures::{Failures, error_of};
use limits::LimitInput;
use nics::Chosen;
use quic::OpenQuic;
use steering::steered;
use syn_cookies::SynFloods;

/// Heartbeat interval. XDP considers a process hung after three missed beats (`HEARTBEAT_STALE_NS`).
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Interval at which a process checks whether it still owns the node, or whether the node has no owner. The check of an
/// owner is a load from memory.
const OWNER: Duration = Duration::from_millis(200);
/// Interval of the check for processes with sockets of HTTP/3 that have died. Until it, their clients get no answer.
const QUIC_SWEEP: Duration = Duration::from_millis(50);
/// Interval at which the programs' log is read, if enabled.
const LOG: Duration = Duration::from_millis(100);
/// Interval of the scan that removes flows of dead processes, and of the check that connections arrive.
const SWEEP: Duration = Duration::from_mins(1);

/// Slot groups: one for each HTTP port, and one shared by the ports of TCP services.
const HTTP: u32 = 0;
const HTTPS: u32 = 1;
const STREAMS: u32 = 2;

/// The kernel part of this process.
pub(super) struct Kernel {
    datapath: Arc<Datapath>,
    /// Log of the programs, with `--bpf-log`.
    log: Option<DebugLog>,
    node: NodeReader,
    chosen: Chosen,
    interfaces: Interfaces,
    /// Whether default routes may have changed since they were read.
    rerouted: bool,
    /// Whether the attachments may differ from `interfaces`.
    astray: bool,
    /// Failures that have been logged and last.
    failures: Failures,
    addresses: Addresses,
    /// Whether `addresses` still has to be written to the kernel.
    stale: bool,
    /// Addresses that no interface has, and their announcement.
    holding: Holding,
    /// The two ports for HTTP.
    ports: [SteeredPort; 2],
    /// Sockets of HTTP/3, if this process has some.
    quic: Option<OpenQuic>,
    /// Ports last accepted by the kernel.
    applied: Vec<SteeredPort>,
    /// Ports that did not fit in the kernel map.
    left_out: Vec<SteeredPort>,
    /// Rewritten ports of packets, with `--steer rewrite`.
    port_rewrite: Option<PortRewrite>,
    /// Reasons why some ports are not rewritten.
    unfit: Vec<Unfit>,
    /// Deny list last accepted by the kernel.
    denied: Option<Denied>,
    /// Client limits last accepted by the kernel.
    limited: Option<LimitInput>,
    /// Whether the latest snapshot may change ports, denials or limits.
    changed: bool,
    netfilter_check: NetfilterCheck,
    syn_floods: SynFloods,
    workers: u32,
    steers: bool,
    slots: Vec<Slot>,
}

/// A listener with its target slot.
struct Slot {
    number: u32,
    listener: OwnedFd,
}

impl Kernel {
    /// Loads or adopts programs and maps, and attaches to the interfaces. Nothing is steered yet.
    ///
    /// # Errors
    /// Fails if none of the interfaces exists, or the machine lacks a feature, which the error names.
    pub(super) async fn open(
        settings: settings::KernelSettings,
        ports: [u16; 2],
        workers: u32,
        host_capacity: u32,
    ) -> anyhow::Result<Self> {
        let settings::KernelSettings {
            bpffs,
            interfaces,
            xdp_mode,
            lookup,
            port_rewrite,
            initial_share,
            syn_cookies,
            gateway_addresses,
            gateway_address_key_file,
            gateway_address_forwarding,
            log,
        } = settings;
        let node = NodeReader::open()?;
        let chosen = Chosen::new(xdp_mode, interfaces, &node).await?;
        let links = node.links().await?;
        let addresses = node.addresses(&links).await?;
        let interfaces = chosen.interfaces(&links);
        let options = ingress_datapath::Options {
            bpffs,
            interfaces: interfaces.clone(),
            xdp_mode,
            tc_hook: None,
            lookup,
            rewrites: port_rewrite.is_some(),
            initial_share,
            syn_cookies,
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
        let (key_file, forwards) = (gateway_address_key_file, gateway_address_forwarding);
        let mut holding = Holding::open(&gateway_addresses, key_file, forwards, HeldRoutes::open()?)?;
        holding.see(&links, &addresses);
        Ok(Self {
            datapath,
            log,
            node,
            chosen,
            interfaces,
            rerouted: false,
            astray: true,
            failures: Failures::default(),
            addresses,
            stale: true,
            holding,
            ports,
            quic: None,
            applied: Vec::new(),
            left_out: Vec::new(),
            port_rewrite,
            unfit: Vec::new(),
            denied: None,
            limited: None,
            changed: true,
            netfilter_check: NetfilterCheck::default(),
            syn_floods: SynFloods::default(),
            workers,
            steers: lookup,
            slots: Vec::new(),
        })
    }

    /// Keeps duplicates of the listeners for their slots. The originals belong to the workers.
    ///
    /// # Errors
    /// Fails if file descriptors are exhausted.
    pub(super) fn hold(&mut self, listeners: &[WorkerListeners]) -> anyhow::Result<()> {
        if !self.steers {
            return Ok(());
        }
        for (worker, WorkerListeners { http, https, streams, quic: _ }) in (0_u32..).zip(listeners) {
            for (group, listener) in [(HTTP, Some(http)), (HTTPS, Some(https)), (STREAMS, streams.as_ref())] {
                let Some(listener) = listener else { continue };
                let listener = listener.as_fd().try_clone_to_owned().context("cannot duplicate a listener")?;
                self.slots.push(Slot { number: group * SLOTS_PER_PORT + worker, listener });
            }
        }
        Ok(())
    }

    /// Closes the duplicates. Once the workers close the originals, the slots become empty by themselves.
    pub(super) fn release(&mut self) {
        self.slots.clear();
    }

    /// Returns whether connections arrive through slots rather than bound ports.
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

    /// Returns the number of datagrams of other nodes that did not count. `None` without a pool of addresses.
    pub(super) fn refusals(&self) -> Option<Arc<Refusals>> {
        self.holding.refusals()
    }

    pub(super) fn flow_table(&self) -> Box<dyn FlowTable> {
        let tcp = self.datapath.flows();
        Box::new(FlowAdapter { udp: tcp.over_udp(), tcp })
    }

    /// Sends heartbeats while this process drains, tells other nodes that its connections are still here, gives way to nodes
    /// that appear, and releases the admin address to a successor. The node is not reclaimed.
    pub(super) async fn attend(&mut self, wanted: &watch::Sender<bool>, liveness: &Liveness) -> Infallible {
        let (mut heartbeat, mut look, mut hello) = (interval(HEARTBEAT), interval(OWNER), interval(HELLO));
        let mut sweep = interval(QUIC_SWEEP);
        for timer in [&mut heartbeat, &mut hello, &mut sweep] {
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        loop {
            tokio::select! {
                _ = sweep.tick(), if self.quic.is_some() => self.sweep_quic(),
                _ = heartbeat.tick() => {
                    liveness.beat();
                    self.beat();
                }
                _ = look.tick() => {
                    let left = self.datapath.owner() == Owner::Other;
                    wanted.send_if_modified(|wanted| left && std::mem::replace(wanted, false));
                }
                // Another process of this node says so by itself.
                _ = hello.tick(), if self.holding.takes_part() && self.datapath.owner() != Owner::Other => self.serve_on(),
                () = self.holding.hear() => {}
            }
        }
    }

    /// Sends heartbeats, keeps attachments, addresses and flows up to date, and reports ownership through `owner`. The
    /// value becomes `false` when another process takes the node over, and `true` when that process dies or ends and
    /// this one reclaims the node.
    ///
    /// # Errors
    /// Fails if netlink ends.
    pub(super) async fn look_after(
        &mut self,
        owner: &watch::Sender<bool>,
        liveness: &Liveness,
        shared: &Shared,
    ) -> anyhow::Result<()> {
        let mut published = shared.published();
        // A snapshot may have been published since the node was claimed.
        self.changed = true;
        let (mut heartbeat, mut look, mut sweep) = (interval(HEARTBEAT), interval(OWNER), interval(QUIC_SWEEP));
        let (mut evict_dead, mut drain, mut hello) = (interval(SWEEP), interval(LOG), interval(HELLO));
        for timer in [&mut heartbeat, &mut look, &mut sweep, &mut hello] {
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        loop {
            tokio::select! {
                _ = heartbeat.tick() => {
                    liveness.beat();
                    self.beat();
                    self.escalate(shared);
                    if self.owns(owner) {
                        self.tend_syn_cookies();
                        self.keep_programs();
                    }
                    self.refresh(owner, shared);
                    self.settle(self.owns(owner)).await;
                }
                Ok(()) = published.changed() => {
                    self.changed = true;
                    self.refresh(owner, shared);
                }
                _ = look.tick() => self.look(owner, shared),
                _ = sweep.tick(), if self.quic.is_some() => self.sweep_quic(),
                _ = evict_dead.tick() => {
                    self.evict_dead();
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
                    self.settle(self.owns(owner)).await;
                }
                _ = hello.tick(), if self.holding.takes_part() => self.announce(self.owns(owner)),
                () = self.holding.hear() => {}
            }
        }
    }

    /// Returns whether this process owns the node. The value of `owner` alone may be 200 ms old: another process may have
    /// written its own addresses since.
    fn owns(&self, owner: &watch::Sender<bool>) -> bool {
        *owner.borrow() && self.datapath.owner() == Owner::This
    }

    fn beat(&mut self) {
        self.failures.note("cannot add lost flows to the totals", error_of(&self.datapath.heartbeat()));
    }

    /// Warns if none of the connections accepted by XDP arrives.
    fn watch_delivery(&mut self) {
        let Ok(totals) = self.datapath.totals() else { return };
        if let Some(requests) = self.netfilter_check.lost(|total| totals.get(total).packets) {
            warn!(requests, "none of the latest connection requests reached sk_lookup: {ADVICE}");
        }
    }

    fn evict_dead(&self) {
        match self.datapath.evict_dead() {
            Ok(0) => {}
            Ok(flows) => info!(flows, "removed the entries that dead processes left"),
            Err(error) => warn!(%error, "cannot remove entries that dead processes may have left"),
        }
    }
}

/// Logs the report: every attach mode is visible in the log.
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
            "the pinned maps keep their capacity; to change it, run `xdp-ingress unload` first, which deletes the \
             counters"
        );
    }
}

/// Adapter for flow entries, so that the proxy does not depend on maps.
struct FlowAdapter {
    tcp: ingress_datapath::Flows,
    udp: ingress_datapath::Flows,
}

impl FlowAdapter {
    const fn over(&self, transport: Transport) -> &ingress_datapath::Flows {
        match transport {
            Transport::Tcp => &self.tcp,
            Transport::Udp => &self.udp,
        }
    }
}

impl FlowTable for FlowAdapter {
    fn insert(&self, transport: Transport, remote: SocketAddr, local: SocketAddr, host: HostId) {
        self.over(transport).insert(remote, local, host.0);
    }

    fn remove(&self, transport: Transport, remote: SocketAddr, local: SocketAddr) {
        self.over(transport).remove(remote, local);
    }
}
