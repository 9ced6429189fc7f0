//! The product as a process: started, given a configuration, weighed and stopped.

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

use crate::lab::{client::Trust, credentials::Authority};

const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Product {
    child: Child,
    folder: PathBuf,
    pod: SocketAddr,
    pub(super) http: SocketAddr,
    pub(super) https: SocketAddr,
    /// Of the certificate of `soak.test`.
    pub(super) trust: Trust,
}

impl Product {
    /// One that serves `soak.test` from `pod`, with one worker and more descriptors than a run needs.
    pub(super) fn start(binary: &Path, pod: SocketAddr) -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("xdp-ingress-soak-{}-{}", std::process::id(), pod.port()));
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let [http, https, admin] = [free_port()?, free_port()?, free_port()?];
        let log = fs::File::create(folder.join("log"))?;
        fs::create_dir_all(folder.join("manifests"))?;
        let authority = Authority::generate()?;
        fs::write(folder.join("manifests/tls.yaml"), authority.secret("default", "soak", &["soak.test"])?)?;
        write(&folder, pod, 0)?;
        let child = Command::new(binary)
            .args(["run", "--steer", "bind", "--xdp-mode", "off", "--workers", "1"])
            .args(["--http-port", &http.to_string(), "--https-port", &https.to_string()])
            .args(["--admin-addr", &format!("127.0.0.1:{admin}"), "--manifests"])
            .arg(folder.join("manifests"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let [http, https] = [http, https].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let mut product = Self { child, folder, pod, http, https, trust: authority.trust()? };
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(product.http).is_err() {
            if product.child.try_wait()?.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(product.folder.join("log")).unwrap_or_default();
                bail!("the product did not come up:\n{log}");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(product)
    }

    /// Changes the configuration: `version` is a host of it, beside `soak.test`.
    pub(super) fn change(&self, version: usize) -> anyhow::Result<()> {
        write(&self.folder, self.pod, version)
    }

    /// Resident memory in bytes.
    pub(super) fn resident(&self) -> anyhow::Result<u64> {
        let path = format!("/proc/{}/smaps_rollup", self.child.id());
        let text = fs::read_to_string(&path).with_context(|| format!("{path}: has the product ended?"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).context("no Rss")?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kib * 1024)
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("cannot stop the product: {error}");
        }
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("cannot remove {}: {error}", self.folder.display());
        }
    }
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Replaced as a whole, so that no half of it is read.
fn write(folder: &Path, pod: SocketAddr, version: usize) -> anyhow::Result<()> {
    let text = include_str!("soak.yaml").replace("19000", &pod.port().to_string());
    let (fresh, place) = (folder.join("fresh"), folder.join("manifests/soak.yaml"));
    fs::write(&fresh, text.replace("v0.test", &format!("v{version}.test")))?;
    fs::rename(&fresh, &place).with_context(|| format!("cannot write {}", place.display()))
}
