//! Which process a node belongs to, and how it passes from one to the next. It decides nothing: who takes over, and when, is up
//! to the caller.

use super::{Datapath, alive::Holder, error::Error};

/// Who owns the node, see [`Datapath::take_over`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    This,
    /// Another process that lives.
    Other,
    /// Nobody yet, a process that has died, or one that has given the node up ([`Datapath::give_up`]).
    Nobody,
}

/// When to take a node over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// As a successor: from whoever owns it.
    Any,
    /// As a predecessor that is left: only if no other owns it, which may have been faster.
    Ownerless,
}

impl Datapath {
    /// Makes this process the owner of the node, the one whose heartbeat counts; the one that owned it drains. To be called when
    /// the process can serve, just before its listeners go into the slots: flows are known by the epoch of an owner. Again, it
    /// does nothing.
    ///
    /// # Errors
    /// If the pins cannot be locked; then nothing has changed.
    pub fn take_over(&self) -> Result<(), Error> {
        self.take_over_with(Claim::Any, || Ok(())).map(drop)
    }

    /// [`Datapath::take_over`] and then `equip`, which fills the slots, before another process can do the same: of two that take
    /// over at one time each would otherwise end up with some of the slots, and those of the first would empty when it ends.
    /// Whether it did.
    ///
    /// `equip` must not number hosts ([`Datapath::host_ids`]): that takes the same lock.
    ///
    /// # Errors
    /// If the pins cannot be locked, and those of `equip`, after which the process owns the node.
    pub fn take_over_with(&self, claim: Claim, equip: impl FnOnce() -> Result<(), Error>) -> Result<bool, Error> {
        let _exclusive = self.shared.pins.lock()?;
        if claim == Claim::Ownerless && self.owner() == Owner::Other {
            return Ok(false);
        }
        self.shared.life.take_over(&self.shared.pins)?;
        equip().map(|()| true)
    }

    /// Invites every other process of the node to take it over, if it is this one's. Until one does, everything stays as it is;
    /// the caller waits for that for as long as it likes, and then lets the slots go.
    ///
    /// # Errors
    /// If the pins cannot be locked; then nothing has changed.
    pub fn give_up(&self) -> Result<(), Error> {
        let _exclusive = self.shared.pins.lock()?;
        self.shared.life.give_up()
    }

    /// Whether another process of the node lives.
    ///
    /// # Errors
    /// If the marks of the living cannot be read.
    pub fn has_company(&self) -> Result<bool, Error> {
        let _exclusive = self.shared.pins.lock()?;
        Ok(self.shared.pins.live_epochs()?.iter().any(|&epoch| epoch != self.shared.life.epoch()))
    }

    /// Who owns the node.
    #[must_use]
    pub fn owner(&self) -> Owner {
        match self.shared.life.holder() {
            Holder::This => Owner::This,
            Holder::Other(epoch) if self.shared.pins.is_live(epoch) => Owner::Other,
            Holder::Other(_) | Holder::Leaving => Owner::Nobody,
        }
    }
}
