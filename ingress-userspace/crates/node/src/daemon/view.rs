//! Data of the admin address, collected from the parts on request.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, atomic::Ordering::Relaxed},
    time::Duration,
};

use ingress_cli::counters::OTHERS;
use ingress_common::{HostL7, HostL7Cell, HostNet, NicNet, RawHostId, Traffic, map};
use ingress_control::{Contact, Outcome, Translation, status};
use ingress_datapath::{
    ClientLimits, Datapath, DenialOrigin, DenyCount, DenyFill, DenyView, LimitedClient, NicReport, NicState, Owner,
    SynCookieState, SynFloodView,
};
use ingress_model::{HostId, Tree, route::MeterView};
use ingress_proxy::{DurationsView, Liveness, Shared, StatsView, UpstreamView};
use tokio::sync::watch;

use super::{change_log::ChangeRecord, http3::Http3, kernel::Refusals, publish::PublishProgress};
use crate::daemon::admin::{
    AdminSource, Attached, CertificateState, ControlState, DenyState, Http3State, InterfaceCounters, MapFill,
    StatusState, SynCookiesView, WorkerState,
};

/// Silence after which a thread counts as hung. All threads report every second; the margin covers a machine without
/// spare CPU. XDP has a shorter limit (`HEARTBEAT_STALE_NS`), because it only stops steering.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Name for interfaces without a program, or without one any more.
const OTHER_INTERFACES: &str = "(other)";

#[derive(Debug)]
pub(super) struct View {
    shared: Arc<Shared>,
    cells: &'static [HostL7Cell],
    /// `None` without the kernel part.
    kernel: Option<Arc<Datapath>>,
    progress: Arc<PublishProgress>,
    contact: Contact,
    /// `None` if nothing is written to an API server.
    pub(super) status: Option<Arc<status::StatusHandle>>,
    /// `None` without HTTP/3.
    http3: Option<Arc<Http3>>,
    /// `None` without a pool of addresses.
    pub(super) refusals: Option<Arc<Refusals>>,
    /// Liveness of the main thread.
    pub(super) liveness: Liveness,
    stage: watch::Sender<ProcessStage>,
}

/// Stage in the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessStage {
    /// No snapshot is published yet.
    Starting,
    Serving,
    /// The process was asked to end.
    Ending,
}

impl View {
    pub(super) fn new(
        shared: Arc<Shared>,
        cells: &'static [HostL7Cell],
        kernel: Option<Arc<Datapath>>,
        progress: Arc<PublishProgress>,
        contact: Contact,
        status: Option<Arc<status::StatusHandle>>,
        http3: Option<Arc<Http3>>,
    ) -> Self {
        let (liveness, stage) = (Liveness::of_this_thread(), watch::Sender::new(ProcessStage::Starting));
        Self { shared, cells, kernel, progress, contact, status, http3, refusals: None, liveness, stage }
    }

    /// Enters the next stage; returns the previous one.
    pub(super) fn enter(&self, stage: ProcessStage) -> ProcessStage {
        self.stage.send_replace(stage)
    }

    /// Waits until the process has the node.
    pub(super) async fn serving(&self) {
        let mut stage = self.stage.subscribe();
        // The sender is in `self`, so the channel is open.
        let _open = stage.wait_for(|stage| *stage == ProcessStage::Serving).await.is_ok();
    }
}

impl AdminSource for View {
    fn live(&self) -> Result<(), String> {
        // A thread that answers is running, but the main thread may still be blocked in its maintenance of the kernel
        // part.
        let workers = self.shared.thread_liveness();
        let silent =
            workers.iter().map(Arc::as_ref).chain([&self.liveness]).find(|liveness| liveness.silence() > SILENCE_MAX);
        silent.map_or(Ok(()), |liveness| {
            Err(format!("thread `{}` has made no progress for {} s", liveness.name(), liveness.silence().as_secs()))
        })
    }

    fn ready(&self) -> Result<(), String> {
        let stage = *self.stage.borrow();
        match stage {
            ProcessStage::Starting => Err("no configuration has been read yet".to_owned()),
            ProcessStage::Ending => Err("draining".to_owned()),
            ProcessStage::Serving => match self.kernel.as_ref().map(|kernel| kernel.owner()) {
                None | Some(Owner::This) => Ok(()),
                Some(Owner::Other) => Err("another process owns the node".to_owned()),
                Some(Owner::Unassigned) => Err("the process that owned the node has ended; taking over".to_owned()),
            },
        }
    }

    fn host_names(&self) -> Tree<Arc<str>, RawHostId> {
        self.progress.names.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn host_l7(&self, id: RawHostId) -> HostL7 {
        self.cells.get(id as usize).map(HostL7Cell::load).unwrap_or_default()
    }

    fn host_durations(&self, id: RawHostId) -> DurationsView {
        self.shared.durations(HostId(id))
    }

    fn total_durations(&self) -> DurationsView {
        self.shared.total_durations()
    }

    fn host_net(&self, id: RawHostId) -> HostNet {
        self.kernel.as_ref().and_then(|kernel| kernel.maps().host_net_of(id).ok()).unwrap_or_default()
    }

    fn all_host_net(&self) -> Vec<HostNet> {
        self.kernel.as_ref().and_then(|kernel| kernel.host_net().ok()).unwrap_or_default()
    }

    fn totals(&self) -> Vec<(&'static str, Traffic)> {
        let totals = self.kernel.as_ref().and_then(|kernel| kernel.totals().ok());
        totals.map_or_else(Vec::new, |totals| totals.iter().map(|(_, name, traffic)| (name, traffic)).collect())
    }

    fn denied(&self) -> Option<DenyState> {
        let DenyView { rules, left_out, denials } = self.kernel.as_ref()?.deny_list().view().ok()?;
        let rule = |DenyCount { prefix, dropped }| {
            (prefix.map_or_else(|| OTHERS.to_owned(), |prefix| prefix.to_string()), dropped)
        };
        let denials = DenialOrigin::ALL.map(DenialOrigin::as_str).into_iter().zip(denials).collect();
        Some(DenyState { rules: rules.into_iter().map(rule).collect(), left_out, denials })
    }

    fn interfaces(&self) -> Vec<InterfaceCounters> {
        let Some(kernel) = &self.kernel else { return Vec::new() };
        let mut counted = kernel.maps().nic_net().unwrap_or_default();
        let mut interfaces: Vec<_> = kernel
            .interfaces()
            .into_iter()
            .map(|NicReport { name, index, state, refusals: _, transmit }| InterfaceCounters {
                name,
                receives: Attached { how: state.as_str(), is_there: state.is_attached() },
                transmits: Attached { how: transmit.as_str(), is_there: transmit.is_attached() },
                // An absent interface has no index of its own.
                net: if state == NicState::Absent {
                    NicNet::default()
                } else {
                    counted.remove(&index).unwrap_or_default()
                },
            })
            .collect();
        let mut other = NicNet::default();
        counted.into_values().for_each(|net| other += net);
        if other != NicNet::default() {
            let off = Attached { how: "off", is_there: false };
            interfaces.push(InterfaceCounters {
                name: OTHER_INTERFACES.to_owned(),
                receives: off,
                transmits: off,
                net: other,
            });
        }
        interfaces
    }

    fn control(&self) -> ControlState {
        let PublishProgress { hosts, upstreams, warnings, hosts_over_capacity, applied, .. } = &*self.progress;
        ControlState {
            generation: self.shared.snapshot().generation,
            hosts: hosts.load(Relaxed),
            upstreams: upstreams.load(Relaxed),
            warnings: warnings.load(Relaxed),
            hosts_over_capacity: hosts_over_capacity.load(Relaxed),
            age: self.contact.age(),
            serves_saved: self.contact.serves_saved(),
            applied: applied.clone(),
        }
    }

    fn status(&self) -> Option<StatusState> {
        let stats = self.status.as_ref()?.stats();
        Some(StatusState { is_leader: stats.is_leader(), status_writes: stats.status_writes(), events: stats.events() })
    }

    fn meters(&self) -> Vec<MeterView> {
        self.shared.meters()
    }

    fn refused_gateway_datagrams(&self) -> Vec<(&'static str, u64)> {
        self.refusals.as_ref().map(|refusals| refusals.by_reason().into()).unwrap_or_default()
    }

    fn upstreams(&self) -> Vec<UpstreamView> {
        self.shared.upstreams()
    }

    fn upstream(&self, key: &str) -> Option<UpstreamView> {
        self.shared.upstream(key)
    }

    fn proxy(&self) -> StatsView {
        self.shared.stats()
    }

    fn http3(&self) -> Option<Http3State> {
        self.http3.as_ref()?.state(&self.shared)
    }

    fn syn_cookies(&self) -> Option<SynCookiesView> {
        let cookies = self.kernel.as_ref()?.syn_cookies();
        let state = cookies.state();
        let SynFloodView { threshold, rate, is_flood } = cookies.view();
        let state = (!matches!(state, SynCookieState::Off)).then(|| state.as_str())?;
        Some(SynCookiesView { state, is_flood, rate, threshold: threshold.unwrap_or(0) })
    }

    fn translation(&self) -> Translation {
        self.progress.served.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn problems(&self) -> Tree<Arc<Outcome>, i64> {
        self.progress.problems.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn changes(&self) -> Vec<ChangeRecord> {
        self.progress.changes.newest_first()
    }

    fn workers(&self) -> Vec<WorkerState> {
        let connections: BTreeMap<usize, usize> = self.shared.worker_connections().into_iter().collect();
        let state = |liveness: &Liveness| {
            let number = liveness.name().strip_prefix("worker-").and_then(|number| number.parse().ok());
            let connections = number.and_then(|number: usize| connections.get(&number).copied());
            WorkerState { name: liveness.name().to_owned(), silence: liveness.silence(), connections }
        };
        self.shared.thread_liveness().iter().map(|liveness| state(liveness)).collect()
    }

    fn limited_clients(&self) -> Option<(ClientLimits, Vec<LimitedClient>)> {
        let maps = self.kernel.as_ref()?.maps();
        Some((maps.client_limits().ok()?, maps.limited_clients().ok()?))
    }

    fn worker_connections(&self) -> Vec<(usize, usize)> {
        self.shared.worker_connections()
    }

    fn certificates(&self) -> CertificateState {
        let certificates = &self.shared.snapshot().certificates;
        CertificateState {
            ends: certificates.expiries().map(|(origin, end)| (Arc::clone(origin), end)).collect(),
            names_on_fallback: certificates.names_on_fallback(),
        }
    }

    fn fills(&self) -> Vec<MapFill> {
        let Some(kernel) = &self.kernel else { return Vec::new() };
        let hosts = self.progress.names.lock().unwrap_or_else(PoisonError::into_inner).len();
        let DenyFill { v4, v6, denials } = kernel.deny_list().fill();
        [
            (map::HOST_IDS, hosts, self.cells.len()),
            (map::DENY4, v4, map::DENY_MAX as usize),
            (map::DENY6, v6, map::DENY_MAX as usize),
            (map::DENIALS, denials, map::DENIALS_MAX as usize),
        ]
        .map(|(map, entries, capacity)| MapFill { map, entries, capacity })
        .to_vec()
    }
}
