//! What is pinned on a node, for tools that look at it from outside: whether a process serves, hangs or has died makes
//! no difference. It asks nobody, changes nothing, and needs no capability, only the right to open the pins.

use std::{collections::BTreeMap, fs, io, os::unix::fs::MetadataExt as _, path::Path, time::Duration};

use aya::Pod;
use ingress_common::{Alive, map, steer};

use super::{
    NicMode,
    error::Error,
    link::{self, NETNS},
    maps::Maps,
    pins::{NicLink, NicPin, Pins},
    sys::{self, Access},
    table::Table,
};

/// The pins of a node, its maps opened for reading only.
#[derive(Debug)]
pub struct Pinned {
    pins: Pins,
    maps: Maps,
}

/// A process of the node, as it stands in the map `alive`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number on this node.
    pub epoch: u32,
    pub role: Role,
    /// Since its latest heartbeat. Beyond [`steer::HEARTBEAT_STALE_NS`] XDP takes the owner for hung.
    pub silence: Duration,
    /// Whether it has not ended; `None` if that cannot be told now, because a process is changing the pins.
    pub lives: Option<bool>,
}

/// What a process is to its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// New connections come to it.
    Owner,
    /// An owner that offers the node to any other process.
    Offering,
    /// It finishes what it had accepted before another took the node over.
    Draining,
}

/// A pinned link: a program where it is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedLink {
    pub hook: Hook,
    pub state: LinkState,
    /// The kernel's numbers for the link and for its program, as bpftool shows them.
    pub link_id: u32,
    pub program_id: u32,
}

/// Where a link is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hook {
    /// The socket lookup of a network namespace.
    Lookup,
    /// The packets that an interface receives, by XDP.
    Xdp {
        interface: String,
        /// `None` if the map `nics` does not know the interface.
        mode: Option<NicMode>,
    },
    /// The packets that an interface receives, by tcx, because XDP cannot be there.
    TcIn { interface: String },
    /// The packets that an interface sends, by tcx. (A filter of clsact has no link.)
    TcOut { interface: String },
}

/// Whether a link does anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    Attached,
    /// Attached to the socket lookup of another network namespace than this thread's.
    Elsewhere,
    /// What it was attached to is gone.
    Severed,
}

/// How full a map is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    pub map: &'static str,
    pub entries: usize,
    pub capacity: u32,
}

// === impl Pinned ===

impl Pinned {
    /// Opens what is pinned below `bpffs`.
    ///
    /// # Errors
    /// [`Error::NothingPinned`] if there is nothing (no process has run, or `unload` has), [`Error::Forbidden`],
    /// [`Error::Layout`] if another version made the pins, [`Error::Kernel`].
    pub fn open(bpffs: &Path) -> Result<Self, Error> {
        let (pins, maps) = open(bpffs, Access::Read)?;
        Ok(Self { pins, maps })
    }

    #[must_use]
    pub const fn maps(&self) -> &Maps {
        &self.maps
    }

    /// The owner of the node, living or not, and a process that drains. A third one, and one that has not taken over
    /// yet, stand nowhere.
    ///
    /// # Errors
    /// If the kernel refuses a read.
    pub fn processes(&self) -> Result<Vec<Process>, Error> {
        // Looking at a mark locks it for a moment, in which nobody may look for it or set it.
        let exclusive = self.pins.try_lock();
        let now = sys::now_ns();
        let mut processes = Vec::new();
        for index in [map::ALIVE_CURRENT, map::ALIVE_DRAINING] {
            let Alive { heartbeat_ns, epoch, state } = self.maps.alive(index)?;
            let role = match (index, state) {
                (_, steer::ALIVE_NONE) => continue,
                (map::ALIVE_DRAINING, _) => Role::Draining,
                (_, steer::ALIVE_DRAINING) => Role::Offering,
                _ => Role::Owner,
            };
            let silence = Duration::from_nanos(now.saturating_sub(heartbeat_ns));
            let lives = exclusive.as_ref().map(|_lock| self.pins.is_live(epoch));
            // One that has drained and ended stays there until the next hand-over; it is nobody any more.
            if role != Role::Draining || lives != Some(false) {
                processes.push(Process { epoch, role, silence, lives });
            }
        }
        Ok(processes)
    }

    /// The pinned links: the lookup first, then those of XDP and of tcx, each by the names of the interfaces.
    ///
    /// # Errors
    /// If they cannot be listed or opened.
    pub fn links(&self) -> Result<Vec<PinnedLink>, Error> {
        let modes: BTreeMap<u32, Option<NicMode>> =
            self.maps.nics()?.into_iter().map(|(index, nic)| (index, NicMode::from_code(nic.mode))).collect();
        let mut links = Vec::new();
        if let Some((_, info)) = link::pinned(&self.pins.lookup_link())? {
            let own = fs::metadata(NETNS).map_err(|source| Error::kernel("inspect", NETNS, source))?.ino();
            let state = match info.target {
                0 => LinkState::Severed,
                inode if u64::from(inode) == own => LinkState::Attached,
                _ => LinkState::Elsewhere,
            };
            links.push(PinnedLink { hook: Hook::Lookup, state, link_id: info.id, program_id: info.prog_id });
        }
        for pin in self.pins.nic_pins()? {
            // A process may have removed it since.
            let Some((_, info)) = link::pinned(&self.pins.nic_pin(&pin))? else { continue };
            let state = if info.target == 0 { LinkState::Severed } else { LinkState::Attached };
            let NicPin { kind, interface } = pin;
            let hook = match kind {
                NicLink::Xdp => Hook::Xdp { interface, mode: modes.get(&info.target).copied().flatten() },
                NicLink::TcIn => Hook::TcIn { interface },
                NicLink::TcOut => Hook::TcOut { interface },
            };
            links.push(PinnedLink { hook, state, link_id: info.id, program_id: info.prog_id });
        }
        Ok(links)
    }

    /// How full the maps are in which there may be no room; those with an entry for everything are always full, and LRU
    /// maps make room themselves. Reads all connections, about 0.1 µs for each, and the whole deny list.
    ///
    /// # Errors
    /// If the kernel refuses a read.
    pub fn fills(&self) -> Result<Vec<Fill>, Error> {
        let Maps { ports, node_addrs, nics, flows, host_ids, deny4, deny6, denials, .. } = &self.maps;
        // Each prefix once, which the maps alone do not promise.
        let denied = self.maps.deny_entries()?;
        let v4 = denied.iter().filter(|entry| entry.prefix.addr().is_ipv4()).count();
        Ok(vec![
            fill(ports)?,
            fill(node_addrs)?,
            fill(nics)?,
            fill(host_ids)?,
            fill(flows)?,
            Fill { map: map::DENY4, entries: v4, capacity: deny4.capacity() },
            Fill { map: map::DENY6, entries: denied.len() - v4, capacity: deny6.capacity() },
            fill(denials)?,
        ])
    }
}

/// What is pinned below `bpffs`, with errors for whoever names that directory.
pub(super) fn open(bpffs: &Path, access: Access) -> Result<(Pins, Maps), Error> {
    let pins = Pins::new(bpffs);
    match Maps::open(&pins, access) {
        Ok(maps) => Ok((pins, maps)),
        Err(Error::Kernel { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Err(Error::NothingPinned(bpffs.to_owned()))
        }
        Err(Error::Kernel { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
            Err(Error::Forbidden { path: bpffs.to_owned(), source })
        }
        Err(error) => Err(error),
    }
}

fn fill<K: Pod + Default, V: Pod + Default>(table: &Table<K, V>) -> Result<Fill, Error> {
    Ok(Fill { map: table.name(), entries: table.count()?, capacity: table.capacity() })
}
