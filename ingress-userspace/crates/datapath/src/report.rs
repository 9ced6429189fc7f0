//! The report of [`super::Datapath::open`], and the state of each interface.

use std::sync::Arc;

use ingress_common::steer::{NIC_CLSACT, NIC_GENERIC, NIC_NATIVE, NIC_TCX};

use super::{Error, link::XdpHook};

/// Hook for the packets received by an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicMode {
    /// XDP in the driver.
    Native,
    /// XDP in the stack, before all other processing there.
    Generic,
    /// A tcx link, before other programs; from Linux 6.6 on.
    Tcx,
    /// A filter of the qdisc `clsact`.
    Clsact,
}

/// State of the hook for received packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicState {
    Attached {
        mode: NicMode,
        attachment: Attachment,
    },
    /// The kernel refused every mode. Packets of this interface are not counted, and denials do not apply; sk_lookup
    /// delivers by its default rule.
    Failed,
    /// No interface has this name at the moment.
    Absent,
    Off,
}

/// State of the hook for sent packets.
#[derive(Clone, Debug)]
pub enum TransmitState {
    /// The packets are counted, and packets from rewritten ports get back the public port.
    Attached { hook: TcHook, attachment: Attachment },
    /// The kernel refused an operation: packets are not counted, or no longer exactly. Ports are not rewritten on this
    /// interface; other functions are not affected.
    Failed(Arc<Error>),
    /// Not attached, because the hook for received packets is not either ([`NicState`]).
    Off,
}

/// Hook of the tc programs: `ingress_tc_out` and, if XDP cannot be attached, `ingress_tc_in`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcHook {
    /// A pinned link, before other programs; from Linux 6.6 on.
    Tcx,
    /// A filter of the qdisc `clsact`.
    Clsact,
}

/// Origin of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    Created,
    /// A link of an earlier process; its program was replaced in place.
    Adopted,
}

/// Result of [`super::Datapath::open`].
#[derive(Clone, Debug)]
pub struct Report {
    /// Number of this process on this node.
    pub epoch: u32,
    /// Whether an earlier process is still alive and drains.
    pub has_predecessor: bool,
    pub interfaces: Vec<NicReport>,
    /// `None` if [`super::Options::lookup`] is off.
    pub lookup: Option<Attachment>,
    /// Actual number of host ids: that of the pinned maps, which may differ from [`super::Options::host_capacity`].
    pub host_capacity: u32,
    pub programs: Vec<ProgramReport>,
}

/// Whether XDP can answer SYNs on this node. In all other states than `Ready` the stack answers all SYNs as before.
#[derive(Clone, Debug)]
pub enum SynCookieState {
    /// Not wanted.
    Off,
    /// The kernel is too old.
    OldKernel { running: String, needed: &'static str },
    /// The kernel refuses the program, and `ingress_xdp` is attached in its place.
    Failed(Arc<Error>),
    /// `net.ipv4.tcp_syncookies` is 0, with which the stack accepts no cookies.
    Refused,
    Ready {
        /// Whether connections from cookies get window scaling and SACK. `net.ipv4.tcp_timestamps` has to be 2 for them.
        has_options: bool,
        /// Whether the stack itself sends cookies only while a listener's queue is full (`net.ipv4.tcp_syncookies` of 1).
        /// The first SYNs of a flood, and some every half minute, then fill the queues.
        fills_queues: bool,
    },
}

/// An interface selected for programs.
#[derive(Clone, Debug)]
pub struct NicReport {
    pub name: String,
    /// Index of the interface; 0 if absent.
    pub index: u32,
    pub state: NicState,
    /// Errors of better modes, best first.
    pub refusals: Vec<Arc<Error>>,
    pub transmit: TransmitState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramReport {
    pub name: &'static str,
    /// Number of instructions the verifier processed, out of a maximum of a million; `None` before kernel 5.16 (commit
    /// aba64c7da983).
    pub verified_instructions: Option<u32>,
    /// Number of instructions in the kernel, without dead code; `None` without permission to read it.
    pub translated_instructions: Option<u32>,
}

// === impl SynCookieState, NicMode, NicState, NicReport, TransmitState ===

impl SynCookieState {
    /// Returns the name for tools.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::OldKernel { .. } => "old_kernel",
            Self::Failed(_) => "failed",
            Self::Refused => "refused",
            Self::Ready { .. } => "ready",
        }
    }
}

impl NicMode {
    /// Returns whether SYN cookies are possible: programs of tc see a packet after the stack has made its own copy.
    #[must_use]
    pub const fn has_syn_cookies(self) -> bool {
        matches!(self, Self::Native | Self::Generic)
    }

    /// Returns the mode of XDP programs in this place.
    pub(super) const fn of_xdp(hook: XdpHook) -> Self {
        match hook {
            XdpHook::Driver => Self::Native,
            XdpHook::Stack => Self::Generic,
        }
    }

    /// Returns the place of an XDP program in this mode; `None` for modes of tc.
    pub(super) const fn xdp_hook(self) -> Option<XdpHook> {
        match self {
            Self::Native => Some(XdpHook::Driver),
            Self::Generic => Some(XdpHook::Stack),
            Self::Tcx | Self::Clsact => None,
        }
    }

    pub(super) const fn code(self) -> u32 {
        match self {
            Self::Native => NIC_NATIVE,
            Self::Generic => NIC_GENERIC,
            Self::Tcx => NIC_TCX,
            Self::Clsact => NIC_CLSACT,
        }
    }

    /// Returns the mode for a value of the map `nics`; `None` for another version, and for an interface above others.
    #[must_use]
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            NIC_NATIVE => Some(Self::Native),
            NIC_GENERIC => Some(Self::Generic),
            NIC_TCX => Some(Self::Tcx),
            NIC_CLSACT => Some(Self::Clsact),
            _ => None,
        }
    }

    /// Returns the name for tools.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Tcx => "tcx",
            Self::Clsact => "clsact",
        }
    }
}

impl NicState {
    /// Returns the name for tools.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Attached { mode, .. } => mode.as_str(),
            Self::Failed => "failed",
            Self::Absent => "absent",
            Self::Off => "off",
        }
    }

    #[must_use]
    pub const fn is_attached(&self) -> bool {
        matches!(self, Self::Attached { .. })
    }

    /// Returns the place of the XDP program; `None` without one.
    pub(super) const fn xdp_hook(&self) -> Option<XdpHook> {
        match self {
            Self::Attached { mode, .. } => mode.xdp_hook(),
            Self::Failed | Self::Absent | Self::Off => None,
        }
    }
}

impl NicReport {
    /// Returns whether a foreign XDP program prevents ours.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.refusals.iter().any(|refusal| matches!(**refusal, Error::Busy { .. }))
    }
}

impl TransmitState {
    /// Returns the name for tools.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Attached { hook: TcHook::Tcx, .. } => "tcx",
            Self::Attached { hook: TcHook::Clsact, .. } => "clsact",
            Self::Failed(_) => "failed",
            Self::Off => "off",
        }
    }

    #[must_use]
    pub const fn is_attached(&self) -> bool {
        matches!(self, Self::Attached { .. })
    }
}
