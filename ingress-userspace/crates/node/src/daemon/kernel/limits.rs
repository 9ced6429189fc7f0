//! Programs the kernel's limits of clients, with an exemption for trusted proxies.

use ingress_common::map::DENY_MAX;
use ingress_datapath::{Applied, ClientLimits, Datapath, PacketRate};
use ingress_model::PacketLimit;
use ingress_proxy::Snapshot;
use tracing::{info, warn};

use super::{
    Failures,
    deny::{Denied, trusted_peers},
    error_of,
};

/// Input of the client limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LimitInput {
    limits: ClientLimits,
    /// The networks of trusted proxies exceed the capacity of the kernel map. They could not be told from clients, so
    /// limits are disabled.
    is_in_vain: bool,
}

/// Results for the deny list and for the limits. The latter is `None` if the limits still wait for the list.
#[derive(Debug)]
pub(super) struct Guarded {
    pub(super) denied: Result<Applied, ingress_datapath::Error>,
    pub(super) limited: Option<Result<bool, ingress_datapath::Error>>,
}

impl LimitInput {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let ingress_model::ClientLimitSettings { syns, packets, is_dry_run } = snapshot.settings.client_limits;
        let limits = ClientLimits { syns: rate(syns), packets: rate(packets), is_dry_run };
        let room = usize::try_from(DENY_MAX).unwrap_or(usize::MAX);
        let is_in_vain = limits.is_on() && trusted_peers(snapshot).iter().count() >= room;
        Self { limits: if is_in_vain { ClientLimits::default() } else { limits }, is_in_vain }
    }

    pub(super) const fn is_on(&self) -> bool {
        self.limits.is_on()
    }

    /// Sets the deny list and the limits. Limits are removed before the exempt networks leave the list, and set after
    /// all of them are in it.
    pub(super) fn guard(&self, denied: &Denied, datapath: &Datapath) -> Guarded {
        let set = || datapath.client_limits().set(self.limits);
        let ended = (!self.is_on()).then(set);
        let denied = datapath.deny_list().set(&denied.config());
        let limited = ended.or_else(|| denied.is_ok().then(set));
        Guarded { denied, limited }
    }

    /// Logs the result. Returns the limits if the kernel accepted them.
    pub(super) fn applied(
        self,
        result: Option<Result<bool, ingress_datapath::Error>>,
        failures: &mut Failures,
    ) -> Option<Self> {
        let Self { limits, is_in_vain } = self;
        let result = result?;
        failures.note("cannot set the node's limits of clients", error_of(&result));
        match result {
            Ok(is_change) => {
                if is_change && limits.is_on() {
                    let per_second = |rate: Option<PacketRate>| rate.map_or(0, |rate| rate.per_second.get());
                    let (syns, packets) = (per_second(limits.syns), per_second(limits.packets));
                    info!(syns, packets, dry_run = limits.is_dry_run, "the node's limits of clients changed");
                } else if is_change {
                    info!("the node's limits of clients ended");
                }
                if is_in_vain {
                    warn!(
                        room = DENY_MAX,
                        "no client is limited, because `proxy-real-ip-cidr` has more networks to exempt than the \
                         kernel part has room for; name larger networks"
                    );
                }
                Some(self)
            }
            Err(_noted) => None,
        }
    }
}

/// Converts a limit; `None` is unlimited.
fn rate(limit: PacketLimit) -> Option<PacketRate> {
    let PacketLimit { per_second, burst } = limit;
    let per_second = per_second?;
    Some(PacketRate { per_second, burst: burst.unwrap_or(per_second) })
}
