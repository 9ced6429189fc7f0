//! The product as a process: started, given a configuration, weighed and stopped.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

use crate::lab::{credentials::Authority, free_port, idle, memory};

const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Product {
    child: Child,
    folder: PathBuf,
    pod: SocketAddr,
    /// Its ports, and `soak.test`.
    pub(super) server: idle::Server,
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
        let server = idle::Server { http, https, host: "soak.test".into(), trust: authority.trust()? };
        let mut product = Self { child, folder, pod, server };
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(product.server.http).is_err() {
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

    /// Memory that it takes, in bytes.
    pub(super) fn memory(&self) -> anyhow::Result<u64> {
        memory::of(self.child.id())
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

/// Replaced as a whole, so that no half of it is read.
fn write(folder: &Path, pod: SocketAddr, version: usize) -> anyhow::Result<()> {
    let text = include_str!("soak.yaml").replace("19000", &pod.port().to_string());
    let (fresh, place) = (folder.join("fresh"), folder.join("manifests/soak.yaml"));
    fs::write(&fresh, text.replace("v0.test", &format!("v{version}.test")))?;
    fs::rename(&fresh, &place).with_context(|| format!("cannot write {}", place.display()))
}
