//! Whose the node is: takes it over, offers it to others, and takes it back when it is nobody's.

use std::{os::fd::AsFd as _, time::Duration};

use anyhow::Context as _;
use ingress_userspace::{
    datapath::{Applied, Claim, Owner},
    proxy::Shared,
};
use tokio::{
    sync::watch,
    time::{Instant, interval},
};
use tracing::{info, warn};

use super::{Denied, Kernel, Limited, Slot, limits::Guarded};

/// How long a process that ends waits for another one to take the node: five looks of that one.
const OFFER: Duration = Duration::from_secs(1);
/// How often it looks whether one has.
const OFFER_LOOK: Duration = Duration::from_millis(10);

impl Kernel {
    /// Puts our listeners into the slots and makes the node ours: from here on new connections come to this process.
    ///
    /// # Errors
    /// If the kernel refuses; then some slots may be ours already, which serve.
    pub(in crate::app) fn take_over(&mut self, shared: &Shared) -> anyhow::Result<()> {
        self.claim(Claim::Any, shared).map(drop)
    }

    /// Whether the node is ours now.
    pub(super) fn claim(&mut self, claim: Claim, shared: &Shared) -> anyhow::Result<bool> {
        let ports = self.steered(shared);
        let limited = Limited::of(&shared.snapshot());
        let denied = Denied::of(&shared.snapshot(), &limited);
        let Self { datapath, slots, .. } = self;
        let mut guarded = Guarded { denied: Ok(Applied::default()), limited: None };
        // The node first and the slots after it, so that no flow is ever entered under an epoch that nobody knows of.
        let equip = || {
            for Slot { number, listener } in slots {
                datapath.register_listener(*number, listener.as_fd())?;
            }
            // Before the ports, so that none opens to whom it should not. A list that the kernel does not take keeps
            // nobody from being served.
            guarded = limited.guard(&denied, datapath);
            datapath.set_ports(&ports)
        };
        let taken = datapath.take_over_with(claim, equip).context("cannot take the node over")?;
        if taken {
            self.told = ports;
            self.denied = denied.told(guarded.denied);
            self.limited = limited.told(guarded.limited);
            self.changed = self.denied.is_none() || self.limited.is_none();
            // Interfaces may have come while the node was another's.
            self.astray = true;
            self.set_addresses();
            self.sweep();
        }
        Ok(taken)
    }

    /// Offers the node to the other processes on it, if it is ours and there are any, and goes on as before until one
    /// takes it, or none does for a second. To be called before the slots are released: a predecessor that a roll-back
    /// leaves alone then takes over without a gap.
    pub(in crate::app) async fn offer(&self) {
        // In this order: whoever takes the node holds the lock until its listeners are in all slots, and finding out
        // whether there is anybody waits for the lock. So if the node was just taken, ours are closed only after that.
        let is_owner = self.datapath.owner() == Owner::This;
        let has_company = self.datapath.has_company().unwrap_or(false);
        if !is_owner || !has_company {
            return;
        }
        if let Err(error) = self.datapath.give_up() {
            warn!(%error, "cannot offer the node to another process; it takes over when this one has ended");
            return;
        }
        let (mut look, limit) = (interval(OFFER_LOOK), Instant::now() + OFFER);
        while Instant::now() < limit {
            look.tick().await;
            if self.datapath.owner() != Owner::This {
                if let Err(error) = self.datapath.has_company() {
                    warn!(%error, "cannot wait for the process that takes the node");
                }
                info!("another process has taken the node");
                return;
            }
        }
    }

    /// Finds out whose the node is, and takes it if it is nobody's.
    pub(super) fn look(&mut self, owner: &watch::Sender<bool>, shared: &Shared) {
        match self.datapath.owner() {
            Owner::Other => {
                if owner.send_if_modified(|owner| std::mem::replace(owner, false)) {
                    info!("a newer process owns the node; serving the connections that are left until SIGTERM");
                }
                return;
            }
            Owner::This if *owner.borrow() => return,
            // If it is ours, something went wrong before its slots and ports were.
            Owner::Nobody | Owner::This => {}
        }
        match self.claim(Claim::Ownerless, shared) {
            Ok(true) => {
                warn!("the process that owned the node has died or ends; took the node back");
                owner.send_replace(true);
            }
            Ok(false) => {}
            // What is lacking now, as descriptors, may be there at the next look; ending would leave the node without
            // anybody.
            Err(error) => warn!("cannot take the node back, trying again: {error:#}"),
        }
    }
}
