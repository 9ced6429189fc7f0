//! What [`super::Datapath::open`] found and did.

use std::sync::Arc;

use super::Error;

/// How XDP runs on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicMode {
    Native,
    Generic,
}

/// What became of one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicState {
    Attached {
        mode: NicMode,
        attachment: Attachment,
    },
    /// Somebody else's XDP program is there. Packets of this interface are not counted; sk_lookup delivers by its default rule.
    Busy,
    Off,
}

/// What became of the packets that an interface sends.
#[derive(Clone, Debug)]
pub enum TransmitState {
    /// They are counted.
    Attached { hook: TcHook, attachment: Attachment },
    /// They are not, or no longer exactly: the kernel refused something. Nothing else depends on it.
    Failed(Arc<Error>),
    /// They are not, for neither are those that it receives ([`NicState::Busy`], [`NicState::Off`]).
    Off,
}

/// Where `ingress_tc_out` is attached.
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

#[derive(Clone, Debug)]
pub struct NicReport {
    pub name: String,
    pub index: u32,
    pub state: NicState,
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

// === impl NicState, TransmitState ===

impl NicState {
    /// A word for tools.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Attached { mode: NicMode::Native, .. } => "native",
            Self::Attached { mode: NicMode::Generic, .. } => "generic",
            Self::Busy => "busy",
            Self::Off => "off",
        }
    }

    #[must_use]
    pub const fn is_attached(&self) -> bool {
        matches!(self, Self::Attached { .. })
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
