//! The proxies that are compared, and the backend behind them: how each is configured, started, weighed and stopped.

use std::{
    fmt, fs,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::ValueEnum;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Peer {
    Nginx,
    Haproxy,
    XdpIngress,
}

/// Where a peer listens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    pub(super) http: u16,
    pub(super) https: u16,
}

/// A peer that runs.
pub(super) struct Running {
    ports: Ports,
    child: Child,
}

const BACKEND_PORT: u16 = 19_000;
/// Under valgrind it takes some seconds until a program has been read.
const START_TIMEOUT: Duration = Duration::from_secs(60);

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::XdpIngress => "xdp-ingress",
        })
    }
}

/// Starts the backend: nginx with 1 KiB from memory on `/`, two files, and `/post`, which answers once it has the whole
/// body: an answer before that would make some proxies give up the connection.
pub(super) fn backend(folder: &Path, pin: bool) -> anyhow::Result<Running> {
    for (name, size) in [("64k", 64 << 10), ("10m", 10 << 20)] {
        // Bytes that no layer could compress or deduplicate.
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
                  location = /post {{ proxy_pass http://unix:{root}/post.sock:/; proxy_pass_request_body off;
                                      proxy_set_header Content-Length \"\"; }} }}
         server {{ listen unix:{root}/post.sock; return 200 \"ok\"; }}",
        root = folder.display()
    );
    let command = nginx(folder, "backend", 1, &server)?;
    Running::spawn(command, Ports { http: BACKEND_PORT, https: 0 }, folder, "backend", pin.then_some("0"))
}

impl Running {
    pub(super) fn start(
        peer: Peer,
        index: u16,
        folder: &Path,
        binary: &Path,
        workers: u32,
        pin: bool,
    ) -> anyhow::Result<Self> {
        let (ports, command) = command(peer, index, folder, binary, workers)?;
        Self::spawn(command, ports, folder, &peer.to_string(), pin.then_some("1"))
    }

    /// A peer with one worker, as a single process: the one that `under`, such as valgrind with its options, becomes when
    /// it is given the peer's own words, or the peer itself if that is empty.
    pub(super) fn start_alone(
        under: &[String],
        peer: Peer,
        index: u16,
        folder: &Path,
        binary: &Path,
        pin: bool,
    ) -> anyhow::Result<Self> {
        let (ports, mut command) = command(peer, index, folder, binary, 1)?;
        if peer == Peer::Nginx {
            command.extend(["-g".to_owned(), "master_process off;".to_owned()]);
        }
        Self::spawn([under, command.as_slice()].concat(), ports, folder, &peer.to_string(), pin.then_some("1"))
    }

    fn spawn(command: Vec<String>, ports: Ports, folder: &Path, name: &str, cpu: Option<&str>) -> anyhow::Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let mut words = cpu.map_or_else(Vec::new, |cpu| vec!["taskset".into(), "-c".into(), cpu.to_owned()]);
        words.extend(command);
        let output = fs::File::create(&log)?;
        let child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {name}: {}", words.join(" ")))?;
        let mut running = Self { ports, child };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports.http));
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

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// User and system time of the peer with all its descendants, so far, in seconds.
    pub(super) fn cpu(&self) -> anyhow::Result<f64> {
        seconds(tree(self.child.id()).into_iter().filter_map(cpu_ticks).sum())
    }

    /// Asks the peer to end and waits for it.
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

/// Where the peer with this number listens, and the words that start it.
fn command(peer: Peer, index: u16, folder: &Path, binary: &Path, workers: u32) -> anyhow::Result<(Ports, Vec<String>)> {
    let ports = Ports { http: 18_000 + index * 10, https: 18_001 + index * 10 };
    let words = match peer {
        Peer::Nginx => nginx_proxy(folder, ports, workers)?,
        Peer::Haproxy => haproxy(folder, ports, workers)?,
        Peer::XdpIngress => xdp_ingress(folder, ports, workers, binary, 18_002 + index * 10)?,
    };
    Ok((ports, words))
}

/// A process and all its descendants.
pub(super) fn tree(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for task in tasks {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(children.split_whitespace().filter_map(|child| child.parse().ok()).flat_map(tree));
    }
    all
}

/// User and system time of a process: fields 14 and 15 of `/proc/PID/stat` (proc(5)), counted after the name, which may
/// hold anything.
pub(super) fn cpu_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

pub(super) fn seconds(ticks: u64) -> anyhow::Result<f64> {
    let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.context("no clock tick")?;
    Ok(ticks as f64 / per_second as f64)
}

fn nginx_proxy(folder: &Path, ports: Ports, workers: u32) -> anyhow::Result<Vec<String>> {
    let Ports { http, https } = ports;
    let (certificate, key) = certificate(folder)?;
    let server = format!(
        "tcp_nodelay on; proxy_http_version 1.1; proxy_request_buffering off; proxy_buffer_size 16k;
         proxy_buffers 16 64k; proxy_busy_buffers_size 128k; proxy_max_temp_file_size 0;
         proxy_set_header Host $host; proxy_set_header Connection \"\";
         proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
         ssl_certificate {certificate}; ssl_certificate_key {key}; ssl_protocols TLSv1.2 TLSv1.3;
         upstream b {{ server 127.0.0.1:{BACKEND_PORT}; keepalive 512; keepalive_requests 1000000000; keepalive_timeout 1h; }}
         server {{ listen 127.0.0.1:{http} backlog=4096 reuseport; listen 127.0.0.1:{https} ssl http2 backlog=4096 reuseport;
                  location / {{ proxy_pass http://b; }} }}"
    );
    nginx(folder, "nginx", workers, &server)
}

fn nginx(folder: &Path, name: &str, workers: u32, http: &str) -> anyhow::Result<Vec<String>> {
    let root = folder.display();
    let temp: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|t| format!("{t}_temp_path {root}/{name}-{t};\n"))
        .concat();
    let conf = format!(
        "worker_processes {workers}; worker_rlimit_nofile 100000; daemon off; pid {root}/{name}.pid;
         error_log {root}/{name}.err crit; events {{ worker_connections 40000; }}
         http {{ access_log off; server_tokens off; keepalive_timeout 1h; keepalive_requests 1000000000;
                client_max_body_size 0; client_body_buffer_size 128k; {temp} {http} }}\n"
    );
    let path = folder.join(format!("{name}.conf"));
    fs::write(&path, conf)?;
    Ok(vec!["nginx".into(), "-c".into(), path.display().to_string()])
}

fn haproxy(folder: &Path, ports: Ports, workers: u32) -> anyhow::Result<Vec<String>> {
    let Ports { http, https } = ports;
    let (certificate, key) = certificate(folder)?;
    let both = folder.join("both.pem");
    fs::write(&both, [fs::read(certificate)?, fs::read(key)?].concat())?;
    let conf = format!(
        "global\n nbthread {workers}\n maxconn 9900\n ssl-default-bind-options ssl-min-ver TLSv1.2\n\
         defaults\n mode http\n timeout connect 5s\n timeout client 1h\n timeout server 1h\n option forwardfor\n http-reuse always\n\
         frontend f\n bind 127.0.0.1:{http} backlog 4096\n bind 127.0.0.1:{https} backlog 4096 ssl crt {both} alpn h2,http/1.1\n\
         \x20default_backend b\nbackend b\n server s1 127.0.0.1:{BACKEND_PORT} pool-purge-delay 1h\n",
        both = both.display()
    );
    let path = folder.join("haproxy.cfg");
    fs::write(&path, conf)?;
    Ok(vec!["haproxy".into(), "-db".into(), "-f".into(), path.display().to_string()])
}

/// The product as it is installed: manifests, counters and metrics on; nothing of the kernel part, which these cases do
/// not pass through on loopback.
fn xdp_ingress(folder: &Path, ports: Ports, workers: u32, binary: &Path, admin: u16) -> anyhow::Result<Vec<String>> {
    let Ports { http, https } = ports;
    let manifests = folder.join("manifests");
    fs::create_dir_all(&manifests)?;
    fs::write(manifests.join("bench.yaml"), include_str!("bench.yaml").replace("19000", &BACKEND_PORT.to_string()))?;
    let mut words = vec![binary.display().to_string(), "run".into()];
    for (flag, value) in [
        ("--manifests", manifests.display().to_string()),
        ("--steer", "bind".into()),
        ("--xdp-mode", "off".into()),
        ("--http-port", http.to_string()),
        ("--https-port", https.to_string()),
        ("--workers", workers.to_string()),
        ("--admin-addr", format!("127.0.0.1:{admin}")),
    ] {
        words.extend([flag.into(), value]);
    }
    Ok(words)
}

/// A self-signed ECDSA P-256 certificate, the kind xdp-ingress makes for itself.
fn certificate(folder: &Path) -> anyhow::Result<(String, String)> {
    let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    if !certificate.exists() {
        let signed = rcgen::generate_simple_self_signed(["bench.test".to_owned()])?;
        fs::write(&certificate, signed.cert.pem())?;
        fs::write(&key, signed.signing_key.serialize_pem())?;
    }
    Ok((certificate.display().to_string(), key.display().to_string()))
}
