//! Programs the kernel deny list from `block-cidrs`, minus trusted proxies. Denials by operators and escalations are
//! separate and not changed here.

use std::sync::Arc;

use ingress_common::map::DENY_MAX;
use ingress_datapath::{Applied, DenyConfig};
use ingress_model::{Blocked, Networks, Settings};
use ingress_proxy::Snapshot;
use ipnet::IpNet;
use tracing::{info, warn};

use super::{Failures, error_of, limits::LimitInput};

/// Input of the deny list.
#[derive(Clone, Debug, Eq)]
pub(super) struct Denied {
    blocked: Option<Arc<Blocked>>,
    /// Networks of trusted proxies. Their packets must pass, because the clients behind them cannot be identified here.
    trusted_peers: Networks,
    /// Whether the list must contain trusted proxies even without a denial, because clients are limited.
    are_limited: bool,
}

impl Denied {
    pub(super) fn of(snapshot: &Snapshot, limited: &LimitInput) -> Self {
        let blocked = snapshot.settings.blocked.clone();
        Self { blocked, trusted_peers: trusted_peers(snapshot), are_limited: limited.is_on() }
    }

    pub(super) fn config(&self) -> DenyConfig {
        if self.are_limited {
            DenyConfig::sparing(self.networks(), self.trusted_peers.iter())
        } else {
            DenyConfig::new(self.networks(), self.trusted_peers.iter())
        }
    }

    fn networks(&self) -> impl Iterator<Item = IpNet> {
        self.blocked.iter().flat_map(|blocked| blocked.networks.iter())
    }

    /// Logs the result. Returns the list if the kernel accepted it.
    pub(super) fn applied(
        self,
        result: Result<Applied, ingress_datapath::Error>,
        failures: &mut Failures,
    ) -> Option<Self> {
        failures.note("cannot set the node's deny list", error_of(&result));
        match result {
            Ok(Applied { added, removed, left_out }) => {
                if added + removed > 0 {
                    info!(added, removed, "the node's deny list changed");
                }
                if left_out > 0 {
                    warn!(
                        left_out,
                        room = DENY_MAX,
                        "`block-cidrs` and denials have more networks than the kernel part has room for; of those left \
                         out, hosts answer 403 to networks of `block-cidrs`, and TCP and UDP services serve all; merge \
                         or remove networks"
                    );
                }
                Some(self)
            }
            Err(_noted) => None,
        }
    }
}

/// Compares only the input of the list: blocked header values are the concern of the proxy.
impl PartialEq for Denied {
    fn eq(&self, other: &Self) -> bool {
        let Self { blocked, trusted_peers, are_limited } = self;
        // There may be many networks, and most snapshots share those of their predecessor.
        let are_same = blocked.as_ref().map(Arc::as_ptr) == other.blocked.as_ref().map(Arc::as_ptr);
        (are_same || self.networks().eq(other.networks()))
            && (trusted_peers, are_limited) == (&other.trusted_peers, &other.are_limited)
    }
}

/// Returns the networks of peers that may report addresses of other clients.
pub(super) fn trusted_peers(snapshot: &Snapshot) -> Networks {
    let Settings { trust, .. } = &snapshot.settings;
    let proxied = trust.proxy_protocol || snapshot.streams.values().any(|service| service.accepts_proxy_protocol);
    trust.trusted_peers(proxied)
}

#[cfg(test)]
mod tests {
    use ingress_model::Texts;

    use super::*;

    #[test]
    fn the_deny_list_depends_only_on_networks() {
        let denied = |networks: &str, agents: &str| {
            let networks = Networks::parse(networks).expect("networks");
            let agents = Texts::parse(agents).expect("texts");
            let blocked = Blocked { networks, agents, ..Blocked::default() };
            Denied { blocked: Some(Arc::new(blocked)), trusted_peers: Networks::default(), are_limited: false }
        };
        let none = Denied { blocked: None, trusted_peers: Networks::default(), are_limited: false };
        assert_eq!(denied("10.0.0.0/8", ""), denied("10.0.0.0/8", "curl"));
        assert_eq!(denied("", "curl"), none);
        assert_ne!(denied("10.0.0.0/8", ""), denied("11.0.0.0/8", ""));
        assert_ne!(none, Denied { trusted_peers: Networks::everybody(), ..none.clone() });
        assert_ne!(none, Denied { are_limited: true, ..none.clone() });
    }
}
