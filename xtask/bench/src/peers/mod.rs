//! The proxies that are compared, and the backend behind them: their start and end.
//!
//! ```text
//! command (configuration files and command lines) ── programs (with HTTP/3) ── packages (Debian's newer ones)
//! ```

mod command;
mod packages;
mod programs;

use std::{
    fmt, fs,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::unix::{fs::PermissionsExt, process::ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::ValueEnum;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use self::command::{UDP_BUFFER, command, nginx, nginx_log};
pub(super) use self::programs::{Programs, said};
use super::{
    credentials::Credentials,
    load::Target,
    usage::{self, CpuTime},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Peer {
    Nginx,
    Haproxy,
    Caddy,
    XdpIngress,
    /// The same build of xdp-ingress once more: how far two equal peers differ.
    Again,
    /// The build of `--before`.
    Before,
}

/// Ports of a peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    pub(super) http: u16,
    pub(super) https: u16,
}

/// Settings that all peers of a session share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Setting {
    /// Threads, or processes.
    pub(super) workers: u32,
    /// Whether load and backend are pinned to CPU 0, and the peer to CPU 1.
    pub(super) pin: bool,
    /// Whether each request is logged to a file.
    pub(super) access_log: bool,
    /// Whether peers also serve HTTP/3; other peers than the product then run Debian's newer programs.
    pub(super) http3: bool,
}

/// Files that peers need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stage<'s> {
    pub(super) folder: &'s Path,
    pub(super) credentials: &'s Credentials,
    /// The product.
    pub(super) binary: &'s Path,
    /// The build of [`Peer::Before`].
    pub(super) before: Option<&'s Path>,
    /// The programs of the other peers.
    pub(super) programs: &'s Programs,
}

/// A running peer.
#[derive(Debug)]
pub(super) struct Running {
    ports: Ports,
    child: Child,
    /// Files that the peer logs to.
    logs: Vec<PathBuf>,
}

const BACKEND_PORT: u16 = 19_000;
/// Under valgrind it takes some seconds to load a program.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// A build that counts its branches writes all counts at its end, which took more than five seconds on a busy machine.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

// === impl Stage ===

impl<'s> Stage<'s> {
    /// Returns a peer as the target of a load.
    pub(super) fn target(self, running: &Running, Setting { pin, .. }: Setting) -> Target<'s> {
        let Self { folder, credentials, .. } = self;
        Target { ip: Ipv4Addr::LOCALHOST, ports: running.ports(), folder, trust: &credentials.trust, pin }
    }
}

// === impl Peer ===

impl Peer {
    /// Returns whether the peer is a build of the product.
    pub(super) fn is_ours(self) -> bool {
        matches!(self, Self::XdpIngress | Self::Again | Self::Before)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Caddy => "caddy",
            Self::XdpIngress => "xdp-ingress",
            Self::Again => "again",
            Self::Before => "before",
        })
    }
}

/// Starts the backend: nginx with 1 KiB from memory on `/`, two files, and `/post`, which responds after the whole
/// body. A response before that would make some proxies give up the connection.
pub(super) fn backend(folder: &Path, pin: bool) -> anyhow::Result<Running> {
    fs::create_dir_all(folder.join("www"))?;
    for (name, size) in [("64k", 64 << 10), ("10m", 10 << 20)] {
        // Bytes that no layer can compress or deduplicate.
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let body: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        })
        .take(size)
        .collect();
        fs::write(folder.join("www").join(name), body)?;
    }
    // nginx drops its privileges before it opens the files.
    for path in [folder.to_owned(), folder.join("www")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    let body = "x".repeat(1024);
    let server = format!(
        "sendfile on; tcp_nopush on; default_type text/plain; root {root}/www; open_file_cache max=16;
         server {{ listen 127.0.0.1:{BACKEND_PORT} backlog=4096; location = / {{ return 200 \"{body}\"; }} location / {{ }}
                  location = /post {{ client_body_buffer_size 10m; proxy_pass http://unix:{root}/post.sock:/; proxy_pass_request_body off;
                                      proxy_set_header Content-Length \"\"; }} }}
         server {{ listen unix:{root}/post.sock; return 200 \"ok\"; }}",
        root = folder.display()
    );
    let setting = Setting { workers: 1, pin, access_log: false, http3: false };
    let command = nginx(vec!["nginx".into()], folder, "backend", setting, &server)?;
    Running::spawn_as("backend", command, Ports { http: BACKEND_PORT, https: 0 }, folder, pin.then_some("0"))
}

// === impl Running ===

impl Running {
    /// Starts a peer; `index` is its number among the peers that run at the same time.
    pub(super) fn start(peer: Peer, index: u16, stage: Stage<'_>, setting: Setting) -> anyhow::Result<Self> {
        let (ports, command) = command(peer, index, stage, setting)?;
        Self::spawn(peer, command, ports, stage, setting)
    }

    /// Starts a peer as a single process. The command line is `under`, such as valgrind with its options, followed by
    /// the peer's own words. It has one worker.
    pub(super) fn start_alone(
        under: &[String],
        peer: Peer,
        index: u16,
        stage: Stage<'_>,
        setting: Setting,
    ) -> anyhow::Result<Self> {
        let (ports, mut command) = command(peer, index, stage, Setting { workers: 1, ..setting })?;
        if peer == Peer::Nginx {
            command.extend(["-g".to_owned(), "master_process off;".to_owned()]);
        }
        Self::spawn(peer, [under, command.as_slice()].concat(), ports, stage, setting)
    }

    fn spawn(
        peer: Peer,
        command: Vec<String>,
        ports: Ports,
        stage: Stage<'_>,
        setting: Setting,
    ) -> anyhow::Result<Self> {
        let mut running = Self::spawn_as(&peer.to_string(), command, ports, stage.folder, setting.pin.then_some("1"))?;
        if setting.access_log && peer == Peer::Nginx {
            running.logs.push(nginx_log(stage.folder, "nginx"));
        }
        Ok(running)
    }

    fn spawn_as(
        name: &str,
        command: Vec<String>,
        ports: Ports,
        folder: &Path,
        cpu: Option<&str>,
    ) -> anyhow::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports.http));
        // Another listener on this address would be measured instead.
        let free = TcpListener::bind(address);
        drop(free.with_context(|| format!("{name} cannot have {address}: is another run left?"))?);
        // With `reuseport`, a UDP port is shared silently.
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, ports.https));
        drop(udp.with_context(|| format!("{name} cannot have UDP port {}: is another run left?", ports.https))?);
        let log = folder.join(format!("{name}.log"));
        let words = [tied(cpu), command].concat();
        let output = fs::File::create(&log)?;
        let child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {name}: {}", words.join(" ")))?;
        let mut running = Self { ports, child, logs: vec![log.clone()] };
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect_timeout(&address, Duration::from_millis(100)).is_err() {
            if running.child.try_wait()?.is_some() || Instant::now() > deadline {
                bail!("{name} did not come up:\n{}", fs::read_to_string(&log).unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(running)
    }

    pub(super) fn ports(&self) -> Ports {
        self.ports
    }

    /// Returns the id of the started process; for nginx, the process that receives signals.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Truncates the logs: a minute of an access log is some hundred MB.
    pub(super) fn forget_logs(&self) -> anyhow::Result<()> {
        for path in &self.logs {
            let emptied = fs::File::options().write(true).open(path).and_then(|file| file.set_len(0));
            emptied.with_context(|| format!("cannot empty `{}`", path.display()))?;
        }
        Ok(())
    }

    /// Returns the CPU time that the peer and all its descendants have used so far.
    pub(super) fn cpu(&self) -> anyhow::Result<CpuTime> {
        CpuTime::of(usage::tree(self.child.id()))
    }

    /// Returns `true` if a signal has killed the peer, `false` if it runs or has exited by itself.
    pub(super) fn was_killed(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.try_wait()?.is_some_and(|status| status.signal().is_some()))
    }

    /// Sends SIGTERM to the peer and waits for its end; it is killed after [`STOP_TIMEOUT`].
    pub(super) fn stop(&mut self) -> anyhow::Result<()> {
        if self.child.try_wait()?.is_none() {
            kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM)?;
            let deadline = Instant::now() + STOP_TIMEOUT;
            while self.child.try_wait()?.is_none() {
                if Instant::now() > deadline {
                    self.child.kill()?;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("cannot stop a peer: {error}");
        }
    }
}

/// Returns the words before the command line of a program, so that it ends with this process, however that ends, and is
/// optionally pinned to a CPU. The program also ends with the thread that starts it, which must be the thread that
/// measures (prctl(2), PR_SET_PDEATHSIG).
pub(super) fn tied(cpu: Option<&str>) -> Vec<String> {
    let cpu = cpu.map_or_else(Vec::new, |cpu| vec!["taskset", "-c", cpu]);
    ["setpriv", "--pdeathsig", "TERM"].into_iter().chain(cpu).map(str::to_owned).collect()
}

/// Returns a sentence if the kernel grants other peers smaller receive buffers for UDP than the product takes as root.
pub(super) fn remark_on_buffers() -> anyhow::Result<String> {
    let path = "/proc/sys/net/core/rmem_max";
    let text = fs::read_to_string(path).with_context(|| format!("cannot read `{path}`"))?;
    let most: u32 = text.trim().parse().with_context(|| format!("no number in `{path}`"))?;
    Ok(if most < UDP_BUFFER {
        format!("`net.core.rmem_max` limits the UDP buffers of other peers to {most} of {UDP_BUFFER} bytes.\n\n")
    } else {
        String::new()
    })
}
