//! The environment of the demo: the namespaces with the kernel part, or loopback without it. It sends no requests.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;

use super::{
    manifests::Mirror,
    steps::{CERTIFICATE_HOSTS, GATEWAY_CERTIFICATE_HOSTS, Origin, To},
};
use ingress_lab::{
    Lab, Namespace,
    client::{Protocol, Trust},
    controller::{Controller, DataPath, Options},
    credentials::Authority,
    echo::Echo,
    free_port,
    maps::{Counts, Maps},
    topology::{Family, NODE_NIC, PODS, Topology, node_addr},
    until_within,
};

/// The running proxy and its environment. Fields are dropped in this order, so the lab is last.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) controller: Controller,
    pub(super) mirror: Mirror,
    pub(super) trust: Trust,
    pub(super) scene: Scene,
    pub(super) lab: Lab,
}

#[derive(Debug)]
pub(super) enum Scene {
    Kernel { topology: Topology, bpffs: PathBuf },
    Loopback(Loopback),
}

/// Proxy and pods on this machine's loopback, on ports that were free.
#[derive(Debug)]
pub(super) struct Loopback {
    machine: Namespace,
    pub(super) http: u16,
    pub(super) https: u16,
    pub(super) admin: u16,
    pub(super) has_v6: bool,
    pod_port: u16,
    _pods: Vec<Echo>,
}

/// The pods' loopback addresses; the last byte is the same as in the examples.
const LOOPBACK_PODS: [Ipv4Addr; 3] =
    [Ipv4Addr::new(127, 0, 0, 11), Ipv4Addr::new(127, 0, 0, 12), Ipv4Addr::new(127, 0, 0, 13)];

// === impl Stage ===

impl Stage {
    /// Builds namespaces and starts the proxy with XDP on the node's interface.
    pub(super) fn kernel(lab: Lab, binary: &Path, examples: &Path) -> anyhow::Result<Self> {
        let topology = Topology::build(&lab)?;
        let bpffs = lab.bpffs()?.join("xdp-ingress");
        let (mirror, trust) = manifests(&lab, examples, Vec::new())?;
        let options = Options::kernel(binary, mirror.dir(), NODE_NIC, &bpffs);
        let controller = Controller::start(&lab, &topology.node, &options)?;
        Ok(Self { controller, mirror, trust, scene: Scene::Kernel { topology, bpffs }, lab })
    }

    /// Starts pods and proxy on loopback.
    pub(super) fn loopback(lab: Lab, binary: &Path, examples: &Path) -> anyhow::Result<Self> {
        let loopback = Loopback::start()?;
        let (mirror, trust) = manifests(&lab, examples, loopback.replacements())?;
        let options = Options {
            name: "xdp-ingress".into(),
            binary: binary.into(),
            manifests: mirror.dir().into(),
            workers: 2,
            admin: (Ipv4Addr::LOCALHOST, loopback.admin).into(),
            path: DataPath::Bind { http: loopback.http, https: loopback.https },
        };
        let controller = Controller::start(&lab, &loopback.machine, &options)?;
        Ok(Self { controller, mirror, trust, scene: Scene::Loopback(loopback), lab })
    }

    pub(super) fn place(&self, from: Origin) -> &Namespace {
        match (&self.scene, from) {
            (Scene::Kernel { topology, .. }, Origin::Client) => &topology.client,
            (Scene::Kernel { topology, .. }, Origin::Node) => &topology.node,
            (Scene::Kernel { topology, .. }, Origin::Pod) => &topology.pods[0].namespace,
            (Scene::Loopback(loopback), _) => &loopback.machine,
        }
    }

    /// Returns the address to connect to.
    pub(super) fn addr(&self, to: To, family: Family, protocol: Protocol) -> SocketAddr {
        match (&self.scene, to) {
            (Scene::Kernel { topology, .. }, To::FirstPod) => {
                let pod = &topology.pods[0];
                let ip: IpAddr = if family == Family::V4 { pod.v4.into() } else { pod.v6.into() };
                (ip, 80).into()
            }
            (Scene::Kernel { .. }, To::Proxy) => {
                (node_addr(family), if protocol == Protocol::Http1 { 80 } else { 443 }).into()
            }
            (Scene::Loopback(loopback), To::FirstPod) => (LOOPBACK_PODS[0], loopback.pod_port).into(),
            (Scene::Loopback(loopback), To::Proxy) => {
                let port = if protocol == Protocol::Http1 { loopback.http } else { loopback.https };
                (loopback.ip(family), port).into()
            }
        }
    }

    /// Returns the counters as soon as `settled` returns `true`, or the current ones after five seconds.
    pub(super) fn counts(&self, mut settled: impl FnMut(&Counts) -> bool) -> anyhow::Result<Counts> {
        let maps = match &self.scene {
            Scene::Kernel { bpffs, .. } => Some(Maps::open(bpffs)?),
            Scene::Loopback(_) => None,
        };
        let mut last = None;
        let found = until_within(Duration::from_secs(5), "the counters", || {
            let counts = match maps.as_ref().map_or_else(|| self.controller.counts(), Maps::settled) {
                Ok(counts) => counts,
                Err(error) => return Some(Err(error)),
            };
            if settled(&counts) {
                return Some(Ok(counts));
            }
            last = Some(counts);
            None
        });
        match (found, last) {
            (Ok(counts), _) => counts,
            (Err(_late), Some(counts)) => Ok(counts),
            (Err(late), None) => Err(late),
        }
    }
}

/// Creates the copy that the proxy reads, with the Secrets that the examples name but leave out.
fn manifests(lab: &Lab, examples: &Path, replace: Vec<(String, String)>) -> anyhow::Result<(Mirror, Trust)> {
    let mirror = Mirror::new(examples, &lab.home().join("manifests"), replace)?;
    let authority = Authority::generate()?;
    mirror.add("demo-secret.yaml", &authority.secret("account", "account-tls", CERTIFICATE_HOSTS)?)?;
    mirror.add("demo-gateway-secret.yaml", &authority.secret("gateway", "gateway-tls", GATEWAY_CERTIFICATE_HOSTS)?)?;
    fs::write(lab.home().join("ca.pem"), authority.pem()).context("cannot write the authority's certificate")?;
    Ok((mirror, authority.trust()?))
}

// === impl Loopback ===

impl Loopback {
    fn start() -> anyhow::Result<Self> {
        let has_v6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
        let machine = Namespace::current();
        let [http, https, admin] = [free_port()?, free_port()?, free_port()?];
        // All pods share a port, because an EndpointSlice has only one; it must be free on every address.
        let mut failure = None;
        for _ in 0..20 {
            let pod_port = free_port()?;
            match pods(&machine, pod_port, has_v6) {
                Ok(pods) => return Ok(Self { machine, http, https, admin, has_v6, pod_port, _pods: pods }),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.context("no port was tried")?)
    }

    /// Returns the IPv6 address if there is one, else the IPv4 address.
    pub(super) fn ip(&self, family: Family) -> IpAddr {
        match family {
            Family::V6 if self.has_v6 => Ipv6Addr::LOCALHOST.into(),
            Family::V4 | Family::V6 => Ipv4Addr::LOCALHOST.into(),
        }
    }

    /// Maps the pods' addresses in the examples, and the ports of a Gateway, to those on loopback.
    fn replacements(&self) -> Vec<(String, String)> {
        let mut replace: Vec<_> =
            (11..=13).map(|number| (format!("10.244.0.{number}"), format!("127.0.0.{number}"))).collect();
        replace.push((" port: 8080".into(), format!(" port: {}", self.pod_port)));
        for (before, after, protocol) in [(80, self.http, "HTTP"), (443, self.https, "HTTPS")] {
            let listener = |port: u16| format!("port: {port}\n      protocol: {protocol}\n");
            replace.push((listener(before), listener(after)));
        }
        if self.has_v6 {
            replace.push(("fd00:244::13".into(), "::1".into()));
        } else {
            replace.push(("fd00:244::13".into(), "127.0.0.13".into()));
            replace.push(("addressType: IPv6".into(), "addressType: IPv4".into()));
        }
        replace
    }
}

fn pods(machine: &Namespace, port: u16, has_v6: bool) -> anyhow::Result<Vec<Echo>> {
    let start = |(name, ip): (&&str, Ipv4Addr)| {
        let mut listen = vec![SocketAddr::from((ip, port))];
        // Loopback has one IPv6 address; the third pod gets it, because only that pod has an IPv6 address in the
        // examples.
        if has_v6 && ip == LOOPBACK_PODS[2] {
            listen.push((Ipv6Addr::LOCALHOST, port).into());
        }
        Echo::start(machine, name, &listen)
    };
    PODS.iter().zip(LOOPBACK_PODS).map(start).collect()
}
