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

/// Path of connections to the proxy, and defence against floods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// XDP and sk_lookup.
    Steered,
    /// Like [`Way::Steered`], with the deny list in XDP.
    Denying,
    /// Like [`Way::Denying`], with the limits of clients.
    Limiting,
    /// Like [`Way::Steered`], with SYN cookies of XDP.
    Answering,
    /// The proxy binds the port.
    Bound,
    /// Like [`Way::Bound`], with XDP, which only counts.
    Counted,
    /// The proxy binds another port, and nft redirects to it.
    Redirected,
    /// The proxy binds the port, and nft drops in `netdev` ingress the packets that [`Way::Limiting`] would drop.
    Filtered,
}

/// A running node. Fields are dropped in this order, so the lab is last.
#[derive(Debug)]
pub(super) struct Node {
    process: Process,
    /// A process with a program at the router's end of the link.
    _polling: Option<Process>,
    pub(super) topology: Topology,
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
            Self::Bound => "bound",
            Self::Counted => "counted",
            Self::Redirected => "redirected",
            Self::Filtered => "filtered",
        }
    }

    fn rules(self) -> Option<String> {
        match self {
            Self::Steered | Self::Denying | Self::Limiting | Self::Answering | Self::Bound | Self::Counted => None,
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
                 chain ingress {{\ntype filter hook ingress device \"{NODE_NIC}\" priority 0;\n\
                 ip saddr @denied drop\n\
                 tcp dport 80 tcp flags & (fin | syn | rst | ack) == syn update @clients {{ \
                 ip saddr limit rate over {SYNS_PER_SECOND}/second burst {SYNS_PER_SECOND} packets }} drop\n}}\n}}\n",
                denied::nft_set()
            )),
        }
    }

    /// Returns rows of the settings.
    fn settings(self) -> Vec<String> {
        let deny = || format!("block-cidrs: \"{}\"", denied::networks().collect::<Vec<_>>().join(","));
        match self {
            Self::Steered | Self::Answering | Self::Bound | Self::Counted | Self::Redirected | Self::Filtered => {
                Vec::new()
            }
            Self::Denying => vec![deny()],
            Self::Limiting => vec![deny(), format!("client-syns-per-second: \"{SYNS_PER_SECOND}\"")],
        }
    }

    /// Returns the messages that the proxy logs once the kernel has its settings.
    const fn announcements(self) -> &'static [&'static str] {
        match self {
            Self::Answering => &["SYN cookies of XDP are ready"],
            Self::Steered | Self::Bound | Self::Counted | Self::Redirected | Self::Filtered => &[],
            Self::Denying => &["deny list changed"],
            Self::Limiting => &["deny list changed", "limits of clients changed"],
        }
    }
}

// === impl Node ===

impl Node {
    /// Creates the network, starts the proxy with this number of workers and waits until it serves; with `pin`, all of
    /// its threads run on CPU 1.
    pub(super) fn start(way: Way, binary: &Path, workers: usize, pin: bool) -> anyhow::Result<Self> {
        let lab = Lab::open(&format!("xb-{}", way.name()))?;
        let topology = Topology::build(&lab)?;
        for client in [&topology.client, &topology.router] {
            // More than the default, fewer than connection tracking remembers.
            client.sysctl("ipv4/ip_local_port_range", "20000 60000")?;
        }
        // An owner of a forged address does not respond to a SYN-ACK, and neither does this network. An ICMP error
        // (host unreachable) would make the node forget the connection request.
        topology.router.ip("route add blackhole default")?;
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
        let bpffs = lab.bpffs()?.join("xdp-ingress");
        let mut options = Options::kernel(binary, &manifests, NODE_NIC, &bpffs);
        options.workers = workers;
        options.path = match way {
            Way::Steered | Way::Denying | Way::Limiting | Way::Answering => options.path,
            Way::Bound | Way::Filtered => DataPath::Bind { http: 80, https: 443 },
            Way::Counted => DataPath::Count { interface: NODE_NIC.into(), bpffs: bpffs.clone() },
            Way::Redirected => DataPath::Bind { http: 8080, https: 8443 },
        };
        let mut command = options.command();
        command.args(["--configmap", "default/settings"]);
        let mut polling = None;
        if way == Way::Answering {
            command.args(["--syn-cookies=on", "--syn-cookies-threshold=1000"]);
            for name in ["ipv4/tcp_syncookies", "ipv4/tcp_timestamps"] {
                topology.node.sysctl(name, "2")?;
            }
            polling = Some(poll(&lab, &topology, binary, &manifests)?);
        }
        let process = lab.spawn(&topology.node, "xdp-ingress", command)?;
        let mut node = Self { process, _polling: polling, topology, bpffs, lab };
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
        let (ports, trust) = (Ports { http, https: 443 }, Trust::none());
        let target = Target { ip, ports, folder: self.lab.home(), trust: &trust, pin };
        let sample = self.topology.router.run(|| load::run(Case::H1close, target, length))?;
        let used = cpu.used(proxy)? - before;
        anyhow::ensure!(sample.errors == 0, "{} of {} requests failed", sample.errors, sample.requests);
        Ok(used * 1e6 / sample.requests as f64)
    }
}

/// Attaches a program to the router's end of the link: a veth delivers what XDP sends only to an end that polls.
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
