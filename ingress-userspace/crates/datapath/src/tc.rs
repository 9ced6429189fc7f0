//! Attaches the tc programs, `ingress_tc_in` and `ingress_tc_out`, by a pinned tcx link. Without tcx, a filter of the
//! qdisc clsact is used, which the kernel keeps as long as the interface. Foreign programs on the same hook stay
//! attached and keep working.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::PathBuf,
};

use aya::programs::{
    SchedClassifier, TcAttachType, TcError, TcHandle,
    tc::{NlOptions, SchedClassifierLink, TcAttachOptions, qdisc_add_clsact, qdisc_detach_program},
};

use super::{
    Attachment, TcHook,
    error::Error,
    link,
    netlink::{self, FilterPlace},
    object,
    pins::Pins,
    sys::{self, AttachType},
};

/// `BPF_F_BEFORE` without another program: before all existing ones. Behind a program that ends the chain (`TCX_PASS`),
/// ours would see no packets.
const FIRST: u32 = 1 << 3;

/// The first priority, for the same reason; filters may share it.
const PRIORITY: u16 = 1;
/// A handle that others are unlikely to use: "xd".
const HANDLE: TcHandle = TcHandle::new(0, 0x7864);

/// Direction of the packets of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Received packets: `ingress_tc_in`.
    In,
    /// Sent packets: `ingress_tc_out`.
    Out,
}

impl Direction {
    pub(super) const fn program(self) -> &'static str {
        match self {
            Self::In => object::TC_IN,
            Self::Out => object::TC_OUT,
        }
    }

    fn pin(self, pins: &Pins, interface: &str) -> PathBuf {
        match self {
            Self::In => pins.tc_in_link(interface),
            Self::Out => pins.tc_out_link(interface),
        }
    }

    const fn tcx(self) -> AttachType {
        match self {
            Self::In => AttachType::TcxIngress,
            Self::Out => AttachType::TcxEgress,
        }
    }

    const fn clsact(self) -> TcAttachType {
        match self {
            Self::In => TcAttachType::Ingress,
            Self::Out => TcAttachType::Egress,
        }
    }

    /// Returns the parent of filters: `TC_H_CLSACT` with `TC_H_MIN_INGRESS` or `TC_H_MIN_EGRESS`.
    const fn parent(self) -> u32 {
        match self {
            Self::In => 0xffff_fff2,
            Self::Out => 0xffff_fff3,
        }
    }

    /// Returns the operation for error messages.
    const fn operation(self) -> &'static str {
        match self {
            Self::In => "see the packets received by",
            Self::Out => "count the packets sent by",
        }
    }
}

/// Attaches the loaded `program` to one interface, or replaces that of an earlier process. Returns the hook, and
/// whether the link was adopted.
pub(super) fn attach(
    pins: &Pins,
    program: &mut SchedClassifier,
    direction: Direction,
    (interface, index): (&str, u32),
    wanted: Option<TcHook>,
) -> Result<(TcHook, Attachment), Error> {
    if wanted != Some(TcHook::Clsact) {
        let fd = program.fd().map_err(|source| object::refused(direction.program(), source))?;
        match tcx(pins, fd.as_fd(), direction, (interface, index)) {
            Err(Error::Kernel { source, .. }) if wanted.is_none() && is_unknown(&source) => {}
            attached => return attached.map(|attachment| (TcHook::Tcx, attachment)),
        }
    }
    // The link is removed first, because packets would be counted twice.
    remove_link(pins, direction, interface)?;
    clsact(program, direction, interface).map(|attachment| (TcHook::Clsact, attachment))
}

/// Detaches a program from an interface that may have it. Returns the removed objects.
pub(super) fn detach(pins: &Pins, direction: Direction, interface: &str) -> Result<Vec<String>, Error> {
    let mut removed = Vec::new();
    if remove_link(pins, direction, interface)? {
        removed.push(direction.pin(pins, interface).display().to_string());
    }
    if remove_filter(direction, interface)? {
        removed.push(format!("filter of {interface}"));
    }
    Ok(removed)
}

/// Returns the kernel's number of the program in our filter of an interface; `None` without a filter.
pub(super) fn filter_program(direction: Direction, index: u32) -> Result<Option<u32>, Error> {
    let place = FilterPlace { index, parent: direction.parent(), priority: PRIORITY, handle: HANDLE.into() };
    netlink::filter_program(place)
        .map_err(|source| Error::kernel("read the filter of", format!("interface {index}"), source))
}

/// Removes the filter of an interface of this network namespace; `false` if there is none. The qdisc stays, because
/// others may use it.
fn remove_filter(direction: Direction, interface: &str) -> Result<bool, Error> {
    let is_absent =
        |error: &io::Error| error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV);
    match qdisc_detach_program(interface, direction.clsact(), direction.program()) {
        Ok(()) => Ok(true),
        Err(TcError::IoError(error)) if is_absent(&error) => Ok(false),
        // The kernel lacks packet scheduling.
        Err(TcError::NetlinkError(error)) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
        Err(error) => Err(Error::kernel("remove the filter of", interface, io::Error::other(error))),
    }
}

/// Removes the link of an interface; `false` if there is none.
fn remove_link(pins: &Pins, direction: Direction, interface: &str) -> Result<bool, Error> {
    link::remove(&direction.pin(pins, interface))
}

/// Returns whether the kernel does not know the requested attach type.
fn is_unknown(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINVAL)
}

fn tcx(
    pins: &Pins,
    program: BorrowedFd<'_>,
    direction: Direction,
    (interface, index): (&str, u32),
) -> Result<Attachment, Error> {
    let path = direction.pin(pins, interface);
    if let Some((link, info)) = link::pinned(&path)? {
        if info.target == index && sys::link_update(link.as_fd(), program).is_ok() {
            return Ok(Attachment::Adopted);
        }
        // Same as with XDP: the device is gone, and another has its name.
        remove_link(pins, direction, interface)?;
    }
    let link = sys::link_create(program, index, direction.tcx(), FIRST)
        .map_err(|source| Error::kernel(direction.operation(), interface, source))?;
    sys::pin(link.as_fd(), &path).map_err(|source| Error::kernel("pin", path.display().to_string(), source))?;
    remove_filter(direction, interface)?;
    Ok(Attachment::Created)
}

fn clsact(program: &mut SchedClassifier, direction: Direction, interface: &str) -> Result<Attachment, Error> {
    let error = |source: io::Error| Error::kernel(direction.operation(), interface, source);
    let present =
        SchedClassifierLink::attached(interface, direction.clsact(), PRIORITY, HANDLE, None).map_err(error)?;
    let (id, attachment) = match program.attach_to_link(present) {
        Ok(id) => (id, Attachment::Adopted),
        // No filter exists; the kernel has several error numbers for this.
        Err(_) => {
            match qdisc_add_clsact(interface) {
                Err(TcError::NetlinkError(there)) if there.raw_os_error() == Some(libc::EEXIST) => {}
                added => added.map_err(|source| error(io::Error::other(source)))?,
            }
            let options = TcAttachOptions::Netlink(NlOptions { priority: PRIORITY, handle: HANDLE, classid: None });
            let created = program.attach_with_options(interface, direction.clsact(), options);
            (created.map_err(|source| error(io::Error::other(source)))?, Attachment::Created)
        }
    };
    let link = program.take_link(id).map_err(|source| error(io::Error::other(source)))?;
    // A drop would remove the filter, which has to outlive this process.
    std::mem::forget(link);
    Ok(attachment)
}
