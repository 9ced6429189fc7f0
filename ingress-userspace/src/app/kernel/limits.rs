//! Tells the kernel part how much each client may send, but for whoever may speak for others.

use ingress_common::map::DENY_MAX;
use ingress_userspace::{
    datapath::{self, Applied, ClientLimits, Datapath, PacketRate},
    model::{self, PacketLimit},
    proxy::Snapshot,
};
use tracing::{info, warn};

use super::deny::{Denied, speakers};

/// What the limits of clients follow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limited {
    limits: ClientLimits,
    /// There are more networks that speak for others than the kernel part could tell from clients, so nobody is
    /// limited.
    is_in_vain: bool,
}

/// What became of the deny list and of the limits; of the latter `None` if they wait for the former.
#[derive(Debug)]
pub(super) struct Guarded {
    pub(super) denied: Result<Applied, datapath::Error>,
    pub(super) limited: Option<Result<bool, datapath::Error>>,
}

impl Limited {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let model::ClientLimits { syns, packets, is_dry_run } = snapshot.settings.client_limits;
        let limits = ClientLimits { syns: rate(syns), packets: rate(packets), is_dry_run };
        let room = usize::try_from(DENY_MAX).unwrap_or(usize::MAX);
        let is_in_vain = limits.is_on() && speakers(snapshot).iter().count() >= room;
        Self { limits: if is_in_vain { ClientLimits::default() } else { limits }, is_in_vain }
    }

    pub(super) const fn is_on(&self) -> bool {
        self.limits.is_on()
    }

    /// Tells the kernel whom to drop. Limits end before those whom they spare leave the list, and begin when all of
    /// them are in it.
    pub(super) fn guard(&self, denied: &Denied, datapath: &Datapath) -> Guarded {
        let set = || datapath.client_limits().set(self.limits);
        let ended = (!self.is_on()).then(set);
        let denied = datapath.deny_list().set(&denied.config());
        let limited = ended.or_else(|| denied.is_ok().then(set));
        Guarded { denied, limited }
    }

    /// Says what became of the limits; them, if the kernel has taken them.
    pub(super) fn told(self, result: Option<Result<bool, datapath::Error>>) -> Option<Self> {
        let Self { limits, is_in_vain } = self;
        match result? {
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
                        "no client is limited, for `proxy-real-ip-cidr` has more networks to be spared than the kernel \
                         part has room for; name larger networks"
                    );
                }
                Some(self)
            }
            Err(error) => {
                warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot set the node's limits of clients; trying again"
                );
                None
            }
        }
    }
}

/// `None` for any number.
fn rate(limit: PacketLimit) -> Option<PacketRate> {
    let PacketLimit { per_second, burst } = limit;
    let per_second = per_second?;
    Some(PacketRate { per_second, burst: burst.unwrap_or(per_second) })
}
