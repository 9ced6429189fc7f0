//! The commands about a configuration, on a directory of manifests and on a running process.
#![allow(clippy::panic, reason = "helpers of tests may fail a test")]

use std::{
    fs,
    net::TcpListener,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

/// Longest wait for a process. Only a failing test waits that long.
const DEADLINE: Duration = Duration::from_secs(20);

const MANIFESTS: &str = r#"
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: { namespace: default, name: web, annotations: { xdp-ingress.io/response-headers: "X-Token: hunter2" } }
spec:
  ingressClassName: xdp
  tls: [{ hosts: [shop.test], secretName: missing }]
  rules:
    - host: shop.test
      http:
        paths:
          - { path: /, pathType: Prefix, backend: { service: { name: web, port: { number: 80 } } } }
          - { path: /gone, pathType: Prefix, backend: { service: { name: gone, port: { number: 80 } } } }
---
apiVersion: v1
kind: Service
metadata: { namespace: default, name: web }
spec: { ports: [{ port: 80 }] }
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: { namespace: default, name: web, labels: { kubernetes.io/service-name: web } }
addressType: IPv4
ports: [{ port: 8080 }]
endpoints: [{ addresses: [10.0.0.7] }]
"#;

fn manifests() -> TempDir {
    let home = tempfile::tempdir().expect("a directory");
    fs::write(home.path().join("web.yaml"), MANIFESTS).expect("written");
    home
}

fn command(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xdp-ingress")).args(arguments).output().expect("started")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Returns what a command prints as JSON about the directory.
fn json(directory: &Path, arguments: &[&str]) -> Value {
    let directory = directory.to_str().expect("text");
    let output = command(&[arguments, &["-o", "json", "--manifests", directory]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// A serving process, killed on drop.
struct Product(Child);

impl Drop for Product {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.0.kill().and_then(|()| self.0.wait()).is_err();
    }
}

fn start(directory: &Path, socket: &str) -> Product {
    let free = || TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()).expect("a port");
    let [http, https, admin] = [free(), free(), free()];
    let product = Command::new(env!("CARGO_BIN_EXE_xdp-ingress"))
        .args([
            "run",
            "--steer",
            "bind",
            "--xdp-mode",
            "off",
            "--workers",
            "1",
            "--probe-socket",
            socket,
            "--manifests",
        ])
        .arg(directory)
        .args(["--http-port", &http.port().to_string(), "--https-port", &https.port().to_string()])
        .args(["--admin-addr", &admin.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    let (product, began) = (Product(product), Instant::now());
    while !command(&["probe", "ready", "--socket", socket]).status.success() {
        assert!(began.elapsed() < DEADLINE, "the process is never ready");
        thread::park_timeout(Duration::from_millis(10));
    }
    product
}

#[test]
fn a_process_and_its_directory_give_the_same_answers() {
    let home = manifests();
    let socket = home.path().join("probe.sock");
    let socket = socket.to_str().expect("text");
    let _product = start(home.path(), socket);
    for arguments in [
        &["routes"][..],
        &["routes", "--host", "SHOP"],
        &["routes", "--namespace", "other"],
        &["certs"],
        &["explain", "https://shop.test/gone/x?secret=hunter2"],
        &["explain", "shop.test"],
    ] {
        let asked = command(&[arguments, &["-o", "json", "--socket", socket]].concat());
        assert!(asked.status.success(), "{arguments:?}: {}", said(&asked));
        assert!(!said(&asked).contains("hunter2"), "{arguments:?}: {}", said(&asked));
        let asked: Value = serde_json::from_slice(&asked.stdout).expect("JSON");
        assert_eq!(asked, json(home.path(), arguments), "{arguments:?}");
    }
    let reasons = |problems: &Value| -> Vec<String> {
        let problems = problems.as_array().expect("a list").iter();
        problems.map(|problem| problem["reason"].to_string()).collect()
    };
    let asked = command(&["problems", "-o", "json", "--socket", socket]);
    let asked: Value = serde_json::from_slice(&asked.stdout).expect("JSON");
    assert_eq!(reasons(&asked), reasons(&json(home.path(), &["problems"])));
    assert!(asked[0]["since"].as_str().is_some_and(|since| since.ends_with('Z')), "{asked}");
    let version = command(&["version", "-o", "json", "--socket", socket]);
    let version: Value = serde_json::from_slice(&version.stdout).expect("JSON");
    assert_eq!(
        (&version["client"], &version["process"]),
        (&Value::from(env!("CARGO_PKG_VERSION")), &version["client"])
    );
}

#[test]
fn an_explanation_names_the_rule_and_the_problem() {
    let home = manifests();
    let explained = json(home.path(), &["explain", "https://shop.test/cart"]);
    assert_eq!(explained["verdict"], "forwarded");
    assert_eq!(explained["summary"], "Ingress `default/web` sends the request to `default/web:80` (one pod).");
    assert_eq!(explained["route"]["filters"][1], "response-headers(x-token)");
    assert_eq!(json(home.path(), &["explain", "https://shop.test/gone"])["verdict"], "refused");
    assert_eq!(json(home.path(), &["explain", "http://shop.test/cart"])["verdict"], "redirected");
}

#[test]
fn findings_have_an_exit_code_of_their_own() {
    let home = manifests();
    let directory = home.path().to_str().expect("text");
    for (arguments, code) in [
        (&["problems"][..], 0),
        (&["problems", "--exit-code"], 3),
        (&["problems", "--exit-code", "--namespace", "other"], 0),
        (&["certs", "--exit-code"], 3),
        (&["routes"], 0),
        (&["explain", "ftp://shop.test/"], 1),
        (&["certs", "--expire-within", "-1"], 2),
        (&["routes", "-o", "xml"], 2),
    ] {
        let output = command(&[arguments, &["--manifests", directory]].concat());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", said(&output));
    }
    let missing = command(&["routes", "--manifests", "/nonexistent"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(said(&missing).contains("/nonexistent"), "{}", said(&missing));
}

#[test]
fn the_context_selects_the_cluster() {
    let home = tempfile::tempdir().expect("a directory");
    let kubeconfig = home.path().join("config");
    let text = "{ apiVersion: v1, kind: Config, current-context: here, users: [{ name: u, user: {} }],\n\
        contexts: [{ name: here, context: { cluster: c, user: u } }],\n\
        clusters: [{ name: c, cluster: { server: 'http://127.0.0.1:9' } }] }\n";
    fs::write(&kubeconfig, text).expect("written");
    let asked = |context| {
        let kubeconfig = kubeconfig.to_str().expect("text");
        let options = ["routes", "--kubeconfig", kubeconfig, "--context", context, "--timeout", "0.2"];
        said(&command(&options))
    };
    assert!(asked("elsewhere").contains("elsewhere"), "{}", asked("elsewhere"));
    // Port 9 is the discard port, on which usually no process listens.
    assert!(asked("here").contains("no complete answer within 200ms"), "{}", asked("here"));
}

#[test]
fn tables_have_titles_and_a_row_for_each_rule() {
    let home = manifests();
    let directory = home.path().to_str().expect("text");
    let routes = said(&command(&["routes", "--manifests", directory]));
    let lines: Vec<_> = routes.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    assert_eq!(
        lines,
        [
            vec!["HOST", "PATH", "TYPE", "INGRESS", "ACTION", "ENDPOINTS"],
            vec!["shop.test", "/gone", "prefix", "default/web", "503:", "no", "such", "service", "-"],
            vec!["shop.test", "/", "prefix", "default/web", "default/web:80", "10.0.0.7:8080"],
        ]
    );
    let yaml = said(&command(&["routes", "-o", "yaml", "--manifests", directory]));
    assert!(yaml.starts_with("- host: shop.test\n"), "{yaml}");
}
