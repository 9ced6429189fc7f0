//! Paths of maps, links and process marks in the BPF file system, and the lock for changes to them.
//!
//! ```text
//! <bpffs>/v1/            locked (flock) during changes below
//!   maps/<name>          survive every process
//!   links/xdp-<if>       one per interface with the program
//!   links/tc-in-<if>     one per interface with the program for packets of the stack, from Linux 6.6 on
//!   links/tc-out-<if>    one per interface with either of these, from Linux 6.6 on
//!   links/lookup         sk_lookup of this network namespace
//!   epochs/<n>/          locked by process n until it ends, even by a crash
//! ```

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use ingress_common::map;

use super::error::Error;

/// All maps pinned by this version.
pub(super) const MAPS: &[&str] = &[
    map::PORTS,
    map::NODE_ADDRS,
    map::NICS,
    map::NIC_MACS,
    map::MOVES,
    map::PROBING,
    map::NIC_NET,
    map::TOTALS,
    map::FLOWS,
    map::HOST_NET,
    map::HOST_L7,
    map::HOST_IDS,
    map::HANDOFFS,
    map::LISTENERS,
    map::WORKERS,
    map::QUIC,
    map::QUIC_SOCKETS,
    map::ALIVE,
    map::SHARE,
    map::SYN_COOKIES,
    map::SYN_FLOOD,
    map::SYN_COUNTS,
    map::SYN_STAMPS,
    map::DENY4,
    map::DENY6,
    map::DENY_HITS,
    map::DENY_VERDICTS,
    map::DENY_CHANGED,
    map::LIMITS,
    map::CLIENTS,
    map::DENIALS,
    map::DENY_CONFIG,
];

const LOOKUP: &str = "lookup";

/// The paths below one bpffs directory.
#[derive(Clone, Debug)]
pub(super) struct Pins {
    bpffs: PathBuf,
    base: PathBuf,
}

/// Purpose of a pinned interface link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NicLink {
    Xdp,
    TcIn,
    TcOut,
}

/// A pinned link of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NicPin {
    pub(super) kind: NicLink,
    /// Name under which the link is pinned; the interface may have been renamed since.
    pub(super) interface: String,
}

/// A locked directory (flock): the right to change pins, or the mark of a living process. The lock is released on drop,
/// and by the kernel when the process ends.
///
/// The release is explicit: a forked child that has not yet called exec shares the open file, and would keep the lock
/// if we only closed ours.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // If the unlock fails, closing the file releases the lock.
        let _closes = self.0.unlock().is_err();
    }
}

// === impl NicLink ===

impl NicLink {
    const ALL: [Self; 3] = [Self::Xdp, Self::TcIn, Self::TcOut];

    const fn prefix(self) -> &'static str {
        match self {
            Self::Xdp => "xdp-",
            Self::TcIn => "tc-in-",
            Self::TcOut => "tc-out-",
        }
    }
}

// === impl Pins ===

impl Pins {
    pub(super) fn new(bpffs: &Path) -> Self {
        Self { bpffs: bpffs.to_owned(), base: bpffs.join(map::LAYOUT) }
    }

    /// Creates the directories, readable by their owner only.
    pub(super) fn create(&self) -> Result<(), Error> {
        for directory in [self.maps(), self.links(), self.epochs()] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&directory)
                .map_err(|source| Error::kernel("create", directory.display().to_string(), source))?;
        }
        Ok(())
    }

    pub(super) fn exists(&self) -> bool {
        self.base.is_dir()
    }

    /// Waits until no other process changes the pins. Holders keep the lock for milliseconds. Longer waits are possible
    /// while a starting process verifies its programs, a driver attaches a program, or a long deny list changes.
    pub(super) fn lock(&self) -> Result<Lock, Error> {
        let locked = File::open(&self.base).and_then(|base| base.lock().map(|()| Lock(base)));
        locked.map_err(|source| Error::kernel("lock", self.base.display().to_string(), source))
    }

    /// Same as [`Pins::lock`], without waiting; `None` if another process has the lock.
    pub(super) fn try_lock(&self) -> Option<Lock> {
        let base = File::open(&self.base).ok()?;
        base.try_lock().ok()?;
        Some(Lock(base))
    }

    pub(super) fn map(&self, name: &str) -> PathBuf {
        self.maps().join(name)
    }

    pub(super) fn lookup_link(&self) -> PathBuf {
        self.links().join(LOOKUP)
    }

    pub(super) fn xdp_link(&self, interface: &str) -> PathBuf {
        self.nic_link(NicLink::Xdp, interface)
    }

    pub(super) fn tc_in_link(&self, interface: &str) -> PathBuf {
        self.nic_link(NicLink::TcIn, interface)
    }

    pub(super) fn tc_out_link(&self, interface: &str) -> PathBuf {
        self.nic_link(NicLink::TcOut, interface)
    }

    /// Returns every pinned interface link: those of XDP, of tc for received packets, and of tc for sent packets.
    pub(super) fn nic_pins(&self) -> Result<Vec<NicPin>, Error> {
        let names = names(&self.links())?;
        let of = |kind: NicLink| {
            let interfaces = names.iter().filter_map(move |name| name.strip_prefix(kind.prefix()));
            interfaces.map(move |name| NicPin { kind, interface: name.replace(':', ".") })
        };
        Ok(NicLink::ALL.into_iter().flat_map(of).collect())
    }

    pub(super) fn nic_pin(&self, NicPin { kind, interface }: &NicPin) -> PathBuf {
        self.nic_link(*kind, interface)
    }

    /// Renames the pin of a link to another interface, replacing an existing pin, and returns the new pin.
    pub(super) fn rename(&self, pin: &NicPin, interface: String) -> Result<NicPin, Error> {
        let (from, renamed) = (self.nic_pin(pin), NicPin { interface, ..pin.clone() });
        fs::rename(&from, self.nic_pin(&renamed))
            .map_err(|source| Error::kernel("rename", from.display().to_string(), source))?;
        Ok(renamed)
    }

    /// Replaces dots, which the kernel reserves in pin names. Names of interfaces may contain dots (`eth0.100`), but no
    /// colons.
    fn nic_link(&self, kind: NicLink, interface: &str) -> PathBuf {
        self.links().join(format!("{}{}", kind.prefix(), interface.replace('.', ":")))
    }

    /// Marks this process as alive.
    pub(super) fn live(&self, epoch: u32) -> Result<Lock, Error> {
        let path = self.epoch(epoch);
        let marked = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .and_then(|()| File::open(&path))
            .and_then(|mark| mark.try_lock().map(|()| Lock(mark)).map_err(io::Error::from));
        marked.map_err(|source| Error::kernel("lock", path.display().to_string(), source))
    }

    /// Returns whether `mark` is that of `epoch` here. It is not after its removal, though another process may have the same
    /// epoch by then.
    pub(super) fn has_mark(&self, epoch: u32, mark: &Lock) -> bool {
        let Ok(own) = mark.0.metadata() else { return false };
        fs::metadata(self.epoch(epoch)).is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino()))
    }

    /// Returns whether the process of `epoch` is alive. If the check fails, it counts as alive: its flows are kept.
    pub(super) fn is_live(&self, epoch: u32) -> bool {
        match File::open(self.epoch(epoch)) {
            Ok(mark) => mark.try_lock().map(|()| drop(Lock(mark))).is_err(),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Returns the epochs of all living processes, and removes the marks of others.
    pub(super) fn live_epochs(&self) -> Result<Vec<u32>, Error> {
        let mut live = Vec::new();
        for epoch in names(&self.epochs())?.iter().filter_map(|name| name.parse().ok()) {
            if self.is_live(epoch) {
                live.push(epoch);
            } else {
                remove_dir(&self.epoch(epoch))?;
            }
        }
        Ok(live)
    }

    /// Returns the paths of all links: those of interfaces, and then that of the lookup, which may not exist.
    pub(super) fn all_links(&self) -> Result<Vec<PathBuf>, Error> {
        let nics = self.nic_pins()?;
        Ok(nics.iter().map(|pin| self.nic_pin(pin)).chain([self.lookup_link()]).collect())
    }

    /// Removes maps and directories, once the links are gone. Returns the removed paths.
    pub(super) fn remove_rest(&self) -> Result<Vec<String>, Error> {
        let mut removed = Vec::new();
        let mut take = |path: PathBuf, remover: fn(&Path) -> Result<bool, Error>| -> Result<(), Error> {
            if remover(&path)? {
                removed.push(path.display().to_string());
            }
            Ok(())
        };
        for map in names(&self.maps())? {
            take(self.map(&map), remove_pin)?;
        }
        for epoch in names(&self.epochs())? {
            remove_dir(&self.epochs().join(epoch))?;
        }
        for directory in [self.maps(), self.links(), self.epochs(), self.base.clone()] {
            take(directory, remove_dir)?;
        }
        // The directory may be a mount point, or contain another layout, so a failure is ignored.
        let _kept = fs::remove_dir(&self.bpffs).is_err();
        Ok(removed)
    }

    fn maps(&self) -> PathBuf {
        self.base.join("maps")
    }

    fn links(&self) -> PathBuf {
        self.base.join("links")
    }

    fn epochs(&self) -> PathBuf {
        self.base.join("epochs")
    }

    fn epoch(&self, epoch: u32) -> PathBuf {
        self.epochs().join(epoch.to_string())
    }
}

/// Removes a pinned map or link; `false` if it did not exist.
pub(super) fn remove_pin(path: &Path) -> Result<bool, Error> {
    removed(path, fs::remove_file(path))
}

/// Removes an empty directory; `false` if it did not exist.
fn remove_dir(path: &Path) -> Result<bool, Error> {
    removed(path, fs::remove_dir(path))
}

fn removed(path: &Path, result: io::Result<()>) -> Result<bool, Error> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(Error::kernel("remove", path.display().to_string(), source)),
    }
}

fn names(directory: &Path) -> Result<Vec<String>, Error> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(Error::kernel("list", directory.display().to_string(), source)),
    };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()));
    let mut names = names
        .collect::<io::Result<Vec<_>>>()
        .map_err(|source| Error::kernel("list", directory.display().to_string(), source))?;
    names.sort();
    Ok(names)
}
