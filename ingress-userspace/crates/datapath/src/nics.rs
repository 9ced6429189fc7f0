//! The interfaces with programs. Received packets are seen by `ingress_xdp`, or by `ingress_tc_in` if XDP cannot be
//! attached; sent packets by `ingress_tc_out`. The latter counts, and restores rewritten ports; if it cannot be
//! attached, no port is rewritten and everything else works. An interface without a program for received packets gets
//! none for sent ones.
//!
//! Interfaces appear, disappear and are renamed while a process runs. [`Nics::reconcile`] adapts the attachments, and
//! leaves correct ones alone, because some drivers stop for a moment when a program is attached.

use std::{
    os::fd::AsFd as _,
    sync::{Arc, PoisonError, RwLockReadGuard, RwLockWriteGuard},
};

use aya::{Ebpf, programs::ProgramFd};

use super::{
    Attachment, Datapath, Interfaces, NicMode, NicReport, NicState, Options, ProgramReport, TcHook, TransmitState,
    XdpMode,
    error::Error,
    link::{self, XdpHook},
    maps::Maps,
    object,
    owner::Owner,
    pins::Pins,
    restore::OwnPrograms,
    sys,
    table::MapTable,
    tc::{self, Direction},
};
use crate::shared::DatapathShared;
use ingress_common::{
    Nic,
    map::{NIC_GONE, NIC_OTHER},
    steer::{NIC_ABOVE, NIC_TRANSMITS},
};

/// The programs, and the interfaces that have them.
#[derive(Debug)]
pub(super) struct Nics {
    pub(super) object: Ebpf,
    /// Name of the program for XDP.
    pub(super) xdp: &'static str,
    /// Name of the program for sk_lookup, if it delivers.
    pub(super) lookup: Option<&'static str>,
    mode: XdpMode,
    hook: Option<TcHook>,
    /// Error for which `ingress_tc_out` is not available.
    silent: Option<Arc<Error>>,
    reports: Vec<NicReport>,
    /// Content of the map `nics`.
    pub(super) entries: Vec<(u32, Nic)>,
}

/// Handling of programs, links and entries that this process would not have attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leftovers {
    /// Stay, for a process that starts beside another one: they serve until it takes the node over.
    Keep,
    Remove,
}

/// Access to names, links and counters.
#[derive(Clone, Copy)]
pub(super) struct NicContext<'a> {
    pub(super) pins: &'a Pins,
    pub(super) maps: &'a Maps,
}

// === impl Datapath, Nics ===

impl Datapath {
    /// Attaches the programs to these interfaces, which may have appeared, disappeared or been renamed. New interfaces
    /// get them, they are removed from interfaces not listed, and the rest is not disturbed. Must be called by the
    /// owner of the node, because all its processes share the pins. Idempotent.
    ///
    /// An unavailable mode is not an error here ([`NicState::Failed`]), nor is a missing interface.
    ///
    /// # Errors
    /// Fails if the pins cannot be locked or the maps not be written. Some interfaces may then lack programs.
    pub fn reconcile(&self, interfaces: &Interfaces) -> Result<(), Error> {
        let _exclusive = self.shared.pins.lock()?;
        let DatapathShared { pins, maps, life, .. } = &*self.shared;
        // Checked under the lock: a process that has taken the node since has attached programs by its own settings, and so
        // has one that has made the pins anew after `unload`.
        if self.owner() == Owner::Other || !life.is_registered(pins) {
            return Ok(());
        }
        self.nics_mut().reconcile(NicContext { pins, maps }, interfaces)
    }

    /// Returns the state of each interface after the latest [`Datapath::reconcile`].
    #[must_use]
    pub fn interfaces(&self) -> Vec<NicReport> {
        self.nics().reports().to_vec()
    }

    pub(super) fn nics(&self) -> RwLockReadGuard<'_, Nics> {
        self.nics.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn nics_mut(&self) -> RwLockWriteGuard<'_, Nics> {
        self.nics.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Nics {
    /// Attaches the programs to the interfaces in `options`, or replaces those of an earlier process. `leftovers` applies to
    /// all other interfaces, and to all with [`XdpMode::Off`]. `xdp` and `lookup` are the names of the programs for XDP and,
    /// if it delivers, for sk_lookup.
    ///
    /// # Errors
    /// Returns the kernel's error for an interface that does not support the requested mode.
    pub(super) fn attach(
        place: NicContext<'_>,
        mut object: Ebpf,
        (xdp, lookup): (&'static str, Option<&'static str>),
        options: &Options,
        leftovers: Leftovers,
        programs: &mut Vec<ProgramReport>,
    ) -> Result<Self, Error> {
        let (_, report) = object::program(&mut object, xdp)?;
        programs.push(report);
        let loaded = object::program(&mut object, object::TC_OUT).map(|(_, report)| programs.push(report));
        let silent = loaded.err().map(Arc::new);
        let (mode, hook) = (options.xdp_mode, options.tc_hook);
        let (reports, entries) = (Vec::new(), Vec::new());
        let mut nics = Self { object, xdp, lookup, mode, hook, silent, reports, entries };
        nics.follow(place, &options.interfaces, leftovers)?;
        if mode != XdpMode::Auto
            && let Some(failed) = nics.reports.iter_mut().find(|nic| nic.state == NicState::Failed)
            && let Some(refusal) = failed.refusals.pop().and_then(Arc::into_inner)
        {
            return Err(refusal);
        }
        Ok(nics)
    }

    /// Returns the state of each interface.
    pub(super) fn reports(&self) -> &[NicReport] {
        &self.reports
    }

    /// Sets the interfaces with programs to exactly these. Programs are attached to new or returning interfaces, and
    /// all traces are removed from missing or unselected ones. Renamed interfaces keep their programs.
    pub(super) fn reconcile(&mut self, place: NicContext<'_>, interfaces: &Interfaces) -> Result<(), Error> {
        self.follow(place, interfaces, Leftovers::Remove)
    }

    fn follow(&mut self, place: NicContext<'_>, interfaces: &Interfaces, leftovers: Leftovers) -> Result<(), Error> {
        let NicContext { pins, maps } = place;
        let Interfaces { names, above } = interfaces;
        rename_pins(pins)?;
        let before = with_programs(pins)?;
        let there: Vec<_> = names.iter().map(|name| (name.as_str(), sys::interface_index(name))).collect();
        let stays = |name: &str| there.iter().any(|(each, index)| *each == name && index.is_some());
        for name in before.iter().filter(|name| leftovers == Leftovers::Remove && !stays(name)) {
            link::remove(&pins.xdp_link(name))?;
            tc::detach(pins, Direction::In, name)?;
            tc::detach(pins, Direction::Out, name)?;
        }
        make_room(maps, there.iter().filter_map(|(_, index)| *index))?;
        let own = self.own_programs();
        let mut reports = Vec::with_capacity(names.len());
        let mut nics = Vec::with_capacity(names.len() + above.len());
        for (name, index) in there {
            let report = match index {
                None => without(name, 0, NicState::Absent),
                Some(index) if self.mode == XdpMode::Off && leftovers == Leftovers::Keep => {
                    without(name, index, NicState::Off)
                }
                Some(index) => match self.standing(pins, own, (name, index))? {
                    Some(report) => report,
                    None => self.attach_to(place, (name, index), before.iter().any(|each| each == name))?,
                },
            };
            if let NicState::Attached { mode, .. } = report.state {
                let flags = if report.transmit.is_attached() { NIC_TRANSMITS } else { 0 };
                let nic = Nic { mode: mode.code(), flags };
                // Written at once, so that a failure at the next interface does not lose this one.
                maps.nics.set(&report.index, &nic)?;
                nics.push((report.index, nic));
            }
            reports.push(report);
        }
        // If a lower interface lacks a program, packets of the upper one may not have been seen.
        if reports.iter().all(|nic| nic.state != NicState::Failed) {
            nics.extend(above.iter().map(|index| (*index, Nic { mode: NIC_ABOVE, flags: 0 })));
        }
        match leftovers {
            Leftovers::Keep => nics.iter().try_for_each(|(index, nic)| maps.nics.set(index, nic))?,
            Leftovers::Remove => maps.nics.replace(&nics)?,
        }
        (self.reports, self.entries) = (reports, nics);
        Ok(())
    }

    /// Returns the previous state of an interface if it needs no change. A foreign program seen before may be gone, so
    /// such an interface is tried again.
    fn standing(&self, pins: &Pins, own: OwnPrograms, nic: (&str, u32)) -> Result<Option<NicReport>, Error> {
        let (name, index) = nic;
        let before = self.reports.iter().find(|before| before.index == index);
        let Some(before) = before.filter(|before| before.state.is_attached() && !before.is_busy()) else {
            return Ok(None);
        };
        let stands = Self::has_own_programs(pins, own, nic, before)?;
        Ok(stands.then(|| NicReport { name: name.to_owned(), ..before.clone() }))
    }

    /// Attaches the programs to one interface; `before` means that it may have some already. Programs on an interface
    /// that was never ours are foreign.
    fn attach_to(&mut self, place: NicContext<'_>, nic: (&str, u32), before: bool) -> Result<NicReport, Error> {
        let (name, index) = nic;
        let (state, refusals) = self.receive(place.pins, nic)?;
        if before && !is_by_tc(state) {
            // Detached only after XDP is attached: both see a packet for a moment, but denials apply at all times.
            tc::detach(place.pins, Direction::In, name)?;
        }
        let transmit = self.transmit(place.pins, nic, state, before);
        let refusals = refusals.into_iter().map(Arc::new).collect();
        Ok(NicReport { name: name.to_owned(), index, state, refusals, transmit })
    }

    /// Attaches a program for received packets, in the best available mode of the selected ones. Also returns the
    /// errors of better modes.
    fn receive(&mut self, pins: &Pins, nic: (&str, u32)) -> Result<(NicState, Vec<Error>), Error> {
        let (name, index) = nic;
        let wanted = self.mode.ladder();
        // The interface has refused better modes than its own. A worse one is another process's.
        let own = self.reports.iter().find(|before| before.index == index).and_then(|before| before.state.xdp_hook());
        let is_wanted = |hook: XdpHook| own.map_or_else(|| wanted.contains(&NicMode::of_xdp(hook)), |own| own == hook);
        if wanted.iter().any(|mode| mode.xdp_hook().is_some()) {
            if let Some(hook) = link::adopt_xdp(pins, self.xdp()?.as_fd(), nic, is_wanted)? {
                let mode = NicMode::of_xdp(hook);
                return Ok((NicState::Attached { mode, attachment: Attachment::Adopted }, Vec::new()));
            }
            // Its device is gone, or it is in another mode than wanted: it would block a new one. Denials apply meanwhile,
            // if they can; the caller removes the program of tc.
            let is_attached = link::program(&pins.xdp_link(name), index)?.is_some_and(|program| program != 0);
            let _without = is_attached && self.attach_tc_in(pins, nic).is_err();
            link::remove(&pins.xdp_link(name))?;
        }
        let (state, refusals) = self.attach_first(pins, nic, wanted);
        if state.xdp_hook().is_none() {
            // Removed only now: both programs see a packet for a moment, but denials apply at all times.
            link::remove(&pins.xdp_link(name))?;
        }
        Ok((state, refusals))
    }

    /// Attaches a program for received packets in the first of these modes that the interface accepts. Also returns the
    /// errors of those before it.
    fn attach_first(&mut self, pins: &Pins, nic: (&str, u32), modes: &[NicMode]) -> (NicState, Vec<Error>) {
        let mut refusals = Vec::new();
        for mode in modes {
            let is_busy = matches!(refusals.last(), Some(Error::Busy { .. }));
            let attached = match mode {
                // If the driver mode is taken by a foreign program, so is the generic one; no program is displaced.
                NicMode::Generic if is_busy => continue,
                NicMode::Native => self.attach_xdp(pins, nic, XdpHook::Driver).map(|()| (*mode, Attachment::Created)),
                NicMode::Generic => self.attach_xdp(pins, nic, XdpHook::Stack).map(|()| (*mode, Attachment::Created)),
                NicMode::Tcx | NicMode::Clsact => self.attach_tc_in(pins, nic),
            };
            match attached {
                Ok((mode, attachment)) => return (NicState::Attached { mode, attachment }, refusals),
                Err(refusal) => refusals.push(refusal),
            }
        }
        (if modes.is_empty() { NicState::Off } else { NicState::Failed }, refusals)
    }

    fn attach_xdp(&self, pins: &Pins, nic: (&str, u32), hook: XdpHook) -> Result<(), Error> {
        link::create_xdp(pins, self.xdp()?.as_fd(), nic, hook)
    }

    /// Returns the program for XDP.
    fn xdp(&self) -> Result<&ProgramFd, Error> {
        object::fd(&self.object, self.xdp)
    }

    fn attach_tc_in(&mut self, pins: &Pins, nic: (&str, u32)) -> Result<(NicMode, Attachment), Error> {
        // Loaded on demand, because few interfaces need it.
        let program = object::classifier(&mut self.object, object::TC_IN)?;
        let (hook, attachment) = tc::attach(pins, program, Direction::In, nic, self.hook)?;
        let mode = match hook {
            TcHook::Tcx => NicMode::Tcx,
            TcHook::Clsact => NicMode::Clsact,
        };
        Ok((mode, attachment))
    }

    /// Attaches the program for sent packets, if there is one for received packets. `before` is the same as in
    /// [`Nics::attach_to`].
    fn transmit(&mut self, pins: &Pins, nic: (&str, u32), state: NicState, before: bool) -> TransmitState {
        let (name, _) = nic;
        let attached = match (&self.silent, state.is_attached()) {
            (_, false) if !before => Ok(TransmitState::Off),
            (_, false) => tc::detach(pins, Direction::Out, name).map(|_| TransmitState::Off),
            (Some(error), true) => return TransmitState::Failed(Arc::clone(error)),
            (None, true) => object::classifier(&mut self.object, object::TC_OUT)
                .and_then(|program| tc::attach(pins, program, Direction::Out, nic, self.hook))
                .map(|(hook, attachment)| TransmitState::Attached { hook, attachment }),
        };
        attached.unwrap_or_else(|error| TransmitState::Failed(Arc::new(error)))
    }
}

impl XdpMode {
    /// Returns the modes to try, best first. [`NicMode::Tcx`] also stands for clsact, where tcx is not available.
    const fn ladder(self) -> &'static [NicMode] {
        match self {
            Self::Auto => &[NicMode::Native, NicMode::Generic, NicMode::Tcx],
            Self::Native => &[NicMode::Native],
            Self::Generic => &[NicMode::Generic],
            Self::Tcx => &[NicMode::Tcx],
            Self::Off => &[],
        }
    }
}

/// Checks that at least one interface exists. Others may appear later.
pub(super) fn check(interfaces: &Interfaces) -> Result<(), Error> {
    match interfaces.names.first() {
        Some(first) if interfaces.names.iter().all(|name| sys::interface_index(name).is_none()) => {
            Err(Error::NoInterface(first.clone()))
        }
        _ => Ok(()),
    }
}

const fn is_by_tc(state: NicState) -> bool {
    matches!(state, NicState::Attached { mode: NicMode::Tcx | NicMode::Clsact, .. })
}

/// Returns the report of an interface without programs of this process.
fn without(name: &str, index: u32, state: NicState) -> NicReport {
    NicReport { name: name.to_owned(), index, state, refusals: Vec::new(), transmit: TransmitState::Off }
}

/// Returns the interfaces that may have programs of this process or an earlier one; some may be gone.
pub(super) fn with_programs(pins: &Pins) -> Result<Vec<String>, Error> {
    let mut names: Vec<_> = pins.nic_pins()?.into_iter().map(|pin| pin.interface).collect();
    // Filters have no pins. Without the map, or with another layout of it, no filters are known.
    let nics = MapTable::<u32, Nic>::open(pins, ingress_common::map::NICS, sys::PinAccess::Read);
    let nics = nics.and_then(|nics| nics.entries()).unwrap_or_default();
    let have = nics.into_iter().filter(|(_, nic)| nic.mode != NIC_ABOVE);
    names.extend(have.filter_map(|(index, _)| sys::interface_name(index)));
    names.sort();
    names.dedup();
    Ok(names)
}

/// Renames each pinned link to the current name of its interface.
fn rename_pins(pins: &Pins) -> Result<(), Error> {
    let mut moved = Vec::new();
    for pin in pins.nic_pins()? {
        // Other pins are skipped; they are detected when a program is attached in their place.
        let Ok(Some((_, info))) = link::pinned(&pins.nic_pin(&pin)) else { continue };
        let Some(name) = sys::interface_name(info.target).filter(|name| *name != pin.interface) else { continue };
        // Moved to an impossible interface name first, because two interfaces may have swapped names.
        moved.push((pins.rename(&pin, format!("{} renamed", info.target))?, name));
    }
    moved.into_iter().try_for_each(|(pin, name)| pins.rename(&pin, name).map(drop))
}

/// Creates an entry in `nic_net` for each interface, so that programs need not, and merges the counters of missing
/// interfaces: an index is not reused.
fn make_room(maps: &Maps, interfaces: impl Iterator<Item = u32>) -> Result<(), Error> {
    for key in [NIC_OTHER, NIC_GONE] {
        maps.nic_net.ensure(key)?;
    }
    for (index, traffic) in maps.nic_net()? {
        // For an existing interface, a program may still count.
        if index == NIC_OTHER || index == NIC_GONE || sys::interface_exists(index) {
            continue;
        }
        maps.nic_net.change_first(NIC_GONE, |sum| *sum += traffic)?;
        maps.nic_net.remove(index)?;
    }
    for index in interfaces {
        // If there is no room, programs count under `NIC_OTHER`.
        let _counted_there = maps.nic_net.ensure(index).is_err();
    }
    Ok(())
}
