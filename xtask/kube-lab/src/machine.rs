//! Starts programs on the machines of a cluster: the control plane, which is a network namespace, and nodes, which also
//! have their own mounts, host name and processes. The purpose of the programs is the caller's concern.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::state::{Item, Process, State};
use ingress_lab::{Namespace, until, until_within};

/// Search path of programs in a cluster.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The name under which the first process of a node is recorded.
pub(super) const KEEPER: &str = "keeper";

/// A machine of the cluster, on which programs run.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    name: String,
    network: Namespace,
    /// The process that holds the namespaces of a node; `None` for a machine that shares those of this process.
    keeper: Option<Process>,
}

// === impl Machine ===

impl Machine {
    /// Returns a machine that is a network namespace only.
    pub(super) fn shared(name: &str, network: Namespace) -> Self {
        Self { name: name.to_owned(), network, keeper: None }
    }

    /// Returns the machine with the namespaces that `keeper` holds.
    pub(super) fn kept(name: &str, network: Namespace, keeper: Process) -> Self {
        Self { name: name.to_owned(), network, keeper: Some(keeper) }
    }

    /// Creates a machine with its own mounts, host name and processes. Its mounts are still those of this process.
    ///
    /// # Errors
    /// Fails if the caller may not create namespaces.
    pub(super) fn make(name: &str, network: Namespace, state: &State, log: &Path) -> Result<Self> {
        // When the first process of a pid namespace ends, the kernel kills all others in it, so no container outlives a
        // node. That first process inherits all orphans, and reaps them because it ignores SIGCHLD.
        let mut keep = Command::new("unshare");
        keep.args(["--mount", "--propagation", "unchanged", "--uts", "--pid", "--fork", "--kill-child", "--"]);
        keep.args(["env", "--ignore-signal=CHLD", "sleep", "infinity"]);
        let keeper = Self::shared(name, network.clone()).start(KEEPER, keep, log, state)?;
        let own = identity(&std::process::id().to_string(), "pid");
        let children = || identity(&keeper.pid.to_string(), "pid_for_children").filter(|id| Some(id) != own.as_ref());
        until("a node's namespaces", children).context("`unshare` (package `util-linux`) makes none")?;
        Ok(Self::kept(name, network, keeper))
    }

    /// Runs `work` on a thread inside the machine, and waits for it; its children are processes of the machine.
    ///
    /// # Errors
    /// Returns the errors of `work`. Also fails if the machine cannot be entered.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.network.run(|| {
            if let Some(keeper) = &self.keeper {
                enter(keeper).with_context(|| format!("cannot enter the node `{}`", self.name))?;
            }
            work()
        })
    }

    /// Starts `command` permanently: it outlives this process. Its output is appended to the file `log`.
    ///
    /// # Errors
    /// Fails if the program cannot be started.
    pub(super) fn start(&self, name: &str, mut command: Command, log: &Path, state: &State) -> Result<Process> {
        let file = File::options().create(true).append(true).open(log);
        let file = file.with_context(|| format!("cannot write `{}`", log.display()))?;
        let second = file.try_clone().context("cannot share a log file")?;
        // Its own process group, so that a Ctrl-C at the terminal reaches only this process.
        command.stdin(Stdio::null()).stdout(file).stderr(second).process_group(0).env_clear().env("PATH", PATH);
        let mut child = self.run(|| {
            let shown = command.get_program().to_string_lossy().into_owned();
            command.spawn().with_context(|| format!("cannot start `{shown}`"))
        })?;
        let pid = child.id().cast_signed();
        let start_time = ingress_lab::start_time(pid).unwrap_or_default();
        let process = Process { machine: self.name.clone(), name: name.to_owned(), pid, start_time };
        state.record(&Item::Process(process.clone()))?;
        // This process must reap the child as long as it lives; afterwards init does.
        thread::Builder::new().name(format!("reap {name}")).spawn(move || child.wait()).context("cannot reap")?;
        Ok(process)
    }
}

/// Kills a process, as a crash would.
///
/// # Errors
/// Fails if the process does not end.
pub(super) fn end(process: &Process, limit: Duration) -> Result<()> {
    if process.is_alive() {
        kill(Pid::from_raw(process.pid), Signal::SIGKILL).ok();
    }
    until_within(limit, &format!("`{}` to end", process.name), || (!process.is_alive()).then_some(()))
}

/// Enters all namespaces of a node except its network. A thread that does this must end without creating other threads.
fn enter(keeper: &Process) -> Result<()> {
    let Process { pid, .. } = keeper;
    anyhow::ensure!(keeper.is_alive(), "process {pid}, which holds it, has ended; run `cargo xtask cluster up` again");
    let open = |name: &str| {
        let path = format!("/proc/{pid}/ns/{name}");
        File::open(&path).with_context(|| format!("cannot open `{path}`"))
    };
    let (mounts, host_name, processes) = (open("mnt")?, open("uts")?, open("pid_for_children")?);
    // Threads share their working directory, and a thread that shares it may not have its own mounts.
    unshare(CloneFlags::CLONE_FS)?;
    setns(processes, CloneFlags::CLONE_NEWPID)?;
    setns(host_name, CloneFlags::CLONE_NEWUTS)?;
    setns(mounts, CloneFlags::CLONE_NEWNS)?;
    Ok(())
}

fn identity(pid: &str, namespace: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/{namespace}")).ok()
}
