//! Attaches XDP and sk_lookup through pinned links: adopts an existing link by replacing its program in place, or
//! creates a new one. Never replaces a foreign program on an interface.

use std::{
    fs, io,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    path::Path,
};

use super::{
    Attachment,
    error::Error,
    pins::{Pins, remove_pin},
    sys::{self, AttachType, LinkInfo, PinAccess},
};

/// The network namespace of this thread; the process may be in another one.
pub(super) const NETNS: &str = "/proc/thread-self/ns/net";

/// XDP attach mode, as the flag of its links (`XDP_FLAGS_SKB_MODE`, `XDP_FLAGS_DRV_MODE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum XdpHook {
    Stack = 1 << 1,
    Driver = 1 << 2,
}

/// Attaches `program` to the socket lookup of this network namespace.
pub(super) fn lookup(pins: &Pins, program: BorrowedFd<'_>) -> Result<Attachment, Error> {
    let path = pins.lookup_link();
    let kernel = |operation| move |source| Error::kernel(operation, "link lookup", source);
    let netns = fs::File::open(NETNS).map_err(kernel("open the namespace of"))?;
    let inode = netns.metadata().map_err(kernel("open the namespace of"))?.ino();
    if let Some((link, info)) = pinned(&path)? {
        match info.target {
            // The namespace is gone, and the link is detached.
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

/// Replaces the program in an XDP link of an earlier process. Returns `false` if there is no link, or only a detached
/// one: its device is gone (target 0, or ENOLINK "link has been severed" on update).
pub(super) fn adopt_xdp(pins: &Pins, program: BorrowedFd<'_>, (interface, index): (&str, u32)) -> Result<bool, Error> {
    let there = pinned(&pins.xdp_link(interface))?;
    Ok(there.is_some_and(|(link, info)| info.target == index && sys::link_update(link.as_fd(), program).is_ok()))
}

/// Replaces the program in each of these XDP links, which are given with their interfaces. Returns whether one was
/// replaced. A link whose interface has just gone is skipped.
///
/// # Errors
/// Fails with the kernel's first refusal, after all links have been tried.
pub(super) fn renew_xdp(links: &[(&str, OwnedFd)], program: BorrowedFd<'_>) -> Result<bool, Error> {
    let (mut is_renewed, mut refusal) = (false, None);
    for (interface, link) in links {
        match sys::link_update(link.as_fd(), program) {
            Ok(()) => is_renewed = true,
            // The interface is gone, and `reconcile` sees to it.
            Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => {}
            Err(source) => {
                refusal.get_or_insert(Error::kernel("replace the XDP program of", *interface, source));
            }
        }
    }
    refusal.map_or(Ok(is_renewed), Err)
}

/// Attaches `program` to an interface without a link of ours.
///
/// # Errors
/// Fails with [`Error::Busy`] if a foreign program is attached, in any mode.
pub(super) fn create_xdp(
    pins: &Pins,
    program: BorrowedFd<'_>,
    (interface, index): (&str, u32),
    hook: XdpHook,
) -> Result<(), Error> {
    let path = pins.xdp_link(interface);
    let link = sys::link_create(program, index, AttachType::Xdp, hook as u32).map_err(|source| {
        // EBUSY: a program in this mode. EEXIST: one in the other mode.
        match source.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => Error::Busy { interface: interface.to_owned() },
            _ => Error::kernel("attach XDP to", interface, source),
        }
    })?;
    sys::pin(link.as_fd(), &path).map_err(|source| Error::kernel("pin", path.display().to_string(), source))
}

/// Detaches the program of a pinned link, and removes the pin. Returns `false` if there is none.
pub(super) fn remove(path: &Path) -> Result<bool, Error> {
    if let Some((link, _)) = pinned(path)? {
        // Without this call, the program would be detached some time later. The call fails if the interface, and the
        // program with it, is already gone.
        let _gone = sys::link_detach(link.as_fd()).is_err();
    }
    remove_pin(path)
}

/// Returns whether the link pinned at `path` is attached to the interface `index`.
pub(super) fn is_attached(path: &Path, index: u32) -> bool {
    pinned(path).is_ok_and(|there| there.is_some_and(|(_, info)| info.target == index))
}

/// Returns the link pinned at `path` with its kernel info, or `None` if there is none.
pub(super) fn pinned(path: &Path) -> Result<Option<(OwnedFd, LinkInfo)>, Error> {
    let link = match sys::open_pin(path, PinAccess::Write) {
        Ok(link) => link,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::kernel("open", path.display().to_string(), source)),
    };
    let info =
        sys::info(link.as_fd()).map_err(|source| Error::kernel("inspect", path.display().to_string(), source))?;
    Ok(Some((link, info)))
}
