//! An `xdp-ingress run` under observation: starts it, waits for it, queries its admin address, ends it. The module
//! knows the command line and the admin paths, but no routes.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::Context as _;
use ingress_common::{HostL7, HostNet, StatusClass, Total, Traffic};
use serde_json::Value;

use super::{
    Lab, Namespace, Process,
    client::{Answer, Ask, Connection, Protocol, Trust, block_on},
    maps::{Counts, Host},
};

/// Longest wait for the first snapshot: loading the programs is the slow part.
const READY: Duration = Duration::from_secs(30);

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the process in the lab and of its log.
    pub name: String,
    /// The program.
    pub binary: PathBuf,
    pub manifests: PathBuf,
    pub workers: usize,
    /// Address for health, metrics and counters, inside the namespace.
    pub admin: SocketAddr,
    pub path: DataPath,
}

/// Path of packets to the proxy.
#[derive(Clone, Debug)]
pub enum DataPath {
    /// A program at this place of this interface, and sk_lookup, pinned below this directory; ports 80 and 443.
    Kernel { mode: XdpMode, interface: String, bpffs: PathBuf },
    /// sk_lookup only, pinned below this directory; ports 80 and 443.
    Lookup { bpffs: PathBuf },
    /// Ordinary listeners on ports 80 and 443; a program in the driver of this interface counts but does not steer,
    /// pinned below this directory.
    Count { interface: String, bpffs: PathBuf },
    /// Ordinary listeners on these ports, no programs.
    Bind { http: u16, https: u16 },
}

/// Place of the program that sees packets received on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    Native,
    Generic,
    Tcx,
}

/// A running controller. Dropping the value ends it.
#[derive(Debug)]
pub struct Controller {
    pub process: Process,
    namespace: Namespace,
    admin: SocketAddr,
}

// === impl Options ===

impl Options {
    /// Returns the usual options inside a separate namespace: XDP and sk_lookup, two workers, admin on port 9110.
    #[must_use]
    pub fn kernel(binary: &Path, manifests: &Path, interface: &str, bpffs: &Path) -> Self {
        Self {
            name: "xdp-ingress".into(),
            binary: binary.into(),
            manifests: manifests.into(),
            workers: 2,
            admin: (Ipv4Addr::LOCALHOST, 9110).into(),
            path: DataPath::Kernel { mode: XdpMode::Native, interface: interface.into(), bpffs: bpffs.into() },
        }
    }

    /// Returns the command line.
    #[must_use]
    pub fn command(&self) -> Command {
        let Self { name: _, binary, manifests, workers, admin, path } = self;
        let mut command = Command::new(binary);
        command.env("NO_COLOR", "1").arg("run").arg("--manifests").arg(manifests);
        command.args(["--workers", &workers.to_string(), "--admin-addr", &admin.to_string()]);
        match path {
            DataPath::Kernel { mode, interface, bpffs } => {
                command.args(["--steer", "auto", "--xdp-mode", mode.name(), "--interface", interface]);
                command.arg("--bpffs").arg(bpffs)
            }
            DataPath::Lookup { bpffs } => {
                command.args(["--steer", "auto", "--xdp-mode", "off"]).arg("--bpffs").arg(bpffs)
            }
            DataPath::Count { interface, bpffs } => {
                command.args(["--steer", "bind", "--http-port", "80", "--https-port", "443"]);
                command.args(["--xdp-mode", XdpMode::Native.name(), "--interface", interface]).arg("--bpffs").arg(bpffs)
            }
            DataPath::Bind { http, https } => {
                command.args(["--steer", "bind", "--xdp-mode", "off"]);
                command.args(["--http-port", &http.to_string(), "--https-port", &https.to_string()])
            }
        };
        command
    }
}

// === impl XdpMode ===

impl XdpMode {
    /// Returns the name used by `--xdp-mode` and by `/interfaces` of the admin address.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Tcx => "tcx",
        }
    }
}

// === impl Controller ===

impl Controller {
    /// Starts the controller and waits until it is ready.
    ///
    /// # Errors
    /// Fails if the process ends or is not ready within thirty seconds; the message contains the end of its log.
    pub fn start(lab: &Lab, namespace: &Namespace, options: &Options) -> anyhow::Result<Self> {
        let mut controller = Self::spawn(lab, namespace, options)?;
        controller.wait_ready()?;
        Ok(controller)
    }

    /// Starts the controller without waiting.
    ///
    /// # Errors
    /// Fails if the program cannot be started.
    pub fn spawn(lab: &Lab, namespace: &Namespace, options: &Options) -> anyhow::Result<Self> {
        let process = lab.spawn(namespace, &options.name, options.command())?;
        Ok(Self { process, namespace: namespace.clone(), admin: options.admin })
    }

    /// Waits until `/readyz` answers 200.
    ///
    /// # Errors
    /// Fails if the process ends or is not ready within thirty seconds; the message contains the end of its log.
    pub fn wait_ready(&mut self) -> anyhow::Result<()> {
        let (namespace, admin) = (self.namespace.clone(), self.admin);
        self.process.wait_until(READY, "`xdp-ingress` is ready", || {
            get(&namespace, admin, "/readyz").is_ok_and(|answer| answer.status.is_success())
        })
    }

    /// Sends a request to the admin address.
    ///
    /// # Errors
    /// Fails if the status is not a success.
    pub fn admin(&self, path: &str) -> anyhow::Result<Answer> {
        let answer = get(&self.namespace, self.admin, path)?;
        anyhow::ensure!(answer.status.is_success(), "admin path `{path}` answers {}", answer.status);
        Ok(answer)
    }

    /// Returns the number of the snapshot being served.
    ///
    /// # Errors
    /// Fails if the metrics do not contain it.
    pub fn generation(&self) -> anyhow::Result<u64> {
        const METRIC: &str = "xdp_ingress_snapshot_generation ";
        let metrics = self.admin("/metrics")?;
        let metrics = String::from_utf8_lossy(&metrics.text);
        let value =
            metrics.lines().find_map(|line| line.strip_prefix(METRIC)).context("no generation in the metrics")?;
        value.trim().parse().with_context(|| format!("`{value}` is no generation"))
    }

    /// Returns the counters from the admin address; for machines without the kernel part.
    ///
    /// # Errors
    /// Fails if the answer does not have the documented form.
    pub fn counts(&self) -> anyhow::Result<Counts> {
        read_counts(|path| self.admin(path))
    }
}

/// Returns the counters of a server that answers `ask` like the admin address.
pub fn read_counts(ask: impl Fn(&str) -> anyhow::Result<Answer>) -> anyhow::Result<Counts> {
    let hosts = ask("/hosts")?.json()?;
    let hosts = hosts.as_array().context("`/hosts` is no list")?;
    let hosts = hosts.iter().map(|host| parse_host(host).with_context(|| format!("unusable host: {host}")));
    let totals = ask("/totals")?.json()?;
    let totals = Total::ALL.iter().filter_map(|&(_, name)| {
        let total = totals.get(name)?;
        Some((name, Traffic { packets: total["packets"].as_u64()?, bytes: total["bytes"].as_u64()? }))
    });
    Ok(Counts { hosts: hosts.collect::<anyhow::Result<BTreeMap<_, _>>>()?, totals: totals.collect() })
}

/// Sends one request to an admin address, and returns its answer with any status.
pub fn get(namespace: &Namespace, admin: SocketAddr, path: &str) -> anyhow::Result<Answer> {
    namespace.run(|| {
        block_on(async {
            let mut connection = Connection::open(admin, Protocol::Http1, "admin", &Trust::none()).await?;
            connection.send(&Ask::get("localhost", path)).await
        })
    })
}

fn parse_host(host: &Value) -> Option<(String, Host)> {
    let number = |name: &str| host[name].as_u64();
    let mut requests = [0; StatusClass::COUNT];
    for (count, class) in requests.iter_mut().zip(StatusClass::NAMES) {
        *count = host["requests"][class].as_u64()?;
    }
    let l7 = HostL7 {
        requests: requests.into(),
        bytes_in: number("bytes_in")?,
        bytes_out: number("bytes_out")?,
        active: number("active")?,
    };
    let net = HostNet {
        rx_packets: number("rx_packets")?,
        rx_bytes: number("rx_bytes")?,
        tx_packets: number("tx_packets")?,
        tx_bytes: number("tx_bytes")?,
    };
    Some((host["host"].as_str()?.to_owned(), Host { id: number("id")?.try_into().ok()?, net, l7 }))
}
