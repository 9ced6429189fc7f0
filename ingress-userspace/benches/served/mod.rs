//! A proxy in this process, its pod, and the CPU time of its worker per request, for benches of whole requests.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::Arc,
    thread,
};

use ingress_common::HostL7Cell;
use ingress_control::{
    Origin,
    change::Change,
    cluster::Cluster,
    source::manifests::parse,
    translate::{Options, Translator},
};
use ingress_model::{HostId, RouteTable};
use ingress_proxy::{ListenMode, ListenOptions, Server, Shared, Snapshot};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

/// Requests of one measurement.
const REQUESTS: usize = 2000;
/// Measurements of each kind.
const ROUNDS: usize = 21;

/// Returns the text of a request with further fields.
pub(crate) fn request(host: &str, target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n")
}

/// Returns the median microseconds of each kind. Their measurements alternate, so that other load on the machine
/// affects all of them equally.
pub(crate) fn medians<const N: usize>(measure: impl Fn() -> [f64; N]) -> [f64; N] {
    // The first round fills pools and caches.
    measure();
    let rounds: Vec<_> = (0..ROUNDS).map(|_| measure()).collect();
    std::array::from_fn(|kind| {
        let mut times: Vec<_> = rounds.iter().map(|round| round[kind]).collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2] / 1e3
    })
}

/// Pins the process to the first CPU that it may use.
pub(crate) fn stay_on_one_cpu() {
    let this = Pid::from_raw(0);
    let may_use = sched_getaffinity(this).expect("the kernel tells");
    let first = (0..CpuSet::count()).find(|cpu| may_use.is_set(*cpu) == Ok(true)).expect("a CPU");
    let mut cpus = CpuSet::new();
    cpus.set(first).expect("a CPU");
    sched_setaffinity(this, &cpus).expect("it may be used");
}

/// A proxy with one worker.
pub(crate) struct Served {
    _server: Server,
    http: SocketAddr,
    /// File with the CPU time of the worker's thread.
    schedstat: String,
}

impl Served {
    /// Serves `table`, in which `GET` on `target` of `host` is answered.
    pub(crate) fn new(table: &RouteTable, host: &str, target: &str) -> Self {
        let cells: &'static [HostL7Cell] = Box::leak((0..16).map(|_| HostL7Cell::default()).collect());
        let shared = Arc::new(Shared::new(cells, None).expect("shared state"));
        let (snapshot, problems) = Snapshot::compile(None, table, |_| Some(HostId(1)));
        assert!(problems.is_empty(), "{problems:?}");
        shared.publish(snapshot);
        let mode = ListenMode::Bind { address: [127, 0, 0, 1].into(), http_port: 0, https_port: 0 };
        let listeners = ingress_proxy::bind(ListenOptions { mode, workers: 1, reuse: false }).expect("listeners");
        let http = listeners[0].http.local_addr().expect("an address");
        let before = threads();
        let server = Server::start(shared, listeners, &ingress_proxy::Options::default()).expect("started");
        let schedstat = |thread: &String| format!("/proc/self/task/{thread}/schedstat");
        // The worker is the thread that runs when a request arrives: other threads of the server are asleep then.
        let new: Vec<String> = threads().iter().filter(|thread| !before.contains(thread)).map(schedstat).collect();
        let mut served = Self { _server: server, http, schedstat: String::new() };
        let idle: Vec<u64> = new.iter().map(|path| on_cpu(path)).collect();
        served.ask(&request(host, target, ""), 100);
        let busiest = new.iter().zip(idle).max_by_key(|(path, idle)| on_cpu(path) - idle);
        served.schedstat.clone_from(busiest.expect("a worker").0);
        served
    }

    /// Returns the worker's nanoseconds per request.
    pub(crate) fn time(&self, request: &str) -> f64 {
        let before = on_cpu(&self.schedstat);
        self.ask(request, REQUESTS);
        (on_cpu(&self.schedstat) - before) as f64 / REQUESTS as f64
    }

    fn ask(&self, request: &str, count: usize) {
        let mut stream = TcpStream::connect(self.http).expect("connected");
        stream.set_nodelay(true).expect("set");
        let mut bytes = [0; 4096];
        for _ in 0..count {
            stream.write_all(request.as_bytes()).expect("sent");
            let mut answer = Vec::new();
            // Bodies of the pod and of the proxy do not end with a line break.
            while !answer.windows(4).any(|window| window == b"\r\n\r\n") || is_short(&answer) {
                let count = stream.read(&mut bytes).expect("an answer");
                assert!(count > 0, "{request}: {}", answer.escape_ascii());
                answer.extend_from_slice(&bytes[..count]);
            }
            assert!(
                answer.starts_with(b"HTTP/1.1 200") || answer.starts_with(b"HTTP/1.1 30"),
                "{}",
                answer.escape_ascii()
            );
        }
    }
}

/// Returns whether the body is incomplete.
fn is_short(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.and_then(|length| length.parse::<usize>().ok()).is_some_and(|length| body.len() < length)
}

fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux").map(|task| task.expect("a thread").file_name());
    tasks.map(|task| task.to_string_lossy().into_owned()).collect()
}

/// Returns nanoseconds on the CPU.
fn on_cpu(schedstat: &str) -> u64 {
    let text = fs::read_to_string(schedstat).expect("a thread that lives");
    text.split(' ').next().and_then(|time| time.parse().ok()).expect("a time")
}

/// Starts a pod that answers every request with 200.
pub(crate) fn pod() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bound");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    // Requests arrive one at a time and in one piece.
                    assert!(bytes[..count].ends_with(b"\r\n\r\n"));
                    if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\npod").is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

/// Returns the table of these objects, which must be without problems. They come from a file, as an API server's may not
/// lead to loopback.
pub(crate) fn translate(objects: &[String]) -> RouteTable {
    let path: Arc<Path> = Path::new("bench.yaml").into();
    let mut cluster = Cluster::default();
    for text in objects {
        let parsed = parse(&path, text);
        assert!(parsed.remarks.is_empty(), "{:?} {text}", parsed.remarks);
        for object in parsed.objects {
            cluster.apply(Change::Apply { object, origin: Origin::File(Arc::clone(&path)) });
        }
    }
    let translation = Translator::new(Options::default()).translate(&cluster);
    let problems: Vec<_> = translation.outcomes.iter().collect();
    assert!(problems.is_empty(), "{problems:?}");
    translation.table
}
