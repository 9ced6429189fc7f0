//! Adds and removes denials, from a serving process or from outside. Both use the same code, so the result does not
//! depend on the caller.

use std::path::Path;

use ipnet::IpNet;

use super::{
    super::{
        error::Error,
        maps::Maps,
        pinned,
        pins::Pins,
        sys::{self, PinAccess},
    },
    Denial, DenialOrigin, DenyConfig, Rejection,
    apply::{DenyListState, apply},
    denials::{self, PinnedDenial},
    prefix,
};

/// Editor for the denials of a node from outside, independent of a serving process.
#[derive(Debug)]
pub struct DenyEditor {
    pins: Pins,
    maps: Maps,
}

/// Result of adding a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialOutcome {
    /// The denial is in force.
    Enforced,
    /// The denial is recorded, but does not fit in the trie: no packets are dropped until there is room.
    LeftOut,
    Rejected(Rejection),
}

/// Result of [`DenyEditor::remove`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The network in canonical form, as shown in the list.
    pub network: IpNet,
    /// Origins of the removed denials of exactly this network.
    pub origins: Vec<DenialOrigin>,
    /// Whether the configuration also denies exactly this network.
    pub is_configured: bool,
    /// The longest prefix that still denies the network: itself, or one that contains it.
    pub still_denied_by: Option<IpNet>,
}

// === impl DenyEditor ===

impl DenyEditor {
    /// Opens the pins below `bpffs` for writing.
    ///
    /// # Errors
    /// Fails like [`super::super::Pinned::open`].
    pub fn open(bpffs: &Path) -> Result<Self, Error> {
        let (pins, maps) = pinned::open(bpffs, PinAccess::Write)?;
        Ok(Self { pins, maps })
    }

    /// Adds a denial, replacing one of the same origin.
    ///
    /// # Errors
    /// Fails with [`Error::Kernel`].
    pub fn add(&self, denial: &Denial) -> Result<DenialOutcome, Error> {
        let _exclusive = self.pins.lock()?;
        let (entered, _state) = enter(&self.maps, std::slice::from_ref(denial))?;
        Ok(entered.first().copied().unwrap_or(DenialOutcome::LeftOut))
    }

    /// Removes all denials of exactly this network.
    ///
    /// # Errors
    /// Fails with [`Error::Kernel`].
    pub fn remove(&self, network: IpNet) -> Result<Removed, Error> {
        let network = prefix::canonical(network);
        let _exclusive = self.pins.lock()?;
        let mut origins = Vec::new();
        for entry in denials::entries(&self.maps)?.iter().filter(|entry| entry.network == network) {
            entry.remove(&self.maps)?;
            origins.push(entry.origin);
        }
        let is_configured = DenyConfig::read(&self.maps)?.denies(network);
        let DenyListState { entries, .. } = apply(&self.maps)?;
        let around = entries.iter().filter(|(prefix, _)| prefix.contains(&network));
        let deciding = around.max_by_key(|(prefix, _)| prefix.prefix_len());
        let still_denied_by = deciding.filter(|(_, rule)| rule.is_some()).map(|(prefix, _)| *prefix);
        Ok(Removed { network, origins, is_configured, still_denied_by })
    }
}

/// Adds denials, each replacing one of the same origin, and applies them. Returns the result for each, and the list.
///
/// The caller must hold the lock of the pins.
pub(super) fn enter(maps: &Maps, denials: &[Denial]) -> Result<(Vec<DenialOutcome>, DenyListState), Error> {
    let (trusted, now_ns) = (DenyConfig::read(maps)?.trusted().collect::<Vec<_>>(), sys::now_ns());
    // Expired entries might take the room of new ones.
    denials::end(maps, now_ns)?;
    let mut rejected = Vec::with_capacity(denials.len());
    for denial in denials {
        let entry = PinnedDenial::begin(denial, now_ns);
        let network = entry.network;
        rejected.push(match trusted.iter().find(|trusted| trusted.contains(&network)) {
            Some(&by) => Some(Rejection::Trusted { network, by }),
            None if entry.set(maps)? => None,
            None => Some(Rejection::Full),
        });
    }
    let state = apply(maps)?;
    let entered = denials.iter().zip(rejected).map(|(denial, rejected)| match rejected {
        Some(why) => DenialOutcome::Rejected(why),
        None if state.entries.contains_key(&prefix::canonical(denial.network)) => DenialOutcome::Enforced,
        None => DenialOutcome::LeftOut,
    });
    Ok((entered.collect(), state))
}
