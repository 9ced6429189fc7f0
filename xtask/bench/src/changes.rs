//! Route changes during a load, in the way of each peer. The load does not request the changing routes.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::mpsc::{self, RecvTimeoutError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::net::TcpStream;

use super::{
    exchange::exchange,
    peers::{Peer, Running},
};
use ingress_lab::client::block_on;

/// Sentence below the table about the changes of each peer.
pub(super) const LEGEND: &str = "Where routes change, xdp-ingress gets 100 changed Ingresses a second; nginx reloads \
     once a second; haproxy stays as it is. ";

/// Time between two changes: 100 a second.
const OURS: Duration = Duration::from_millis(10);
/// The same for nginx, which starts new processes for each change.
const NGINX: Duration = Duration::from_secs(1);
/// Time limit until the last change is served.
const PATIENCE: Duration = Duration::from_secs(10);
const HOST: &str = "changes.bench.test";
const FILE: &str = "manifests/changes.yaml";

/// Changes that continue until they are ended.
#[derive(Debug)]
pub(super) struct Changes {
    /// Dropped to end the changes.
    end: mpsc::Sender<()>,
    thread: JoinHandle<anyhow::Result<u32>>,
    http: SocketAddr,
    peer: Peer,
    folder: PathBuf,
}

/// Object of the changes.
enum Subject {
    /// The Ingress in this file.
    Ingress(PathBuf),
    /// The whole, unchanged configuration, which this process reloads on a signal.
    Reload(Pid),
}

impl Changes {
    /// Starts the changes; returns `None` for a peer that stays as it is.
    pub(super) fn start(peer: Peer, running: &Running, folder: &Path) -> anyhow::Result<Option<Self>> {
        let (subject, pause) = match peer {
            Peer::XdpIngress | Peer::Again | Peer::Before => (Subject::Ingress(folder.to_owned()), OURS),
            Peer::Nginx => (Subject::Reload(Pid::from_raw(running.pid().cast_signed())), NGINX),
            Peer::Haproxy | Peer::Caddy => return Ok(None),
        };
        let (end, ended) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("changes".into())
            .spawn(move || subject.change_each(pause, &ended))
            .context("cannot start the thread `changes`")?;
        let http = SocketAddr::from((Ipv4Addr::LOCALHOST, running.ports().http));
        Ok(Some(Self { end, thread, http, peer, folder: folder.to_owned() }))
    }

    /// Ends the changes, and verifies that the last one is served; returns their number.
    pub(super) fn end(self) -> anyhow::Result<u32> {
        let Self { end, thread, http, peer, folder } = self;
        drop(end);
        let changes = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        ensure!(changes > 0, "no route was changed");
        if peer.is_ours() {
            served(http, changes)?;
            fs::remove_file(folder.join(FILE)).with_context(|| format!("cannot remove `{FILE}`"))?;
        }
        Ok(changes)
    }
}

// === impl Subject ===

impl Subject {
    /// Changes at fixed times: the time lost by a slow change is made up for.
    fn change_each(self, pause: Duration, ended: &mpsc::Receiver<()>) -> anyhow::Result<u32> {
        let begun = Instant::now();
        let mut number = 0;
        loop {
            let wait = (pause * (number + 1)).saturating_sub(begun.elapsed());
            match ended.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(number),
            }
            number += 1;
            match &self {
                Self::Ingress(folder) => write(folder, number)?,
                Self::Reload(pid) => kill(*pid, Signal::SIGHUP).context("cannot reload nginx")?,
            }
        }
    }
}

/// Replaces the file atomically, so that no reader sees half of it.
fn write(folder: &Path, number: u32) -> anyhow::Result<()> {
    let (fresh, place) = (folder.join("fresh"), folder.join(FILE));
    fs::write(&fresh, ingress(number)).with_context(|| format!("cannot write `{}`", fresh.display()))?;
    fs::rename(&fresh, &place).with_context(|| format!("cannot write `{}`", place.display()))
}

/// Returns an Ingress that redirects to another place for each number, so that the response shows the number.
fn ingress(number: u32) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: changes\n  annotations:\n    \
         nginx.ingress.kubernetes.io/permanent-redirect: \"{}\"\nspec:\n  ingressClassName: xdp\n  rules:\n    \
         - host: {HOST}\n      http: {{paths: [{{path: /, pathType: Prefix, backend: {{service: {{name: bench, \
         port: {{number: 80}}}}}}}}]}}\n",
        place(number)
    )
}

fn place(number: u32) -> String {
    format!("http://n{number}.bench.test/")
}

/// Waits until the change with this number is served.
fn served(http: SocketAddr, number: u32) -> anyhow::Result<()> {
    let request = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    let place = place(number);
    block_on(async {
        let mut answer = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let asking = async {
                let mut stream = TcpStream::connect(http).await.context("cannot connect")?;
                exchange(&mut stream, request.as_bytes(), &mut answer).await
            };
            tokio::time::timeout(PATIENCE, asking).await.context("no answer in time").flatten()?;
            if answer.windows(place.len()).any(|part| part == place.as_bytes()) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bail!("change {number} is not served after {PATIENCE:?}:\n{}", String::from_utf8_lossy(&answer))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_replaced_file_has_another_destination() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("manifests")).expect("a folder");
        let (end, ended) = mpsc::channel();
        let subject = Subject::Ingress(folder.path().to_owned());
        let changing = thread::spawn(move || subject.change_each(Duration::from_millis(1), &ended));
        let file = folder.path().join(FILE);
        ingress_lab::until("a change", || file.exists().then_some(())).expect("changed");
        drop(end);
        let changes = changing.join().expect("no panic").expect("changes");
        let text = fs::read_to_string(&file).expect("the file");
        assert_eq!(text, ingress(changes));
        assert_ne!(text, ingress(changes + 1));
        assert!(!folder.path().join("fresh").exists());
        let ingress: serde_json::Value = serde_saphyr::from_str(&text).expect("YAML");
        let redirect = &ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/permanent-redirect"];
        assert_eq!(*redirect, place(changes));
        assert_eq!(ingress["spec"]["rules"][0]["host"], HOST);
    }
}
