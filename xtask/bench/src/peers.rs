//! The proxies that are compared, and the backend behind them: their configuration, start and end.

use std::{
    fmt, fs,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
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

use super::{
    credentials::{Credentials, RSA},
    load::Target,
    usage::{self, CpuTime},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Peer {
    Nginx,
    Haproxy,
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
    /// Whether the product also serves HTTP/3.
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
    let command = nginx(folder, "backend", setting, &server)?;
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

    /// Sends SIGTERM to the peer and waits for its end; after five seconds it is killed.
    pub(super) fn stop(&mut self) -> anyhow::Result<()> {
        if self.child.try_wait()?.is_none() {
            kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM)?;
            let deadline = Instant::now() + Duration::from_secs(5);
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

/// Returns the ports of the peer with this number, and its command line.
fn command(peer: Peer, index: u16, stage: Stage<'_>, setting: Setting) -> anyhow::Result<(Ports, Vec<String>)> {
    let ports = Ports { http: 18_000 + index * 10, https: 18_001 + index * 10 };
    let words = match peer {
        Peer::Nginx => nginx_proxy(stage, ports, setting)?,
        Peer::Haproxy => haproxy(stage, ports, setting)?,
        Peer::XdpIngress | Peer::Again => xdp_ingress(stage.binary, stage, ports, setting, 18_002 + index * 10)?,
        Peer::Before => {
            let before = stage.before.context("the peer `before` needs `--before`")?;
            xdp_ingress(before, stage, ports, setting, 18_002 + index * 10)?
        }
    };
    Ok((ports, words))
}

fn nginx_proxy(stage: Stage<'_>, ports: Ports, setting: Setting) -> anyhow::Result<Vec<String>> {
    let Ports { http, https } = ports;
    let Stage { folder, credentials: Credentials { ecdsa, rsa, trust: _ }, .. } = stage;
    let server = format!(
        "tcp_nodelay on; proxy_http_version 1.1; proxy_request_buffering off; proxy_buffer_size 16k;
         proxy_buffers 16 64k; proxy_busy_buffers_size 128k; proxy_max_temp_file_size 0;
         proxy_set_header Host $host; proxy_set_header Connection \"\";
         proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
         ssl_protocols TLSv1.2 TLSv1.3;
         upstream b {{ server 127.0.0.1:{BACKEND_PORT};
                      keepalive 512; keepalive_requests 1000000000; keepalive_timeout 1h; }}
         server {{ listen 127.0.0.1:{http} backlog=4096 reuseport;
                  listen 127.0.0.1:{https} ssl http2 backlog=4096 reuseport;
                  ssl_certificate {}; ssl_certificate_key {}; location / {{ proxy_pass http://b; }} }}
         server {{ listen 127.0.0.1:{https} ssl http2; server_name {RSA};
                  ssl_certificate {}; ssl_certificate_key {}; location / {{ proxy_pass http://b; }} }}",
        ecdsa.certificate.display(),
        ecdsa.key.display(),
        rsa.certificate.display(),
        rsa.key.display(),
    );
    nginx(folder, "nginx", setting, &server)
}

fn nginx(folder: &Path, name: &str, setting: Setting, http: &str) -> anyhow::Result<Vec<String>> {
    let (root, workers) = (folder.display(), setting.workers);
    let temp: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|t| format!("{t}_temp_path {root}/{name}-{t};\n"))
        .concat();
    let log = if setting.access_log {
        format!("{} combined buffer=64k flush=1s", nginx_log(folder, name).display())
    } else {
        "off".to_owned()
    };
    let conf = format!(
        "worker_processes {workers}; worker_rlimit_nofile 100000; daemon off; pid {root}/{name}.pid;
         error_log {root}/{name}.err crit; events {{ worker_connections 40000; }}
         http {{ access_log {log}; server_tokens off; keepalive_timeout 1h; keepalive_requests 1000000000;
                client_max_body_size 0; client_body_buffer_size 128k; {temp} {http} }}\n"
    );
    let path = folder.join(format!("{name}.conf"));
    fs::write(&path, conf)?;
    Ok(vec!["nginx".into(), "-c".into(), path.display().to_string()])
}

fn nginx_log(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.access.log"))
}

fn haproxy(stage: Stage<'_>, ports: Ports, setting: Setting) -> anyhow::Result<Vec<String>> {
    let Ports { http, https } = ports;
    let Stage { folder, credentials: Credentials { ecdsa, rsa, trust: _ }, .. } = stage;
    let Setting { workers, access_log, .. } = setting;
    let (log_to, log) =
        if access_log { (" log stdout format raw local0\n", " log global\n option httplog\n") } else { ("", "") };
    let conf = format!(
        "global\n nbthread {workers}\n maxconn 9900\n ssl-default-bind-options ssl-min-ver TLSv1.2\n{log_to}\
         defaults\n mode http\n timeout connect 5s\n timeout client 1h\n timeout server 1h\n\
         \x20timeout http-keep-alive 1h\n option forwardfor\n http-reuse always\n{log}\
         frontend f\n bind 127.0.0.1:{http} backlog 4096\n\
         \x20bind 127.0.0.1:{https} backlog 4096 ssl crt {} crt {} alpn h2,http/1.1\n\
         \x20default_backend b\nbackend b\n server s1 127.0.0.1:{BACKEND_PORT} pool-purge-delay 1h\n",
        ecdsa.both.display(),
        rsa.both.display(),
    );
    let path = folder.join("haproxy.cfg");
    fs::write(&path, conf)?;
    Ok(vec!["haproxy".into(), "-db".into(), "-f".into(), path.display().to_string()])
}

/// Returns the command line of the product as in an installation: with manifests, counters and metrics, but without the
/// kernel part, which loopback traffic does not pass.
fn xdp_ingress(
    binary: &Path,
    stage: Stage<'_>,
    ports: Ports,
    setting: Setting,
    admin: u16,
) -> anyhow::Result<Vec<String>> {
    let Ports { http, https } = ports;
    let Stage { folder, credentials: Credentials { ecdsa, rsa, trust: _ }, .. } = stage;
    let Setting { workers, pin: _, access_log, http3 } = setting;
    let manifests = folder.join("manifests");
    fs::create_dir_all(&manifests)?;
    fs::write(manifests.join("bench.yaml"), include_str!("bench.yaml").replace("19000", &BACKEND_PORT.to_string()))?;
    let settings = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: default}}\n\
         data: {{disable-access-log: \"{}\"}}\n",
        !access_log
    );
    fs::write(manifests.join("settings.yaml"), settings)?;
    for (name, files) in [("ecdsa", ecdsa), ("rsa", rsa)] {
        fs::copy(&files.secret, manifests.join(format!("{name}.yaml")))?;
    }
    let mut words = vec![binary.display().to_string(), "run".into()];
    for (flag, value) in [
        ("--manifests", manifests.display().to_string()),
        ("--configmap", "default/settings".into()),
        ("--default-ssl-certificate", "default/ecdsa".into()),
        ("--steer", "bind".into()),
        ("--xdp-mode", "off".into()),
        ("--http-port", http.to_string()),
        ("--https-port", https.to_string()),
        ("--workers", workers.to_string()),
        ("--admin-addr", format!("127.0.0.1:{admin}")),
    ] {
        words.extend([flag.into(), value]);
    }
    words.extend(http3.then(|| "--http3=on".into()));
    Ok(words)
}
