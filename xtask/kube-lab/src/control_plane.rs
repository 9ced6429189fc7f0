//! The programs of the control plane: their command lines and readiness checks. It does not start nodes.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::machine::Machine;
use super::pki::{self, Pki};
use super::plan::{API_PORT, CONTROL_V4, Places, SERVICES};
use super::state::{Process, State};
use super::{config, wait};
use crate::programs::Binaries;

/// The control plane's name among machines.
pub(super) const NAME: &str = "control";
pub(super) const ETCD: &str = "etcd";
pub(super) const API_SERVER: &str = "kube-apiserver";
pub(super) const CONTROLLER_MANAGER: &str = "kube-controller-manager";
pub(super) const SCHEDULER: &str = "kube-scheduler";

/// Time for which a node may be silent before its pods count as not ready. Kubernetes' own default is 50 s.
const GRACE_SECONDS: u32 = 10 * config::REPORT_SECONDS;
const ETCD_URL: &str = "http://127.0.0.1:2379";
/// An idle machine needs far less; a busy one may take a minute.
const READY_LIMIT: Duration = Duration::from_secs(180);

/// Everything needed to start a program of the control plane.
#[derive(Debug)]
pub(super) struct ControlPlane<'a> {
    pub(super) machine: &'a Machine,
    pub(super) places: &'a Places,
    pub(super) binaries: &'a Binaries,
    pub(super) state: &'a State,
}

impl ControlPlane<'_> {
    /// Writes the client configurations of the control plane, of kube-proxy and of the administrator.
    ///
    /// # Errors
    /// Fails if a file cannot be written.
    pub(super) fn configure(&self) -> Result<()> {
        let pki = self.pki();
        let everywhere = format!("https://{CONTROL_V4}:{API_PORT}");
        let here = format!("https://127.0.0.1:{API_PORT}");
        for (path, server, user) in [
            (self.places.kubeconfig(), &everywhere, pki::ADMIN),
            (self.places.proxy_kubeconfig(), &everywhere, pki::PROXY),
            (self.kubeconfig(pki::CONTROLLER_MANAGER), &here, pki::CONTROLLER_MANAGER),
            (self.kubeconfig(pki::SCHEDULER), &here, pki::SCHEDULER),
        ] {
            let text = config::kubeconfig(server, &pki, user);
            fs::write(&path, text).with_context(|| format!("cannot write `{}`", path.display()))?;
        }
        Ok(())
    }

    /// # Errors
    /// Fails if etcd cannot be started.
    pub(super) fn start_etcd(&self) -> Result<Process> {
        let mut etcd = Command::new(&self.binaries.etcd);
        // A power cut may lose written data; the cluster would be gone then anyway.
        etcd.args(["--name", "default", "--unsafe-no-fsync", "--log-level", "warn"]);
        etcd.args(["--listen-client-urls", ETCD_URL, "--advertise-client-urls", ETCD_URL]);
        etcd.args(["--listen-peer-urls", "http://127.0.0.1:0", "--data-dir"]).arg(self.places.data().join("etcd"));
        self.start(ETCD, etcd)
    }

    /// # Errors
    /// Fails if the API server cannot be started.
    pub(super) fn start_api_server(&self) -> Result<Process> {
        let pki = self.pki();
        let mut server = Command::new(&self.binaries.kube_apiserver);
        server.arg(format!("--etcd-servers={ETCD_URL}")).arg(format!("--secure-port={API_PORT}"));
        server.arg("--bind-address=::").arg(format!("--advertise-address={CONTROL_V4}"));
        server.arg(format!("--service-cluster-ip-range={SERVICES}"));
        server.args(["--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"]);
        server.args(["--allow-privileged=true", "--kubelet-preferred-address-types=InternalIP"]);
        server.arg("--service-account-issuer=https://kubernetes.default.svc");
        server.args(["--requestheader-allowed-names=front-proxy", "--requestheader-username-headers=X-Remote-User"]);
        server.arg("--requestheader-group-headers=X-Remote-Group");
        server.arg("--requestheader-extra-headers-prefix=X-Remote-Extra-");
        for (flag, path) in [
            ("cert-dir", self.places.pki()),
            ("tls-cert-file", pki.certificate(pki::API_SERVER)),
            ("tls-private-key-file", pki.key(pki::API_SERVER)),
            ("client-ca-file", pki.certificate("ca")),
            ("requestheader-client-ca-file", pki.certificate("ca")),
            ("kubelet-client-certificate", pki.certificate(pki::KUBELET_CLIENT)),
            ("kubelet-client-key", pki.key(pki::KUBELET_CLIENT)),
            ("proxy-client-cert-file", pki.certificate(pki::FRONT_PROXY)),
            ("proxy-client-key-file", pki.key(pki::FRONT_PROXY)),
            ("service-account-key-file", self.places.pki().join(format!("{}.pub", pki::SERVICE_ACCOUNTS))),
            ("service-account-signing-key-file", pki.key(pki::SERVICE_ACCOUNTS)),
        ] {
            server.arg(format!("--{flag}={}", path.display()));
        }
        self.start(API_SERVER, server)
    }

    /// Starts the controllers and the scheduler.
    ///
    /// # Errors
    /// Fails if a program cannot be started.
    pub(super) fn start_controllers(&self) -> Result<()> {
        let pki = self.pki();
        let mut controllers = Command::new(&self.binaries.kube_controller_manager);
        self.act_as(&mut controllers, pki::CONTROLLER_MANAGER, 10257);
        controllers.args(["--use-service-account-credentials=true", "--allocate-node-cidrs=false"]);
        controllers.arg(format!("--service-cluster-ip-range={SERVICES}"));
        controllers.arg(format!("--node-monitor-period={}s", config::REPORT_SECONDS));
        controllers.arg(format!("--node-monitor-grace-period={GRACE_SECONDS}s"));
        // Tests change a thousand objects at once and measure how long the product takes, not the controllers.
        controllers.args(["--kube-api-qps=200", "--kube-api-burst=400"]);
        for (flag, path) in [
            ("service-account-private-key-file", pki.key(pki::SERVICE_ACCOUNTS)),
            ("root-ca-file", pki.certificate("ca")),
            ("cluster-signing-cert-file", pki.certificate("ca")),
            ("cluster-signing-key-file", pki.key("ca")),
        ] {
            controllers.arg(format!("--{flag}={}", path.display()));
        }
        self.start(CONTROLLER_MANAGER, controllers)?;
        let mut scheduler = Command::new(&self.binaries.kube_scheduler);
        self.act_as(&mut scheduler, pki::SCHEDULER, 10259);
        scheduler.args(["--kube-api-qps=200", "--kube-api-burst=400"]);
        self.start(SCHEDULER, scheduler).map(drop)
    }

    /// Waits until the API server reports that it is ready.
    ///
    /// # Errors
    /// Fails if the process ends or is not ready in time; the error repeats the end of its log.
    pub(super) fn wait_for_api_server(&self, process: &Process) -> Result<()> {
        let ended = || bail!("the API server has ended");
        let ready = || if process.is_alive() { Ok(self.api_server_is_ready()) } else { ended() };
        wait::until("waiting for the API server", READY_LIMIT, ready)
            .with_context(|| wait::log_tail(&self.places.log(NAME, API_SERVER)))
    }

    fn api_server_is_ready(&self) -> bool {
        let mut ask = Command::new(&self.binaries.kubectl);
        ask.arg("--kubeconfig").arg(self.places.kubeconfig()).args(["--request-timeout=5s", "get", "--raw", "/readyz"]);
        self.machine.run(|| xtask_tools::process::capture(&mut ask)).is_ok_and(|answer| answer == "ok")
    }

    /// Adds the flags that the controller manager and the scheduler share.
    fn act_as(&self, command: &mut Command, user: &str, port: u16) {
        let kubeconfig = self.kubeconfig(user);
        for flag in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
            command.arg(format!("--{flag}={}", kubeconfig.display()));
        }
        command.args(["--bind-address=127.0.0.1", "--leader-elect=false"]).arg(format!("--secure-port={port}"));
    }

    fn start(&self, name: &str, command: Command) -> Result<Process> {
        self.machine.start(name, command, &self.places.log(NAME, name), self.state)
    }

    fn kubeconfig(&self, user: &str) -> PathBuf {
        self.places.data().join(format!("{user}.kubeconfig"))
    }

    fn pki(&self) -> Pki {
        Pki::at(self.places.pki())
    }
}
