//! The kubectl plugin over real port-forwards: it finds the pods of the DaemonSet, asks each and merges the answers.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Output, Stdio},
    sync::OnceLock,
};

use serde_json::Value;
use xtask_kube_lab::NodePlan;
use xtask_setup::build;
use xtask_tools::{process, workspace};

use crate::{
    objects::{ingress, pods, rule, site},
    stage::{Stage, stage, until},
};

/// Builds the plugin once; returns the directory that kubectl finds it in.
fn directory() -> &'static Path {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let plugin = ["build", "--package", "ingress-cli", "--bin", "kubectl-xdp_ingress"];
        process::run(build::cargo().args(plugin)).expect("the plugin is built");
    });
    static DIRECTORY: OnceLock<std::path::PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| workspace::target_dir().join("debug"))
}

/// Returns `kubectl xdp-ingress` with these arguments.
fn plugin(stage: &Stage, arguments: &[&str]) -> Command {
    let mut kubectl = stage.cluster.kubectl_command();
    let path = std::env::var("PATH").unwrap_or_default();
    kubectl.env("PATH", format!("{}:{path}", directory().display())).arg("xdp-ingress").args(arguments);
    kubectl
}

fn run(stage: &Stage, arguments: &[&str]) -> Output {
    let mut command = plugin(stage, arguments);
    let control = stage.cluster.control().expect("the control plane's namespace");
    control.run(move || Ok(command.output()?)).expect("kubectl starts")
}

/// Returns the standard output of a command that succeeds.
fn text(stage: &Stage, arguments: &[&str]) -> String {
    let output = run(stage, arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {}: {said}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn json(stage: &Stage, arguments: &[&str]) -> Value {
    let text = text(stage, &[arguments, &["-o", "json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
}

/// Returns the requests of a host that were answered with 2xx, as `top` counts them.
fn requests(stage: &Stage, host: &str, more: &[&str]) -> u64 {
    let top = json(stage, &[&["top", "--once", "--filter", host], more].concat());
    // The filter also takes hosts whose names contain this one.
    let row = top["hosts"].as_array().and_then(|hosts| hosts.iter().find(|row| row["host"] == host));
    row.and_then(|row| row["requests"]["2xx"].as_u64()).unwrap_or_default()
}

#[test]
fn the_plugin_merges_the_answers_of_all_nodes() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("plugin");
    let nodes = stage.nodes();
    scope.apply(&(pods("web", 2) + &site("web", "plugin.test", "web")));
    scope.apply(&ingress("broken", &rule("broken-plugin.test", &[("Prefix", "/", "gone")])));
    scope.await_pods(&["web"]);
    stage.await_status("plugin.test", "/", 200);
    stage.await_status("broken-plugin.test", "/", 503);

    let status = json(stage, &["status"]);
    let shown: Vec<_> = status.as_array().expect("a list").iter().map(|node| node["node"].clone()).collect();
    let names: Vec<_> = nodes.iter().map(|node| Value::from(node.name())).collect();
    assert_eq!(shown, names, "{status}");
    assert!(status.as_array().is_some_and(|all| all.iter().all(|node| node["process"]["live"].is_null())), "{status}");
    println!("{}", text(stage, &["status"]));

    let (first, before) = (nodes[0].name(), requests(stage, "plugin.test", &["--all"]));
    let of_first = requests(stage, "plugin.test", &["--node", &first]);
    let ask = |node: NodePlan| assert_eq!(stage.get(node, "plugin.test", "/").expect("an answer").status, 200);
    nodes.iter().flat_map(|node| [*node; 3]).for_each(ask);
    until("`top` counts the requests of all nodes", || {
        let all = requests(stage, "plugin.test", &["--all"]) - before;
        let one = requests(stage, "plugin.test", &["--node", &first]) - of_first;
        if (all, one) == (3 * nodes.len() as u64, 3) { Ok(()) } else { Err(format!("{all}, and {one} on one node")) }
    });

    let routes = json(stage, &["routes", "--host", "plugin.test", "--namespace", &scope.name]);
    let hosts: Vec<_> = routes.as_array().expect("a list").iter().map(|route| route["host"].clone()).collect();
    assert_eq!(hosts, ["broken-plugin.test", "plugin.test"], "{routes}");
    let problems = json(stage, &["problems", "--namespace", &scope.name]);
    assert_eq!(problems.as_array().map(Vec::len), Some(1), "each once: {problems}");
    let found = run(stage, &["problems", "--namespace", &scope.name, "--exit-code"]);
    assert_eq!(found.status.code(), Some(3));
    let explained = json(stage, &["explain", "http://plugin.test/"]);
    assert_eq!(explained["verdict"], "forwarded", "{explained}");
    text(stage, &["certs"]);
    let version = json(stage, &["version"]);
    assert_eq!(version["nodes"].as_array().map(Vec::len), Some(nodes.len()), "{version}");
    let logs = text(stage, &["logs", "--tail", "3"]);
    assert!(nodes.iter().all(|node| logs.contains(&format!("[{}] ", node.name()))), "{logs}");

    let unreachable = run(stage, &["status", "--admin-port", "1"]);
    let said = String::from_utf8_lossy(&unreachable.stderr).into_owned();
    assert_eq!(unreachable.status.code(), Some(1), "{said}");
    assert!(nodes.iter().all(|node| said.contains(&format!("node {}, pod ", node.name()))), "{said}");
    println!("{said}");
}

#[test]
fn the_plugin_writes_a_bundle_and_forwards_the_admin_address() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let home = ingress_lab::Lab::open("plugin").expect("a place for files");
    let archive = home.home().join("bundle.tar.gz");
    text(stage, &["debug", "bundle", "--file", archive.to_str().expect("UTF-8")]);
    let listed = Command::new("tar").arg("-tzf").arg(&archive).output().expect("tar starts");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for node in stage.nodes() {
        for name in ["node.json", "routes.json", "metrics.txt", "log.txt"] {
            assert!(listed.contains(&format!("/nodes/{}/{name}\n", node.name())), "{name}: {listed}");
        }
    }
    assert!(!listed.contains("deny.json") && !listed.contains("clients.json"), "{listed}");
    println!("a bundle of {} bytes", fs::metadata(&archive).expect("a file").len());

    let mut command = plugin(stage, &["dashboard", "--port", "0"]);
    command.stdout(Stdio::piped());
    let control = stage.cluster.control().expect("the control plane's namespace");
    let mut forward = control.run(move || Ok(command.spawn()?)).expect("kubectl starts");
    let mut line = String::new();
    BufReader::new(forward.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    let (url, _) = line.split_once("/dashboard").expect("the address of the dashboard");
    let url = format!("{url}/api/v1/node");
    let ask = || Ok(Command::new("curl").args(["--silent", "--fail", "--max-time", "10", &url]).output()?);
    let answer = control.run(ask).expect("curl starts");
    // The plugin takes kubectl's place in its process.
    forward.kill().and_then(|()| forward.wait()).expect("the plugin ends");
    let node: Value =
        serde_json::from_slice(&answer.stdout).unwrap_or_else(|error| panic!("{url}: {error}: {answer:?}"));
    assert_eq!(node["version"], env!("CARGO_PKG_VERSION"), "{node}");
}
