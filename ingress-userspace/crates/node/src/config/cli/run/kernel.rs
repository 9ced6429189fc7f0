//! Options of the heading "Kernel": the programs, and how they deliver connections.

use std::{num::NonZeroU16, path::PathBuf};

use clap::{Args, ValueEnum};
use ingress_common::syn_cookies::THRESHOLD_MIN;
use ingress_control::{AddressPool, InvalidPool};
use ingress_datapath::{BPFFS, ClientShare};
use ipnet::IpNet;

#[derive(Debug, Args)]
#[command(next_help_heading = "Kernel")]
pub(crate) struct KernelArgs {
    /// Network interface to attach XDP to, as soon as it exists; repeatable. Default: interfaces with a default route.
    /// For a bond or VLAN, XDP is attached to the interfaces below it.
    #[arg(long, value_name = "NAME")]
    pub(crate) interface: Vec<String>,

    /// Networks with addresses that all nodes hold and one node announces by ARP and neighbour discovery; repeatable, or
    /// separated by commas. No other machine may use the addresses; at most 4096.
    #[arg(long, value_name = "CIDR", value_delimiter = ',', value_parser = network)]
    pub(crate) gateway_addresses: Vec<IpNet>,

    /// File with a key, by which nodes authenticate the datagrams that they send each other about --gateway-addresses: a
    /// line of at least 32 random characters, or two lines while the key is changed. All nodes need the same file. It is
    /// read again every 10 seconds.
    #[arg(long, value_name = "FILE", requires = "gateway_addresses")]
    pub(crate) gateway_address_key_file: Option<PathBuf>,

    /// After a planned move of an address of --gateway-addresses, send TCP segments of connections that the node before
    /// still has on to it, for up to an hour. All nodes need the option. They tell each other their Ethernet addresses by
    /// datagrams that are authenticated only with --gateway-address-key-file.
    #[arg(long, requires = "gateway_addresses")]
    pub(crate) gateway_address_forwarding: bool,

    /// Delivery of connections to the proxy.
    #[arg(long, value_enum, default_value_t = Steer::Auto)]
    pub(crate) steer: Steer,

    /// Share of the clients whose new connections this node takes, until `migrate shift` sets another. It applies to a node
    /// that has started or been unloaded since. The other clients are left to another listener of the ports, such as that
    /// of ingress-nginx. Less than 100% needs --steer auto.
    #[arg(long, value_name = "PERCENT", default_value = "100%")]
    pub(crate) initial_share: ClientShare,

    /// Number added to ports with --steer rewrite: to 80, 443 and the ports of TCP services. Firewalls of the node must
    /// allow the resulting ports, and no other program may use them.
    #[arg(long, value_name = "N", default_value = "10000")]
    pub(crate) rewrite_offset: NonZeroU16,

    /// Attachment of the XDP program to each interface.
    #[arg(long, value_enum, default_value_t = XdpModeArg::Auto)]
    pub(crate) xdp_mode: XdpModeArg,

    /// SYN cookies of XDP during floods of SYNs: XDP answers SYNs of the steered ports without state, passes connections
    /// that confirm a cookie, and drops TCP segments of no connection. Needs Linux 6.0 and XDP on the interface; without
    /// them the stack answers as before. With `dry-run`, SYNs are only counted, and connections get the worker that their
    /// addresses select.
    #[arg(long, value_enum, default_value_t = SynCookiesArg::Off)]
    pub(crate) syn_cookies: SynCookiesArg,

    /// SYNs per second of the node from which on XDP answers them. A flood ends 10 s after the last quarter second with half
    /// of that. Default: 8 times the usual rate of connections, between 5000 and 100000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(i64::from(THRESHOLD_MIN)..))]
    pub(crate) syn_cookies_threshold: Option<u32>,

    /// Directory of the pinned programs and maps; its parent must be on a BPF file system.
    #[arg(long, value_name = "DIR", default_value = BPFFS)]
    pub(crate) bpffs: PathBuf,

    /// Number of hosts with their own counters (64 bytes each, and 32 per CPU); further hosts share one set.
    #[arg(long, value_name = "N", default_value_t = ingress_common::map::HOSTS_DEFAULT,
          value_parser = clap::value_parser!(u32).range(2..=1_048_576))]
    pub(crate) host_capacity: u32,

    /// Log the decision of the kernel programs on each connection (slow; for debugging).
    #[arg(long)]
    pub(crate) bpf_log: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Steer {
    /// XDP chooses the worker and sk_lookup delivers; no socket is bound to the ports.
    Auto,
    /// Like `auto`, for nodes where a DNAT rule takes the ports (a pod's `hostPort`): XDP changes the port of packets
    /// before netfilter sees them, and responses get the original port back. Needs programs on the interfaces.
    Rewrite,
    /// Ordinary listeners on the ports; XDP, if attached, only counts.
    Bind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum XdpModeArg {
    /// Try the driver, then the generic hook, then `tcx`; also use `tcx` next to a foreign XDP program.
    Auto,
    /// The driver only; otherwise no XDP.
    Native,
    /// The generic hook of the network stack.
    Generic,
    /// No XDP: a program at tcx ingress (clsact before Linux 6.6) does the same, later in the path.
    Tcx,
    /// No program on any interface; sk_lookup still delivers with `--steer auto`.
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SynCookiesArg {
    Off,
    DryRun,
    On,
}

fn network(text: &str) -> Result<IpNet, InvalidPool> {
    AddressPool::parse_network(text)
}
