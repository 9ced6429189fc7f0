//! What to open and what to steer, as the caller asks for it.

use std::path::PathBuf;

use ingress_common::map::HOSTS_DEFAULT;

use super::TcHook;

/// Where pins go unless `--bpffs` says otherwise.
pub const BPFFS: &str = "/sys/fs/bpf/xdp-ingress";

/// What to open.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of the pins, on a BPF file system; made if it is not there. Default [`BPFFS`].
    pub bpffs: PathBuf,
    /// Interfaces to attach to. Links of other interfaces below the same `bpffs` are removed.
    pub interfaces: Interfaces,
    pub xdp_mode: XdpMode,
    /// Where programs for packets of the stack are attached. `None`, the default: by tcx where the kernel has it, else
    /// by clsact.
    pub tc_hook: Option<TcHook>,
    /// Whether sk_lookup delivers connections to the listeners. Default `true`.
    pub lookup: bool,
    /// Whether ports are going to be rewritten ([`SteeredPort::rewritten`]), for which the kernel may be too old. Default
    /// `false`.
    pub rewrites: bool,
    /// Number of host ids, host 0 included; 128 bytes and 32 per CPU each. Maps that are pinned keep their own
    /// ([`super::Report::host_capacity`]). Default [`HOSTS_DEFAULT`].
    pub host_capacity: u32,
    /// Whether the programs log what they decide ([`super::Datapath::debug_log`]). Costs about 1 µs per new connection.
    /// Default `false`.
    pub debug_log: bool,
    /// Whether to load what [`super::TestProgram`] names, too. Default `false`.
    pub measure: bool,
}

/// Interfaces that are to have the programs.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Interfaces {
    pub names: Vec<String>,
    /// Indices of interfaces above those, which the stack takes packets for that it has received by them: a bond above
    /// its ports. They get no program; who looks up a connection of theirs knows that XDP has seen it.
    pub above: Vec<u32>,
}

/// How the packets that an interface receives are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum XdpMode {
    /// By XDP in the driver where it can be, else in the stack, else by tc. Where somebody else's XDP program is: by
    /// tc.
    #[default]
    Auto,
    /// By XDP in the driver, or not at all.
    Native,
    /// By XDP in the stack, after the packet has its `sk_buff`; works with every driver, slower.
    Generic,
    /// By tc, whoever has XDP; works with every driver, and sees what was merged on its way (GRO) as one packet.
    Tcx,
    /// Not at all: links that are there are removed. sk_lookup still delivers, by its default rule.
    Off,
}

/// A port to steer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteeredPort {
    pub port: u16,
    /// [`ingress_common::flow::PROTO_TCP`] or [`ingress_common::flow::PROTO_UDP`].
    pub proto: u8,
    /// The port's slots are `first_slot .. first_slot + workers`.
    pub first_slot: u32,
    /// 0 counts packets and steers nothing.
    pub workers: u32,
    /// Bits of `ingress_common::steer::PORT_*`; `PORT_DENIES` and `PORT_LIMITS_*` follow from
    /// the deny list and the limits, whatever stands here.
    pub flags: u16,
    /// The port that packets for this one get on their way in, and lose on their way out, by interfaces that have the
    /// programs for both; nobody else's. TCP alone. `None`: packets stay as they are.
    pub rewritten: Option<u16>,
}

// === impl SteeredPort ===

impl SteeredPort {
    /// How many of the [`ingress_common::map::PORTS_MAX`] entries it takes.
    #[must_use]
    pub const fn entries(&self) -> usize {
        if self.rewritten.is_some() { 2 } else { 1 }
    }
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self {
            bpffs: PathBuf::from(BPFFS),
            interfaces: Interfaces::default(),
            xdp_mode: XdpMode::Auto,
            tc_hook: None,
            lookup: true,
            rewrites: false,
            host_capacity: HOSTS_DEFAULT,
            debug_log: false,
            measure: false,
        }
    }
}
