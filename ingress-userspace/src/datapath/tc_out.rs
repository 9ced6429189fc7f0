//! Attaches `ingress_tc_out` to what an interface sends: by a pinned link of tcx, or where there is no tcx by a filter
//! of the qdisc clsact, which the kernel keeps as long as the interface. What others have attached there stays and goes
//! on to work.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
};

use aya::programs::{
    SchedClassifier, TcAttachType, TcError, TcHandle,
    tc::{NlOptions, SchedClassifierLink, TcAttachOptions, qdisc_add_clsact, qdisc_detach_program},
};

use super::{
    Attachment, TcHook,
    error::Error,
    link, object,
    pins::{Pins, remove_pin},
    sys::{self, AttachType},
};

/// `BPF_F_BEFORE` without another program: before all there are. Behind one that ends the round (`TCX_PASS`) nothing
/// would be seen.
const FIRST: u32 = 1 << 3;

/// The first priority, for the same reason, which filters may share …
const PRIORITY: u16 = 1;
/// … and a handle that nobody else is likely to use: "xd".
const HANDLE: TcHandle = TcHandle::new(0, 0x7864);

/// Attaches the loaded `program` to one interface, or puts it in the place of an earlier process's; where, and which of
/// the two.
pub(super) fn attach(
    pins: &Pins,
    program: &mut SchedClassifier,
    (interface, index): (&str, u32),
    wanted: Option<TcHook>,
) -> Result<(TcHook, Attachment), Error> {
    if wanted != Some(TcHook::Clsact) {
        let fd = program.fd().map_err(|source| object::refused(object::TC_OUT, source))?;
        match tcx(pins, fd.as_fd(), (interface, index)) {
            Err(Error::Kernel { source, .. }) if wanted.is_none() && is_unknown(&source) => {}
            attached => return attached.map(|attachment| (TcHook::Tcx, attachment)),
        }
    }
    // Not both: each would count.
    remove_link(pins, interface)?;
    clsact(program, interface).map(|attachment| (TcHook::Clsact, attachment))
}

/// Takes the program off one of [`interfaces`]; what there was to remove.
pub(super) fn detach(pins: &Pins, interface: &str) -> Result<Vec<String>, Error> {
    let mut removed = Vec::new();
    if remove_link(pins, interface)? {
        removed.push(pins.tc_out_link(interface).display().to_string());
    }
    if remove_filter(interface)? {
        removed.push(format!("filter of {interface}"));
    }
    Ok(removed)
}

/// Interfaces that may have the program, from an earlier process.
pub(super) fn interfaces(pins: &Pins) -> Result<Vec<String>, Error> {
    // Filters have no pins, but wherever one is, there is XDP.
    let mut interfaces = [pins.tc_out_interfaces()?, pins.xdp_interfaces()?].concat();
    interfaces.sort();
    interfaces.dedup();
    Ok(interfaces)
}

/// Removes the filter of an interface of this network namespace; `false` if there is none. The qdisc stays: others may
/// use it.
fn remove_filter(interface: &str) -> Result<bool, Error> {
    let is_absent =
        |error: &io::Error| error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV);
    match qdisc_detach_program(interface, TcAttachType::Egress, object::TC_OUT) {
        Ok(()) => Ok(true),
        Err(TcError::IoError(error)) if is_absent(&error) => Ok(false),
        // A kernel without packet scheduling.
        Err(TcError::NetlinkError(error)) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
        Err(error) => Err(Error::kernel("remove the filter of", interface, io::Error::other(error))),
    }
}

/// Removes the link of an interface; `false` if there is none.
fn remove_link(pins: &Pins, interface: &str) -> Result<bool, Error> {
    let path = pins.tc_out_link(interface);
    if let Some((link, _)) = link::pinned(&path)? {
        // It fails for an interface that is gone, and the program with it.
        let _gone = sys::link_detach(link.as_fd()).is_err();
    }
    remove_pin(&path)
}

/// Whether the kernel does not know what it was asked to attach to.
fn is_unknown(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINVAL)
}

fn tcx(pins: &Pins, program: BorrowedFd<'_>, (interface, index): (&str, u32)) -> Result<Attachment, Error> {
    let path = pins.tc_out_link(interface);
    if let Some((link, info)) = link::pinned(&path)? {
        if info.target == index && sys::link_update(link.as_fd(), program).is_ok() {
            return Ok(Attachment::Adopted);
        }
        // As with XDP: the device is gone, or has got another name.
        remove_link(pins, interface)?;
    }
    let link = sys::link_create(program, index, AttachType::TcxEgress, FIRST)
        .map_err(|source| Error::kernel("count what is sent by", interface, source))?;
    sys::pin(link.as_fd(), &path).map_err(|source| Error::kernel("pin", path.display().to_string(), source))?;
    remove_filter(interface)?;
    Ok(Attachment::Created)
}

fn clsact(program: &mut SchedClassifier, interface: &str) -> Result<Attachment, Error> {
    let error = |source: io::Error| Error::kernel("count what is sent by", interface, source);
    let present =
        SchedClassifierLink::attached(interface, TcAttachType::Egress, PRIORITY, HANDLE, None).map_err(error)?;
    let (id, attachment) = match program.attach_to_link(present) {
        Ok(id) => (id, Attachment::Adopted),
        // There is none; why not, the kernel has several numbers for.
        Err(_) => {
            match qdisc_add_clsact(interface) {
                Err(TcError::NetlinkError(there)) if there.raw_os_error() == Some(libc::EEXIST) => {}
                added => added.map_err(|source| error(io::Error::other(source)))?,
            }
            let options = TcAttachOptions::Netlink(NlOptions { priority: PRIORITY, handle: HANDLE, classid: None });
            let created = program.attach_with_options(interface, TcAttachType::Egress, options);
            (created.map_err(|source| error(io::Error::other(source)))?, Attachment::Created)
        }
    };
    let link = program.take_link(id).map_err(|source| error(io::Error::other(source)))?;
    // Dropped, it would take the filter away, which is to outlast this process.
    std::mem::forget(link);
    Ok(attachment)
}
