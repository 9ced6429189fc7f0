//! `xtask_kube_lab` on this machine: a cluster is made, disturbed in every way the library offers, and removed. It tests
//! nothing of the product. Needs root; skipped loudly where Kubernetes cannot be had, unless `REQUIRE_KUBE=1` is set.
//!
//! There is one cluster on a machine, so this is one test; a cluster that runs already is removed.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ingress_lab::until_within;
use xtask_kube_lab::programs::{self, PAUSE};
use xtask_kube_lab::{Cluster, NodePlan, Plan, Services, plan};

/// The settings of the whole machine that a kubelet writes. Listed here and not taken from `xtask_kube_lab`, whose list is
/// what this test is the oracle for.
const SYSCTLS: [&str; 6] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];
const STATE: &str = "/run/xdp-ingress-cluster/state";
const DATA: &str = "/var/cache/xdp-ingress-cluster";

/// Removes the cluster also when the test fails.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        if let Err(error) = Cluster::down() {
            eprintln!("warning: {error:#}");
        }
    }
}

#[test]
fn a_cluster_survives_disturbances_and_leaves_no_traces() -> Result<()> {
    if !programs::required_or_skip("the cluster's own test")? {
        return Ok(());
    }
    let _guard = Guard;
    Cluster::down()?;
    let before = traces()?;
    crash_in_the_middle()?;
    let cluster = Cluster::up(Plan::new(2, Services::Unrouted)?)?;
    let during = traces()?;
    assert_eq!(during.sysctls, before.sysctls, "the kubelets' settings stay on the nodes");
    // Otherwise the comparison at the end would show nothing.
    assert!(during.paths.len() > before.paths.len() && !during.programs.is_empty() && !during.mounts.is_empty());
    pods_are_reached_from_outside(&cluster)?;
    every_node_has_its_own_bpffs(&cluster)?;
    a_killed_kubelet_is_noticed(&cluster)?;
    a_killed_api_server_comes_back(&cluster)?;
    a_partition_is_noticed_and_heals(&cluster)?;
    a_healthy_cluster_is_kept(&cluster)?;
    Cluster::down()?;
    assert_eq!(traces()?, before);
    Cluster::down().context("there being nothing to remove is no error")
}

/// Kills the command while it makes nodes.
fn crash_in_the_middle() -> Result<()> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask-kube-lab"));
    command.args(["cluster", "up", "--nodes", "3"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().context("cannot start the program")?;
    let on_nodes =
        || fs::read_to_string(STATE).is_ok_and(|state| state.contains("process n2 containerd")).then_some(());
    until_within(Duration::from_secs(120), "the second node to be made", on_nodes)?;
    child.kill().context("cannot kill the program")?;
    child.wait().context("cannot wait for the program")?;
    assert!(Cluster::running()?.is_none(), "half a cluster is none");
    Ok(())
}

fn pods_are_reached_from_outside(cluster: &Cluster) -> Result<()> {
    cluster.apply(&sleepers(&cluster.nodes()))?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod", "--selector=app=sleeper", "--timeout=60s"])?;
    let query = "--output=jsonpath={range .items[*]}{.spec.nodeName} {.status.podIPs[*].ip}{\"\\n\"}{end}";
    let pods = cluster.kubectl(&["get", "pod", "--selector=app=sleeper", query])?;
    assert_eq!(pods.lines().count(), 2, "{pods}");
    for line in pods.lines() {
        let (node, addresses) = line.split_once(' ').context("a pod has no address")?;
        let addresses: Vec<IpAddr> = addresses.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        assert_eq!(addresses.len(), 2, "{line}: one address of each family");
        let other = cluster.nodes().into_iter().find(|other| other.name() != node).context("no other node")?;
        for address in addresses {
            // Nothing listens in the pod, so that only its own kernel can answer, by refusing.
            for namespace in [cluster.client()?, cluster.network(other)?] {
                assert!(namespace.run(|| Ok(refuses(address)))?, "{address} from `{}`", namespace.name());
            }
        }
    }
    let api = SocketAddr::from((plan::API_V4, plan::API_PORT));
    for node in cluster.nodes() {
        cluster.network(node)?.run(|| Ok(TcpStream::connect_timeout(&api, Duration::from_secs(5)).map(drop)?))?;
    }
    Ok(())
}

fn every_node_has_its_own_bpffs(cluster: &Cluster) -> Result<()> {
    let [first, second] = cluster.nodes()[..] else { anyhow::bail!("two nodes were asked for") };
    let mark = Path::new("/sys/fs/bpf/only-here");
    cluster.inside(first, || Ok(fs::create_dir(mark)?))?;
    assert!(cluster.inside(first, || Ok(mark.is_dir()))?);
    assert!(!cluster.inside(second, || Ok(mark.exists()))?);
    assert!(!mark.exists());
    let name = cluster.inside(second, || Ok(fs::read_to_string("/proc/sys/kernel/hostname")?))?;
    assert_eq!(name.trim(), second.name());
    Ok(())
}

fn a_killed_kubelet_is_noticed(cluster: &Cluster) -> Result<()> {
    let node = cluster.nodes()[0];
    cluster.kill_kubelet(node)?;
    wait_for_ready(cluster, node, "Unknown")?;
    let sleepers = cluster.kubectl(&["get", "pod", "--selector=app=sleeper", "--output=name"])?;
    assert_eq!(sleepers.lines().count(), 2, "pods stay when a kubelet ends");
    cluster.start_kubelet(node)?;
    wait_for_ready(cluster, node, "True")?;
    assert!(cluster.start_kubelet(node).is_err(), "a kubelet that runs is not started again");
    Ok(())
}

fn a_killed_api_server_comes_back(cluster: &Cluster) -> Result<()> {
    cluster.kill_apiserver()?;
    assert!(cluster.kubectl(&["get", "nodes", "--request-timeout=2s"]).is_err());
    cluster.start_apiserver()?;
    assert_eq!(cluster.kubectl(&["get", "nodes", "--output=name"])?, "node/n1\nnode/n2");
    Ok(())
}

fn a_partition_is_noticed_and_heals(cluster: &Cluster) -> Result<()> {
    let node = cluster.nodes()[1];
    cluster.partition(node)?;
    wait_for_ready(cluster, node, "Unknown")?;
    cluster.heal(node)?;
    wait_for_ready(cluster, node, "True")
}

fn a_healthy_cluster_is_kept(cluster: &Cluster) -> Result<()> {
    let identity = |cluster: &Cluster| cluster.kubectl(&["get", "ns", "default", "--output=jsonpath={.metadata.uid}"]);
    let again = Cluster::up(cluster.plan())?;
    assert_eq!(identity(&again)?, identity(cluster)?);
    let found = Cluster::running()?.context("a running cluster is found")?;
    assert_eq!(found.plan(), cluster.plan());
    Ok(())
}

fn wait_for_ready(cluster: &Cluster, node: NodePlan, status: &str) -> Result<()> {
    let condition = format!("--for=condition=Ready={status}");
    cluster.kubectl(&["wait", &condition, &format!("node/{}", node.name()), "--timeout=90s"]).map(drop)
}

fn refuses(address: IpAddr) -> bool {
    let result = TcpStream::connect_timeout(&SocketAddr::from((address, 9)), Duration::from_secs(5));
    result.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// A pod for each node, as YAML.
fn sleepers(nodes: &[NodePlan]) -> String {
    let pod = |node: &NodePlan| {
        let name = node.name();
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: sleeper-{name}, labels: {{app: sleeper}}}}\n\
             spec: {{nodeName: {name}, containers: [{{name: c, image: '{PAUSE}', imagePullPolicy: Never}}]}}\n"
        )
    };
    nodes.iter().map(pod).collect()
}

/// The changes of a cluster to the machine while it is up. Others may work beside the test, so this looks at what
/// only a cluster makes.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    sysctls: BTreeMap<&'static str, String>,
    paths: Vec<PathBuf>,
    mounts: Vec<String>,
    programs: Vec<String>,
}

fn traces() -> Result<Traces> {
    let mut mounts: Vec<String> = fs::read_to_string("/proc/self/mounts")?.lines().map(str::to_owned).collect();
    mounts.retain(|line| ["xdpc-", DATA, "/var/lib/kubelet", "/var/lib/cni"].iter().any(|part| line.contains(part)));
    Ok(Traces { sysctls: sysctls(), paths: paths(), mounts, programs: programs() })
}

fn sysctls() -> BTreeMap<&'static str, String> {
    SYSCTLS.map(|key| (key, fs::read_to_string(Path::new("/proc/sys").join(key)).unwrap_or_default())).into()
}

/// The existing ones of a cluster's paths and of the fixed paths of its programs.
fn paths() -> Vec<PathBuf> {
    let fixed = [
        STATE,
        DATA,
        "/run/containerd",
        "/run/runc",
        "/var/lib/kubelet",
        "/var/lib/cni",
        "/var/lib/containerd",
        "/var/log/pods",
        "/var/log/containers",
        "/sys/fs/cgroup/xdp-ingress-cluster",
    ];
    let namespaces = entries("/run/netns").filter(|path| path.to_string_lossy().contains("/xdpc-"));
    let groups = entries("/sys/fs/cgroup").map(|hierarchy| hierarchy.join("xdp-ingress-cluster"));
    let all = fixed.map(PathBuf::from).into_iter().chain(namespaces).chain(groups);
    let mut found: Vec<PathBuf> = all.filter(|path| path.exists()).collect();
    found.sort();
    found
}

fn entries(path: &str) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// The running programs that were started for a cluster: all have one of its paths on their command line.
fn programs() -> Vec<String> {
    let command_lines = entries("/proc").filter_map(|process| fs::read(process.join("cmdline")).ok());
    let mut found: Vec<String> =
        command_lines.map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " ")).collect();
    found.retain(|line| line.contains(DATA));
    found.sort();
    found
}
