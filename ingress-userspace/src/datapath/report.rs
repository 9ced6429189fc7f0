//! What [`super::Datapath::open`] found and did, and what became of each interface.

use std::sync::Arc;

use ingress_common::steer::{NIC_CLSACT, NIC_GENERIC, NIC_NATIVE, NIC_TCX};

use super::Error;

/// How the packets that an interface receives are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicMode {
    /// By XDP in the driver.
    Native,
    /// By XDP in the stack, before anything else there.
    Generic,
    /// By tcx, before the programs of others; from Linux 6.6 on.
    Tcx,
    /// By a filter of the qdisc `clsact`.
    Clsact,
}

/// What became of the packets that one interface receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicState {
    Attached {
        mode: NicMode,
        attachment: Attachment,
    },
    /// The kernel refused every mode that might have been. Packets of this interface are not counted, and nobody is
    /// denied; sk_lookup delivers by its default rule.
    Failed,
    /// There is no interface of this name now.
    Absent,
    Off,
}

/// What became of the packets that an interface sends.
#[derive(Clone, Debug)]
pub enum TransmitState {
    /// They are counted, and what rewritten ports send gets back the port that clients know.
    Attached { hook: TcHook, attachment: Attachment },
    /// They are not, or no longer exactly: the kernel refused something. No port is rewritten in what the interface
    /// receives; nothing else depends on it.
    Failed(Arc<Error>),
    /// They are not, for neither are those that it receives ([`NicState`]).
    Off,
}

/// Where programs for packets of the stack are attached: `ingress_tc_out` and, where XDP cannot be, `ingress_tc_in`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcHook {
    /// By a pinned link, before the programs of others; from Linux 6.6 on.
    Tcx,
    /// By a filter of the qdisc `clsact`.
    Clsact,
}

/// Whether a link was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    Created,
    /// The link is an earlier process's; its program was replaced in place.
    Adopted,
}

/// What [`super::Datapath::open`] found and did.
#[derive(Clone, Debug)]
pub struct Report {
    /// Number of this process on this node.
    pub epoch: u32,
    /// Whether an earlier process still lives and drains.
    pub has_predecessor: bool,
    pub interfaces: Vec<NicReport>,
    /// `None` if [`super::Options::lookup`] is off.
    pub lookup: Option<Attachment>,
    /// Number of host ids there are: the pinned maps', which may differ from [`super::Options::host_capacity`].
    pub host_capacity: u32,
    pub programs: Vec<ProgramReport>,
}

/// One of the interfaces that are to have programs.
#[derive(Clone, Debug)]
pub struct NicReport {
    pub name: String,
    /// The kernel's number for it; 0 if it is absent.
    pub index: u32,
    pub state: NicState,
    /// Why it is in no better mode: what the kernel said to each, best first.
    pub refusals: Vec<Arc<Error>>,
    pub transmit: TransmitState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramReport {
    pub name: &'static str,
    /// Instructions the verifier walked, of a million it would; `None` before kernel 5.16 (commit aba64c7da983).
    pub verified_instructions: Option<u32>,
    /// Instructions of the program as the kernel keeps it, without dead code; `None` for a user that may not read it.
    pub translated_instructions: Option<u32>,
}

// === impl NicMode, NicState, NicReport, TransmitState ===

impl NicMode {
    pub(super) const fn code(self) -> u32 {
        match self {
            Self::Native => NIC_NATIVE,
            Self::Generic => NIC_GENERIC,
            Self::Tcx => NIC_TCX,
            Self::Clsact => NIC_CLSACT,
        }
    }

    /// The mode as it stands in the map `nics`; `None` for one of another version, and for an interface above others.
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

    /// A word for tools.
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
    /// A word for tools.
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
}

impl NicReport {
    /// Whether somebody else's XDP program keeps ours away.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.refusals.iter().any(|refusal| matches!(**refusal, Error::Busy { .. }))
    }
}

impl TransmitState {
    /// A word for tools.
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
