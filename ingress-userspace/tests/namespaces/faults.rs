//! Prerequisites that a start may find missing on a node. The start names the problem and its remedy, a running process
//! is not disturbed, and without one clients are refused at once. Harmless deviations are covered as well.

use std::{ffi::OsString, fs, process::Command, time::Duration};

use ingress_common::map;
use ingress_lab::{
    client::Ask,
    controller::{DataPath, XdpMode},
    load::{Connections, Load},
    topology::{Family, NODE_NIC},
    until_within,
};

use crate::{
    generation::{Generation, under},
    inspect,
    net::{Net, http},
};

/// Longest wait for a start to succeed or to fail: loading the programs is the slow part.
const START: Duration = Duration::from_secs(30);

/// A start that must fail.
struct Fault {
    name: &'static str,
    command: Command,
    /// Texts that it must print.
    says: Vec<String>,
}

/// Returns its error message, in one line.
pub(crate) fn failed_start(net: &Net, name: &str, command: Command) -> String {
    let mut process = net.lab.spawn(&net.topology.node, name, command).expect("it can be run");
    let status = until_within(START, "the start to fail", || process.exited())
        .unwrap_or_else(|error| panic!("{name}: {error:#}\n{}", process.log_tail(20)));
    let said = process.log();
    assert_eq!((status.code(), said.lines().count()), (Some(1), 1), "{name}: {said}");
    said
}

pub(crate) fn is_refused(net: &Net) {
    let refused = net.try_ask(&net.topology.client, http(Family::V4), &Ask::get("web.test", "/"));
    let refused = format!("{:#}", refused.expect_err("nobody serves"));
    assert!(refused.contains("refused"), "at once, not by a time-out: {refused}");
}

pub(crate) fn steady(net: &Net) -> Load {
    let web = Ask::get("web.test", "/");
    Load::start(&net.topology.client, http(Family::V4), web, 2, Connections::New).expect("load starts")
}

pub(crate) fn none_failed(load: Load) {
    let report = load.stop().expect("load ends");
    assert_eq!(report.failed, 0, "{:?}", report.reasons);
}

/// The product without one of its capabilities, given as setpriv(1) names it.
fn without_capability(net: &Net, name: &str) -> Command {
    let bounds = format!("--bounding-set=-all,+net_admin,+perfmon,+bpf,-{name}");
    let args = [bounds.as_str(), "--inh-caps=-all", "--no-new-privs"].map(OsString::from);
    under("setpriv", &args, &net.options("faulty", 9111).command())
}

/// The product with its pins outside of any BPF file system.
fn without_bpffs(net: &Net) -> Command {
    let mut options = net.options("faulty", 9111);
    options.path =
        DataPath::Kernel { mode: XdpMode::Native, interface: NODE_NIC.into(), bpffs: net.lab.home().join("plain") };
    options.command()
}

/// The product in a mount namespace of its own, after a script.
fn after(script: &str, command: &Command) -> Command {
    let script = format!("{script} && exec \"$@\"");
    let args = ["--mount", "--propagation=private", "sh", "-c", script.as_str(), "sh"].map(OsString::from);
    under("unshare", &args, command)
}

fn faults(net: &Net) -> Vec<Fault> {
    let lacks = |name, capability: &str| {
        let lack = format!("the process lacks `{capability}`; run it as root, or give it that capability");
        Fault { name, command: without_capability(net, name), says: vec![lack, "securityContext.capabilities".into()] }
    };
    let mut faults =
        vec![lacks("bpf", "CAP_BPF"), lacks("net_admin", "CAP_NET_ADMIN"), lacks("perfmon", "CAP_PERFMON")];
    let plain = net.lab.home().join("plain").display().to_string();
    faults.push(Fault {
        name: "bpffs",
        command: without_bpffs(net),
        says: vec![
            format!("no BPF file system is mounted at `{plain}`; mount one with `mkdir -p {plain} && mount -t bpf bpf {plain}`"),
            "for a pod, on the node: `mount -t bpf bpf /sys/fs/bpf`".into(),
        ],
    });
    faults
}

/// Runs each failing start, and calls `meanwhile` to check the node.
fn each_fails(net: &Net, meanwhile: impl Fn()) {
    for Fault { name, command, says } in faults(net) {
        let said = failed_start(net, name, command);
        assert!(said.contains("`--steer bind --xdp-mode off` runs without it"), "{name}: {said}");
        for words in says {
            assert!(said.contains(&words), "{name}: no `{words}` in: {said}");
        }
        assert!(!net.lab.home().join("plain").exists(), "{name}: nothing was made");
        meanwhile();
    }
}

#[test]
fn a_failed_start_names_its_cause_and_disturbs_no_process() {
    let Some(net) = Net::build("lacks") else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    each_fails(&net, || {
        is_refused(&net);
        assert!(!net.bpffs.exists(), "nothing was pinned");
    });
    let _first = net.start("first", 9110);
    let load = steady(&net);
    each_fails(&net, || load.pass(20).expect("the first serves on"));
    none_failed(load);
}

#[test]
fn the_suggested_command_mounts_the_bpf_file_system() {
    let Some(net) = Net::build("mounts") else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let said = failed_start(&net, "plain", without_bpffs(&net));
    let advice = said.split('`').find(|part| part.starts_with("mkdir -p ")).expect("a command").to_owned();
    let command = after(&advice, &without_bpffs(&net));
    let mut process = net.lab.spawn(&net.topology.node, "mounted", command).expect("it can be run");
    let web = Ask::get("web.test", "/");
    let answer = || net.try_ask(&net.topology.client, http(Family::V4), &web);
    let serves = || answer().is_ok_and(|(answer, _)| answer.status == 200);
    process.wait_until(START, "it serves", serves).expect("it starts");
}

/// The programs do not depend on the kernel's BTF, because they access no kernel structure.
#[test]
fn a_node_without_kernel_btf_is_served() {
    const HIDE: &str = "if [ -d /sys/kernel/btf ]; then mount -t tmpfs none /sys/kernel/btf; fi";
    let Some(net) = Net::build("btf") else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let mut process = Generation::spawn_in(&net, "no-btf", &[], |command| after(HIDE, &command));
    until_within(START, "readiness", || process.probe("ready").ok())
        .unwrap_or_else(|error| panic!("{error:#}\n{}", process.process.log_tail(20)));
    let pid = process.process.pid().to_string();
    let mut look = Command::new("nsenter");
    look.args(["--target", &pid, "--mount", "test", "-e", "/sys/kernel/btf/vmlinux"]);
    assert_eq!(look.status().expect("nsenter runs").code(), Some(1), "the test's own premise");
    for _ in 0..10 {
        assert_eq!(net.ask(&net.topology.client, http(Family::V4), &Ask::get("web.test", "/")).0.status, 200);
    }
    let counts = net.settled();
    assert_eq!(counts.hosts["web.test"].l7.requests.success, 10);
    assert!(counts.hosts["web.test"].net.rx_packets > 0);
    assert_eq!(inspect::attention(&net), "");
    assert!(process.process.terminate(START).expect("it ends").success());
    let log = process.process.log();
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
}

#[test]
fn pins_of_another_version_are_refused_and_the_owner_keeps_serving() {
    let Some((net, mut first)) = Net::serving("layout") else { return };
    let load = steady(&net);
    // A map with other keys and values, as another version may have created it.
    let pin = |name: &str| net.bpffs.join(map::LAYOUT).join("maps").join(name);
    fs::remove_file(pin(map::PORTS)).expect("removed");
    fs::rename(pin(map::FLOWS), pin(map::PORTS)).expect("renamed");
    let layout = "has another layout (40 → 8 bytes; this version needs 4 → 16 bytes)";
    let remedies = ["use the version of xdp-ingress that created it", "with `xdp-ingress unload`"];
    let says = |said: &str| {
        assert!(said.contains("v1/maps/ports` ") && said.contains(layout), "{said}");
        assert!(remedies.iter().all(|remedy| said.contains(remedy)), "{said}");
    };
    says(&failed_start(&net, "second", net.options("second", 9111).command()));
    for tool in [&["status"][..], &["top", "--once"]] {
        let output = inspect::run(&net, tool);
        assert!(!output.status.success(), "{tool:?}");
        says(&String::from_utf8_lossy(&output.stderr));
    }
    load.pass(50).expect("the first serves on");
    none_failed(load);

    first.process.terminate(Duration::from_secs(40)).expect("it drains and ends");
    is_refused(&net);
    assert!(inspect::run(&net, &["unload"]).status.success());
    let _third = net.start("third", 9110);
    assert_eq!(net.ask(&net.topology.client, http(Family::V4), &Ask::get("web.test", "/")).0.status, 200);
}
