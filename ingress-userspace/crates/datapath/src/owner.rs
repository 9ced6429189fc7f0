//! Ownership of a node, and its transfer between processes. Policy is elsewhere: the caller decides which process takes
//! over, and when.

use super::{Datapath, alive::Holder, error::Error};

/// Owner of the node, see [`Datapath::take_over`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    This,
    /// Another living process.
    Other,
    /// No process yet, a dead one, or one that has offered the node ([`Datapath::give_up`]).
    Unassigned,
}

/// Condition for taking a node over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Claim by a successor: from any owner.
    Any,
    /// Claim by a remaining predecessor: only if no other process owns the node, as one may have been faster.
    Ownerless,
}

impl Datapath {
    /// Makes this process the owner of the node, so that its heartbeat counts; the previous owner drains. Must be
    /// called once the process can serve, just before its listeners go into the slots: flows carry the epoch of an
    /// owner. Before that, a node without a share gets the first one ([`super::Options::initial_share`]). Idempotent.
    ///
    /// # Errors
    /// Fails if the pins cannot be locked; then nothing has changed.
    pub fn take_over(&self) -> Result<(), Error> {
        self.take_over_with(Claim::Any, || Ok(())).map(drop)
    }

    /// Runs [`Datapath::take_over`] and then `equip`, which fills the slots, before another process can do the same.
    /// Otherwise, two concurrent takeovers would each get some of the slots, and those of the first would become empty
    /// when it ends. Returns whether the node was taken.
    ///
    /// `equip` must not assign host numbers ([`Datapath::host_ids`]): that takes the same lock.
    ///
    /// # Errors
    /// Fails if the pins cannot be locked, or with the error of `equip`, after which the process owns the node.
    pub fn take_over_with(&self, claim: Claim, equip: impl FnOnce() -> Result<(), Error>) -> Result<bool, Error> {
        let _exclusive = self.shared.pins.lock()?;
        if claim == Claim::Ownerless && self.owner() == Owner::Other {
            return Ok(false);
        }
        if claim == Claim::Any {
            // Here, because the end of a share is counted from now, and only the owner renews it.
            self.shared.share.begin(self.initial_share);
        }
        self.shared.life.take_over(&self.shared.pins)?;
        equip().map(|()| true)
    }

    /// Offers the node to every other process, if this one owns it. Until one of them takes it, everything stays as it
    /// is. The caller waits as long as it wants, and then releases the slots.
    ///
    /// # Errors
    /// Fails if the pins cannot be locked; then nothing has changed.
    pub fn give_up(&self) -> Result<(), Error> {
        let _exclusive = self.shared.pins.lock()?;
        self.shared.life.give_up()
    }

    /// Returns whether another process of the node is alive.
    ///
    /// # Errors
    /// Fails if the marks of living processes cannot be read.
    pub fn has_company(&self) -> Result<bool, Error> {
        let _exclusive = self.shared.pins.lock()?;
        Ok(self.shared.pins.live_epochs()?.iter().any(|&epoch| epoch != self.shared.life.epoch()))
    }

    /// Returns the owner of the node.
    #[must_use]
    pub fn owner(&self) -> Owner {
        match self.shared.life.holder() {
            Holder::This => Owner::This,
            Holder::Other(epoch) if self.shared.pins.is_live(epoch) => Owner::Other,
            Holder::Other(_) | Holder::Leaving => Owner::Unassigned,
        }
    }
}
