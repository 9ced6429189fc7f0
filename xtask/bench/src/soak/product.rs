//! The product as a process: starts it, changes its configuration, measures its memory and stops it.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

use super::cgroup::Cgroup;
use ingress_lab::{
    client::{Ask, Connection, Protocol, Trust, block_on},
    credentials::Authority,
    free_port, idle, memory,
};

const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Product {
    child: Child,
    folder: PathBuf,
    pod: SocketAddr,
    admin: SocketAddr,
    /// Its ports, and the host `soak.test`.
    pub(super) server: idle::Server,
}

impl Product {
    /// Starts a product that serves `soak.test` from `pod`, with one worker and more descriptors than a run needs.
    pub(super) fn start(binary: &Path, pod: SocketAddr) -> anyhow::Result<Self> {
        Self::start_in(None, binary, pod)
    }

    /// Does the same in `cgroup`, if there is one.
    pub(super) fn start_in(cgroup: Option<&Cgroup>, binary: &Path, pod: SocketAddr) -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("xdp-ingress-soak-{}-{}", std::process::id(), pod.port()));
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let [http, https, admin] = [free_port()?, free_port()?, free_port()?];
        let log = fs::File::create(folder.join("log"))?;
        fs::create_dir_all(folder.join("manifests"))?;
        let authority = Authority::generate()?;
        fs::write(
            folder.join("manifests/tls.yaml"),
            authority.secret("default", "soak", &["soak.test", "grpc.soak.test"])?,
        )?;
        write(&folder, pod, 0)?;
        let mut command = cgroup.map_or_else(|| Command::new(binary), |cgroup| cgroup.command(binary));
        let child = command
            .args(["run", "--steer", "bind", "--xdp-mode", "off", "--workers", "1"])
            .args(["--http-port", &http.to_string(), "--https-port", &https.to_string()])
            .args(["--admin-addr", &format!("127.0.0.1:{admin}"), "--manifests"])
            .arg(folder.join("manifests"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let [http, https, admin] = [http, https, admin].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let server = idle::Server { http, https, host: "soak.test".into(), trust: authority.trust()? };
        let mut product = Self { child, folder, pod, admin, server };
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

    /// Changes the configuration: `version` selects a host of it, in addition to `soak.test`.
    pub(super) fn change(&self, version: usize) -> anyhow::Result<()> {
        write(&self.folder, self.pod, version)
    }

    /// Returns its memory in bytes.
    pub(super) fn memory(&self) -> anyhow::Result<u64> {
        memory::of(self.child.id())
    }

    /// Returns the peak of its resident memory, including pages of files, in bytes.
    pub(super) fn resident_max(&self) -> anyhow::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        Ok(peak.context("no `VmHWM` of the product")?.parse::<u64>()? * 1024)
    }

    pub(super) fn is_alive(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Returns the sum of its samples of `metric` for `host`.
    pub(super) fn total(&self, metric: &str, host: &str) -> anyhow::Result<u64> {
        sum(&self.metrics()?, metric, host)
    }

    /// Returns the value of the gauge `metric`; 0 if there is none.
    pub(super) fn gauge(&self, metric: &str) -> anyhow::Result<u64> {
        let text = self.metrics()?;
        let value = text.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
        Ok(value.map_or(Ok(0), |value| value.trim().parse())?)
    }

    /// Returns its counters above zero with one of `words` in their names.
    pub(super) fn counters(&self, words: &[&str]) -> anyhow::Result<String> {
        let text = self.metrics()?;
        let counts = |line: &&str| !line.starts_with('#') && !line.ends_with(" 0") && line.contains("_total");
        let lines = text.lines().filter(counts).filter(|line| words.iter().any(|word| line.contains(word)));
        Ok(lines.collect::<Vec<_>>().join(", "))
    }

    fn metrics(&self) -> anyhow::Result<String> {
        let answer = block_on(async {
            let mut connection = Connection::open(self.admin, Protocol::Http1, "", &Trust::none()).await?;
            connection.send(&Ask::get("admin", "/metrics")).await
        })?;
        Ok(String::from_utf8(answer.text)?)
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

/// Replaces the file atomically, so that no reader sees half of it.
fn write(folder: &Path, pod: SocketAddr, version: usize) -> anyhow::Result<()> {
    let text = include_str!("soak.yaml").replace("19000", &pod.port().to_string());
    let (fresh, place) = (folder.join("fresh"), folder.join("manifests/soak.yaml"));
    fs::write(&fresh, text.replace("v0.test", &format!("v{version}.test")))?;
    fs::rename(&fresh, &place).with_context(|| format!("cannot write {}", place.display()))
}

/// Returns the sum of the samples of `metric` in `text` with the label of `host`.
fn sum(text: &str, metric: &str, host: &str) -> anyhow::Result<u64> {
    let label = format!("host=\"{host}\"");
    let samples = text.lines().filter_map(|line| line.strip_prefix(metric)?.strip_prefix('{')?.split_once("} "));
    let values = samples.filter(|(labels, _)| labels.split(',').any(|own| own == label)).map(|(_, value)| value);
    values.map(|value| Ok(value.trim().parse::<u64>()?)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_host_are_summed() {
        let text = "# TYPE a counter\na_total{host=\"x.test\",class=\"2xx\"} 5\na_total{host=\"x.test\",class=\"aborted\"} 7\n\
                    a_total{host=\"y.x.test\",class=\"2xx\"} 100\nb_total{host=\"x.test\"} 1000\n";
        assert_eq!(sum(text, "a_total", "x.test").expect("numbers"), 12);
        assert_eq!(sum(text, "a_total", "z.test").expect("numbers"), 0);
        assert!(sum("a{host=\"x.test\"} much\n", "a", "x.test").is_err());
    }
}
