//! Enters and removes denials, for a process or beside one. Both do the same, so that it makes no difference who
//! serves.

use std::path::Path;

use ipnet::IpNet;

use super::{
    super::{
        error::Error,
        maps::Maps,
        pinned,
        pins::Pins,
        sys::{self, Access},
    },
    Denial, DenyConfig, Origin, Rejection,
    apply::{State, apply},
    denials::{self, Entry},
    prefix,
};

/// Changes the denials of a node from outside, whether or not a process serves.
#[derive(Debug)]
pub struct DenyEditor {
    pins: Pins,
    maps: Maps,
}

/// What became of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// It holds from now on.
    Enforced,
    /// It stands, but the trie has no room for it: nobody is dropped because of it until there is some.
    LeftOut,
    Rejected(Rejection),
}

/// What [`DenyEditor::remove`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// As the list shows it.
    pub network: IpNet,
    /// Whose denials of exactly this network were there; those are gone.
    pub origins: Vec<Origin>,
    /// Whether the configuration denies exactly this network, too.
    pub is_configured: bool,
    /// The longest prefix that goes on denying it, itself or one around it.
    pub still_denied_by: Option<IpNet>,
}

// === impl DenyEditor ===

impl DenyEditor {
    /// Opens what is pinned below `bpffs` for writing.
    ///
    /// # Errors
    /// As [`super::super::Pinned::open`].
    pub fn open(bpffs: &Path) -> Result<Self, Error> {
        let (pins, maps) = pinned::open(bpffs, Access::Write)?;
        Ok(Self { pins, maps })
    }

    /// Enters a denial, in place of one of the same origin.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn add(&self, denial: &Denial) -> Result<Entered, Error> {
        let _exclusive = self.pins.lock()?;
        let (entered, _state) = enter(&self.maps, std::slice::from_ref(denial))?;
        Ok(entered.first().copied().unwrap_or(Entered::LeftOut))
    }

    /// Removes all denials of exactly this network.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn remove(&self, network: IpNet) -> Result<Removed, Error> {
        let network = prefix::canonical(network);
        let _exclusive = self.pins.lock()?;
        let mut origins = Vec::new();
        for entry in denials::entries(&self.maps)?.iter().filter(|entry| entry.network == network) {
            entry.remove(&self.maps)?;
            origins.push(entry.origin);
        }
        let is_configured = DenyConfig::read(&self.maps)?.denies(network);
        let State { entries, .. } = apply(&self.maps)?;
        let around = entries.iter().filter(|(prefix, _)| prefix.contains(&network));
        let deciding = around.max_by_key(|(prefix, _)| prefix.prefix_len());
        let still_denied_by = deciding.filter(|(_, rule)| rule.is_some()).map(|(prefix, _)| *prefix);
        Ok(Removed { network, origins, is_configured, still_denied_by })
    }
}

/// Enters denials, each in place of one of the same origin, and has the programs heed them. What became of each, and
/// the list.
///
/// To be called under the lock of the pins.
pub(super) fn enter(maps: &Maps, denials: &[Denial]) -> Result<(Vec<Entered>, State), Error> {
    let (trusted, now_ns) = (DenyConfig::read(maps)?.trusted().collect::<Vec<_>>(), sys::now_ns());
    // They would be in the way of others.
    denials::end(maps, now_ns)?;
    let mut rejected = Vec::with_capacity(denials.len());
    for denial in denials {
        let entry = Entry::begin(denial, now_ns);
        let network = entry.network;
        rejected.push(match trusted.iter().find(|trusted| trusted.contains(&network)) {
            Some(&by) => Some(Rejection::Trusted { network, by }),
            None if entry.set(maps)? => None,
            None => Some(Rejection::Full),
        });
    }
    let state = apply(maps)?;
    let entered = denials.iter().zip(rejected).map(|(denial, rejected)| match rejected {
        Some(why) => Entered::Rejected(why),
        None if state.entries.contains_key(&prefix::canonical(denial.network)) => Entered::Enforced,
        None => Entered::LeftOut,
    });
    Ok((entered.collect(), state))
}
