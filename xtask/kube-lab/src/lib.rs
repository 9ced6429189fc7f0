//! A real Kubernetes on one Linux machine: a control plane, nodes and a client in namespaces, without Docker and
//! without a virtual machine. It serves the tests of this project; the product does not depend on it.
//!
//! ```text
//! Plan ── names, addresses, number of nodes
//!  ├─ Pki, config      keys, certificates and configuration files below Places
//!  ├─ network          namespaces, one bridge, routes to pods          (plan.rs has the picture)
//!  ├─ ControlPlane     etcd, kube-apiserver, kube-controller-manager, kube-scheduler
//!  ├─ Node             own mounts, host name, processes and bpffs: containerd, kubelet, kube-proxy
//!  └─ State            record on disk, which a later process uses and removes
//! ```
//!
//! A cluster outlives the process that created it. A machine has at most one at a time.
#![allow(clippy::print_stdout, reason = "a command-line tool talks on its standard output")]

mod cgroup;
mod command;
mod config;
mod control_plane;
mod disturb;
pub mod lane;
mod machine;
mod network;
mod node;
mod pki;
pub mod plan;
pub mod programs;
mod registry;
mod state;
mod wait;

use std::fs::{self, DirBuilder};
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

pub use self::command::{AFTER_HELP, Args, run};
use self::control_plane::ControlPlane;
use self::machine::Machine;
use self::node::NodeReader;
use self::pki::Pki;
pub use self::plan::{NodePlan, Places, Plan, Services};
use self::programs::Binaries;
use self::state::{Item, Process, State};
use ingress_lab::Namespace;
use xtask_tools::{process, progress};

/// Longer than any time-out that is passed to kubectl itself.
const KUBECTL_LIMIT: Duration = Duration::from_secs(300);

/// The running cluster of this machine. Dropping the value leaves the cluster as it is.
#[derive(Debug)]
pub struct Cluster {
    plan: Plan,
    places: Places,
    binaries: Binaries,
    state: State,
}

// === impl Cluster ===

impl Cluster {
    /// Creates a cluster, or reuses the running one if it has the same plan and is healthy. Leftovers of a crashed run
    /// and a cluster with another plan are removed first.
    ///
    /// # Errors
    /// Fails if not root, if a program is unavailable, or if a part does not become ready; the error names its log.
    pub fn up(plan: Plan) -> Result<Self> {
        ensure!(process::is_root(), "only root may make namespaces; run `sudo -E cargo xtask cluster up`");
        let binaries = programs::ensure()?;
        if plan.services() == Services::Proxied {
            programs::ensure_proxy()?;
        }
        let state = State::of_machine();
        let _lock = state.lock()?;
        let cluster = Self { plan, places: Places::default(), binaries, state };
        if cluster.runs()? {
            for node in plan.nodes() {
                cluster.heal(node)?;
            }
            progress::note("the cluster is up already");
            return Ok(cluster);
        }
        if !cluster.state.items()?.is_empty() {
            progress::note("removing a cluster that is broken or of another plan");
        }
        cluster.state.remove_all()?;
        let began = Instant::now();
        cluster.build().with_context(|| {
            let logs = cluster.places.logs();
            format!(
                "the cluster did not come up; its logs are in `{}`, `cargo xtask cluster down` removes it",
                logs.display()
            )
        })?;
        progress::note(&format!("the cluster is up after {:.1} s", began.elapsed().as_secs_f64()));
        Ok(cluster)
    }

    /// Returns the cluster that runs on this machine, if there is one.
    ///
    /// # Errors
    /// Fails if its state or its programs cannot be read.
    pub fn running() -> Result<Option<Self>> {
        let state = State::of_machine();
        let items = state.items()?;
        let plan = items.iter().find_map(|item| if let Item::Plan(plan) = item { Some(*plan) } else { None });
        let Some(plan) = plan.filter(|_| items.contains(&Item::Ready)) else { return Ok(None) };
        Ok(Some(Self { plan, places: Places::default(), binaries: programs::ensure()?, state }))
    }

    /// Removes the cluster of this machine with everything it created. Succeeds if there is none.
    ///
    /// # Errors
    /// Fails if a part cannot be removed; the next attempt continues.
    pub fn down() -> Result<()> {
        ensure!(process::is_root(), "only root may remove namespaces; run `sudo -E cargo xtask cluster down`");
        let state = State::of_machine();
        let _lock = state.lock()?;
        state.remove_all()
    }

    #[must_use]
    pub fn plan(&self) -> Plan {
        self.plan
    }

    #[must_use]
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Returns the nodes in order.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodePlan> {
        self.plan.nodes()
    }

    /// Returns the network namespace of a client outside the cluster, which routes to nodes and pods.
    ///
    /// # Errors
    /// Fails if the namespace is gone.
    pub fn client(&self) -> Result<Namespace> {
        Namespace::open(plan::CLIENT)
    }

    /// Returns the network namespace of the control plane, from which the API server, nodes and pods are reachable.
    ///
    /// # Errors
    /// Fails if the namespace is gone.
    pub fn control(&self) -> Result<Namespace> {
        Namespace::open(plan::CONTROL)
    }

    /// Returns a node's network namespace.
    ///
    /// # Errors
    /// Fails if the namespace is gone.
    pub fn network(&self, node: NodePlan) -> Result<Namespace> {
        Namespace::open(&node.namespace())
    }

    /// Runs `work` on a thread inside all namespaces of a node: network, mounts, host name and processes. `/sys/fs/bpf`
    /// is then the node's own, and programs started there belong to the node's processes. `work` may start programs,
    /// but the kernel does not allow it to start threads.
    ///
    /// # Errors
    /// Returns the errors of `work`. Also fails if the node cannot be entered.
    pub fn inside<T: Send>(&self, node: NodePlan, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.machine(node)?.run(work)
    }

    /// Runs kubectl as the administrator and returns its output.
    ///
    /// # Errors
    /// Fails if kubectl fails; the error repeats its message.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        let mut command = self.kubectl_command();
        command.args(args);
        self.control()?.run(|| process::capture(&mut command))
    }

    /// Runs `kubectl apply` with manifests in YAML or JSON.
    ///
    /// # Errors
    /// Fails if kubectl fails; the error repeats its message.
    pub fn apply(&self, manifests: &str) -> Result<()> {
        let mut command = self.kubectl_command();
        command.args(["apply", "-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = self.control()?.run(|| command.spawn().context("cannot start `kubectl`"))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(manifests.as_bytes()).context("cannot hand `kubectl` the manifests")?;
        }
        let output = child.wait_with_output().context("cannot wait for `kubectl`")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`kubectl apply` failed ({})\n{}", output.status, said.trim_end());
        Ok(())
    }

    /// Returns the kubectl command of the administrator, to be started in [`Self::control`] or [`Self::client`].
    #[must_use]
    pub fn kubectl_command(&self) -> Command {
        let mut command = Command::new(&self.binaries.kubectl);
        // The user's own cache would mix responses of different clusters at the same address.
        command.env("KUBECONFIG", self.places.kubeconfig()).env("KUBECACHEDIR", self.places.data().join("kubectl"));
        command
    }

    /// Imports an archive of OCI images on every node.
    ///
    /// # Errors
    /// Fails if containerd refuses the archive.
    pub fn import_image(&self, archive: &Path) -> Result<()> {
        self.nodes().into_iter().try_for_each(|node| self.node(node).import(archive))
    }

    /// Starts a registry at [`plan::REGISTRY`], from which every node pulls, unless it runs. It ends with the cluster,
    /// and its content goes, too.
    ///
    /// # Errors
    /// Fails if the program cannot be obtained here, or does not answer in time.
    pub fn registry(&self) -> Result<()> {
        if self.find(control_plane::NAME, registry::NAME).is_ok_and(|process| process.is_alive()) {
            return Ok(());
        }
        registry::start(&self.control_machine()?, &self.places, &self.state)
    }

    fn build(&self) -> Result<()> {
        let Self { plan, places, binaries: _, state } = self;
        state.begin(*plan)?;
        state.record(&Item::Directory(places.data()))?;
        // Without the state of an earlier boot, no other code removes these files.
        if places.data().exists() {
            fs::remove_dir_all(places.data()).context("cannot remove what an earlier cluster has left")?;
        }
        for dir in [places.data(), places.pki(), places.logs()] {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
            made.with_context(|| format!("cannot make `{}`", dir.display()))?;
        }
        Pki::at(places.pki()).generate(*plan)?;
        cgroup::make(state, *plan)?;
        network::make(state, *plan)?;
        let control = self.control_machine()?;
        let control_plane = self.control_plane(&control);
        control_plane.configure()?;
        control_plane.start_etcd()?;
        let api_server = control_plane.start_api_server()?;
        // The nodes' runtimes start in parallel with the API server.
        let mut machines = Vec::new();
        for node in plan.nodes() {
            machines.push(self.node(node).make()?);
        }
        for node in plan.nodes() {
            self.node(node).wait_for_containerd()?;
        }
        control_plane.wait_for_api_server(&api_server)?;
        control_plane.start_controllers()?;
        self.apply(&config::nodes(*plan))?;
        for (node, machine) in plan.nodes().into_iter().zip(&machines) {
            self.node(node).start_kubelet(machine)?;
            if plan.services() == Services::Proxied {
                self.node(node).start_proxy(machine)?;
            }
        }
        self.wait_until_usable()?;
        state.record(&Item::Ready)
    }

    /// Waits until pods can run. Ready nodes are not enough: a pod needs its service account, and a network.
    fn wait_until_usable(&self) -> Result<()> {
        self.shown("waiting for the nodes", &["wait", "--for=condition=Ready", "node", "--all", "--timeout=180s"])?;
        let account = ["wait", "--for=create", "serviceaccount/default", "--timeout=120s"];
        self.shown("waiting for the default service account", &account)?;
        self.apply(&config::probes(self.plan))?;
        let probe = "--selector=xdp-ingress.local/probe";
        let ready = ["wait", "--for=condition=Ready", "pod", probe, "--timeout=120s"];
        self.shown("waiting for a pod on every node", &ready)?;
        self.kubectl(&["delete", "pod", probe, "--wait=false"]).map(drop)
    }

    fn shown(&self, label: &str, args: &[&str]) -> Result<()> {
        let mut command = self.kubectl_command();
        command.args(args);
        self.control()?.run(|| process::run_shown(label, &mut command, KUBECTL_LIMIT))
    }

    /// Returns `true` if a cluster with this plan exists and none of its programs has ended.
    fn runs(&self) -> Result<bool> {
        let items = self.state.items()?;
        let same = items.contains(&Item::Plan(self.plan)) && items.contains(&Item::Ready);
        Ok(same && latest(&items).iter().all(|process| process.is_alive()))
    }

    fn find(&self, machine: &str, name: &str) -> Result<Process> {
        let items = self.state.items()?;
        let found = latest(&items).into_iter().find(|process| process.machine == machine && process.name == name);
        found.cloned().with_context(|| format!("no `{name}` was started on `{machine}`; run `cargo xtask cluster up`"))
    }

    fn machine(&self, node: NodePlan) -> Result<Machine> {
        let keeper = self.find(&node.name(), machine::KEEPER)?;
        Ok(Machine::kept(&node.name(), self.network(node)?, keeper))
    }

    fn control_machine(&self) -> Result<Machine> {
        Ok(Machine::shared(control_plane::NAME, self.control()?))
    }

    fn node(&self, plan: NodePlan) -> NodeReader<'_> {
        NodeReader { plan, places: &self.places, binaries: &self.binaries, state: &self.state }
    }

    fn control_plane<'a>(&'a self, machine: &'a Machine) -> ControlPlane<'a> {
        ControlPlane { machine, places: &self.places, binaries: &self.binaries, state: &self.state }
    }
}

/// Returns, for every program, the process that was started last.
fn latest(items: &[Item]) -> Vec<&Process> {
    let mut found: Vec<&Process> = Vec::new();
    for item in items {
        if let Item::Process(process) = item {
            found.retain(|earlier| (&earlier.machine, &earlier.name) != (&process.machine, &process.name));
            found.push(process);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_started_last_counts() {
        let process = |machine: &str, name: &str, pid| {
            Item::Process(Process { machine: machine.into(), name: name.into(), pid, start_time: 1 })
        };
        let items =
            [process("n1", "kubelet", 1), process("n2", "kubelet", 2), Item::Ready, process("n1", "kubelet", 3)];
        let pids: Vec<i32> = latest(&items).into_iter().map(|process| process.pid).collect();
        assert_eq!(pids, [2, 3]);
    }
}
