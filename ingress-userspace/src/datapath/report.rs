//! What [`super::Datapath::open`] found and did.

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicReport {
    pub name: String,
    pub index: u32,
    pub state: NicState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramReport {
    pub name: &'static str,
    /// Instructions the verifier walked, of a million it would; `None` before kernel 5.16 (commit aba64c7da983).
    pub verified_instructions: Option<u32>,
}
