//! Record on disk of everything that a cluster has created on this machine, so that any later process can find, use and
//! remove it.
//!
//! An item is recorded before it is created, so that a crash in between leaves a record without an item. Processes are
//! recorded only so that they can be found. They are removed as members of the cluster's network namespaces, which
//! contain no other processes, so that a process without a record is removed as well.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::cgroup;
use super::plan::Plan;
use ingress_lab::{Namespace, until_within};
use xtask_tools::progress;

const KILL_LIMIT: Duration = Duration::from_secs(20);

/// A line of the state file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Item {
    /// The kernel's id of the boot in which the cluster was created; after another boot only files can be left.
    Boot(String),
    Plan(Plan),
    Namespace(String),
    /// A control group with all groups below it.
    Cgroup(PathBuf),
    /// A controller enabled for the children of the unified hierarchy's root.
    Controller(String),
    /// A directory with its contents.
    Directory(PathBuf),
    /// A directory that others may have begun to use, removed only if it is empty.
    MountPoint(PathBuf),
    Process(Process),
    /// Everything has been created.
    Ready,
}

/// A process by its machine and name; the start time distinguishes it from a later one with the same pid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) machine: String,
    pub(super) name: String,
    pub(super) pid: i32,
    pub(super) start_time: u64,
}

/// The state file of this machine's only cluster.
#[derive(Debug)]
pub(super) struct State {
    home: PathBuf,
}

/// Prevents other processes from changing the cluster as a whole; the kernel releases it when this process ends.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

// === impl State ===

impl State {
    /// Returns the state of this machine. A reboot removes `/run`, like most of the recorded items.
    pub(super) fn of_machine() -> Self {
        Self { home: "/run/xdp-ingress-cluster".into() }
    }

    /// Waits until no other process changes the cluster.
    ///
    /// # Errors
    /// Fails if the directory belongs to another user, or cannot be created or locked.
    pub(super) fn lock(&self) -> Result<Lock> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.home).with_context(|| self.about("cannot make"))?;
        let owner = fs::symlink_metadata(&self.home).with_context(|| self.about("cannot look at"))?.uid();
        anyhow::ensure!(owner == 0, "`{}` belongs to user {owner}; remove it", self.home.display());
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).open(self.home.join("lock"));
        let file = file.with_context(|| self.about("cannot open the lock in"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress::note("waiting for another process that is changing the cluster …");
                file.lock().with_context(|| self.about("cannot lock"))?;
            }
            Err(TryLockError::Error(error)) => return Err(error).with_context(|| self.about("cannot lock")),
        }
        Ok(Lock { _file: file })
    }

    /// Begins a new file, for a cluster with this plan. The previous cluster must have been removed.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(super) fn begin(&self, plan: Plan) -> Result<()> {
        fs::write(self.file(), format!("{}\n{}\n", Item::Boot(boot()?), Item::Plan(plan)))
            .with_context(|| self.about("cannot write the state in"))
    }

    /// Records `item`.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(super) fn record(&self, item: &Item) -> Result<()> {
        let file = OpenOptions::new().append(true).open(self.file());
        // A single write, so that lines of two processes do not mix.
        file.and_then(|mut file| file.write_all(format!("{item}\n").as_bytes()))
            .with_context(|| self.about("cannot write the state in"))
    }

    /// Returns all recorded items; after another boot only those that may still exist. Empty without a cluster.
    ///
    /// # Errors
    /// Fails if the file exists but cannot be read.
    pub(super) fn items(&self) -> Result<Vec<Item>> {
        let text = match fs::read_to_string(self.file()) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            text => text.with_context(|| self.about("cannot read the state in"))?,
        };
        let items = parse(&text);
        if items.contains(&Item::Boot(boot()?)) {
            return Ok(items);
        }
        Ok(items.into_iter().filter(Item::outlives_boot).collect())
    }

    /// Removes all recorded items, the latest first, and then the file.
    ///
    /// # Errors
    /// Fails if an item cannot be removed. The file stays, so that the next attempt continues. The message contains all
    /// problems.
    pub(super) fn remove_all(&self) -> Result<()> {
        let items = self.items()?;
        let mut problems = Vec::new();
        let namespaces: Vec<&str> = items.iter().filter_map(Item::namespace).collect();
        if let Err(error) = end_members(&namespaces) {
            problems.push(format!("{error:#}"));
        }
        for item in items.iter().rev() {
            if let Err(error) = item.remove() {
                problems.push(format!("`{item}`: {error:#}"));
            }
        }
        if !problems.is_empty() {
            bail!("could not remove all of the cluster:\n{}", problems.join("\n"));
        }
        match fs::remove_file(self.file()) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| self.about("cannot remove the state in"))
            }
            _ => Ok(()),
        }
    }

    fn file(&self) -> PathBuf {
        self.home.join("state")
    }

    fn about(&self, what: &str) -> String {
        format!("{what} `{}`", self.home.display())
    }
}

// === impl Item ===

impl Item {
    fn namespace(&self) -> Option<&str> {
        match self {
            Self::Namespace(name) => Some(name),
            _ => None,
        }
    }

    /// Returns `true` if the item is, or leaves, a file on disk. `/run`, which contains the names of namespaces, may be
    /// on disk, too.
    fn outlives_boot(&self) -> bool {
        matches!(self, Self::Directory(_) | Self::MountPoint(_) | Self::Namespace(_))
    }

    fn remove(&self) -> Result<()> {
        match self {
            Self::Boot(_) | Self::Plan(_) | Self::Process(_) | Self::Ready => Ok(()),
            Self::Namespace(name) => Namespace::delete(name),
            Self::Cgroup(path) => cgroup::remove(path),
            Self::Controller(name) => cgroup::withdraw(name),
            Self::Directory(path) => gone(fs::remove_dir_all(path)),
            Self::MountPoint(path) => match fs::remove_dir(path) {
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
                result => gone(result),
            },
        }
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boot(id) => write!(f, "boot {id}"),
            Self::Plan(plan) => write!(f, "plan {plan}"),
            Self::Namespace(name) => write!(f, "namespace {name}"),
            Self::Cgroup(path) => write!(f, "cgroup {}", path.display()),
            Self::Controller(name) => write!(f, "controller {name}"),
            Self::Directory(path) => write!(f, "directory {}", path.display()),
            Self::MountPoint(path) => write!(f, "mount-point {}", path.display()),
            Self::Process(Process { machine, name, pid, start_time }) => {
                write!(f, "process {machine} {name} {pid} {start_time}")
            }
            Self::Ready => write!(f, "ready"),
        }
    }
}

impl FromStr for Item {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        if line == "ready" {
            return Ok(Self::Ready);
        }
        let (kind, rest) = line.split_once(' ').with_context(|| format!("no kind in `{line}`"))?;
        match kind {
            "boot" => Ok(Self::Boot(rest.to_owned())),
            "plan" => Ok(Self::Plan(rest.parse()?)),
            "namespace" => Ok(Self::Namespace(rest.to_owned())),
            "cgroup" => Ok(Self::Cgroup(rest.into())),
            "controller" => Ok(Self::Controller(rest.to_owned())),
            "directory" => Ok(Self::Directory(rest.into())),
            "mount-point" => Ok(Self::MountPoint(rest.into())),
            "process" => match rest.split(' ').collect::<Vec<_>>()[..] {
                [machine, name, pid, start_time] => Ok(Self::Process(Process {
                    machine: machine.to_owned(),
                    name: name.to_owned(),
                    pid: pid.parse()?,
                    start_time: start_time.parse()?,
                })),
                _ => bail!("no process in `{line}`"),
            },
            _ => bail!("unknown kind in `{line}`"),
        }
    }
}

// === impl Process ===

impl Process {
    pub(super) fn is_alive(&self) -> bool {
        ingress_lab::is_alive(self.pid, self.start_time)
    }
}

/// Parses the file. Lines that do not parse are ignored, such as a line that a crash has cut off. Its item was not
/// created yet, because the record is completed first.
fn parse(text: &str) -> Vec<Item> {
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

fn boot() -> Result<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").context("cannot read the id of this boot")?;
    Ok(id.trim().to_owned())
}

fn gone(result: std::io::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Kills every process in these network namespaces. When the first process of a node's pid namespace ends, the kernel
/// kills all containers of the node, which are in network namespaces of their own.
fn end_members(namespaces: &[&str]) -> Result<()> {
    let identities: Vec<_> =
        namespaces.iter().filter_map(|name| identity(&ingress_lab::namespace_path(name))).collect();
    if identities.is_empty() {
        return Ok(());
    }
    until_within(KILL_LIMIT, "the cluster's processes to end", || {
        let members = members(&identities);
        for pid in &members {
            // A process may have ended meanwhile.
            kill(Pid::from_raw(*pid), Signal::SIGKILL).ok();
        }
        members.is_empty().then_some(())
    })
}

fn members(identities: &[(u64, u64)]) -> Vec<i32> {
    let own = std::process::id().cast_signed();
    let pids =
        fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // A process that has ended but was not waited for has no namespaces any more.
    let is_member = |pid: &i32| {
        let namespace = identity(Path::new(&format!("/proc/{pid}/ns/net")));
        *pid != own && namespace.is_some_and(|namespace| identities.contains(&namespace))
    };
    pids.filter(is_member).collect()
}

/// Returns device and inode, which identify a namespace (namespaces(7)).
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests {
    use super::super::plan::Services;
    use super::*;

    #[test]
    fn items_survive_the_state_file() {
        for item in [
            Item::Boot("4f1c".into()),
            Item::Plan(Plan::new(2, Services::Proxied).unwrap()),
            Item::Namespace("xdpc-n1".into()),
            Item::Cgroup("/sys/fs/cgroup/cpu,cpuacct/x".into()),
            Item::Controller("cpuset".into()),
            Item::Directory("/var/with space".into()),
            Item::MountPoint("/var/lib/kubelet".into()),
            Item::Process(Process { machine: "n1".into(), name: "kubelet".into(), pid: 12, start_time: 345 }),
            Item::Ready,
        ] {
            assert_eq!(item.to_string().parse::<Item>().expect("own output parses"), item);
        }
    }

    #[test]
    fn a_truncated_line_is_ignored() {
        let text = "boot 1\nnamespace a\nprocess n1 kubelet 12\nunknown thing\nprocess";
        assert_eq!(parse(text), [Item::Boot("1".into()), Item::Namespace("a".into())]);
    }

    #[test]
    fn the_removal_never_includes_this_process() {
        let own = identity(Path::new("/proc/self/ns/net")).unwrap();
        assert!(!members(&[own]).contains(&std::process::id().cast_signed()));
        assert!(members(&[(0, 0)]).is_empty());
    }
}
