//! An operator leaves ingress-nginx and comes back: the commands of docs/migrate in their order, beside the nginx of the
//! distribution with what ingress-nginx makes of a dozen Ingresses. Without a cluster, so `kubectl` and `helm` are not
//! run.

use std::{
    fmt::Write as _,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::{Command, Output},
    time::Duration,
};

use ingress_lab::{
    Process,
    client::Ask,
    load::{Connections, Load, Report},
    topology::Family,
    until_within,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    generation::Generation,
    net::{Net, http},
};

/// Longest wait for clients to move, or for nginx to start or end.
const LIMIT: Duration = Duration::from_secs(60);
/// The pod of our routes, and that behind nginx.
const OURS: &str = "pod-a";
const OTHER: &str = "pod-c";
/// Where nginx shows its connections, and metrics as ingress-nginx has them.
const STATUS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10_254);

const CLASS: &str = "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: nginx}\nspec: {controller: k8s.io/ingress-nginx}\n";

/// The installation of ingress-nginx on the host network, for the plan. The node of this test does not read it.
const DAEMON_SET: &str = "\
apiVersion: apps/v1
kind: DaemonSet
metadata:
  namespace: ingress-nginx
  name: ingress-nginx-controller
  labels: {helm.sh/chart: ingress-nginx-4.13.3}
  annotations: {meta.helm.sh/release-name: ingress-nginx, meta.helm.sh/release-namespace: ingress-nginx}
spec:
  template:
    metadata: {labels: {app.kubernetes.io/instance: ingress-nginx}}
    spec:
      hostNetwork: true
      containers:
      - name: controller
        image: registry.test/ingress-nginx/controller:v1.13.3
        args: [/nginx-ingress-controller]
        ports: [{containerPort: 80, hostPort: 80}]
";

/// An Ingress, with what ingress-nginx writes into its server and its location.
struct Site {
    name: &'static str,
    annotations: &'static [(&'static str, &'static str)],
    server: &'static str,
    location: &'static str,
    /// Paths to compare.
    paths: &'static [&'static str],
}

const fn plain(name: &'static str) -> Site {
    Site { name, annotations: &[], server: "", location: "", paths: &["/", "/x/y?z=1"] }
}

const SITES: &[Site] = &[
    plain("home"),
    plain("shop"),
    plain("wiki"),
    Site {
        annotations: &[("configuration-snippet", "add_header X-Frame-Options DENY always;")],
        location: "add_header X-Frame-Options DENY always;",
        ..plain("framed")
    },
    Site {
        annotations: &[("server-snippet", "location = /metrics { deny all; }")],
        server: "location = /metrics { deny all; }",
        paths: &["/metrics", "/metrics/x", "/"],
        ..plain("measured")
    },
    Site {
        annotations: &[("configuration-snippet", "if ($http_user_agent ~* badbot) { return 403; }")],
        location: "if ($http_user_agent ~* badbot) { return 403; }",
        ..plain("bots")
    },
    Site {
        annotations: &[("configuration-snippet", "proxy_set_header X-Request-Start \"t=${msec}\";")],
        location: "proxy_set_header X-Request-Start \"t=${msec}\";",
        ..plain("timed")
    },
    Site {
        annotations: &[("permanent-redirect", "https://new.test/x")],
        location: "return 301 https://new.test/x;",
        ..plain("moved")
    },
    Site {
        annotations: &[("app-root", "/start")],
        server: "if ($uri = /) { return 302 $scheme://$http_host/start; }",
        ..plain("rooted")
    },
    Site {
        annotations: &[("allowlist-source-range", "203.0.113.0/24")],
        location: "allow 203.0.113.0/24; deny all;",
        ..plain("closed")
    },
    Site {
        annotations: &[("upstream-vhost", "inner.test")],
        location: "proxy_set_header Host inner.test;",
        ..plain("named")
    },
    Site { annotations: &[("proxy-body-size", "1k")], location: "client_max_body_size 1k;", ..plain("small") },
];

/// The desk of the operator: files, and a shell on the node.
struct Desk<'n> {
    net: &'n Net,
    format: String,
}

impl Desk<'_> {
    fn home(&self) -> &Path {
        self.net.lab.home()
    }

    /// Runs a line of a shell on the node, and prints it with the beginning of its output.
    fn run(&self, line: &str) -> Output {
        let shift = format!("xdp-ingress migrate shift --bpffs {}", self.net.bpffs.display());
        let line_of_lab = line.replace("xdp-ingress migrate shift", &shift).replace("--for 15m", "--for 6s");
        let binary = Path::new(env!("CARGO_BIN_EXE_xdp-ingress"));
        let path =
            format!("{}:{}", binary.parent().expect("a directory").display(), std::env::var("PATH").expect("a path"));
        let run = || {
            let mut command = Command::new("sh");
            command.args(["-c", &line_of_lab]).current_dir(self.home()).env("PATH", path);
            Ok(command.env_remove("KUBERNETES_SERVICE_HOST").env("NO_COLOR", "1").output()?)
        };
        let output = self.net.topology.node.run(run).expect("it runs");
        let said = text(&output);
        let shown: Vec<_> = said.lines().take(12).collect();
        println!("$ {line}\n{}{}", shown.join("\n"), if said.lines().count() > 12 { "\n…" } else { "" });
        output
    }

    /// [`Self::run`] that must end with one of these codes.
    #[track_caller]
    fn runs(&self, line: &str, codes: &[i32]) -> String {
        let output = self.run(line);
        let code = output.status.code();
        assert!(code.is_some_and(|code| codes.contains(&code)), "{line}: {code:?}\n{}", text(&output));
        text(&output)
    }

    /// Adds the patches of `check --fix` to the Ingresses, as kustomize would.
    fn apply(&self, fix: &str) {
        for entry in fs::read_dir(self.home().join(fix)).expect("patches") {
            let path = entry.expect("a file").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
            let Some(site) = name.strip_prefix("ingress.default.") else { continue };
            let patch: Value = serde_saphyr::from_str(&fs::read_to_string(&path).expect("text")).expect("YAML");
            let manifest = self.net.manifests.join(site);
            let mut ingress: Value = serde_json::from_slice(&fs::read(manifest).expect("the Ingress")).expect("JSON");
            let annotations = patch["metadata"]["annotations"].as_object().expect("annotations").clone();
            ingress["metadata"]["annotations"].as_object_mut().expect("annotations").extend(annotations);
            self.net.write(site, &ingress.to_string());
        }
    }

    /// Starts nginx, and waits until it serves.
    fn nginx(&self, name: &str) -> Process {
        let home = self.home().join(name);
        fs::create_dir(&home).expect("a directory");
        fs::write(home.join("nginx.conf"), self.conf(&home)).expect("written");
        let mut command = Command::new("nginx");
        command.arg("-c").arg(home.join("nginx.conf"));
        let mut nginx = self.net.lab.spawn(&self.net.topology.node, name, command).expect("nginx starts");
        nginx.wait_until(LIMIT, "nginx to serve", || self.connections().is_some()).expect("it serves");
        nginx
    }

    fn conf(&self, home: &Path) -> String {
        let (pod, log) = (self.net.topology.pods[2].v4, self.home().join("access.log"));
        let (home, log) = (home.display(), log.display());
        let name = "nginx_ingress_controller_request_duration_seconds";
        let metrics =
            format!("# TYPE {name} histogram\\n{name}_bucket{{le=\"10\"}} 1000\\n{name}_bucket{{le=\"+Inf\"}} 1000\\n");
        let mut conf = format!(
            "daemon off; user root; worker_processes 1; pid {home}/pid; error_log stderr warn;\n\
             events {{ worker_connections 4096; }}\n\
             http {{\n\
               client_body_temp_path {home}/body; proxy_temp_path {home}/proxy;\n\
               map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}\n\
               map $request_id $req_id {{ default $request_id; }}\n\
               map $scheme $pass_access_scheme {{ default $scheme; }}\n\
               log_format upstreaminfo '{}'; access_log {log} upstreaminfo;\n\
               upstream pods {{ server {pod}:8080; keepalive 32; }}\n\
               proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade;\n\
               proxy_set_header Connection $connection_upgrade; keepalive_requests 100;\n\
               server {{ listen 443; listen [::]:443; return 404; }}\n\
               server {{ listen {STATUS}; access_log off; location /status {{ stub_status; }}\n\
                 location /metrics {{ default_type text/plain; return 200 '{metrics}'; }} }}\n",
            self.format.replace('\'', "\\'")
        );
        for Site { name, server, location, .. } in SITES {
            let host = if location.contains("proxy_set_header Host") { "" } else { "proxy_set_header Host $host;" };
            let field = "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;";
            let set = "set $proxy_upstream_name \"default-web-80\"; set $proxy_alternative_upstream_name \"\";";
            writeln!(
                conf,
                "server {{ listen 80; listen [::]:80; server_name {name}.test; {set} {server}\n\
                   location / {{ {host} {field} {location} proxy_pass http://pods; }} }}"
            )
            .expect("a string takes text");
        }
        conf + "}\n"
    }

    /// Returns the connections of clients to nginx, if it serves.
    fn connections(&self) -> Option<u64> {
        let answer = self.net.try_ask(&self.net.topology.node, STATUS, &Ask::get("localhost", "/status")).ok()?.0;
        let text = String::from_utf8(answer.text).ok()?;
        let count = text.lines().next()?.strip_prefix("Active connections: ")?.trim().parse::<u64>().ok()?;
        // The last one is that of the question.
        count.checked_sub(1)
    }

    /// Checks that new connections of both families reach `pod`.
    #[track_caller]
    fn reaches(&self, pod: &str) {
        for family in [Family::V4, Family::V6] {
            let ask = Ask::get("home.test", "/");
            let reached = || {
                let (answer, _) = self.net.try_ask(&self.net.topology.client, http(family), &ask).ok()?;
                (answer.pod() == Some(pod)).then_some(())
            };
            until_within(LIMIT, pod, reached).expect("reached");
        }
    }

    /// Returns what a client sees of each Ingress.
    fn seen(&self) -> Vec<String> {
        let ask = |host: &str, path: &str| {
            let ask = Ask::get(&format!("{host}.test"), path);
            let (answer, _) = self.net.ask(&self.net.topology.client, http(Family::V4), &ask);
            let [frame, location] = ["x-frame-options", "location"].map(|name| answer.header(name).unwrap_or_default());
            let of_pod = answer.pod().is_some();
            let echo = if of_pod { answer.json().unwrap_or_default() } else { Value::Null };
            let host_of_pod = echo["headers"]["host"].as_str().unwrap_or_default().to_owned();
            format!("{host}{path}: {} {frame} {location} {of_pod} {host_of_pod} {}", answer.status, echo["path"])
        };
        SITES.iter().flat_map(|site| site.paths.iter().map(|path| ask(site.name, path))).collect()
    }
}

fn text(output: &Output) -> String {
    let part = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    part(&output.stdout) + &part(&output.stderr)
}

fn ingress(site: &Site) -> Value {
    let annotations: serde_json::Map<String, Value> = site
        .annotations
        .iter()
        .map(|(key, value)| (format!("nginx.ingress.kubernetes.io/{key}"), Value::from(*value)))
        .collect();
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let paths = json!([{"path": "/", "pathType": "Prefix", "backend": backend}]);
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"namespace": "default", "name": site.name, "annotations": annotations},
        "spec": {"ingressClassName": "nginx", "rules": [{"host": format!("{}.test", site.name), "http": {"paths": paths}}]},
    })
}

/// Returns the commands of the guide that need no cluster, in the order of its pages.
fn commands() -> Vec<&'static str> {
    let pages = [
        include_str!("../../../docs/migrate/check.md"),
        include_str!("../../../docs/migrate/plan.md"),
        include_str!("../../../docs/migrate/shadow.md"),
        include_str!("../../../docs/migrate/shift.md"),
        include_str!("../../../docs/migrate/remove.md"),
        include_str!("../../../docs/migrate/back.md"),
    ];
    let blocks =
        pages.into_iter().flat_map(|page| page.split("```sh\n").skip(1)).filter_map(|rest| rest.split("```").next());
    let is_offline = |line: &&str| {
        let words: Vec<_> = line.split_whitespace().collect();
        line.starts_with("xdp-ingress ") && !words.iter().any(|word| ["-A", "-n", "--context"].contains(word))
    };
    blocks.flat_map(str::lines).filter(is_offline).collect()
}

#[test]
fn an_operator_leaves() {
    let Some(net) = Net::build("leaves") else { return };
    let site = net.site("web", &[0]);
    net.write("00-class.yaml", CLASS);
    net.write("web.yaml", site.split_once("---\n").expect("several documents").1);
    for site in SITES {
        net.write(&format!("{}.yaml", site.name), &ingress(site).to_string());
    }
    fs::write(net.lab.home().join("nginx-values.yaml"), "controller: {hostNetwork: true, config: {hsts: \"false\"}}\n")
        .expect("written");
    net.write("installation.yaml", DAEMON_SET);
    let mut desk = Desk { net: &net, format: String::new() };

    // What would differ, and its repair.
    let report = desk.runs("xdp-ingress check --from-dir ./manifests --values nginx-values.yaml", &[3]);
    assert!(report.contains("configuration-snippet") && report.contains("server-snippet"), "{report}");
    desk.runs("xdp-ingress check --from-dir ./manifests --fix ./repair", &[3]);
    desk.apply("repair");
    let report = desk.runs("xdp-ingress check --from-dir ./manifests --fail-on fix", &[0]);
    assert!(!report.contains("snippet"), "{report}");
    desk.runs("xdp-ingress check --from-dir ./manifests --diff -o wide", &[0, 3]);
    let plan = desk.runs("xdp-ingress migrate plan --from-dir ./manifests --values nginx-values.yaml", &[0, 3]);
    assert!(plan.contains("READY       12") && plan.contains("migrate shift"), "{plan}");
    fs::remove_file(net.manifests.join("installation.yaml")).expect("removed");
    desk.runs("xdp-ingress migrate values nginx-values.yaml > xdp-values.yaml", &[0]);
    let patch = desk.runs("xdp-ingress shadow --print-format", &[0]);
    let patch: Value = serde_saphyr::from_str(&patch).expect("YAML");
    desk.format = patch["data"]["log-format-upstream"].as_str().expect("a format").trim_end().to_owned();

    // ingress-nginx serves, and then we beside it.
    let mut nginx = desk.nginx("nginx");
    desk.reaches(OTHER);
    let before = desk.seen();
    let mut ours =
        Generation::start(&net, "beside", &["--initial-share", "0%", "--controller-class", "k8s.io/ingress-nginx"]);
    desk.reaches(OTHER);
    let load = |host: &str, family, connections| {
        let load = Load::start(&net.topology.client, http(family), Ask::get(host, "/"), 2, connections);
        load.unwrap_or_else(|error| panic!("{host}: {error:#}"))
    };
    let loads = [
        load("home.test", Family::V4, Connections::Kept),
        load("shop.test", Family::V6, Connections::Kept),
        load("home.test", Family::V6, Connections::New),
        load("framed.test", Family::V4, Connections::New),
    ];
    let pass = || loads.iter().for_each(|load| load.pass(50).expect("the load goes on"));
    pass();
    desk.runs(&format!("xdp-ingress shadow --log access.log --from-dir ./manifests --format '{}'", desk.format), &[0]);

    // Clients come step by step, and go back at once.
    desk.runs("xdp-ingress migrate shift 10%", &[0]);
    pass();
    desk.runs("xdp-ingress migrate shift 100% --abort-on '5xx>1%,p99>2x' --other-metrics http://127.0.0.1:10254/metrics --for 15m", &[0]);
    desk.reaches(OURS);
    pass();
    assert_eq!(desk.seen(), before, "each Ingress is served as before");
    desk.runs("xdp-ingress migrate shift 0", &[0]);
    desk.reaches(OTHER);
    pass();
    desk.runs("xdp-ingress migrate shift 100%", &[0]);
    desk.reaches(OURS);

    // Removal, when no client is left.
    until_within(LIMIT, "the last connection to nginx", || desk.connections().filter(|count| *count == 0))
        .expect("it ends");
    nginx.signal(Signal::SIGQUIT).expect("told");
    until_within(LIMIT, "nginx to end", || nginx.exited()).expect("it ends");
    pass();
    assert_eq!(desk.seen(), before, "each Ingress is served as before");
    desk.runs("xdp-ingress migrate shift 0", &[1]);
    desk.reaches(OURS);

    // Back.
    let _nginx = desk.nginx("nginx-again");
    desk.runs("xdp-ingress migrate shift 0", &[0]);
    desk.reaches(OTHER);
    pass();

    // Every other command of the guide.
    let commands = commands();
    assert!(commands.len() >= 20, "{commands:?}");
    for line in commands {
        let format = if line.contains("--log") { format!(" --format '{}'", desk.format) } else { String::new() };
        desk.runs(&format!("{line}{format}"), &[0, 3]);
    }
    desk.reaches(OTHER);
    pass();
    let mut total = Report::default();
    for load in loads {
        let report = load.stop().expect("load ends");
        total.answered += report.answered;
        total.failed += report.failed;
        total.reasons.extend(report.reasons);
    }
    println!("{} requests meanwhile, {} failed", total.answered, total.failed);
    assert_eq!(total.failed, 0, "{:?}", total.reasons);
    ours.process.terminate(LIMIT).expect("it ends");
    desk.runs(&format!("xdp-ingress unload --bpffs {}", net.bpffs.display()), &[0]);
    desk.reaches(OTHER);
}
