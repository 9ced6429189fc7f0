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
    netlink::{self, XdpPrograms},
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
            // The link is detached: its namespace is gone, or somebody has detached it.
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

/// Returns the number of the program in the pinned sk_lookup link: `None` without a pin, and 0 if the link is detached.
pub(super) fn lookup_program(pins: &Pins) -> Result<Option<u32>, Error> {
    Ok(pinned(&pins.lookup_link())?.map(|(_, info)| if info.target == 0 { 0 } else { info.prog_id }))
}

/// Detaches the sk_lookup program, if there is one.
pub(super) fn remove_lookup(pins: &Pins) -> Result<(), Error> {
    remove(&pins.lookup_link()).map(drop)
}

/// Replaces the program in an XDP link of another process, if the link's mode `is_wanted`. Returns the mode; `None` if
/// there is no such link, or only a detached one: its device is gone (target 0, or ENOLINK "link has been severed" on
/// update).
///
/// # Errors
/// Fails if the kernel does not show the link or its mode.
pub(super) fn adopt_xdp(
    pins: &Pins,
    program: BorrowedFd<'_>,
    (interface, index): (&str, u32),
    is_wanted: impl FnOnce(XdpHook) -> bool,
) -> Result<Option<XdpHook>, Error> {
    let Some((link, info)) = pinned(&pins.xdp_link(interface))? else { return Ok(None) };
    if info.target != index {
        return Ok(None);
    }
    let hook = match netlink::xdp_programs(index) {
        Ok(XdpPrograms { driver, .. }) if driver == info.prog_id => XdpHook::Driver,
        Ok(XdpPrograms { stack, .. }) if stack == info.prog_id => XdpHook::Stack,
        // Another kind of link has the name.
        Ok(_) => return Ok(None),
        // The interface has just gone.
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
        Err(source) => return Err(Error::kernel("read the XDP programs of", interface, source)),
    };
    Ok((is_wanted(hook) && sys::link_update(link.as_fd(), program).is_ok()).then_some(hook))
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
    // Without this call, the kernel would detach the program some time later, and only when no process has the link open.
    // The call fails if the interface or namespace, and the program with it, is already gone. The pin goes in any case.
    if let Ok(Some((link, _))) = pinned(path) {
        let _gone = sys::link_detach(link.as_fd()).is_err();
    }
    remove_pin(path)
}

/// Returns the number of the program in the link pinned at `path`: `None` without a pin, and 0 if the link is not attached
/// to the interface `index`.
pub(super) fn program(path: &Path, index: u32) -> Result<Option<u32>, Error> {
    Ok(pinned(path)?.map(|(_, info)| if info.target == index { info.prog_id } else { 0 }))
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
