//! Cost of each filter: the worker's CPU time per request in three cases. In the first, no rule has the filter; in the
//! second, another rule has it; in the third, the request's own rule has it. Each filter is configured by annotations
//! of an Ingress and measured through real sockets, with everything it makes the proxy do. The share of `route::filter`
//! is too small to be visible here: `benches/pure/filter.rs` measures it alone.
//!
//! `cargo bench --bench filters` prints Markdown; `-- cors limit-rps` selects rows. To measure another filter, add a
//! row to [`ROWS`]. All threads run on one CPU. Requests of the three kinds alternate, so that other load on the
//! machine affects all of them equally. The result is the CPU time of the worker's thread (`schedstat`, proc(5)), not
//! elapsed time.
#![allow(clippy::print_stdout, reason = "the table is what this program is for")]

use std::{
    env, fs,
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
use ingress_model::HostId;
use ingress_proxy::{ListenMode, ListenOptions, Server, Shared, Snapshot};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

/// Requests of each kind per round.
const REQUESTS: usize = 2000;
const ROUNDS: usize = 21;

/// A filter, its annotations, and additional fields of a request that uses it.
type Row = (&'static str, &'static [(&'static str, &'static str)], &'static str);

const ROWS: &[Row] = &[
    ("nothing", &[], ""),
    ("allowlist-source-range", &[("allowlist-source-range", "10.0.0.0/8,127.0.0.0/8")], ""),
    ("denylist-source-range", &[("denylist-source-range", "10.0.0.0/8,192.0.2.0/24")], ""),
    ("limit-rps", &[("limit-rps", "1000000")], ""),
    ("limit-connections", &[("limit-connections", "1000")], ""),
    ("enable-cors", &[("enable-cors", "true")], "Origin: https://b.test\r\n"),
    ("auth-secret", &[("auth-type", "basic"), ("auth-secret", "users")], "Authorization: Basic YTpwYXNz\r\n"),
    ("auth-url", &[("auth-url", "http://s.n.svc.cluster.local/")], ""),
    ("jwt-jwks-secret", &[("xdp-ingress.io/jwt-jwks-secret", "keys")], TOKEN),
    ("rewrite-target", &[("rewrite-target", "/new")], ""),
    ("rewrite-target with groups", &[("use-regex", "true"), ("rewrite-target", "/new$1")], ""),
    ("upstream-vhost", &[("upstream-vhost", "pod.test")], ""),
    ("request-headers", &[("request-headers", "X-A: 1\nX-B: $remote_addr")], ""),
    ("response-headers", &[("response-headers", "X-A: 1\n-Server")], ""),
    ("x-forwarded-prefix", &[("x-forwarded-prefix", "/a"), ("rewrite-target", "/new")], ""),
    ("mirror-target", &[("mirror-target", "http://s.n.svc.cluster.local/")], ""),
    ("custom-http-errors", &[("custom-http-errors", "503"), ("default-backend", "s")], ""),
    (
        "compression, of what is too short for it",
        &[("xdp-ingress.io/compression", "gzip")],
        "Accept-Encoding: gzip\r\n",
    ),
    ("permanent-redirect", &[("permanent-redirect", "https://b.test/")], ""),
    ("affinity", &[("affinity", "cookie")], ""),
    ("upstream-hash-by", &[("upstream-hash-by", "$remote_addr")], ""),
    ("load-balance: ewma", &[("load-balance", "ewma")], ""),
    ("metrics-per-path", &[("xdp-ingress.io/metrics-per-path", "true")], ""),
    ("max-connections", &[("xdp-ingress.io/max-connections", "100")], ""),
    ("proxy-protocol-upstream", &[("proxy-protocol-upstream", "v1")], ""),
];

/// Signed by the key in the Secret `keys`, valid until the year 3000.
const TOKEN: &str = "Authorization: Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhIiwiZXhwIjozMjUwMzY4MDAwMH0.7lBx9U6bnjCVb-xhEtfCPOmsx-USzFFZN0Q1f8vsjyw\r\n";

fn main() {
    // Threads on one CPU alternate. On several CPUs, the cost of wake-ups hides everything else.
    stay_on_one_cpu();
    let wanted: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let pod = pod();
    println!("| filter | no rule has it | another rule has it | this rule has it | what it costs |");
    println!("|---|--:|--:|--:|--:|");
    for (name, annotations, fields) in ROWS {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| name.contains(wanted.as_str())) {
            continue;
        }
        let (none, beside) = (Bench::new(pod, &[]), Bench::new(pod, annotations));
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for round in 0..=ROUNDS {
            let kinds = [none.time("plain.test", ""), beside.time("plain.test", ""), beside.time("used.test", fields)];
            // The first round fills pools and caches.
            if round > 0 {
                times.iter_mut().zip(kinds).for_each(|(times, time)| times.push(time));
            }
        }
        let [none, beside, used] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2] / 1e3
        });
        println!("| {name} | {none:.2} µs | {beside:.2} µs | {used:.2} µs | {:+.2} µs |", used - beside);
    }
}

/// Pins the process to the first CPU that it may use.
fn stay_on_one_cpu() {
    let this = Pid::from_raw(0);
    let may_use = sched_getaffinity(this).expect("the kernel tells");
    let first = (0..CpuSet::count()).find(|cpu| may_use.is_set(*cpu) == Ok(true)).expect("a CPU");
    let mut cpus = CpuSet::new();
    cpus.set(first).expect("a CPU");
    sched_setaffinity(this, &cpus).expect("it may be used");
}

/// A proxy with one worker and two hosts, `plain.test` and `used.test`, of which one has annotations.
struct Bench {
    _server: Server,
    http: SocketAddr,
    /// File with the CPU time of the worker's thread.
    schedstat: String,
}

impl Bench {
    fn new(pod: SocketAddr, annotations: &[(&str, &str)]) -> Self {
        let table = table(pod, annotations);
        let cells: &'static [HostL7Cell] = Box::leak((0..16).map(|_| HostL7Cell::default()).collect());
        let shared = Arc::new(Shared::new(cells, None).expect("shared state"));
        let (snapshot, problems) = Snapshot::compile(None, &table, |_| Some(HostId(1)));
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
        let mut bench = Self { _server: server, http, schedstat: String::new() };
        let idle: Vec<u64> = new.iter().map(|path| on_cpu(path)).collect();
        bench.ask("plain.test", "", 100);
        let busiest = new.iter().zip(idle).max_by_key(|(path, idle)| on_cpu(path) - idle);
        bench.schedstat.clone_from(busiest.expect("a worker").0);
        bench
    }

    /// Returns the worker's nanoseconds per request.
    fn time(&self, host: &str, fields: &str) -> f64 {
        let before = on_cpu(&self.schedstat);
        self.ask(host, fields, REQUESTS);
        (on_cpu(&self.schedstat) - before) as f64 / REQUESTS as f64
    }

    fn ask(&self, host: &str, fields: &str, count: usize) {
        let mut stream = TcpStream::connect(self.http).expect("connected");
        stream.set_nodelay(true).expect("set");
        let request = format!("GET /old HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
        let mut bytes = [0; 4096];
        for _ in 0..count {
            stream.write_all(request.as_bytes()).expect("sent");
            let mut answer = Vec::new();
            // Bodies of the pod and of the proxy do not end with a line break.
            while !answer.windows(4).any(|window| window == b"\r\n\r\n") || is_short(&answer) {
                let count = stream.read(&mut bytes).expect("an answer");
                assert!(count > 0, "{host}: {}", answer.escape_ascii());
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
fn pod() -> SocketAddr {
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

fn table(pod: SocketAddr, annotations: &[(&str, &str)]) -> ingress_model::RouteTable {
    let ingress = |name: &str, annotations: &[(&str, &str)]| {
        let lines = annotations.iter().map(|(key, value)| match key.contains('/') {
            true => format!("    {key}: {value:?}\n"),
            false => format!("    nginx.ingress.kubernetes.io/{key}: {value:?}\n"),
        });
        let lines: String = lines.collect();
        let annotations = if lines.is_empty() { String::new() } else { format!("  annotations:\n{lines}") };
        let kind =
            if annotations.contains("use-regex") { ("/old(.*)", "ImplementationSpecific") } else { ("/", "Prefix") };
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  namespace: n\n  name: {name}\n{annotations}spec:\n  ingressClassName: xdp\n\
             \x20 rules: [{{host: {name}.test, http: {{paths: [{{path: \"{}\", pathType: {}, backend: {{service: {{name: s, port: {{number: 80}}}}}}}}]}}}}]\n",
            kind.0, kind.1
        )
    };
    let objects = [
        "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: xdp}\nspec: {controller: xdp-ingress.io/controller}\n".to_owned(),
        "apiVersion: v1\nkind: Service\nmetadata: {namespace: n, name: s}\nspec: {ports: [{port: 80}]}\n".to_owned(),
        format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{namespace: n, name: s-a, labels: {{kubernetes.io/service-name: s}}}}\n\
             addressType: IPv4\nports: [{{port: {}}}]\nendpoints: [{{addresses: [127.0.0.1]}}]\n",
            pod.port()
        ),
        // User `a` with password `pass`.
        "apiVersion: v1\nkind: Secret\nmetadata: {namespace: n, name: users}\nstringData: {auth: \"a:{SHA}nU4eI71bcnBGqeO0t9tXvY1u5oQ=\"}\n".to_owned(),
        "apiVersion: v1\nkind: Secret\nmetadata: {namespace: n, name: keys}\nstringData: {jwks: '{\"keys\":[{\"kty\":\"oct\",\"alg\":\"HS256\",\"k\":\"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY\"}]}'}\n".to_owned(),
        ingress("plain", &[]),
        ingress("used", annotations),
    ];
    let path: Arc<Path> = Path::new("bench.yaml").into();
    let mut cluster = Cluster::default();
    for text in &objects {
        let parsed = parse(&path, text);
        assert!(parsed.remarks.is_empty(), "{:?} {text}", parsed.remarks);
        for object in parsed.objects {
            cluster.apply(Change::Apply { object, origin: Origin::Api });
        }
    }
    let translation = Translator::new(Options::default()).translate(&cluster);
    let problems: Vec<_> = translation.outcomes.iter().collect();
    assert!(problems.is_empty(), "{problems:?}");
    translation.table
}
