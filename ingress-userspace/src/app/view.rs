//! What the admin address shows, gathered from the parts when asked.

use std::sync::{
    Arc, PoisonError,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use ingress_common::{HostL7Cell, Traffic};
use ingress_userspace::{
    datapath::Datapath,
    proxy::{Shared, StatsView},
};

use super::publish::Progress;
use crate::admin::{ControlState, HostCounters, Source};

/// Name of host 0.
const UNATTRIBUTED: &str = "(unattributed)";

#[derive(Debug)]
pub(super) struct View {
    pub(super) shared: Arc<Shared>,
    pub(super) cells: &'static [HostL7Cell],
    /// `None` without the kernel part.
    pub(super) kernel: Option<Arc<Datapath>>,
    pub(super) progress: Arc<Progress>,
    pub(super) ready: AtomicBool,
}

impl Source for View {
    fn ready(&self) -> bool {
        self.ready.load(Relaxed)
    }

    fn hosts(&self) -> Vec<HostCounters> {
        let mut hosts = self.progress.names.lock().unwrap_or_else(PoisonError::into_inner).clone();
        hosts.insert(0, UNATTRIBUTED.to_owned());
        let net = self.kernel.as_ref().and_then(|kernel| kernel.host_net().ok()).unwrap_or_default();
        hosts
            .into_iter()
            .map(|(id, host)| HostCounters {
                host,
                id,
                l7: self.cells.get(id as usize).map(HostL7Cell::load).unwrap_or_default(),
                net: net.get(id as usize).copied().unwrap_or_default(),
            })
            .collect()
    }

    fn totals(&self) -> Vec<(&'static str, Traffic)> {
        let totals = self.kernel.as_ref().and_then(|kernel| kernel.totals().ok());
        totals.map_or_else(Vec::new, |totals| totals.iter().map(|(_, name, traffic)| (name, traffic)).collect())
    }

    fn control(&self) -> ControlState {
        let Progress { hosts, upstreams, warnings, hosts_over_capacity, names: _ } = &*self.progress;
        ControlState {
            generation: self.shared.snapshot().generation,
            hosts: hosts.load(Relaxed),
            upstreams: upstreams.load(Relaxed),
            warnings: warnings.load(Relaxed),
            hosts_over_capacity: hosts_over_capacity.load(Relaxed),
        }
    }

    fn proxy(&self) -> StatsView {
        self.shared.stats()
    }
}
