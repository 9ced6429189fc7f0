//! A node: its namespaces and mounts, containerd, the kubelet and kube-proxy. The control plane is in another module.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};
use nix::sys::resource::{Resource, getrlimit};

use super::machine::Machine;
use super::pki::Pki;
use super::plan::{self, API_PORT, CONTROL_V4, NodePlan, Places};
use super::state::{Item, Process, State};
use super::{config, wait};
use crate::programs::Binaries;
use ingress_lab::Namespace;
use xtask_tools::process;

pub(super) const CONTAINERD: &str = "containerd";
pub(super) const KUBELET: &str = "kubelet";
pub(super) const KUBE_PROXY: &str = "kube-proxy";

/// Directories with fixed paths in the kubelet and in the CNI library: every node has its own at that path.
const FIXED: [(&str, &str); 3] =
    [("/var/lib/kubelet", "kubelet"), ("/var/lib/cni", "cni-results"), ("/var/log", "log")];
/// Settings of the whole machine that a kubelet changes. A node sees its own file in place of each, so nothing has to
/// be restored, not even after a crash.
const SYSCTLS: [&str; 6] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];
const READY_LIMIT: Duration = Duration::from_secs(60);
const IMPORT_LIMIT: Duration = Duration::from_secs(300);

/// Everything needed to start a program of a node.
#[derive(Debug)]
pub(super) struct NodeReader<'a> {
    pub(super) plan: NodePlan,
    pub(super) places: &'a Places,
    pub(super) binaries: &'a Binaries,
    pub(super) state: &'a State,
}

impl NodeReader<'_> {
    /// Creates the node's directories, configuration, namespaces and mounts, and starts containerd.
    ///
    /// # Errors
    /// Fails if the caller lacks the rights, or a file cannot be written.
    pub(super) fn make(&self) -> Result<Machine> {
        self.configure()?;
        for (path, _) in FIXED {
            if !Path::new(path).exists() {
                self.state.record(&Item::MountPoint(path.into()))?;
                fs::create_dir(path).with_context(|| format!("cannot make `{path}`"))?;
            }
        }
        let network = Namespace::open(&self.plan.namespace())?;
        let machine = Machine::make(&self.plan.name(), network, self.state, &self.log("keeper"))?;
        machine.run(|| mount_all(&self.dir(), &self.plan.name()))?;
        let mut containerd = Command::new(&self.binaries.containerd);
        containerd.arg("--config").arg(self.dir().join("containerd.toml"));
        machine.start(CONTAINERD, containerd, &self.log(CONTAINERD), self.state)?;
        Ok(machine)
    }

    /// Waits until containerd responds, and imports the pause image.
    ///
    /// # Errors
    /// Fails if containerd does not respond in time; the error repeats the end of its log.
    pub(super) fn wait_for_containerd(&self) -> Result<()> {
        let answers = || process::capture(self.ctr().args(["--timeout", "5s", "version"])).is_ok();
        wait::until(&format!("waiting for containerd on {}", self.plan.name()), READY_LIMIT, || Ok(answers()))
            .with_context(|| wait::log_tail(&self.log(CONTAINERD)))?;
        self.import(&self.binaries.pause)
    }

    /// Imports an archive of OCI images.
    ///
    /// # Errors
    /// Fails if containerd refuses the archive.
    pub(super) fn import(&self, archive: &Path) -> Result<()> {
        let mut import = self.ctr();
        import.args(["--namespace", "k8s.io", "images", "import"]).arg(archive);
        process::run_shown(&format!("importing {} on {}", show(archive), self.plan.name()), &mut import, IMPORT_LIMIT)
    }

    /// # Errors
    /// Fails if the kubelet cannot be started.
    pub(super) fn start_kubelet(&self, machine: &Machine) -> Result<Process> {
        let mut kubelet = Command::new(&self.binaries.kubelet);
        kubelet.arg(format!("--config={}", self.dir().join("kubelet.yaml").display()));
        kubelet.arg(format!("--kubeconfig={}", self.dir().join("kubeconfig").display()));
        kubelet.arg(format!("--hostname-override={}", self.plan.name()));
        kubelet.arg(format!("--node-ip={},{}", self.plan.v4(), self.plan.v6()));
        kubelet.args(["--root-dir=/var/lib/kubelet", "--v=2"]);
        machine.start(KUBELET, kubelet, &self.log(KUBELET), self.state)
    }

    /// # Errors
    /// Fails if kube-proxy cannot be started.
    pub(super) fn start_proxy(&self, machine: &Machine) -> Result<Process> {
        let mut proxy = Command::new(&self.binaries.kube_proxy);
        proxy.arg(format!("--config={}", self.dir().join("proxy.yaml").display()));
        machine.start(KUBE_PROXY, proxy, &self.log(KUBE_PROXY), self.state)
    }

    fn configure(&self) -> Result<()> {
        let (dir, pki) = (self.dir(), Pki::at(self.places.pki()));
        let registry = format!("{}/{}", config::REGISTRIES, plan::REGISTRY);
        let parts = ["cni", "sysctl", registry.as_str()].into_iter().chain(FIXED.map(|(_, name)| name));
        for part in parts {
            fs::create_dir_all(dir.join(part))
                .with_context(|| format!("cannot make `{}`", dir.join(part).display()))?;
        }
        let hosts = format!("{registry}/hosts.toml");
        // Without an explicit limit the kubelet requests more than a container may have.
        let (_, open_files) = getrlimit(Resource::RLIMIT_NOFILE).context("cannot read the limit of open files")?;
        let server = format!("https://{CONTROL_V4}:{API_PORT}");
        for (name, text) in [
            ("containerd.toml", config::containerd(self.places, self.plan, self.binaries)),
            ("cni/10-pods.conflist", config::cni(self.places, self.plan)),
            ("kubelet.yaml", config::kubelet(self.places, &pki, self.plan, open_files)),
            ("kubeconfig", config::kubeconfig(&server, &pki, &self.plan.name())),
            (hosts.as_str(), config::registry_hosts()),
            ("proxy.yaml", config::proxy(&self.places.proxy_kubeconfig(), self.plan)),
        ] {
            fs::write(dir.join(name), text).with_context(|| format!("cannot write `{}`", dir.join(name).display()))?;
        }
        Ok(())
    }

    fn ctr(&self) -> Command {
        let mut ctr = Command::new(&self.binaries.ctr);
        ctr.arg("--address").arg(self.places.containerd(self.plan));
        ctr
    }

    fn dir(&self) -> PathBuf {
        self.places.node(self.plan)
    }

    fn log(&self, program: &str) -> PathBuf {
        self.places.log(&self.plan.name(), program)
    }
}

/// Sets up the node's own mounts and host name. Called inside its namespaces.
fn mount_all(dir: &Path, name: &str) -> Result<()> {
    // First of all: from here on, mounts made here are invisible outside.
    propagate(MsFlags::MS_PRIVATE)?;
    // Before `mount` runs, which would otherwise leave a directory in the machine's own `/run`.
    mount_new("tmpfs", "/run", Some("mode=755"))?;
    // Only a process in the node's pid namespace can mount its view of processes.
    process::capture(Command::new("mount").args(["-t", "proc", "proc", "/proc"]))?;
    for key in SYSCTLS {
        let (real, own) = (Path::new("/proc/sys").join(key), dir.join("sysctl").join(key.replace('/', ".")));
        // Kernels without key rings lack some of these files.
        if let Ok(value) = fs::read(&real) {
            fs::write(&own, value).with_context(|| format!("cannot write `{}`", own.display()))?;
            bind(&own, &real)?;
        }
    }
    for (path, own) in FIXED {
        bind(&dir.join(own), Path::new(path))?;
    }
    mount_new("bpf", "/sys/fs/bpf", None)?;
    fs::write("/proc/sys/kernel/hostname", name).context("cannot set a node's host name")?;
    // Volumes mounted later must reach running containers that ask for propagation.
    propagate(MsFlags::MS_SHARED)
}

fn propagate(how: MsFlags) -> Result<()> {
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | how, None::<&str>)
        .context("cannot set how a node's mounts are propagated")
}

fn bind(from: &Path, to: &Path) -> Result<()> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .with_context(|| format!("cannot mount `{}` on `{}`", from.display(), to.display()))
}

fn mount_new(kind: &str, to: &str, options: Option<&str>) -> Result<()> {
    mount(Some(kind), to, Some(kind), MsFlags::empty(), options)
        .with_context(|| format!("cannot mount a `{kind}` on `{to}`"))
}

fn show(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}
