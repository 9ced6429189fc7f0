//! Resources that all peers of a run share, and the start of each peer.

use std::{
    cell::Cell,
    collections::BTreeSet,
    fs, iter,
    net::SocketAddr,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use nix::sys::signal::Signal;
use rcgen::KeyPair;
use serde_json::Value;
use tempfile::TempDir;

use super::{
    Plan, Pod, Way, ask,
    conf::{Conf, Haproxy},
    objects,
    serving::{Serving, Told},
};
use crate::{
    load,
    peers::{self, Ports},
};
use ingress_lab::{
    Namespace, Process,
    api_server::ApiServer,
    credentials::{Authority, Signed},
    echo::Echo,
    free_port,
};

/// Resources that all peers of a run share.
pub(crate) struct Stage {
    folder: TempDir,
    binary: PathBuf,
    pub(super) authority: Authority,
    pod_port: u16,
    pin: bool,
    started: Cell<usize>,
    _pods: [Echo; 2],
}

/// Number of hosts with their own counters beyond those of the plan, for hosts that changes add.
const SPARE_HOSTS: usize = 1000;

// === impl Stage ===

impl Stage {
    /// Starts the pods. If there are two CPUs, the pods and other programs that this thread starts are pinned to CPU 0,
    /// except for the peers.
    pub(crate) fn open(binary: PathBuf) -> anyhow::Result<Self> {
        let pin = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
        if pin {
            load::stay_beside_the_pod()?;
        }
        let folder = tempfile::Builder::new().prefix("xdp-ingress-bench-").tempdir().context("cannot make a folder")?;
        let pod_port = free_port()?;
        let start =
            |pod: Pod| Echo::start(&Namespace::current(), pod.name(), &[SocketAddr::from((pod.address(), pod_port))]);
        let pods = [start(Pod::A)?, start(Pod::B)?];
        let (authority, started) = (Authority::generate()?, Cell::new(0));
        Ok(Self { folder, binary, authority, pod_port, pin, started, _pods: pods })
    }

    /// Starts a peer with one worker, on CPU 1 if there are two, and waits until it serves.
    pub(crate) fn start(&self, way: Way, plan: Plan) -> anyhow::Result<Serving<'_>> {
        let number = self.started.replace(self.started.get() + 1);
        let folder = self.folder.path().join(number.to_string());
        fs::create_dir(&folder).with_context(|| format!("cannot create `{}`", folder.display()))?;
        let signed = self.sign()?;
        let (certificate, key) = (signed.certificate(), signed.key());
        let both = [certificate, key].concat();
        for (name, text) in [("cert.pem", certificate), ("key.pem", key), ("both.pem", both.as_str())] {
            fs::write(folder.join(name), text)?;
        }
        let ports = Ports { http: free_port()?, https: free_port()? };
        let conf = Conf { folder, ports, admin_port: free_port()?, pod_port: self.pod_port, plan };
        let (words, told) = self.write(way, &conf)?;
        let log = conf.folder.join("log");
        let client = ask::client(&self.authority.trust()?)?;
        let begun = Instant::now();
        let process = Process::spawn(&way.to_string(), self.command(&words), log)?;
        let (moved, start) = (BTreeSet::new(), Duration::ZERO);
        let mut serving = Serving { stage: self, way, process, told, conf, moved, client, start };
        serving.wait()?;
        serving.start = begun.elapsed();
        Ok(serving)
    }

    /// Writes the files that a peer reads at its start. Returns its command line and its way to receive changes.
    fn write(&self, way: Way, conf: &Conf) -> anyhow::Result<(Vec<String>, Told)> {
        let none = BTreeSet::new();
        Ok(match way {
            Way::Nginx => {
                for number in 0..conf.plan.certificates() {
                    let (signed, [certificate, key]) = (self.sign()?, conf.certificate(number));
                    fs::write(certificate, signed.certificate())?;
                    fs::write(key, signed.key())?;
                }
                (conf.nginx(&none)?, Told::Signal(Signal::SIGHUP))
            }
            Way::Haproxy => (conf.haproxy(Haproxy::Master, &none)?, Told::Signal(Signal::SIGUSR2)),
            Way::HaproxyMap => (conf.haproxy(Haproxy::Single, &none)?, Told::Map),
            Way::XdpIngress => {
                let (api, kubeconfig) = (ApiServer::start()?, conf.folder.join("kubeconfig"));
                for objects in self.objects(way, conf) {
                    api.apply(objects?.1)?;
                }
                fs::write(&kubeconfig, api.kubeconfig())?;
                let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
                // Its pods are in this namespace, on loopback.
                let pods = "--allow-endpoints-in=127.0.0.0/8";
                let source = [kubeconfig.as_str(), pods, "--update-status=false", "--disable-leader-election"];
                (self.product(conf, &source)?, Told::Api(api))
            }
            Way::XdpIngressFiles | Way::XdpIngressGatewayFiles => {
                let manifests = conf.folder.join("manifests");
                fs::create_dir(&manifests)?;
                for objects in self.objects(way, conf) {
                    let (file, objects) = objects?;
                    fs::write(manifests.join(file), objects::manifest(&objects))?;
                }
                let source = format!("--manifests={}", manifests.display());
                (self.product(conf, &[&source])?, Told::Manifests(manifests))
            }
        })
    }

    /// Returns all objects of a plan, grouped by the files that they are in.
    fn objects(&self, way: Way, conf: &Conf) -> impl Iterator<Item = anyhow::Result<(String, Vec<Value>)>> {
        let Conf { plan, ports, .. } = *conf;
        let class = iter::once_with(move || anyhow::Ok(("class.yaml".to_owned(), objects::shared(way, plan, ports))));
        let secrets = (0..plan.certificates())
            .map(move |number| anyhow::Ok((secret_file(number), vec![objects::secret(number, &self.sign()?)])));
        let groups = (0..plan.hosts).map(move |host| {
            anyhow::Ok((group_file(host), objects::group(way, plan, host, Pod::A.address(), self.pod_port).to_vec()))
        });
        class.chain(secrets).chain(groups)
    }

    /// Signs a new certificate for all hosts.
    pub(super) fn sign(&self) -> anyhow::Result<Signed> {
        self.authority.sign(&["*.bench.test"], &KeyPair::generate().context("cannot make a key")?)
    }

    fn product(&self, conf: &Conf, source: &[&str]) -> anyhow::Result<Vec<String>> {
        let Ports { http, https } = conf.ports;
        let mut words = vec![self.binary.display().to_string(), "run".into()];
        for (flag, value) in [
            ("--http-port", http.to_string()),
            ("--steer", "bind".into()),
            ("--xdp-mode", "off".into()),
            ("--workers", "1".into()),
            ("--https-port", https.to_string()),
            ("--admin-addr", format!("127.0.0.1:{}", conf.admin_port)),
            // Like an installation with that many hosts: each host without its own counters would be reported.
            ("--host-capacity", (conf.plan.hosts + SPARE_HOSTS).max(16_384).to_string()),
            // All hosts are in one namespace. One above its limit would cost another its place.
            ("--max-hosts-per-namespace", (conf.plan.hosts + SPARE_HOSTS).max(100_000).to_string()),
        ] {
            words.extend([flag.into(), value]);
        }
        words.extend(source.iter().map(|&word| word.to_owned()));
        Ok(words)
    }

    fn command(&self, words: &[String]) -> Command {
        let words = [peers::tied(self.pin.then_some("1")).as_slice(), words].concat();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }
}

pub(super) fn group_file(host: usize) -> String {
    format!("i{host}.yaml")
}

pub(super) fn secret_file(number: usize) -> String {
    format!("c{number}.yaml")
}
