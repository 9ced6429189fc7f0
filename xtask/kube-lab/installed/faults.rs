//! Failures around the product while it serves: the API server, a kubelet, a node's link, its own process.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use ingress_lab::client::{Ask, Protocol, Trust};
use serde_json::Value;
use xtask_kube_lab::NodePlan;
use xtask_tools::process;

use crate::{
    objects::{pods, site},
    stage::{Scope, Stage, ask_from, demand_no_failure, http, mended, number, stage, until},
};

/// Length of the API server's outage; a soak takes two minutes.
fn outage() -> Duration {
    Duration::from_secs(number("XDP_INGRESS_OUTAGE", 15))
}

/// Part to break.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    ApiServer,
    Kubelet(NodePlan),
    Link(NodePlan),
}

/// Keeps a part broken for as long as it lives.
pub(crate) struct Broken<'s> {
    stage: &'s Stage,
    part: Part,
}

impl<'s> Broken<'s> {
    pub(crate) fn begin(stage: &'s Stage, part: Part) -> Self {
        let cluster = &stage.cluster;
        let broken = match part {
            Part::ApiServer => cluster.kill_apiserver(),
            Part::Kubelet(node) => cluster.kill_kubelet(node),
            Part::Link(node) => cluster.partition(node),
        };
        broken.unwrap_or_else(|error| panic!("{part:?} cannot be broken: {error:#}"));
        Self { stage, part }
    }
}

impl Drop for Broken<'_> {
    fn drop(&mut self) {
        let Self { stage: Stage { cluster, .. }, part } = self;
        let result = match *part {
            Part::ApiServer => cluster.start_apiserver(),
            Part::Kubelet(node) => cluster.start_kubelet(node),
            Part::Link(node) => cluster.heal(node),
        };
        mended(&format!("mending {part:?}"), result);
    }
}

/// Runs pods on every node behind `host`.
fn served<'s>(stage: &'s Stage, name: &str, host: &str) -> Scope<'s> {
    let scope = stage.scope(name);
    scope.apply(&(pods("web", 4) + &site("web", host, "web")));
    scope.await_pods(&["web"]);
    stage.await_status(host, "/", 200);
    scope
}

#[test]
fn requests_are_served_while_the_api_server_is_down() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let scope = served(stage, "api-away", "away.test");
    let loads: Vec<_> = stage.nodes().into_iter().flat_map(|node| stage.loads(node, "away.test", None)).collect();
    let away = Broken::begin(stage, Part::ApiServer);
    std::thread::sleep(outage());
    let back = Instant::now();
    drop(away);
    let ready = back.elapsed();
    scope.apply(&site("late", "late.away.test", "web"));
    let applied = Instant::now();
    stage.await_status("late.away.test", "/", 200);
    println!(
        "API server away for {:?}, ready {ready:?} after its start; a change is live {:?} after it is applied",
        outage(),
        applied.elapsed()
    );
    demand_no_failure("the API server away", loads);
}

#[test]
fn a_killed_kubelet_costs_no_request() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let scope = served(stage, "kubelet", "kubelet.test");
    let loads: Vec<_> = stage.nodes().into_iter().flat_map(|node| stage.loads(node, "kubelet.test", None)).collect();
    let node = stage.nodes()[1];
    let broken = Broken::begin(stage, Part::Kubelet(node));
    let killed = Instant::now();
    stage.kubectl(&["wait", "--for=condition=Ready=Unknown", &format!("node/{}", node.name()), "--timeout=120s"]);
    println!("the node counts as unknown {:?} after its kubelet was killed", killed.elapsed());
    // The node's endpoints are no longer ready and leave the routes; nothing else happens.
    loads.iter().for_each(|(_, load)| load.pass(20).expect("requests are answered"));
    drop(broken);
    stage.kubectl(&["wait", "--for=condition=Ready", &format!("node/{}", node.name()), "--timeout=120s"]);
    loads.iter().for_each(|(_, load)| load.pass(20).expect("requests are answered"));
    scope.await_pods(&["web"]);
    demand_no_failure("a kubelet killed and started", loads);
}

#[test]
fn a_restart_without_the_api_server_serves_the_saved_configuration() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let scope = served(stage, "restart", "restart.test");
    let node = stage.nodes()[1];
    // The current configuration is saved within seconds. The host alone may have been saved before its pods were ready.
    until("the configuration is saved", || {
        let saved = stage.cluster.inside(node, || {
            let file = fs::File::open("/run/xdp-ingress/snapshot.json").context("cannot read what was saved")?;
            serde_json::from_reader(file).context("cannot understand what was saved")
        });
        let ready = ready_endpoints(&saved.map_err(|error| format!("{error:#}"))?, &scope.name);
        if ready == 4 { Ok(()) } else { Err(format!("{ready} of 4 endpoints are ready in it")) }
    });
    let away = Broken::begin(stage, Part::ApiServer);
    let pid = process_on(stage, node).expect("our process runs on the node");
    // Killing a process needs its number in the node's namespace, which only programs started there know.
    let kill = || process::run(Command::new("kill").args(["-KILL", &pid.to_string()]));
    stage.cluster.inside(node, kill).expect("our process is killed");
    let killed = Instant::now();
    until("the kubelet has restarted it", || match process_on(stage, node) {
        Some(now) if now != pid => Ok(()),
        _ => Err("no other process".into()),
    });
    stage.await_status("restart.test", "/", 200);
    println!("killed without the API server, served again after {:?}", killed.elapsed());
    drop(away);
    stage.await_rollout();
}

#[test]
fn an_isolated_node_keeps_serving_and_catches_up() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let scope = served(stage, "partition", "partition.test");
    let [first, second] = [stage.nodes()[0], stage.nodes()[1]];
    let broken = Broken::begin(stage, Part::Link(second));
    scope.apply(&site("during", "during.partition.test", "web"));
    until("the other node serves a change", || match stage.get(first, "during.partition.test", "/") {
        Ok(answer) if answer.status == 200 => Ok(()),
        other => Err(format!("{:?}", other.map(|answer| answer.status))),
    });
    // The node cannot be reached from outside. Processes on it can reach it, and pods of its own are left to answer.
    let inside = stage.cluster.network(second).expect("the node's namespace");
    let asked = Instant::now();
    until("the node goes on", || {
        let ask = Ask::get("partition.test", "/");
        let answer = ask_from(&inside, http(second), Protocol::Http1, &Trust::none(), &ask);
        let answer = answer.map_err(|error| format!("{error:#}"))?;
        if answer.status == 200 { Ok(()) } else { Err(answer.status.to_string()) }
    });
    println!("cut off, the node answers within {:?}", asked.elapsed());
    drop(broken);
    let healed = Instant::now();
    stage.await_status("during.partition.test", "/", 200);
    println!("cut off, the node has the change {:?} after its link is back", healed.elapsed());
    stage.kubectl(&["wait", "--for=condition=Ready", "node", "--all", "--timeout=120s"]);
    let load = stage.loads(second, "partition.test", None::<&Trust>);
    load.iter().for_each(|(_, load)| load.pass(20).expect("requests are answered"));
    demand_no_failure("after the node was cut off", load);
}

#[test]
fn xdp_is_native_on_every_node_with_three_capabilities() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    for node in stage.nodes() {
        let pid = process_on(stage, node).expect("our process runs on the node");
        let (status, links) = stage
            .cluster
            .inside(node, || {
                let status = fs::read_to_string(format!("/proc/{pid}/status")).context("cannot read its status")?;
                let links = Command::new("ip").args(["-details", "link", "show", "eth0"]).output()?;
                Ok((status, String::from_utf8_lossy(&links.stdout).into_owned()))
            })
            .expect("the node can be looked at");
        // CAP_NET_ADMIN 12, CAP_PERFMON 38, CAP_BPF 39 (linux/capability.h).
        let allowed = (1_u64 << 12) | (1 << 38) | (1 << 39);
        let set = status.lines().find_map(|line| line.strip_prefix("CapBnd:")).expect("a bounding set").trim();
        let set = u64::from_str_radix(set, 16).expect("a number");
        assert_eq!(set & !allowed, 0, "{}: {set:x} has more than {allowed:x}", node.name());
        let mode = links.lines().find(|line| line.contains("prog/xdp")).expect("a program is attached to eth0");
        println!("{}: {}; capabilities {set:x}", node.name(), mode.trim());
        assert!(links.contains(" xdp ") || links.contains("xdp/id"), "native, not generic: {links}");
        assert!(!links.contains("xdpgeneric"), "{links}");
    }
}

/// Returns the number of ready endpoints of a namespace in the saved configuration.
fn ready_endpoints(saved: &Value, namespace: &str) -> usize {
    let slices = saved["objects"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|object| object["kind"] == "EndpointSlice" && object["metadata"]["namespace"] == namespace);
    slices
        .flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten())
        .filter(|endpoint| endpoint["conditions"]["ready"] == true)
        .count()
}

/// Returns the product's process id on a node, in the node's namespace: the youngest process if there are several.
pub(crate) fn process_on(stage: &Stage, node: NodePlan) -> Option<i32> {
    let found = stage.cluster.inside(node, || {
        let mut found = None;
        for entry in fs::read_dir("/proc").context("cannot list processes")? {
            let path = entry?.path();
            let Some(pid) = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse::<i32>().ok())
            else {
                continue;
            };
            // A process may end during the look.
            let Ok(command) = fs::read(path.join("cmdline")) else { continue };
            let mut words = command.split(|byte| *byte == 0);
            let is_run =
                words.next().is_some_and(|word| word.ends_with(b"xdp-ingress")) && words.next() == Some(b"run");
            if is_run {
                found = found.max(Some(pid));
            }
        }
        Ok(found)
    });
    found.expect("the node's processes can be listed")
}
