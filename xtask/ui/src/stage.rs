//! The processes behind the tests, the pictures and the figures: pods of this process, the product without its kernel
//! part on loopback, and ChromeDriver. All end with the [`Stage`].
//!
//! ```text
//! chromium ── ChromeDriver ◀── this process or a test
//!    └──────▶ admin address of xdp-ingress (bind, no kernel part) ──▶ pods of this process
//! ```

use std::fs;
use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use ingress_lab::client::{Ask, Connection, Protocol, Trust, block_on};
use ingress_lab::{Process, echo};
use serde::{Deserialize, Serialize};
use xtask_setup::BrowserTools;
use xtask_tools::free_ports;

use crate::{browser, objects};

/// Environment variable with the [`Plan`] of the stage, as JSON, for the tests.
pub const PLAN: &str = "XDP_INGRESS_UI_STAGE";
/// Number of hosts of the large product.
pub const MANY: usize = 10_000;
/// Longest wait for a start. A build that is not optimised reads ten thousand hosts in seconds.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Addresses of the pods.
const PODS: [Ipv4Addr; 3] = [Ipv4Addr::new(127, 0, 0, 11), Ipv4Addr::new(127, 0, 0, 12), Ipv4Addr::new(127, 0, 0, 13)];
/// Address at which nothing listens.
const REFUSING: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(127, 0, 0, 14)), 8080);

/// The hosts of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hosts {
    /// Those of [`objects::few`].
    Few,
    /// [`MANY`] of [`objects::many`].
    Many,
}

/// Addresses and files of a running stage.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// Port of ChromeDriver.
    pub driver: u16,
    /// The browser.
    pub chromium: PathBuf,
    /// The script of axe-core.
    pub axe: PathBuf,
    /// In the order in which they were asked for.
    pub products: Vec<Product>,
}

/// A running product.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Product {
    pub pid: u32,
    /// Port of the admin address.
    pub admin: u16,
    /// Port of plain HTTP.
    pub http: u16,
    /// Directory of the manifests that it serves and watches.
    pub manifests: PathBuf,
}

/// The running processes.
#[derive(Debug)]
pub struct Stage {
    pub plan: Plan,
    processes: Vec<Process>,
}

impl Stage {
    /// Starts a product for each of `all`, and ChromeDriver. Files are written below `scratch`.
    ///
    /// # Errors
    /// Fails if a process does not start; the error has the end of its log.
    pub fn start(binary: &Path, tools: &BrowserTools, scratch: &Path, all: &[Hosts]) -> Result<Self> {
        let pods = pods()?;
        let [driver] = free_ports()?;
        let (chromium, axe) = (tools.chromium.clone(), tools.axe.clone());
        let plan = Plan { driver, chromium, axe, products: Vec::new() };
        let mut stage = Self { plan, processes: Vec::new() };
        for (number, hosts) in all.iter().enumerate() {
            let directory = scratch.join(format!("product-{number}"));
            fs::create_dir(&directory).with_context(|| format!("cannot make `{}`", directory.display()))?;
            stage.add_product(binary, &directory, *hosts, pods)?;
        }
        let mut command = Command::new(&tools.driver);
        command.arg(format!("--port={driver}")).env("TMPDIR", scratch).env("HOME", scratch);
        let process = Process::spawn("chromedriver", command, scratch.join("chromedriver.log"))?;
        stage.processes.push(process);
        stage.wait(all)?;
        Ok(stage)
    }

    /// Returns the ends of the logs of all processes.
    pub fn logs(&self) -> String {
        let tail = |process: &Process| format!("{}:\n{}\n", process.log_path().display(), process.log_tail(20));
        self.processes.iter().map(tail).collect()
    }

    fn add_product(&mut self, binary: &Path, directory: &Path, hosts: Hosts, pods: [SocketAddr; 3]) -> Result<()> {
        let manifests = directory.join("manifests");
        fs::create_dir(&manifests)?;
        let text = match hosts {
            Hosts::Few => objects::few(pods, REFUSING)?,
            Hosts::Many => objects::many(MANY, pods[0]),
        };
        fs::write(manifests.join("class.yaml"), objects::class())?;
        fs::write(manifests.join("hosts.yaml"), text)?;
        let [http, https, admin] = free_ports()?;
        let mut command = Command::new(binary);
        command.args(["run", "--steer=bind", "--xdp-mode=off", "--workers=2"]).arg("--manifests").arg(&manifests);
        command.args([format!("--http-port={http}"), format!("--https-port={https}")]);
        command.arg(format!("--admin-addr=127.0.0.1:{admin}"));
        let process = Process::spawn("xdp-ingress", command, directory.join("xdp-ingress.log"))?;
        let pid = process.pid().cast_unsigned();
        self.plan.products.push(Product { pid, admin, http, manifests });
        self.processes.push(process);
        Ok(())
    }

    /// Waits until all processes answer.
    fn wait(&mut self, all: &[Hosts]) -> Result<()> {
        for ((process, product), hosts) in self.processes.iter_mut().zip(&self.plan.products).zip(all) {
            let host = match hosts {
                Hosts::Few => objects::QUIET.to_owned(),
                Hosts::Many => objects::nth_host(MANY - 1),
            };
            process.wait_until(START_LIMIT, "it is ready", || {
                get(product.admin, "localhost", "/readyz").is_ok_and(|(status, _)| status == 200)
            })?;
            // The request must not count for the host.
            let path = format!("/api/v1/hosts/{host}");
            process.wait_until(START_LIMIT, "all hosts are served", || {
                get(product.admin, "localhost", &path).is_ok_and(|(status, _)| status == 200)
            })?;
        }
        let driver = self.plan.driver;
        let process = self.processes.last_mut().context("no ChromeDriver")?;
        process.wait_until(START_LIMIT, "ChromeDriver is ready", || {
            get(driver, "localhost", "/status").is_ok_and(|(status, body)| status == 200 && body.contains("true"))
        })
    }
}

impl Plan {
    /// Returns the plan that the lane has left for the tests, or `None` without one.
    ///
    /// # Errors
    /// Fails if the plan cannot be read.
    pub fn from_env() -> Result<Option<Self>> {
        let Some(text) = std::env::var_os(PLAN) else { return Ok(None) };
        let text = text.to_str().with_context(|| format!("`{PLAN}` is not UTF-8"))?;
        serde_json::from_str(text).with_context(|| format!("`{PLAN}` is not a plan")).map(Some)
    }
}

impl Product {
    /// Returns the URL of a page of the dashboard, by its path.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.admin)
    }

    /// Writes a manifest in one step, as an editor would. The product serves it soon.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        let partial = self.manifests.join(format!(".{name}.partial"));
        let file = self.manifests.join(name);
        fs::write(&partial, text)
            .and_then(|()| fs::rename(&partial, &file))
            .with_context(|| format!("cannot write `{}`", file.display()))
    }

    /// Sends a request through the proxy; returns the status of the answer.
    ///
    /// # Errors
    /// Fails if there is no answer.
    pub fn request(&self, host: &str, path: &str) -> Result<u16> {
        get(self.http, host, path).map(|(status, _)| status)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Browsers would outlive ChromeDriver, if a test that was killed left some.
        browser::close_all(&self.plan);
    }
}

/// Returns status and text of the answer of `127.0.0.1:PORT` to a GET that names `host`.
///
/// # Errors
/// Fails if there is no answer.
pub fn get(port: u16, host: &str, path: &str) -> Result<(u16, String)> {
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    block_on(async {
        let mut connection = Connection::open(target, Protocol::Http1, host, &Trust::none()).await?;
        let answer = connection.send(&Ask::get(host, path)).await?;
        Ok((answer.status.as_u16(), String::from_utf8_lossy(&answer.text).into_owned()))
    })
}

/// Starts three pods; they end with this process.
fn pods() -> Result<[SocketAddr; 3]> {
    let mut addresses = [REFUSING; 3];
    for ((address, ip), name) in addresses.iter_mut().zip(PODS).zip(["pod-a", "pod-b", "pod-c"]) {
        let (listener, security) = echo::bind((ip, 0).into(), echo::Security::Plain)?;
        *address = listener.local_addr()?;
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            // The pod serves until the process ends.
            echo::serve(name, vec![(listener, security)], pending())
        })?;
    }
    Ok(addresses)
}
