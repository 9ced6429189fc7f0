//! A real nginx as a child process, and requests to it over a Unix socket.

use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Time for nginx to read the configuration of a thousand servers, on a busy machine.
const START_MAX: Duration = Duration::from_secs(120);

/// An answer: the body of a 200, and the path of a redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) text: String,
}

pub(crate) struct Nginx {
    child: Child,
    directory: PathBuf,
    connection: BufReader<UnixStream>,
}

pub(crate) fn is_installed() -> bool {
    Command::new("nginx").arg("-v").stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Returns whether nginx accepts a configuration with this server.
pub(crate) fn accepts(server: &str) -> bool {
    let directory = prepared(&[server.to_owned()]);
    let output = nginx(&directory).arg("-t").output().expect("nginx runs");
    remove(&directory);
    output.status.success()
}

impl Nginx {
    /// Starts nginx with these servers, whose names are their numbers.
    pub(crate) fn start(servers: &[String]) -> Self {
        let directory = prepared(servers);
        let log = fs::File::create(directory.join("stderr")).expect("a file");
        let mut child = nginx(&directory).stdin(Stdio::null()).stderr(log).spawn().expect("nginx starts");
        let begun = Instant::now();
        let connection = loop {
            if let Ok(stream) = UnixStream::connect(directory.join("s")) {
                break BufReader::new(stream);
            }
            let log = || fs::read_to_string(directory.join("stderr")).unwrap_or_default();
            assert!(child.try_wait().expect("a child").is_none(), "nginx ended: {}", log());
            assert!(begun.elapsed() < START_MAX, "nginx does not listen: {}", log());
            std::thread::sleep(Duration::from_millis(10));
        };
        Self { child, directory, connection }
    }

    /// Asks the server with this number for a path.
    pub(crate) fn ask(&mut self, server: usize, path: &str) -> Answer {
        let request = format!("GET {path} HTTP/1.1\r\nHost: s{server}.test\r\n\r\n");
        self.connection.get_mut().write_all(request.as_bytes()).expect("nginx reads");
        let (mut status, mut length, mut location, mut closes) = (0, 0, String::new(), false);
        loop {
            let mut line = String::new();
            let read = self.connection.read_line(&mut line).expect("a line");
            assert!(read > 0, "nginx closed the connection at `{path}`");
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            match line.split_once(": ") {
                None => status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"),
                Some(("Content-Length", value)) => length = value.parse().expect("a number"),
                Some(("Location", value)) => location = value.to_owned(),
                Some(("Connection", value)) => closes = value == "close",
                Some(_) => {}
            }
        }
        let mut body = vec![0; length];
        self.connection.read_exact(&mut body).expect("a body");
        if closes {
            self.connection = BufReader::new(UnixStream::connect(self.directory.join("s")).expect("nginx listens"));
        }
        let text = match status {
            200 => String::from_utf8(body).expect("text"),
            _ => location.trim_start_matches(&format!("http://s{server}.test")).to_owned(),
        };
        Answer { status, text }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        remove(&self.directory);
    }
}

fn nginx(directory: &std::path::Path) -> Command {
    let mut command = Command::new("nginx");
    command.args(["-e", "stderr", "-p"]).arg(directory).arg("-c").arg(directory.join("conf"));
    command
}

/// Writes a configuration with these servers to a new directory.
fn prepared(servers: &[String]) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Relaxed);
    let directory = env::temp_dir().join(format!("nginx-model-{}-{number}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    let mut text = "daemon off; master_process off; worker_processes 1; pid pid; error_log stderr crit;\n\
                    events { worker_connections 64; }\nhttp {\naccess_log off; keepalive_requests 100000000; \
                    server_names_hash_max_size 65536; server_names_hash_bucket_size 128; port_in_redirect off;\n"
        .to_owned();
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        text.push_str(&format!("{kind}_temp_path {kind};\n"));
    }
    for (number, server) in servers.iter().enumerate() {
        text.push_str(&format!("server {{\nlisten unix:{}/s; server_name s{number}.test;\n", directory.display()));
        text.push_str(server);
        text.push_str("}\n");
    }
    text.push_str("}\n");
    fs::write(directory.join("conf"), text).expect("a file");
    directory
}

fn remove(directory: &std::path::Path) {
    drop(fs::remove_dir_all(directory));
}
