//! The commands about a configuration, on a directory of manifests and on a running process.
#![allow(clippy::panic, reason = "helpers of tests may fail a test")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
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
fn a_bundle_has_the_answers_of_the_process_and_no_secrets() {
    let home = manifests();
    let certified = rcgen::generate_simple_self_signed(["key.test".to_owned()]).expect("a certificate");
    let encode = |text: String| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text);
    let secret = serde_json::json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": { "namespace": "default", "name": "missing" },
        "data": { "tls.crt": encode(certified.cert.pem()), "tls.key": encode(certified.signing_key.serialize_pem()) },
    });
    fs::write(home.path().join("secret.json"), secret.to_string()).expect("written");
    let socket = home.path().join("probe.sock");
    let socket = socket.to_str().expect("text");
    let _product = start(home.path(), socket);
    let archive = home.path().join("bundle.tar.gz");
    let bundle = ["debug", "bundle", "--bpffs", "/nonexistent", "--socket", socket];
    let output = command(&[&bundle[..], &["--file", archive.to_str().expect("text")]].concat());
    assert!(output.status.success(), "{}", said(&output));

    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(fs::File::open(archive).expect("an archive")));
    let mut names = Vec::new();
    let mut texts = String::new();
    for entry in archive.entries().expect("an archive") {
        let mut entry = entry.expect("an entry");
        names.push(entry.path().expect("a path").file_name().expect("a name").to_string_lossy().into_owned());
        entry.read_to_string(&mut texts).expect("text");
    }
    for name in ["version", "node", "routes", "problems", "certificates", "changes", "drops", "workers"] {
        assert!(names.contains(&format!("{name}.json")), "{name}: {names:?}");
    }
    assert!(names.contains(&"metrics.txt".to_owned()) && !names.contains(&"deny.json".to_owned()), "{names:?}");
    assert!(texts.contains("shop.test") && texts.contains("response-headers(x-token)"), "{texts}");
    let key = certified.signing_key.serialize_pem();
    let secrets = key.lines().filter(|line| !line.starts_with("-----")).chain(["hunter2", "PRIVATE KEY"]);
    for secret in secrets {
        assert!(!texts.contains(secret), "{secret} is in the bundle");
    }

    let nothing = command(&["debug", "bundle", "--bpffs", "/nonexistent", "--socket", "/nonexistent"]);
    assert_eq!(nothing.status.code(), Some(1), "{}", said(&nothing));
}

#[test]
fn a_watched_directory_is_printed_again_when_it_changes() {
    let home = manifests();
    let directory = home.path().to_str().expect("text");
    let started = Command::new(env!("CARGO_BIN_EXE_xdp-ingress"))
        .args(["routes", "--watch", "--manifests", directory])
        .stdout(Stdio::piped())
        .spawn();
    let mut watching = Product(started.expect("started"));
    let mut lines = BufReader::new(watching.0.stdout.take().expect("a pipe")).lines();
    let mut until = |text: &str| {
        let line = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains(text)));
        line.unwrap_or_else(|| panic!("the output ends before `{text}`")).expect("a line")
    };
    until("10.0.0.7:8080");
    fs::write(home.path().join("web.yaml"), MANIFESTS.replace("10.0.0.7", "10.0.0.8")).expect("written");
    assert_eq!(until("HOST").split_whitespace().next(), Some("HOST"), "a whole table");
    until("10.0.0.8:8080");
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
        (&["routes", "-o", "text", "-A", "--no-color"], 0),
        (&["problems", "-A", "-n", "other"], 2),
        (&["problems", "--watch", "--exit-code"], 2),
    ] {
        let output = command(&[arguments, &["--manifests", directory]].concat());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", said(&output));
    }
    let wrong = said(&command(&["routes", "--timeout", "soon"]));
    assert!(wrong.contains("invalid duration `soon`: use 0s or more, for example `30s`, `10m`, `12h`"), "{wrong}");
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
