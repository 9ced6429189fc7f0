//! The operator's options for statuses and events, and what follows from them: the field manager and the time limit of
//! a request.

use std::{net::IpAddr, sync::Arc, time::Duration};

use super::{addresses::Publish, election::LeaseTimings, handle::StatusHandle};
use crate::controller_names::MANAGER;

/// Longest name of a field manager (apimachinery, `FieldManagerMaxLength`).
pub(crate) const MANAGER_MAX: usize = 128;

/// The operator's options for statuses and events.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which statuses are written. Events are written, and a leader is elected, in either case. Default on.
    pub updates: Updates,
    pub publish: Publish,
    /// The ports that statuses name, with protocol TCP. Default 80 and 443.
    pub ports: Vec<u16>,
    /// How long a status that another writer changed stays as it is, and how long a status that could not be written is
    /// left alone. This controller's own changes are written at once. Default 60 s.
    pub interval: Duration,
    pub leadership: Leadership,
    /// Whether each Gateway gets a Service of its own, with the labels and annotations of its `spec.infrastructure`.
    /// Default false.
    pub gateway_services: bool,
    /// The namespace of the Lease and of this controller's pods. Default `xdp-ingress`.
    pub namespace: String,
    /// The name of this replica in the Lease and in events, which is the name of its pod. Events show at most 128
    /// bytes.
    pub identity: String,
    /// The address of this replica's pod, at which the leader asks it whether it serves an object. `None`: it is not asked, and does
    /// not ask others.
    pub address: Option<IpAddr>,
    /// `spec.controller` of this controller's classes, which events carry as the reporter. Default
    /// `xdp-ingress.io/controller`.
    pub controller: String,
    /// State that this process shares with the task.
    pub handle: Arc<StatusHandle>,
}

/// Which statuses are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Updates {
    /// No statuses.
    Never,
    /// Statuses of the Ingresses served; they stay when the last replica leaves.
    Kept,
    /// Statuses of the Ingresses served; they are cleared when the last replica leaves.
    #[default]
    Cleared,
}

/// How the writing replica is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// The holder of the Lease of this name writes. Default `xdp-ingress-leader`, 30 s.
    Elected { lease: String, ttl: Duration },
    /// This process writes, regardless of others.
    Always,
}

/// Returns the field manager of the installations with this controller. The cluster may have other installations, with
/// classes of their own, and this one must leave their entries alone.
pub(crate) fn manager(controller: &str) -> String {
    if controller == Options::default().controller {
        return MANAGER.into();
    }
    // Controller names share their beginnings, so the end is kept.
    let name = format!("{MANAGER}:{controller}");
    if name.len() <= MANAGER_MAX {
        return name;
    }
    let start = name.ceil_char_boundary(name.len() - (MANAGER_MAX - MANAGER.len() - 1));
    format!("{MANAGER}:{}", &name[start..])
}

/// Returns the time limit of one request. A request sent before a term ended is over before another replica's term can
/// begin.
pub(crate) fn request_timeout(options: &Options) -> Duration {
    match &options.leadership {
        Leadership::Elected { lease: _, ttl } => LeaseTimings::of(*ttl).request,
        Leadership::Always => LeaseTimings::LONGEST_REQUEST,
    }
}

/// Returns the address of this replica if replicas ask each other: one of them leads, and writes.
pub(crate) fn asked_at(options: &Options) -> Option<IpAddr> {
    let Options { address, leadership, updates, .. } = options;
    let is_asked = matches!(leadership, Leadership::Elected { .. }) && *updates != Updates::Never;
    address.filter(|_| is_asked)
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self {
            updates: Updates::default(),
            publish: Publish::default(),
            ports: vec![80, 443],
            interval: Duration::from_secs(60),
            leadership: Leadership::default(),
            gateway_services: false,
            namespace: "xdp-ingress".into(),
            identity: "xdp-ingress".into(),
            address: None,
            controller: "xdp-ingress.io/controller".into(),
            handle: Arc::default(),
        }
    }
}

impl Default for Leadership {
    fn default() -> Self {
        Self::Elected { lease: "xdp-ingress-leader".into(), ttl: Duration::from_secs(30) }
    }
}
