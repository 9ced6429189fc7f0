//! The lane `monitoring`: tests the alerts by promtool, then has a real Prometheus scrape the product on loopback,
//! evaluate the alerts, and answer every query of the dashboards.
//!
//! ```text
//! client ──▶ xdp-ingress (bind, no kernel part) ──▶ pod of this process
//!               ▲ /metrics, each second
//!            Prometheus: rules ── /api/v1 ──▶ this process
//! ```

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{BOARDS, RULES, TESTS, boards, files, read, rules};
use xtask_setup::build::{self, Profile};
use xtask_tools::summary::Outcome;
use xtask_tools::{free_ports, process, progress, workspace};

/// Longest wait for a condition.
const DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);
/// Host of the requests.
const HOST: &str = "shop.example.com";
/// The new metrics without a counterpart among the older ones, and others that alerts need and that exist without the
/// kernel part, each as a query with at least one result.
const ARRIVING: [&str; 15] = [
    "xdp_ingress_build_info == 1",
    "xdp_ingress_ready == 1",
    "xdp_ingress_certificate_not_after_timestamp_seconds{secret=\"shop/tls\"} > time()",
    "xdp_ingress_certificate_fallback_hosts == 1",
    "xdp_ingress_config_problems{reason=\"SecretNotFound\"} == 1",
    "xdp_ingress_configuration_apply_duration_seconds_count >= 1",
    "count(xdp_ingress_worker_connections) == 2",
    "count(xdp_ingress_worker_cpu_seconds_total) == 2",
    "xdp_ingress_host_requests_total{host=\"shop.example.com\", class=\"2xx\"} >= 3",
    "xdp_ingress_upstream_header_duration_seconds_count{upstream=\"shop/web:80\"} >= 3",
    "xdp_ingress_memory_pressure >= 0",
    "process_cpu_seconds_total > 0",
    "process_resident_memory_bytes > 0",
    "process_open_fds > 0",
    "time() - process_start_time_seconds < 600",
];

/// Runs the lane. It is skipped where Prometheus cannot be had, unless `REQUIRE_KUBE` is set.
///
/// # Errors
/// Fails if an alert, a metric or a query of a dashboard is wrong, or a program cannot be built or started.
pub fn run() -> Result<Outcome> {
    if !xtask_setup::can_have_prometheus()? {
        let lacking = "Prometheus is built by Go 1.26 or later, and there is no `go`";
        ensure!(!process::is_required("REQUIRE_KUBE"), "{lacking}; install it from https://go.dev/dl");
        return Ok(Outcome::Skipped(lacking.to_owned()));
    }
    let tools = xtask_setup::prometheus()?;
    let root = workspace::root();
    process::run(Command::new(&tools.promtool).args(["check", "rules", "--lint-fatal"]).arg(root.join(RULES)))?;
    for tests in files(&root.join(TESTS), "yaml")? {
        process::run(Command::new(&tools.promtool).args(["test", "rules"]).arg(tests))?;
    }
    let binary = build::userspace(Profile::Dev)?;
    let scratch = Scratch::new()?;
    let result = scrape(&binary, &tools.prometheus, &scratch.0);
    if result.is_err() {
        for log in ["xdp-ingress.log", "prometheus.log"] {
            progress::warn(&format!("end of {log}:\n{}", tail(&scratch.0.join(log))));
        }
    }
    result.map(|()| Outcome::Passed)
}

/// Starts both programs and compares the answers of Prometheus.
fn scrape(binary: &Path, prometheus: &Path, scratch: &Path) -> Result<()> {
    let pod = pod()?;
    let manifests = scratch.join("manifests");
    fs::create_dir(&manifests)?;
    fs::write(manifests.join("shop.yaml"), objects(pod, &certificate(scratch)?)?)?;
    let [http, https, admin, web] = free_ports()?;
    let mut product = Command::new(binary);
    product.args(["run", "--steer=bind", "--xdp-mode=off", "--workers=2", "--metrics-upstream-latency"]);
    product.arg("--manifests").arg(&manifests);
    product.args([format!("--http-port={http}"), format!("--https-port={https}")]);
    product.arg(format!("--admin-addr=127.0.0.1:{admin}"));
    let _product = Running::start(&mut product, &scratch.join("xdp-ingress.log"))?;
    until("the product is ready", || Ok(get(admin, "/readyz", "admin").is_ok()))?;
    for _ in 0..3 {
        ensure!(get(http, "/", HOST)? == "pod", "the pod does not answer through the product");
    }

    let config = scratch.join("prometheus.yaml");
    fs::write(&config, configuration(admin))?;
    let mut command = Command::new(prometheus);
    command.arg(format!("--config.file={}", config.display())).arg(format!("--web.listen-address=127.0.0.1:{web}"));
    command.arg(format!("--storage.tsdb.path={}", scratch.join("data").display())).arg("--log.level=warn");
    let _prometheus = Running::start(&mut command, &scratch.join("prometheus.log"))?;
    until("Prometheus scrapes the product", || Ok(has_result(web, "up == 1").unwrap_or(false)))?;
    for query in ARRIVING {
        until(&format!("`{query}` has a result"), || has_result(web, query))?;
    }
    let alerts = rules::alerts(&read(&workspace::root().join(RULES))?)?.len();
    until(&format!("all {alerts} alerts are evaluated without an error"), || Ok(healthy_rules(web)? == alerts))?;
    let firing = query(web, "ALERTS{alertstate=\"firing\"}")?;
    ensure!(firing.is_empty(), "alerts fire although nothing is wrong for long: {firing:?}");
    let mut queries = 0;
    for path in files(&workspace::root().join(BOARDS), "json")? {
        let board: Value = serde_json::from_str(&read(&path)?)?;
        for asked in boards::queries(&board) {
            query(web, &resolved(&asked)).with_context(|| format!("in `{}`", path.display()))?;
            queries += 1;
        }
    }
    progress::note(&format!(
        "{alerts} alerts healthy, {} metrics arrived, {queries} queries of dashboards",
        ARRIVING.len()
    ));
    Ok(())
}

/// Returns a query with values for the variables of Grafana.
fn resolved(query: &str) -> String {
    let query = query.replace("$__rate_interval", "1m").replace("$__range", "1h").replace("$__interval", "15s");
    let mut resolved = String::new();
    let mut rest = query.as_str();
    while let Some((before, after)) = rest.split_once('$') {
        resolved.push_str(before);
        resolved.push_str(".*");
        rest = after.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
    }
    resolved + rest
}

fn configuration(admin: u16) -> String {
    format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\nscrape_configs:\n- job_name: \
         xdp-ingress\n  static_configs: [{{targets: ['127.0.0.1:{admin}']}}]\n",
        workspace::root().join(RULES).display()
    )
}

/// Returns the objects that the product serves: a host with a certificate, and one whose Secret does not exist.
fn objects(pod: SocketAddr, (certificate, key): &(String, String)) -> Result<String> {
    let indent = |pem: &str| pem.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let ingress = |name: &str, host: &str, secret: &str| {
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: {name}, namespace: shop, annotations: \
             {{nginx.ingress.kubernetes.io/ssl-redirect: 'false'}}}}\nspec:\n  ingressClassName: xdp\n  tls: [{{hosts: \
             [{host}], secretName: {secret}}}]\n  rules:\n  - host: {host}\n    http: {{paths: [{{path: /, pathType: \
             Prefix, backend: {{service: {{name: web, port: {{number: 80}}}}}}}}]}}\n---\n"
        )
    };
    Ok(format!(
        "{class}{}{}apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: shop}}\nspec: {{ports: [{{port: \
         80}}]}}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: web-1, namespace: shop, \
         labels: {{kubernetes.io/service-name: web}}}}\naddressType: IPv4\nports: [{{port: {port}}}]\nendpoints: \
         [{{addresses: ['{address}'], conditions: {{ready: true}}}}]\n---\napiVersion: v1\nkind: Secret\nmetadata: \
         {{name: tls, namespace: shop}}\ntype: kubernetes.io/tls\nstringData:\n  tls.crt: |\n{certificate}  tls.key: \
         |\n{key}",
        ingress("web", HOST, "tls"),
        ingress("bare", "bare.example.com", "missing"),
        class = read(&workspace::root().join("deploy/examples/00-ingressclass.yaml"))? + "\n---\n",
        port = pod.port(),
        address = pod.ip(),
        certificate = indent(certificate),
        key = indent(key),
    ))
}

/// Makes a self-signed certificate; returns it and its key as PEM.
fn certificate(scratch: &Path) -> Result<(String, String)> {
    let (certificate, key) = (scratch.join("tls.crt"), scratch.join("tls.key"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
    openssl.args(["-days", "90", "-subj", "/CN=shop", "-addext", &format!("subjectAltName=DNS:{HOST}")]);
    process::capture(openssl.arg("-out").arg(&certificate).arg("-keyout").arg(&key))?;
    Ok((read(&certificate)?, read(&key)?))
}

/// Starts a server that answers each connection's first request; it ends with this process.
fn pod() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().filter_map(Result::ok) {
            // A request of this test fits into one read. A client that has gone needs no answer.
            let mut stream = stream;
            if stream.read(&mut [0; 4096]).is_ok() {
                drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\npod"));
            }
        }
    });
    Ok(address)
}

/// Returns the body of the answer to a GET, if it is 200.
fn get(port: u16, target: &str, host: &str) -> Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(DEADLINE))?;
    // HTTP/1.0: the body is not chunked, and ends with the connection.
    write!(stream, "GET {target} HTTP/1.0\r\nHost: {host}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without an empty line")?;
    let status = head.split_ascii_whitespace().nth(1).unwrap_or_default();
    ensure!(status == "200", "`{target}` was answered {status}: {body}");
    Ok(body.to_owned())
}

/// Returns the series of an instant query.
fn query(web: u16, query: &str) -> Result<Vec<Value>> {
    let answer: Value = serde_json::from_str(
        &get(web, &format!("/api/v1/query?query={}", encoded(query)), "prometheus")
            .with_context(|| format!("Prometheus refuses `{query}`"))?,
    )?;
    Ok(answer.pointer("/data/result").and_then(Value::as_array).cloned().unwrap_or_default())
}

fn has_result(web: u16, asked: &str) -> Result<bool> {
    Ok(!query(web, asked)?.is_empty())
}

/// Returns the number of rules that were evaluated without an error.
fn healthy_rules(web: u16) -> Result<usize> {
    let answer: Value = serde_json::from_str(&get(web, "/api/v1/rules", "prometheus")?)?;
    let groups = answer.pointer("/data/groups").and_then(Value::as_array).context("no groups")?;
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().into_iter().flatten());
    let (healthy, other): (Vec<_>, Vec<_>) = rules.partition(|rule| rule["health"] == "ok");
    if let Some(bad) = other.iter().find(|rule| rule["health"] == "err") {
        bail!("rule `{}` fails: {}", bad["name"], bad["lastError"]);
    }
    Ok(healthy.len())
}

/// Encodes a value for a query string (RFC 3986, 2.1).
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// Waits for a condition.
///
/// # Errors
/// Fails at the deadline, or with the error of the condition.
fn until(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !holds()? {
        ensure!(began.elapsed() < DEADLINE, "after {} s it does not hold that {what}", DEADLINE.as_secs());
        thread::sleep(POLL);
    }
    Ok(())
}

fn tail(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// A directory that is removed with its contents.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("xdp-ingress-monitoring-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make `{}`", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            progress::warn(&format!("cannot remove `{}`: {error}", self.0.display()));
        }
    }
}

/// A program that is killed at the end.
struct Running(Child);

impl Running {
    fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let file = fs::File::create(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        Ok(Self(command.spawn().with_context(|| format!("cannot start `{}`", process::show(command)))?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Only a program that has ended already cannot be killed.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_grafana_get_values() {
        for (query, expect) in [
            ("rate(a{host=~\"$host\"}[$__rate_interval])", "rate(a{host=~\".*\"}[1m])"),
            ("topk(5, a{x=\"$a\",y=\"$b_c\"})", "topk(5, a{x=\".*\",y=\".*\"})"),
            ("a", "a"),
        ] {
            assert_eq!(resolved(query), expect);
        }
    }

    #[test]
    fn a_query_is_encoded_byte_by_byte() {
        assert_eq!(encoded("up{a=\"ü\"} > 1"), "up%7Ba%3D%22%C3%BC%22%7D%20%3E%201");
    }
}
