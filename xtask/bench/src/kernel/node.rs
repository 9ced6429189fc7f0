//! A node that serves in one of several ways, with its network. Several nodes exist side by side, so that they can take
//! turns.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use ingress_common::map::CLIENTS_MAX;

use super::cpu::Cpu;
use crate::{
    Case,
    load::{self, Target},
    peers::Ports,
};
use ingress_lab::{
    Lab, Process,
    client::{Ask, Connection, Protocol, Trust, block_on},
    controller::{DataPath, Options},
    credentials::Authority,
    denied,
    maps::Maps,
    nft,
    topology::{NODE_NIC, NODE_V4, ROUTER_NIC, Topology},
};
use xtask_tools::process;

/// Longest wait for a node to serve: loading the programs is the slow part.
const READY: Duration = Duration::from_secs(30);
/// Address at which the node serves in all ways.
pub(super) const SERVED: (Ipv4Addr, u16) = (NODE_V4, 80);
/// Limit of connections per second for each client, and of connections at once, in ways with limits.
pub(super) const SYNS_PER_SECOND: u32 = 20;
/// The host with a pod behind it.
pub(super) const POD_HOST: &str = "pod.test";
/// Likewise, with a certificate.
pub(super) const TLS_HOST: &str = "tls.test";

/// Path of connections to the proxy, and defence against floods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Way {
    /// XDP and sk_lookup.
    Steered,
    /// Like [`Way::Steered`], with the deny list in XDP.
    Denying,
    /// Like [`Way::Denying`], with the limits of clients.
    Limiting,
    /// Like [`Way::Steered`], with SYN cookies of XDP.
    Answering,
    /// Like [`Way::Answering`], with the kernel's defaults for SYN cookies and timestamps.
    AnsweringByDefault,
    /// Like [`Way::Answering`], with the deny list and the limits of clients.
    AnsweringAndLimiting,
    /// The proxy binds the port.
    Bound,
    /// Like [`Way::Bound`], with XDP, which only counts.
    Counted,
    /// The proxy binds another port, and nft redirects to it.
    Redirected,
    /// The proxy binds the port, and nft drops in `netdev` ingress the packets that [`Way::Limiting`] would drop.
    Filtered,
    /// Like [`Way::Counted`], and nft's `synproxy` answers SYNs in front of the proxy.
    Proxied,
    /// Like [`Way::Counted`], and the stack answers each SYN by a cookie.
    StackAnswers,
}

/// A running node. Fields are dropped in this order, so the lab is last.
#[derive(Debug)]
pub(super) struct Node {
    process: Process,
    /// A process with a program at the router's end of the link.
    polling: Option<Process>,
    pub(super) topology: Topology,
    /// The authority of [`TLS_HOST`]'s certificate.
    pub(super) trust: Trust,
    bpffs: PathBuf,
    lab: Lab,
}

// === impl Way ===

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Steered => "steered",
            Self::Denying => "denying",
            Self::Limiting => "limiting",
            Self::Answering => "answering",
            Self::AnsweringByDefault => "answering-default",
            Self::AnsweringAndLimiting => "answering-limiting",
            Self::Proxied => "proxied",
            Self::StackAnswers => "stack",
            Self::Bound => "bound",
            Self::Counted => "counted",
            Self::Redirected => "redirected",
            Self::Filtered => "filtered",
        }
    }

    /// Returns `true` if XDP answers SYNs by cookies.
    pub(super) const fn has_cookies(self) -> bool {
        matches!(self, Self::Answering | Self::AnsweringByDefault | Self::AnsweringAndLimiting)
    }

    /// Returns the value of `net.ipv4.tcp_syncookies` and `net.ipv4.tcp_timestamps`, if it is not the kernel's default.
    const fn sysctl(self) -> Option<&'static str> {
        match self {
            Self::Answering | Self::AnsweringAndLimiting | Self::StackAnswers => Some("2"),
            _ => None,
        }
    }

    fn rules(self) -> Option<String> {
        match self {
            Self::Steered
            | Self::Denying
            | Self::Limiting
            | Self::Answering
            | Self::AnsweringByDefault
            | Self::AnsweringAndLimiting
            | Self::Bound
            | Self::StackAnswers
            | Self::Counted => None,
            Self::Proxied => Some(
                "table inet front {\nchain prerouting {\ntype filter hook prerouting priority raw;\n\
                 tcp dport { 80, 443 } tcp flags & (fin | syn | rst | ack) == syn notrack\n}\n\
                 chain input {\ntype filter hook input priority filter;\n\
                 tcp dport { 80, 443 } ct state invalid,untracked synproxy mss 1460 wscale 7 timestamp sack-perm\n\
                 tcp dport { 80, 443 } ct state invalid drop\n}\n}\n"
                    .into(),
            ),
            Self::Redirected => Some(
                "table ip nat {\nchain prerouting {\ntype nat hook prerouting priority dstnat;\n\
                 tcp dport 80 redirect to :8080\n}\n}\n"
                    .into(),
            ),
            // A set of the same size as the product's map of clients. In both, clients that find a full one are not
            // limited; here only the timeout makes room.
            Self::Filtered => Some(format!(
                "table netdev filter {{\n{}\n\
                 set clients {{\ntype ipv4_addr; size {CLIENTS_MAX}; flags dynamic,timeout; timeout 1m;\n}}\n\
                 set clients6 {{\ntype ipv6_addr; size {CLIENTS_MAX}; flags dynamic,timeout; timeout 1m;\n}}\n\
                 chain ingress {{\ntype filter hook ingress device \"{NODE_NIC}\" priority 0;\n\
                 ip saddr @denied drop\n\
                 tcp dport {{ 80, 443 }} tcp flags & (fin | syn | rst | ack) == syn update @clients {{ \
                 ip saddr limit rate over {SYNS_PER_SECOND}/second burst {SYNS_PER_SECOND} packets }} drop\n\
                 tcp dport {{ 80, 443 }} tcp flags & (fin | syn | rst | ack) == syn update @clients6 {{ \
                 ip6 saddr limit rate over {SYNS_PER_SECOND}/second burst {SYNS_PER_SECOND} packets }} drop\n}}\n}}\n",
                denied::nft_set()
            )),
        }
    }

    /// Returns rows of the settings.
    fn settings(self) -> Vec<String> {
        let deny = || format!("block-cidrs: \"{}\"", denied::networks().collect::<Vec<_>>().join(","));
        match self {
            Self::Denying => vec![deny()],
            Self::Limiting | Self::AnsweringAndLimiting => {
                vec![deny(), format!("client-syns-per-second: \"{SYNS_PER_SECOND}\"")]
            }
            _ => Vec::new(),
        }
    }

    /// Returns the messages that the proxy logs once the kernel has its settings.
    const fn announcements(self) -> &'static [&'static str] {
        match self {
            Self::Answering | Self::AnsweringByDefault => &["SYN cookies of XDP are ready"],
            Self::Denying => &["deny list changed"],
            Self::Limiting => &["deny list changed", "limits of clients changed"],
            Self::AnsweringAndLimiting => {
                &["SYN cookies of XDP are ready", "deny list changed", "limits of clients changed"]
            }
            _ => &[],
        }
    }
}

// === impl Node ===

impl Node {
    /// Creates the network, starts the proxy with this number of workers and waits until it serves; with `pin`, all of
    /// its threads run on CPU 1.
    pub(super) fn start(way: Way, binary: &Path, workers: usize, pin: bool) -> anyhow::Result<Self> {
        Self::start_with(way, binary, workers, pin, &[])
    }

    /// Like [`Self::start`], with further options of the proxy.
    pub(super) fn start_with(
        way: Way,
        binary: &Path,
        workers: usize,
        pin: bool,
        further: &[&str],
    ) -> anyhow::Result<Self> {
        let lab = Lab::open(&format!("xb-{}", way.name()))?;
        let topology = Topology::build(&lab)?;
        for client in [&topology.client, &topology.router] {
            // More than the default, fewer than connection tracking remembers.
            client.sysctl("ipv4/ip_local_port_range", "20000 60000")?;
        }
        // An owner of a forged address does not respond to a SYN-ACK, and neither does this network. An ICMP error
        // (host unreachable) would make the node forget the connection request.
        topology.router.ip("route add blackhole default\nroute add blackhole ::/0")?;
        if let Some(rules) = way.rules() {
            nft::apply(&topology.node, &lab.home().join("rules.nft"), &rules)?;
        }
        let manifests = lab.home().join("manifests");
        fs::create_dir_all(&manifests)?;
        fs::write(manifests.join("kernel.yaml"), include_str!("kernel.yaml"))?;
        let settings = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: default}}\n\
             data: {{{}}}\n",
            way.settings().join(", ")
        );
        fs::write(manifests.join("settings.yaml"), settings)?;
        let authority = Authority::generate()?;
        fs::write(manifests.join("tls.yaml"), authority.secret("default", "tls", &[TLS_HOST])?)?;
        let bpffs = lab.bpffs()?.join("xdp-ingress");
        let mut options = Options::kernel(binary, &manifests, NODE_NIC, &bpffs);
        options.workers = workers;
        options.path = match way {
            Way::Steered
            | Way::Denying
            | Way::Limiting
            | Way::Answering
            | Way::AnsweringByDefault
            | Way::AnsweringAndLimiting => options.path,
            Way::Bound | Way::Filtered => DataPath::Bind { http: 80, https: 443 },
            Way::Counted | Way::Proxied | Way::StackAnswers => {
                DataPath::Count { interface: NODE_NIC.into(), bpffs: bpffs.clone() }
            }
            Way::Redirected => DataPath::Bind { http: 8080, https: 8443 },
        };
        let mut command = options.command();
        command.args(["--configmap", "default/settings"]).args(further);
        if let Some(value) = way.sysctl() {
            for name in ["ipv4/tcp_syncookies", "ipv4/tcp_timestamps"] {
                topology.node.sysctl(name, value)?;
            }
        }
        if way == Way::Proxied {
            // The ACK of a handshake that `synproxy` has answered is no part of a tracked connection.
            topology.node.sysctl("netfilter/nf_conntrack_tcp_loose", "0")?;
        }
        if way.has_cookies() {
            command.args(["--syn-cookies=on", "--syn-cookies-threshold=1000"]);
        }
        let polling = way.has_cookies().then(|| poll(&lab, &topology, binary, &manifests)).transpose()?;
        let process = lab.spawn(&topology.node, "xdp-ingress", command)?;
        let mut node = Self { process, polling, topology, trust: authority.trust()?, bpffs, lab };
        node.wait(way)?;
        if pin {
            let pid = node.process.pid().to_string();
            process::capture(Command::new("taskset").args(["--all-tasks", "--pid", "--cpu-list", "1", &pid]))?;
        }
        Ok(node)
    }

    fn wait(&mut self, way: Way) -> anyhow::Result<()> {
        let Self { process, topology, .. } = self;
        process.wait_until(READY, "the node serves", || serves(topology))?;
        for words in way.announcements() {
            process.wait_for_log(words, 1)?;
        }
        Ok(())
    }

    /// Lets both ends of its link poll, as network cards do, whatever its way to serve.
    pub(super) fn poll(&mut self, binary: &Path) -> anyhow::Result<()> {
        let Self { lab, topology, polling, .. } = self;
        if polling.is_none() {
            *polling = Some(poll(lab, topology, binary, &lab.home().join("manifests"))?);
        }
        // An end without a program polls with GRO, and only for a sender without TSO.
        for (namespace, interface, feature) in
            [(&topology.node, NODE_NIC, ["gro", "on"]), (&topology.router, ROUTER_NIC, ["tso", "off"])]
        {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace.name(), "ethtool", "--features", interface]).args(feature);
            process::capture(&mut command)?;
        }
        Ok(())
    }

    /// Opens its pinned maps; ways without programs have none.
    pub(super) fn maps(&self) -> anyhow::Result<Maps> {
        Maps::open(&self.bpffs)
    }

    /// Returns the microseconds of CPU for a connection with one request, to which the proxy itself responds.
    pub(super) fn short_connection(&self, cpu: &Cpu, length: Duration, pin: bool) -> anyhow::Result<f64> {
        let proxy = self.process.pid().cast_unsigned();
        let (ip, http) = SERVED;
        let before = cpu.used(proxy)?;
        // The router is next to the node, so no other machine forwards.
        let ports = Ports { http, https: 443 };
        let target = Target { ip, ports, folder: self.lab.home(), trust: &self.trust, pin };
        let sample = self.topology.router.run(|| load::run(Case::H1close, target, length))?;
        let used = cpu.used(proxy)? - before;
        anyhow::ensure!(sample.errors == 0, "{} of {} requests failed", sample.errors, sample.requests);
        Ok(used * 1e6 / sample.requests as f64)
    }
}

/// Attaches a program to the router's end of the link: a veth delivers what XDP sends only to an end
/// with a program.
fn poll(lab: &Lab, topology: &Topology, binary: &Path, manifests: &Path) -> anyhow::Result<Process> {
    let bpffs = lab.bpffs()?.join("router");
    let mut options = Options::kernel(binary, manifests, ROUTER_NIC, &bpffs);
    options.path = DataPath::Count { interface: ROUTER_NIC.into(), bpffs };
    let mut process = lab.spawn(&topology.router, "router", options.command())?;
    process.wait_for_log("kernel part open", 1)?;
    Ok(process)
}

/// Returns `true` if a connection succeeds and gets a response.
fn serves(topology: &Topology) -> bool {
    let exchange = || {
        block_on(async {
            let served = SocketAddr::from(SERVED);
            let mut connection = Connection::open(served, Protocol::Http1, POD_HOST, &Trust::none()).await?;
            connection.send(&Ask::get(POD_HOST, "/")).await
        })
    };
    topology.router.run(exchange).is_ok_and(|answer| answer.status.is_success())
}
