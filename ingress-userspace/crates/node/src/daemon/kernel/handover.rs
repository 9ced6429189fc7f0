//! Hands node ownership over between processes: claim, offer, reclaim.
//!
//! A predecessor notices within 0.2 s that a newer process owns the node. It is no longer ready, moves its heartbeat to
//! the second entry of `alive`, leaves the admin address, and keeps its accepted connections and its backlog. If the new
//! owner dies, the predecessor takes the node back. A process that is asked to end offers the node first, and the other
//! process takes it while this one still serves; a roll-back therefore refuses no connection. Owner and slots change
//! under one lock, so two processes cannot end up with some of the slots each.

use std::{os::fd::AsFd as _, time::Duration};

use anyhow::Context as _;
use ingress_datapath::{Applied, Claim, Owner};
use ingress_proxy::Shared;
use tokio::{
    sync::watch,
    time::{Instant, interval},
};
use tracing::{info, warn};

use super::{
    Denied, Failures, Kernel, LimitInput, Slot, limits::Guarded, nics::renew_programs, syn_cookies::apply_syn_cookies,
};

/// Time that an ending process waits for another one to take the node: five checks of the other.
const OFFER: Duration = Duration::from_secs(1);
/// Failure to reclaim the node.
const NOT_BACK: &str = "cannot take the node back";
/// Interval at which an ending process checks whether its offer was taken.
const OFFER_LOOK: Duration = Duration::from_millis(10);

impl Kernel {
    /// Puts our listeners into the slots and claims the node: from now on, new connections come to this process.
    ///
    /// # Errors
    /// Fails if the kernel refuses. Some slots may then already have our listeners, which do serve.
    pub(in crate::daemon) fn take_over(&mut self, shared: &Shared) -> anyhow::Result<()> {
        self.find_announced();
        self.claim(Claim::Any, shared).map(drop)
    }

    /// Claims the node. Returns whether this process owns it now.
    pub(super) fn claim(&mut self, claim: Claim, shared: &Shared) -> anyhow::Result<bool> {
        let ports = self.steered(shared);
        let limited = LimitInput::of(&shared.snapshot());
        let denied = Denied::of(&shared.snapshot(), &limited);
        let Self { datapath, slots, interfaces, failures, .. } = self;
        let mut guarded = Guarded { denied: Ok(Applied::default()), limited: None };
        // Ownership is set before the slots, so that no flow is entered under an unknown epoch.
        let equip = || {
            for Slot { number, listener } in slots {
                datapath.register_listener(*number, listener.as_fd())?;
            }
            // The deny list comes before the ports, so that no port opens to denied clients. A failure to set the list
            // does not prevent service.
            guarded = limited.guard(&denied, datapath);
            datapath.set_ports(&ports)?;
            renew_programs(datapath, interfaces, failures);
            apply_syn_cookies(datapath, failures);
            Ok(())
        };
        let taken = datapath.take_over_with(claim, equip).context("cannot take the node over")?;
        if taken {
            self.applied = ports;
            self.denied = denied.applied(guarded.denied, failures);
            self.limited = limited.applied(guarded.limited, failures);
            self.changed = self.denied.is_none() || self.limited.is_none();
            // Interfaces may have appeared while another process owned the node.
            self.astray = true;
            self.set_addresses();
            self.evict_dead();
        }
        Ok(taken)
    }

    /// Offers the node to other processes if this one owns it and there are others. Serves on until one of them takes
    /// it, or until a second has passed. Must be called before the slots are released: a predecessor left alone by a
    /// roll-back then takes over without a gap.
    pub(in crate::daemon) async fn offer(&self) {
        // The order matters: a claiming process holds the lock until its listeners are in all slots, and `has_company`
        // waits for the lock. If the node was just claimed, our listeners are thus closed only afterwards.
        let is_owner = self.datapath.owner() == Owner::This;
        let has_company = self.datapath.has_company().unwrap_or(false);
        if !is_owner || !has_company {
            return;
        }
        if let Err(error) = self.datapath.give_up() {
            warn!(%error, "cannot offer the node to another process; that one takes over when this one has ended");
            return;
        }
        let (mut look, limit) = (interval(OFFER_LOOK), Instant::now() + OFFER);
        while Instant::now() < limit {
            look.tick().await;
            if self.datapath.owner() != Owner::This {
                if let Err(error) = self.datapath.has_company() {
                    warn!(%error, "cannot wait for the next owner of the node");
                }
                info!("another process has taken the node");
                return;
            }
        }
    }

    /// Checks the owner of the node, and reclaims the node if it has none.
    pub(super) fn look(&mut self, owner: &watch::Sender<bool>, shared: &Shared) {
        match self.datapath.owner() {
            Owner::Other => {
                if owner.send_if_modified(|owner| std::mem::replace(owner, false)) {
                    // Told again if this process gets the node back, and they are still there.
                    self.failures = Failures::default();
                    info!("a newer process owns the node; serving the remaining connections until SIGTERM");
                }
                self.failures.note(NOT_BACK, None);
                return;
            }
            Owner::This if *owner.borrow() => return,
            // Owned but not marked as such: an earlier claim failed before its slots and ports were set.
            Owner::Unassigned | Owner::This => {}
        }
        // The process that owned the node until now may have begun and ended moves.
        self.find_moves();
        // After a failure, missing resources, such as descriptors, may be available at the next check. Ending would leave the
        // node without an owner.
        let claimed = self.claim(Claim::Ownerless, shared);
        self.failures.note(NOT_BACK, claimed.as_ref().err().map(AsRef::as_ref));
        if matches!(claimed, Ok(true)) {
            warn!("the process that owned the node died or is stopping; took the node back");
            owner.send_replace(true);
        }
    }
}
