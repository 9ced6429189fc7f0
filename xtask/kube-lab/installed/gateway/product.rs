//! A process of the product beside the control plane, as the only one that serves Gateway API. `XDP_INGRESS_BINARY=PATH` is
//! another build of it, such as that of the release profile.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use ingress_lab::{Lab, Process};

use crate::{
    scale::resident,
    stage::{Scope, Stage, mended, product, until},
};

/// Where the process serves, in the control plane's namespace.
pub(super) const HTTP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 21180);
/// The controller of the IngressClass that it serves, too.
pub(super) const CONTROLLER: &str = "scale.test/gateway";

/// The installed product does not run as long as this lives: it would serve the same Gateways, and write their statuses.
pub(super) struct Away<'s>(&'s Stage);

pub(super) struct Product {
    pub(super) process: Process,
    /// Time from its start until it was ready.
    pub(super) ready: Duration,
}

impl<'s> Away<'s> {
    pub(super) fn begin(stage: &'s Stage) -> Self {
        // Before the change: if that fails half-way, it is taken back.
        let away = Self(stage);
        select(stage, "nowhere").expect("the DaemonSet is changed");
        until("no pod of the product runs", || {
            let pods = stage.kubectl(&["--namespace=xdp-ingress", "get", "pods", "--output=name"]);
            if pods.is_empty() { Ok(()) } else { Err(pods) }
        });
        away
    }
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        let Self(stage) = self;
        let back = select(stage, "").and_then(|()| {
            let ready = ["--namespace=xdp-ingress", "rollout", "status", "daemonset/xdp-ingress", "--timeout=300s"];
            stage.cluster.kubectl(&ready).map(drop)
        });
        mended("the installed product", back);
    }
}

/// Lets the product run on nodes with this label alone; on all nodes without a name.
fn select(stage: &Stage, label: &str) -> anyhow::Result<()> {
    let value = if label.is_empty() { "null" } else { "\"true\"" };
    let selector =
        format!(r#"{{"spec":{{"template":{{"spec":{{"nodeSelector":{{"xdp-ingress.test/nowhere":{value}}}}}}}}}}}"#);
    let patch = ["--namespace=xdp-ingress", "patch", "daemonset", "xdp-ingress", "--type=merge", "--patch", &selector];
    stage.cluster.kubectl(&patch).map(drop)
}

impl Product {
    /// Starts the process for the Gateways and Ingresses of a scope, and waits until it is ready.
    pub(super) fn start(scope: &Scope<'_>, lab: &Lab) -> anyhow::Result<Self> {
        let binary = std::env::var_os("XDP_INGRESS_BINARY").map_or_else(|| product().to_path_buf(), PathBuf::from);
        let mut run = Command::new(binary);
        run.args(["run", "--steer", "bind", "--xdp-mode", "off", "--workers", "1", "--watch-namespace", &scope.name])
            .args(["--controller-class", CONTROLLER, "--election-id", "scale", "--host-capacity", "65536"])
            .args(["--http-port", &HTTP.port().to_string(), "--https-port", &(HTTP.port() + 1).to_string()])
            .args(["--admin-addr", &format!("127.0.0.1:{}", HTTP.port() + 2)])
            .args(["--publish-status-address", "192.0.2.1", "--kubeconfig"])
            .arg(scope.stage.cluster.places().kubeconfig())
            .env("POD_NAMESPACE", &scope.name)
            .env("POD_NAME", "scale")
            .env("NO_COLOR", "1");
        let began = Instant::now();
        let process = lab.spawn(&scope.stage.cluster.control()?, &scope.name, run)?;
        until("it is ready", || if process.log().contains(" ready ") { Ok(()) } else { Err(process.log_tail(3)) });
        Ok(Self { process, ready: began.elapsed() })
    }

    /// Returns its resident memory in MB.
    pub(super) fn resident(&self) -> u64 {
        resident(self.process.pid())
    }
}
