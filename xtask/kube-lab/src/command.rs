//! `cargo xtask cluster`: the actions on the cluster from the command line. It creates nothing itself.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Subcommand, value_parser};

use super::plan::{CLIENT, CONTROL, MOST_NODES};
use super::state::{Item, State};
use super::{Cluster, NodePlan, Plan, Services, latest, programs};
use xtask_tools::{process, progress};

/// Text below the options in `cluster --help`.
pub const AFTER_HELP: &str = "\
A control plane (etcd, kube-apiserver, kube-controller-manager, kube-scheduler), nodes (containerd,
kubelet) and a client outside the cluster, each in namespaces of this machine: no Docker, no virtual
machine, no registry.

  namespace      IPv4          IPv6           what
  xdpc-control   10.99.0.1     fd00:99::1     the API server on port 443, also as 10.96.0.1
  xdpc-client    10.99.0.100   fd00:99::100   has routes to nodes and pods
  xdpc-n1, …     10.99.0.11    fd00:99::11    node n1 in zone-1, with pods in 10.244.1.0/24
                                              and fd00:244:0:1::/64

Without --proxy the API server is the only Service whose ClusterIP answers; pods of others are
reached by their own addresses. There is no DNS server in the cluster. Images are imported: set
imagePullPolicy accordingly. Nodes pull from 10.99.0.1:5000 alone, where a test may start a registry.
Every node has a bpffs of its own on /sys/fs/bpf. A silent node is not ready after 20 s.

The programs come from Debian's packages, and from their sources where there is no package: that
takes Go 1.26 and ten minutes, once. `cargo xtask setup --help` says where they are kept.

Environment:
  KUBEBUILDER_ASSETS=DIR   take etcd, kube-apiserver, kubectl and others from here (envtest)

Examples:
  sudo -E cargo xtask cluster up                       # two nodes
  sudo -E cargo xtask cluster up --nodes 3 --proxy     # three, with kube-proxy
  sudo -E cargo xtask cluster kubectl get nodes
  sudo -E cargo xtask cluster kubectl -- -n kube-system get pods
  sudo -E cargo xtask cluster import image.tar         # an OCI archive, on every node
  sudo ip netns exec xdpc-client curl http://10.99.0.11/
  sudo -E cargo xtask cluster down";

/// Run a real Kubernetes on this machine, in namespaces
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create the cluster and wait until pods run on every node; a healthy cluster that is already up is kept
    Up {
        /// Number of nodes
        #[arg(long, default_value_t = 2, value_parser = value_parser!(u8).range(1..=i64::from(MOST_NODES)))]
        nodes: u8,
        /// Run kube-proxy (nftables) on every node, so that every Service has a ClusterIP that answers
        #[arg(long)]
        proxy: bool,
    },
    /// Remove the cluster with everything it created, also after a crash
    Down,
    /// Show running parts; fails if no cluster is up or a part of it has ended
    Status,
    /// Run kubectl as the administrator; its exit code is passed on
    Kubectl {
        /// kubectl's own arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Import archives of OCI images on every node
    Import {
        /// Archives, such as those of `cargo xtask image`
        #[arg(required = true)]
        archives: Vec<PathBuf>,
    },
    /// Copy the programs of a cluster into a directory, for other machines (deploy/vagrant/box.sh)
    Programs {
        /// The directory; it need not exist
        directory: PathBuf,
    },
}

/// Runs `cargo xtask cluster`.
///
/// # Errors
/// Fails if a part cannot be created, removed or found.
pub fn run(args: &Args) -> Result<()> {
    match &args.action {
        Action::Up { nodes, proxy } => up(*nodes, if *proxy { Services::Proxied } else { Services::Unrouted }),
        Action::Down => {
            let began = std::time::Instant::now();
            Cluster::down()?;
            progress::note(&format!("no cluster is left after {:.1} s", began.elapsed().as_secs_f64()));
            Ok(())
        }
        Action::Status => status(),
        Action::Kubectl { arguments } => kubectl(arguments),
        Action::Import { archives } => {
            let cluster = running()?;
            archives.iter().try_for_each(|archive| cluster.import_image(archive))
        }
        Action::Programs { directory } => {
            programs::export(&programs::ensure()?, directory)?;
            progress::note(&format!("the programs are in `{}`", directory.display()));
            Ok(())
        }
    }
}

fn up(nodes: u8, services: Services) -> Result<()> {
    let cluster = Cluster::up(Plan::new(nodes, services)?)?;
    let names: Vec<String> = cluster.nodes().into_iter().map(NodePlan::name).collect();
    progress::note(&format!("nodes        {}", names.join(", ")));
    progress::note("kubectl      cargo xtask cluster kubectl get nodes");
    progress::note(&format!(
        "kubeconfig   {}, inside the namespace {CONTROL} or {CLIENT}",
        cluster.places().kubeconfig().display()
    ));
    progress::note(&format!("logs         {}", cluster.places().logs().display()));
    progress::note("remove it    cargo xtask cluster down");
    Ok(())
}

fn status() -> Result<()> {
    must_be_root()?;
    let items = State::of_machine().items()?;
    let processes = latest(&items);
    if processes.is_empty() {
        bail!("no cluster is up; run `cargo xtask cluster up`");
    }
    let mut ended = Vec::new();
    println!("{:8} {:24} {:>8} {:>8}  state", "machine", "program", "pid", "MiB");
    for process in &processes {
        let alive = process.is_alive();
        let memory = if alive { resident_mib(process.pid) } else { 0 };
        let word = if alive { "runs" } else { "ended" };
        println!("{:8} {:24} {:>8} {memory:>8}  {word}", process.machine, process.name, process.pid);
        if !alive {
            ended.push(format!("`{}` on `{}`", process.name, process.machine));
        }
    }
    if !items.contains(&Item::Ready) {
        bail!("the cluster is not up; another process is making it, or `cargo xtask cluster up` makes it anew");
    }
    if !ended.is_empty() {
        bail!("ended: {}; `cargo xtask cluster up` makes the cluster anew", ended.join(", "));
    }
    println!("{}", running()?.kubectl(&["get", "nodes", "-o", "wide"])?);
    Ok(())
}

/// Replaces this process with kubectl, so that its exit code, its terminal and its signals are kubectl's own.
fn kubectl(arguments: &[String]) -> Result<()> {
    let cluster = running()?;
    cluster.control()?.enter()?;
    let error = cluster.kubectl_command().args(arguments).exec();
    Err(error).context("cannot start `kubectl`")
}

fn running() -> Result<Cluster> {
    must_be_root()?;
    Cluster::running()?.context("no cluster is up; run `cargo xtask cluster up`")
}

fn must_be_root() -> Result<()> {
    if process::is_root() {
        return Ok(());
    }
    bail!("only root may enter the cluster's namespaces; run `sudo -E cargo xtask cluster …`")
}

/// Returns the resident memory of a process in MiB (proc_pid_status(5)).
fn resident_mib(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(words: &[&str]) -> Option<Action> {
        let words = std::iter::once("cluster").chain(words.iter().copied());
        Line::try_parse_from(words).ok().map(|line| line.args.action)
    }

    #[test]
    fn arguments_of_kubectl_are_passed_through() {
        for words in [
            &["kubectl", "get", "nodes", "-o", "wide", "--help"][..],
            &["kubectl", "--", "get", "nodes", "-o", "wide", "--help"][..],
        ] {
            let Some(Action::Kubectl { arguments }) = parse(words) else { panic!("{words:?}") };
            assert_eq!(arguments, ["get", "nodes", "-o", "wide", "--help"]);
        }
    }

    #[test]
    fn the_number_of_nodes_is_limited() {
        assert!(matches!(parse(&["up"]), Some(Action::Up { nodes: 2, proxy: false })));
        assert!(matches!(parse(&["up", "--nodes", "1", "--proxy"]), Some(Action::Up { nodes: 1, proxy: true })));
        assert!(parse(&["up", "--nodes", "0"]).is_none());
        assert!(parse(&["up", "--nodes", "9"]).is_none());
    }

    #[test]
    fn the_memory_of_this_process_is_known() {
        assert!(resident_mib(std::process::id().cast_signed()) > 0);
        assert_eq!(resident_mib(-1), 0);
    }
}
