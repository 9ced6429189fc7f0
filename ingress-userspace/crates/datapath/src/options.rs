//! Options of the datapath, and the ports to steer.

use std::{num::NonZeroU32, path::PathBuf};

use ingress_common::map::HOSTS_DEFAULT;

use super::{ClientShare, TcHook};

/// Default directory of the pins, see `--bpffs`.
pub const BPFFS: &str = "/sys/fs/bpf/xdp-ingress";

/// Options of [`super::Datapath::open`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of the pins, on a BPF file system; created if missing. Default [`BPFFS`].
    pub bpffs: PathBuf,
    /// Interfaces to attach to. Links of other interfaces below the same `bpffs` are removed, beside another living process
    /// only in the takeover.
    pub interfaces: Interfaces,
    pub xdp_mode: XdpMode,
    /// Hook of the tc programs. `None`, the default, uses tcx if the kernel has it, else clsact.
    pub tc_hook: Option<TcHook>,
    /// Whether sk_lookup delivers connections to the listeners. Without it, an existing link is removed, beside another
    /// living process only in the takeover. Default `true`.
    pub lookup: bool,
    /// Whether ports will be rewritten ([`SteeredPort::rewritten`]), which requires a newer kernel. Default `false`.
    pub rewrites: bool,
    /// Share of the clients whose connections are taken, if none was ever set on this node since it started or was
    /// unloaded ([`super::NodeShare`]). It is written before the process takes the node over. Default
    /// [`ClientShare::ALL`].
    pub initial_share: ClientShare,
    /// SYN cookies of XDP during floods ([`super::SynCookies`]). Default `None`, with which no program knows of them.
    pub syn_cookies: Option<SynCookieOptions>,
    /// Number of host ids, including host 0; 64 bytes and 32 per CPU each. Pinned maps keep their own capacity
    /// ([`super::Report::host_capacity`]). Default [`HOSTS_DEFAULT`].
    pub host_capacity: u32,
    /// Whether the programs log their decisions ([`super::Datapath::debug_log`]). Costs about 1 µs per new connection.
    /// Default `false`.
    pub debug_log: bool,
    /// Whether to load the extra programs of [`super::TestProgram`]. Default `false`.
    pub measure: bool,
}

/// Settings of SYN cookies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynCookieOptions {
    pub threshold: SynThreshold,
    /// Dry run: SYNs that would be answered are counted but pass.
    pub is_dry_run: bool,
}

/// Rate of SYNs to all steered ports of the node from which on XDP answers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynThreshold {
    /// Every SYN is answered.
    EverySyn,
    /// So many per second, and at least [`ingress_common::syn_cookies::THRESHOLD_MIN`].
    PerSecond(NonZeroU32),
    /// Eight times the usual rate of connections, and at least 5,000 per second.
    Learned,
}

/// Interfaces for the programs.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Interfaces {
    pub names: Vec<String>,
    /// Indices of interfaces above those, on which the stack delivers packets received below: a bond above its ports.
    /// They get no program; lookups of their connections assume that XDP has seen the packets.
    pub above: Vec<u32>,
}

/// Hook for the packets received by an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum XdpMode {
    /// Prefer XDP in the driver, then XDP in the stack, then tc. Next to a foreign XDP program, use tc.
    #[default]
    Auto,
    /// XDP in the driver, or no program.
    Native,
    /// XDP in the stack, after the allocation of the `sk_buff`; works with every driver, slower.
    Generic,
    /// A tc program, independent of any XDP program; works with every driver, and sees packets merged by GRO as one.
    Tcx,
    /// No program: existing links are removed, as those of unselected interfaces. sk_lookup still delivers, by its default
    /// rule.
    Off,
}

/// A port to steer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteeredPort {
    pub port: u16,
    /// Protocol, [`ingress_common::flow::PROTO_TCP`] or [`ingress_common::flow::PROTO_UDP`].
    pub proto: u8,
    /// First slot of the port; its slots are `first_slot .. first_slot + workers`.
    pub first_slot: u32,
    /// Number of workers; 0 counts packets and steers nothing.
    pub workers: u32,
    /// Bits of `ingress_common::steer::PORT_*`. The values of `PORT_DENIES` and `PORT_LIMITS_*` are ignored; they
    /// follow from the deny list and the limits.
    pub flags: u16,
    /// Port that replaces this one in received packets, and is replaced by it in sent ones, on interfaces with both
    /// programs. Must not be used by another port; TCP only. `None` leaves packets unchanged.
    pub rewritten: Option<u16>,
}

// === impl SteeredPort ===

impl SteeredPort {
    /// Returns the number of entries used out of [`ingress_common::map::PORTS_MAX`].
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
            initial_share: ClientShare::ALL,
            syn_cookies: None,
            host_capacity: HOSTS_DEFAULT,
            debug_log: false,
            measure: false,
        }
    }
}
