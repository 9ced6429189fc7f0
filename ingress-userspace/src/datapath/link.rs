//! Attaches XDP and sk_lookup by pinned links: adopts a link that is there and replaces its program in place, else
//! makes one. Never takes an interface from somebody else's program.

use std::{
    fs, io,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    path::Path,
};

use ingress_common::steer::{NIC_GENERIC, NIC_NATIVE};

use super::{
    Attachment, NicMode, NicState, XdpMode,
    error::Error,
    pins::{Pins, remove_pin},
    sys::{self, Access, AttachType, LinkInfo},
};

/// The network namespace of this thread; the process's may be another.
pub(super) const NETNS: &str = "/proc/thread-self/ns/net";

/// Flags of XDP links (`XDP_FLAGS_SKB_MODE`, `XDP_FLAGS_DRV_MODE`).
const GENERIC: u32 = 1 << 1;
const NATIVE: u32 = 1 << 2;

/// Attaches `program` to the socket lookup of this network namespace.
pub(super) fn lookup(pins: &Pins, program: BorrowedFd<'_>) -> Result<Attachment, Error> {
    let path = pins.lookup_link();
    let kernel = |operation| move |source| Error::kernel(operation, "link lookup", source);
    let netns = fs::File::open(NETNS).map_err(kernel("open the namespace of"))?;
    let inode = netns.metadata().map_err(kernel("open the namespace of"))?.ino();
    if let Some((link, info)) = pinned(&path)? {
        match info.target {
            // The namespace is gone, and the link with it.
            0 => {}
            target if u64::from(target) != inode => return Err(Error::ForeignNamespace { path }),
            _ => {
                sys::link_update(link.as_fd(), program).map_err(kernel("update"))?;
                return Ok(Attachment::Adopted);
            }
        }
        remove_pin(&path)?;
    }
    let target = netns.as_raw_fd().cast_unsigned();
    let link = sys::link_create(program, target, AttachType::SkLookup, 0).map_err(kernel("create"))?;
    sys::pin(link.as_fd(), &path).map_err(kernel("pin"))?;
    Ok(Attachment::Created)
}

/// Removes the sk_lookup link, if there is one.
pub(super) fn remove_lookup(pins: &Pins) -> Result<(), Error> {
    remove_pin(&pins.lookup_link()).map(drop)
}

/// Attaches `program` to one interface; `known` is the mode in which the interface has the program already.
pub(super) fn xdp(
    pins: &Pins,
    program: BorrowedFd<'_>,
    (interface, index): (&str, u32),
    wanted: XdpMode,
    known: Option<NicMode>,
) -> Result<NicState, Error> {
    let path = pins.xdp_link(interface);
    if let Some((link, info)) = pinned(&path)? {
        let fits = known.filter(|mode| info.target == index && wanted.accepts(*mode));
        if let Some(mode) = fits
            && sys::link_update(link.as_fd(), program).is_ok()
        {
            return Ok(NicState::Attached { mode, attachment: Attachment::Adopted });
        }
        // The device is gone (target 0, or ENOLINK "link has been severed" on update), has got another name, or the mode is
        // not the one asked for: only a new link helps, and this one would be in its way.
        remove_pin(&path)?;
    }
    let native = || create(&path, program, interface, index, NicMode::Native);
    let generic = || create(&path, program, interface, index, NicMode::Generic);
    match wanted {
        XdpMode::Off => Ok(NicState::Off),
        XdpMode::Native => native(),
        XdpMode::Generic => generic(),
        XdpMode::Auto => match native().or_else(|error| if is_busy(&error) { Err(error) } else { generic() }) {
            Err(Error::Busy { .. }) => Ok(NicState::Busy),
            state => state,
        },
    }
}

/// Removes the links of interfaces that are not in `wanted`.
pub(super) fn remove_other_xdp(pins: &Pins, wanted: &[String]) -> Result<(), Error> {
    for interface in pins.xdp_interfaces()? {
        if !wanted.contains(&interface) {
            remove_pin(&pins.xdp_link(&interface))?;
        }
    }
    Ok(())
}

fn create(path: &Path, program: BorrowedFd<'_>, interface: &str, index: u32, mode: NicMode) -> Result<NicState, Error> {
    let flags = match mode {
        NicMode::Native => NATIVE,
        NicMode::Generic => GENERIC,
    };
    let link = sys::link_create(program, index, AttachType::Xdp, flags).map_err(|source| {
        // EBUSY: a program in this mode. EEXIST: one in the other mode.
        match source.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => Error::Busy { interface: interface.to_owned() },
            _ => Error::kernel("attach XDP to", interface, source),
        }
    })?;
    sys::pin(link.as_fd(), path).map_err(|source| Error::kernel("pin", path.display().to_string(), source))?;
    Ok(NicState::Attached { mode, attachment: Attachment::Created })
}

const fn is_busy(error: &Error) -> bool {
    matches!(error, Error::Busy { .. })
}

/// The link that is pinned at `path`, and what the kernel says of it; `None` if there is none.
pub(super) fn pinned(path: &Path) -> Result<Option<(OwnedFd, LinkInfo)>, Error> {
    let link = match sys::open_pin(path, Access::Write) {
        Ok(link) => link,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::kernel("open", path.display().to_string(), source)),
    };
    let info =
        sys::info(link.as_fd()).map_err(|source| Error::kernel("inspect", path.display().to_string(), source))?;
    Ok(Some((link, info)))
}

// === impl XdpMode, NicMode ===

impl XdpMode {
    const fn accepts(self, mode: NicMode) -> bool {
        match self {
            Self::Auto => true,
            Self::Native => matches!(mode, NicMode::Native),
            Self::Generic => matches!(mode, NicMode::Generic),
            Self::Off => false,
        }
    }
}

impl NicMode {
    pub(super) const fn code(self) -> u32 {
        match self {
            Self::Native => NIC_NATIVE,
            Self::Generic => NIC_GENERIC,
        }
    }

    /// The mode as it stands in the map `nics`; `None` for one of another version.
    #[must_use]
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            NIC_NATIVE => Some(Self::Native),
            NIC_GENERIC => Some(Self::Generic),
            _ => None,
        }
    }
}
