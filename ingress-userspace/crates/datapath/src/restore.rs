//! Programs that another process has changed, or links that somebody has detached: the owner of a node compares what the
//! kernel has with what it attached itself, and restores that. Only pinned links, filters of our name and handle, and
//! entries of our maps count as ours; all else stays.

use std::os::fd::AsFd as _;

use super::{
    Datapath, Interfaces, NicMode, NicReport, NicState, Owner, TcHook, TransmitState,
    error::Error,
    link,
    nics::{NicContext, Nics},
    object,
    pins::Pins,
    sys,
    tc::{self, Direction},
};
use crate::shared::DatapathShared;

/// The programs of this process by the kernel's number; `None` if they are not loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnPrograms {
    xdp: Option<u32>,
    tc_in: Option<u32>,
    tc_out: Option<u32>,
    /// `None` also if connections are not delivered by sk_lookup.
    lookup: Option<u32>,
}

impl Datapath {
    /// Restores the programs of this process, their modes and their interfaces where another process has changed them, and
    /// the delivery by sk_lookup. Removes programs and links that this process does not want, which [`Datapath::open`] left
    /// to its predecessor. Must be called by the owner of the node, under the lock held by [`Datapath::take_over_with`].
    /// Returns whether there was something to change. Idempotent.
    ///
    /// A program in the right mode is replaced in place. Between the two modes of XDP, which exclude each other, an
    /// interface has no program for a moment: packets pass.
    ///
    /// # Errors
    /// Fails if the pins cannot be read or the kernel refuses; some interfaces then keep the other state.
    pub fn renew_programs(&self, interfaces: &Interfaces) -> Result<bool, Error> {
        let DatapathShared { pins, maps, life, .. } = &*self.shared;
        let place = NicContext { pins, maps };
        if !life.is_registered(pins) || !self.nics().are_changed(place)? {
            return Ok(false);
        }
        let mut nics = self.nics_mut();
        nics.attach_lookup(pins)?;
        nics.reconcile(place, interfaces).map(|()| true)
    }

    /// Same as [`Datapath::renew_programs`], for processes that have attached their programs and ended before they took the
    /// node over, and for links that were detached below their pins. For the owner of the node, about each second. Changes
    /// nothing while a newer process is alive, which may take the node over, while another one changes the pins, or after
    /// `unload`.
    ///
    /// # Errors
    /// Fails like [`Datapath::renew_programs`].
    pub fn keep_programs(&self, interfaces: &Interfaces) -> Result<bool, Error> {
        let DatapathShared { pins, maps, life, .. } = &*self.shared;
        if !life.is_registered(pins) || !self.nics().are_changed(NicContext { pins, maps })? {
            return Ok(false);
        }
        // A starting process holds the lock while it verifies its programs: the owner does not wait that long.
        let Some(_exclusive) = pins.try_lock() else { return Ok(false) };
        let is_newest = pins.live_epochs()?.iter().all(|&epoch| epoch <= life.epoch());
        if is_newest && self.owner() == Owner::This { self.renew_programs(interfaces) } else { Ok(false) }
    }
}

impl Nics {
    /// Returns the numbers of the programs, for the checks below.
    pub(super) fn own_programs(&self) -> OwnPrograms {
        let id = |name| object::id(&self.object, name).ok();
        let lookup = self.lookup.and_then(id);
        OwnPrograms { xdp: id(self.xdp), tc_in: id(object::TC_IN), tc_out: id(object::TC_OUT), lookup }
    }

    /// Returns whether an interface has exactly the programs of `report`, in their modes, and each of them is this
    /// process's. A link keeps its mode, and a program is put into a link of its own mode alone, so that the number of the
    /// program tells the mode as well.
    ///
    /// # Errors
    /// Fails if the kernel does not say.
    pub(super) fn has_own_programs(
        pins: &Pins,
        own: OwnPrograms,
        (name, index): (&str, u32),
        report: &NicReport,
    ) -> Result<bool, Error> {
        let NicReport { state, transmit, .. } = report;
        let mode = match state {
            NicState::Attached { mode, .. } => Some(*mode),
            NicState::Failed | NicState::Absent | NicState::Off => None,
        };
        let (by_xdp, by_tcx, by_filter) = match mode {
            Some(NicMode::Native | NicMode::Generic) => (own.xdp, None, None),
            Some(NicMode::Tcx) => (None, own.tc_in, None),
            Some(NicMode::Clsact) => (None, None, own.tc_in),
            None => (None, None, None),
        };
        if link::program(&pins.xdp_link(name), index)? != by_xdp
            || link::program(&pins.tc_in_link(name), index)? != by_tcx
        {
            return Ok(false);
        }
        let (out_by_tcx, out_by_filter) = match transmit {
            TransmitState::Attached { hook: TcHook::Tcx, .. } => (own.tc_out, None),
            TransmitState::Attached { hook: TcHook::Clsact, .. } => (None, own.tc_out),
            TransmitState::Off => (None, None),
            // Reported, and with the next change of interfaces tried again.
            TransmitState::Failed(_) => return Ok(by_filter.is_none() || has_filter(Direction::In, index, by_filter)?),
        };
        if link::program(&pins.tc_out_link(name), index)? != out_by_tcx {
            return Ok(false);
        }
        // Few interfaces have filters, and each question takes the kernel's lock for interfaces.
        if by_filter.is_none() && out_by_filter.is_none() {
            return Ok(true);
        }
        Ok(has_filter(Direction::In, index, by_filter)? && has_filter(Direction::Out, index, out_by_filter)?)
    }

    /// Returns whether programs, links, pins or the map `nics` have been changed since the latest [`Nics::reconcile`], by
    /// another process or by hand.
    fn are_changed(&self, place: NicContext<'_>) -> Result<bool, Error> {
        let NicContext { pins, maps } = place;
        let own = self.own_programs();
        if link::lookup_program(pins)? != own.lookup {
            return Ok(true);
        }
        for report in self.reports() {
            let NicReport { name, index, .. } = report;
            // Interfaces that appear, disappear or get other names are reported by netlink.
            let is_there = sys::interface_index(name).unwrap_or(0) == *index;
            if is_there && !Self::has_own_programs(pins, own, (name, *index), report)? {
                return Ok(true);
            }
        }
        if pins.nic_pins()?.iter().any(|pin| self.reports().iter().all(|nic| nic.name != pin.interface)) {
            return Ok(true);
        }
        // The only trace of filters on further interfaces.
        let entries = maps.nics()?;
        Ok(entries.len() != self.entries.len() || entries.iter().any(|entry| !self.entries.contains(entry)))
    }

    /// Attaches the program for the socket lookup, or removes that of another process.
    fn attach_lookup(&self, pins: &Pins) -> Result<(), Error> {
        match self.lookup {
            Some(name) => link::lookup(pins, object::fd(&self.object, name)?.as_fd()).map(drop),
            None => link::remove_lookup(pins),
        }
    }
}

/// Returns whether our filter of an interface has this program, or is absent for `None`.
fn has_filter(direction: Direction, index: u32, program: Option<u32>) -> Result<bool, Error> {
    Ok(tc::filter_program(direction, index)? == program)
}
