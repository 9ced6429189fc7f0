//! The product without its kernel part on loopback, with HTTP/3, certificates of an own authority, and the pod.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ingress_lab::client::{Ask, Connection, Protocol, Trust, block_on};
use ingress_lab::credentials::Authority;
use ingress_lab::{Process, until_within};
use rcgen::{KeyPair, PublicKeyData as _};
use sha2::{Digest as _, Sha256};
use xtask_tools::free_ports;

use crate::pod::Pod;

/// The server's name.
pub(crate) const NAME: &str = "web.test";
/// Names of a certificate that takes some 14,000 bytes, more than three times any client's first packets.
const LONG_NAMES: usize = 300;
/// Longest wait for a start.
const START: Duration = Duration::from_secs(60);
/// Handshakes that do not go on are dropped after ten seconds.
const REST: Duration = Duration::from_secs(60);
/// Longest time until something that has happened is counted.
pub(crate) const COUNTED: Duration = Duration::from_secs(5);
/// Time of the product for its end.
const END: Duration = Duration::from_secs(20);

/// The product, and the files for its clients.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) pod: Pod,
    /// Certificate of the authority, as a file in PEM.
    pub(crate) roots: PathBuf,
    /// Directory for files of clients.
    pub(crate) scratch: PathBuf,
    /// SHA-256 of the server's public keys, in base64, with a comma.
    pub(crate) key_hashes: String,
    product: Process,
    port: u16,
    admin: u16,
}

impl Stage {
    /// Starts the product. Files are written below `scratch`.
    ///
    /// # Errors
    /// Fails if it does not start; the error has the end of its log.
    pub(crate) fn start(binary: &Path, scratch: &Path) -> Result<Self> {
        let pod = Pod::start()?;
        let authority = Authority::generate()?;
        let key = KeyPair::generate().context("cannot make a key")?;
        let below = format!("*.{NAME}");
        let secret = authority.sign(&[NAME, &below], &key)?.secret("default", "web");
        let long: Vec<String> = (0..LONG_NAMES).map(|number| format!("{number:032x}.{NAME}")).collect();
        let long: Vec<&str> =
            std::iter::once("amplificationlimit.web.test").chain(long.iter().map(String::as_str)).collect();
        // With its own key: the serial number comes from it, and authorities may use one only once.
        let long_key = KeyPair::generate().context("cannot make a key")?;
        let long = authority.sign(&long, &long_key)?.secret("default", "long");
        let hash = |key: &KeyPair| STANDARD.encode(Sha256::digest(key.subject_public_key_info()));
        let key_hashes = format!("{},{}", hash(&key), hash(&long_key));
        let (manifests, roots) = (scratch.join("manifests"), scratch.join("roots.pem"));
        fs::create_dir(&manifests)?;
        fs::write(&roots, authority.pem())?;
        fs::write(manifests.join("secret.yaml"), secret)?;
        fs::write(manifests.join("long.yaml"), long)?;
        let objects = include_str!("objects.yaml").replace("19000", &pod.address.port().to_string());
        fs::write(manifests.join("objects.yaml"), objects)?;
        let [http, port, admin] = free_ports()?;
        let mut command = Command::new(binary);
        command.args(["run", "--steer=bind", "--xdp-mode=off", "--workers=2", "--http3=on"]);
        command.args(["--configmap=default/settings", "--drain-timeout=5"]);
        command.arg("--manifests").arg(&manifests);
        command.args([format!("--http-port={http}"), format!("--https-port={port}")]);
        command.arg(format!("--admin-addr=127.0.0.1:{admin}"));
        let product = Process::spawn("xdp-ingress", command, scratch.join("xdp-ingress.log"))?;
        let scratch = scratch.to_owned();
        let mut stage = Self { pod, roots, scratch, key_hashes, product, port, admin };
        stage.product.wait_until(START, "it is ready", || {
            block_on(admin_answer(admin, "/readyz")).is_ok_and(|(status, _)| status == 200)
        })?;
        // The process first asks its own port.
        let is_on = || stage.metric("xdp_ingress_http3_ready").is_ok_and(|ready| ready == 1).then_some(());
        until_within(START, "HTTP/3 to be on", is_on).with_context(|| stage.log_tail())?;
        Ok(stage)
    }

    /// Returns the address of the server.
    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Returns the address of the server over IPv6.
    pub(crate) fn address_v6(&self) -> SocketAddr {
        (Ipv6Addr::LOCALHOST, self.port).into()
    }

    /// Returns the number of completed handshakes.
    pub(crate) fn handshakes(&self) -> Result<u64> {
        self.metric("xdp_ingress_http3_handshakes_total")
    }

    /// Returns the number of new addresses of clients with open connections.
    pub(crate) fn migrations(&self) -> Result<u64> {
        self.metric("xdp_ingress_http3_migrations_total")
    }

    /// Returns the number of requests by HTTP/3 over IPv6 in the access log.
    pub(crate) fn logged_v6(&self) -> Result<u64> {
        let is_v6 = |line: &&str| line.contains("HTTP/3.0") && line.contains("\"remote_addr\":\"::1\"");
        Ok(self.product.log().lines().filter(is_v6).count() as u64)
    }

    /// Returns the number of Retry packets so far. Workers count for metrics once a second.
    pub(crate) fn retries(&self) -> Result<u64> {
        self.metric("xdp_ingress_http3_connection_attempts_total{result=\"retry\"}")
    }

    /// Waits until there are more than `before`.
    pub(crate) fn wait_for_retries(&self, before: u64) -> Result<()> {
        until_within(COUNTED, "a Retry", || (self.retries().ok()? > before).then_some(()))
    }

    /// Returns the number of first packets so far, by any answer or none.
    pub(crate) fn firsts(&self) -> Result<u64> {
        let of = |result| self.metric(&format!("xdp_ingress_http3_connection_attempts_total{{result=\"{result}\"}}"));
        Ok(of("accepted")? + of("retry")? + of("refused")? + of("dropped")?)
    }

    /// Returns the number of connections whose handshake is not complete.
    pub(crate) fn half_open(&self) -> Result<u64> {
        self.metric("xdp_ingress_http3_connections{state=\"handshake\"}")
    }

    /// Waits until no handshake is open.
    pub(crate) fn wait_for_rest(&self) -> Result<()> {
        until_within(REST, "half-open connections to end", || (self.half_open().ok()? == 0).then_some(()))
    }

    /// Returns the number of lines in the access log about requests by HTTP/3.
    pub(crate) fn logged(&self) -> usize {
        self.product.log().matches("HTTP/3.0").count()
    }

    /// Waits until the access log has more such lines than `before`; it is written soon after a request.
    pub(crate) fn wait_for_log(&self, before: usize) -> Result<()> {
        until_within(REST, "a request by HTTP/3 in the access log", || (self.logged() > before).then_some(()))
    }

    pub(crate) fn log_tail(&self) -> String {
        self.product.log_tail(20)
    }

    /// Ends the product, which must succeed and not have panicked.
    pub(crate) fn end(&mut self) -> Result<()> {
        let panics = self.metric("xdp_ingress_http3_panics_total")?;
        let status = self.product.terminate(END)?;
        ensure!(status.success() && panics == 0, "the product ended with {status} and {panics} panics");
        Ok(())
    }

    fn metric(&self, series: &str) -> Result<u64> {
        let (_, text) = block_on(admin_answer(self.admin, "/metrics"))?;
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.with_context(|| format!("no `{series}`"))?.parse().with_context(|| format!("`{series}` is no number"))
    }
}

async fn admin_answer(port: u16, path: &str) -> Result<(u16, String)> {
    let address = (Ipv4Addr::LOCALHOST, port).into();
    let mut connection = Connection::open(address, Protocol::Http1, "localhost", &Trust::none()).await?;
    let answer = connection.send(&Ask::get("localhost", path)).await?;
    Ok((answer.status.as_u16(), String::from_utf8_lossy(&answer.text).into_owned()))
}
