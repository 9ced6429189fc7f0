//! The network and the running proxy of one test, and the manifests it serves.

use std::{
    fmt::{Display, Write as _},
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use ingress_lab::{
    Lab, Namespace, capability,
    client::{Answer, Ask, Connection, Protocol, Trust, block_on},
    controller::{Controller, Options},
    load::{Load, Report},
    maps::{Counts, Maps},
    topology::{Family, NODE_NIC, Topology, node_addr},
};

/// Fields are dropped in this order: the lab last.
pub(crate) struct Net {
    pub(crate) topology: Topology,
    pub(crate) manifests: PathBuf,
    pub(crate) bpffs: PathBuf,
    pub(crate) lab: Lab,
}

impl Net {
    /// Builds the network; `None` where the machine lacks a prerequisite and the test is skipped.
    pub(crate) fn build(name: &str) -> Option<Self> {
        if !capability::required_or_skip(name).expect("the machine has what is required") {
            return None;
        }
        let lab = Lab::open(&format!("xd-{name}")).expect("lab opens");
        let topology = Topology::build(&lab).expect("topology is built");
        let bpffs = lab.bpffs().expect("bpffs is mounted").join("xdp-ingress");
        let manifests = lab.home().join("manifests");
        fs::create_dir(&manifests).expect("manifests directory");
        let net = Self { topology, manifests, bpffs, lab };
        net.write("00-class.yaml", CLASS);
        Some(net)
    }

    /// [`Net::build`] with the host `web.test` on pod-a and pod-b, and the proxy running.
    pub(crate) fn serving(name: &str) -> Option<(Self, Controller)> {
        let net = Self::build(name)?;
        net.write("web.yaml", &net.site("web", &[0, 1]));
        let controller = net.start("first", 9110);
        Some((net, controller))
    }

    /// Starts a proxy and waits until it is ready.
    pub(crate) fn start(&self, name: &str, admin_port: u16) -> Controller {
        Controller::start(&self.lab, &self.topology.node, &self.options(name, admin_port)).expect("the proxy is ready")
    }

    pub(crate) fn options(&self, name: &str, admin_port: u16) -> Options {
        let binary = Path::new(env!("CARGO_BIN_EXE_xdp-ingress"));
        let mut options = Options::kernel(binary, &self.manifests, NODE_NIC, &self.bpffs);
        options.name = name.into();
        options.admin = (Ipv4Addr::LOCALHOST, admin_port).into();
        options
    }

    /// Writes a manifest atomically, so that the proxy sees either all of it or the previous one.
    pub(crate) fn write(&self, name: &str, content: &str) {
        let partial = self.lab.home().join("partial");
        fs::write(&partial, content).expect("manifest is written");
        fs::rename(&partial, self.manifests.join(name)).expect("manifest is put in place");
    }

    /// Manifests for the host `<name>.test`, all paths, on these pods.
    pub(crate) fn site(&self, name: &str, pods: &[usize]) -> String {
        format!("{}---\n{}---\n{}", ingress(name, &format!("{name}.test"), name), service(name), self.slice(name, pods))
    }

    /// Writes the host `web.test` on these pods, with and without TLS; `secret` is the Secret `web` with its certificate.
    pub(crate) fn write_tls_site(&self, pods: &[usize], secret: &str) {
        let tls = format!("{}  tls: [{{hosts: [web.test], secretName: web}}]\n", ingress("web", "web.test", "web"))
            .replace(
                "namespace: default}",
                "namespace: default, annotations: {nginx.ingress.kubernetes.io/ssl-redirect: 'false'}}",
            );
        let site = self.site("web", pods);
        let rest = site.split_once("---\n").expect("several documents").1;
        self.write("web.yaml", &format!("{tls}---\n{secret}---\n{rest}"));
    }

    /// The EndpointSlice of the service `name`.
    pub(crate) fn slice(&self, name: &str, pods: &[usize]) -> String {
        let mut text = format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: {name}-1\n  namespace: default\n  \
             labels: {{kubernetes.io/service-name: {name}}}\naddressType: IPv4\nports: [{{port: 8080}}]\nendpoints:\n"
        );
        for &pod in pods {
            writeln!(text, "- addresses: [{}]", self.topology.pods[pod].v4).expect("a string takes text");
        }
        text
    }

    /// Sends one request from `from` on a connection of its own.
    pub(crate) fn try_ask(&self, from: &Namespace, addr: SocketAddr, ask: &Ask) -> anyhow::Result<(Answer, IpAddr)> {
        from.run(|| {
            block_on(async {
                let mut connection = Connection::open(addr, Protocol::Http1, &ask.host, &Trust::none()).await?;
                let (answer, local) = (connection.send(ask).await?, connection.local.ip());
                connection.close().await?;
                Ok((answer, local))
            })
        })
    }

    /// [`Net::try_ask`] that must be answered.
    pub(crate) fn ask(&self, from: &Namespace, addr: SocketAddr, ask: &Ask) -> (Answer, IpAddr) {
        self.try_ask(from, addr, ask).unwrap_or_else(|error| panic!("no answer: {error:#}"))
    }

    /// Sends a request to the admin address, which belongs to the current owner.
    pub(crate) fn admin(&self, path: &str) -> anyhow::Result<Answer> {
        self.try_ask(&self.topology.node, (Ipv4Addr::LOCALHOST, 9110).into(), &Ask::get("localhost", path))
            .map(|(answer, _)| answer)
    }

    pub(crate) fn maps(&self) -> Maps {
        Maps::open(&self.bpffs).expect("maps are pinned")
    }

    /// Returns the counters once they add up and stand still.
    pub(crate) fn settled(&self) -> Counts {
        self.maps().settled().unwrap_or_else(|error| panic!("{error:#}"))
    }
}

/// Ends these loads, and returns the sum of their reports, which it prints.
pub(crate) fn stop_all<N: Display>(loads: Vec<(N, Load)>) -> Report {
    let mut total = Report::default();
    for (name, load) in loads {
        let report = load.stop().expect("load ends");
        let slowest = report.times.iter().max().map_or_else(String::new, |slowest| format!(", slowest {slowest:.0?}"));
        println!("{name}: {} answered, {} failed{slowest}", report.answered, report.failed);
        total.answered += report.answered;
        total.failed += report.failed;
        total.reasons.extend(report.reasons);
    }
    total
}

/// The node's port 80.
pub(crate) fn http(family: Family) -> SocketAddr {
    (node_addr(family), 80).into()
}

/// The class of [`ingress`].
pub(crate) const CLASS: &str = "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: xdp}\nspec: {controller: xdp-ingress.io/controller}\n";

/// An Ingress for all paths of `host`.
pub(crate) fn ingress(name: &str, host: &str, service: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: {name}, namespace: default}}\nspec:\n  \
         ingressClassName: xdp\n  rules:\n  - host: {host}\n    http:\n      paths:\n      - {{path: /, pathType: Prefix, \
         backend: {{service: {{name: {service}, port: {{number: 80}}}}}}}}\n"
    )
}

fn service(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: default}}\nspec: {{ports: [{{port: 80, targetPort: 8080}}]}}\n"
    )
}
