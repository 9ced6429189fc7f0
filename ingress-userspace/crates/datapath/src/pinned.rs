//! The pinned objects of a node, for tools that inspect it from outside, independent of the state of any process. No
//! process is contacted, nothing is changed, and no capability is required, only permission to open the pins.

use std::{collections::BTreeMap, fs, io, os::unix::fs::MetadataExt as _, path::Path, time::Duration};

use aya::Pod;
use ingress_common::{Alive, QuicState, SynCookies, SynFlood, map, steer};

use super::{
    NicMode,
    error::Error,
    link::{self, NETNS},
    maps::Maps,
    pins::{NicLink, NicPin, Pins},
    sys::{self, PinAccess},
    table::MapTable,
};

/// The pins of a node, with maps opened for reading only.
#[derive(Debug)]
pub struct Pinned {
    pins: Pins,
    maps: Maps,
}

/// A process of the node, according to the map `alive`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Number of the process on this node.
    pub epoch: u32,
    pub role: Role,
    /// Time since its latest heartbeat. Above [`steer::HEARTBEAT_STALE_NS`], XDP considers the owner hung.
    pub silence: Duration,
    /// Whether the process is alive; `None` if that is unknown at the moment, because a process is changing the pins.
    pub lives: Option<bool>,
}

/// Role of a process on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// New connections go to it.
    Owner,
    /// An owner that offers the node to any other process.
    Offering,
    /// A previous owner that finishes its accepted connections.
    Draining,
}

/// A pinned link between a program and a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedLink {
    pub hook: Hook,
    pub state: LinkState,
    /// Kernel ids of the link and of its program, as shown by bpftool.
    pub link_id: u32,
    pub program_id: u32,
}

/// Attachment point of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hook {
    /// The socket lookup of a network namespace.
    Lookup,
    /// The packets received by an interface, through XDP.
    Xdp {
        interface: String,
        /// `None` if the interface is not in the map `nics`.
        mode: Option<NicMode>,
    },
    /// The packets received by an interface, through tcx, because XDP cannot be attached.
    TcIn { interface: String },
    /// The packets sent by an interface, through tcx. (A filter of clsact has no link.)
    TcOut { interface: String },
}

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    Attached,
    /// Attached to the socket lookup of another network namespace than this thread's.
    Elsewhere,
    /// Detached: its target is gone.
    Detached,
}

/// Fill level of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    pub map: &'static str,
    pub entries: usize,
    pub capacity: u32,
}

// === impl Pinned ===

impl Pinned {
    /// Opens the pins below `bpffs`.
    ///
    /// # Errors
    /// Fails with [`Error::NothingPinned`] if there are none (no process has run, or `unload` has), with
    /// [`Error::Forbidden`], with [`Error::Layout`] if another version created the pins, or with [`Error::Kernel`].
    pub fn open(bpffs: &Path) -> Result<Self, Error> {
        let (pins, maps) = open(bpffs, PinAccess::Read)?;
        Ok(Self { pins, maps })
    }

    #[must_use]
    pub const fn maps(&self) -> &Maps {
        &self.maps
    }

    /// Returns the owner of the node, alive or not, and the draining process. Further processes, and those that have
    /// not taken over yet, are not recorded.
    ///
    /// # Errors
    /// Fails if the kernel refuses a read.
    pub fn processes(&self) -> Result<Vec<Process>, Error> {
        // The check locks a mark for a moment, during which no other process may check or set it.
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
            // A process that has drained and ended remains there until the next handover, and is omitted.
            if role != Role::Draining || lives != Some(false) {
                processes.push(Process { epoch, role, silence, lives });
            }
        }
        Ok(processes)
    }

    /// Returns the pinned links: the lookup first, then those of XDP and of tcx, each by interface name.
    ///
    /// # Errors
    /// Fails if they cannot be listed or opened.
    pub fn links(&self) -> Result<Vec<PinnedLink>, Error> {
        let modes: BTreeMap<u32, Option<NicMode>> =
            self.maps.nics()?.into_iter().map(|(index, nic)| (index, NicMode::from_code(nic.mode))).collect();
        let mut links = Vec::new();
        if let Some((_, info)) = link::pinned(&self.pins.lookup_link())? {
            let own = fs::metadata(NETNS).map_err(|source| Error::kernel("inspect", NETNS, source))?.ino();
            let state = match info.target {
                0 => LinkState::Detached,
                inode if u64::from(inode) == own => LinkState::Attached,
                _ => LinkState::Elsewhere,
            };
            links.push(PinnedLink { hook: Hook::Lookup, state, link_id: info.id, program_id: info.prog_id });
        }
        for pin in self.pins.nic_pins()? {
            // A process may have removed it since.
            let Some((_, info)) = link::pinned(&self.pins.nic_pin(&pin))? else { continue };
            let state = if info.target == 0 { LinkState::Detached } else { LinkState::Attached };
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

    /// Returns the epochs of the processes with sockets of QUIC, the newest first. The pins of versions without QUIC have
    /// none.
    ///
    /// # Errors
    /// Fails if the kernel refuses a read.
    pub fn quic_epochs(&self) -> Result<Vec<u32>, Error> {
        let state = match MapTable::<u32, QuicState>::open(&self.pins, map::QUIC, PinAccess::Read) {
            Ok(state) => state.get(&map::QUIC_ONLY)?.unwrap_or_default(),
            Err(Error::Kernel { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut epochs: Vec<_> = state.epochs.into_iter().filter(|epoch| *epoch != 0).collect();
        epochs.sort_unstable_by(|one, other| other.cmp(one));
        Ok(epochs)
    }

    /// Returns whether there is a flood of SYNs, with the settings of SYN cookies; `None` while they are off. The pins of
    /// versions without them have none.
    ///
    /// # Errors
    /// Fails if the kernel refuses a read.
    pub fn syn_flood(&self) -> Result<Option<(bool, SynCookies)>, Error> {
        let settings = match MapTable::<u32, SynCookies>::open(&self.pins, map::SYN_COOKIES, PinAccess::Read) {
            Ok(settings) => settings.get(&map::SYN_COOKIES_ONLY)?.unwrap_or_default(),
            Err(Error::Kernel { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let flood = MapTable::<u32, SynFlood>::open(&self.pins, map::SYN_FLOOD, PinAccess::Read)?;
        let until_ns = flood.get(&map::SYN_FLOOD_ONLY)?.unwrap_or_default().until_ns;
        Ok((settings.begin != 0).then_some((until_ns > sys::now_ns(), settings)))
    }

    /// Returns the fill level of maps that can run out of room. Preallocated arrays are always full, and LRU maps evict
    /// entries. Reads all connections, about 0.1 µs for each, and the whole deny list.
    ///
    /// # Errors
    /// Fails if the kernel refuses a read.
    pub fn fills(&self) -> Result<Vec<Fill>, Error> {
        let Maps { ports, node_addrs, nics, flows, host_ids, deny4, deny6, denials, .. } = &self.maps;
        // Each prefix is counted once, which the maps alone do not guarantee.
        let denied = self.maps.deny_entries()?;
        let v4 = denied.iter().filter(|entry| entry.prefix.addr().is_ipv4()).count();
        Ok(vec![
            fill(ports)?,
            fill(node_addrs)?,
            fill(nics)?,
            Fill { map: host_ids.name(), entries: self.maps.taken_host_ids()?, capacity: host_ids.capacity() },
            fill(flows)?,
            Fill { map: map::DENY4, entries: v4, capacity: deny4.capacity() },
            Fill { map: map::DENY6, entries: denied.len() - v4, capacity: deny6.capacity() },
            fill(denials)?,
        ])
    }
}

/// Opens the pins below `bpffs`, with errors that refer to this directory.
pub(super) fn open(bpffs: &Path, access: PinAccess) -> Result<(Pins, Maps), Error> {
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

fn fill<K: Pod + Default, V: Pod + Default>(table: &MapTable<K, V>) -> Result<Fill, Error> {
    Ok(Fill { map: table.name(), entries: table.count()?, capacity: table.capacity() })
}
