//! Tells the kernel part whom to drop: the networks that are let in nowhere, but for whoever may speak for others.

use std::sync::Arc;

use ingress_common::map::DENY_MAX;
use ingress_userspace::{
    datapath::{self, Applied, DenyEntries},
    model::{Blocked, Networks, Settings},
    proxy::Snapshot,
};
use tracing::{info, warn};

/// What the deny list follows from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Denied {
    blocked: Option<Arc<Blocked>>,
    /// Whose packets must come through, for the clients behind them are not to be told from here.
    speakers: Networks,
}

impl Denied {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let Settings { blocked, trust, .. } = &snapshot.settings;
        let proxied = trust.proxy_protocol || snapshot.streams.values().any(|service| service.accepts_proxy_protocol);
        Self { blocked: blocked.clone(), speakers: trust.speakers(proxied) }
    }

    pub(super) fn entries(&self) -> DenyEntries {
        let Self { blocked, speakers } = self;
        DenyEntries::new(blocked.iter().flat_map(|blocked| blocked.networks.iter()), speakers.iter())
    }

    /// Says what became of the list; it, if the kernel has taken it.
    pub(super) fn told(self, result: Result<Applied, datapath::Error>) -> Option<Self> {
        match result {
            Ok(Applied { added, removed, left_out }) => {
                if added + removed > 0 {
                    info!(added, removed, "the node's deny list changed");
                }
                if left_out > 0 {
                    warn!(
                        left_out,
                        room = DENY_MAX,
                        "`block-cidrs` has more networks than the kernel part has room for; of hosts the proxy refuses them"
                    );
                }
                Some(self)
            }
            Err(error) => {
                warn!(error = &error as &dyn std::error::Error, "cannot set the node's deny list; trying again");
                None
            }
        }
    }
}
