//! Objects that a lab has created, in memory and on disk, so that this process or the next one can remove them.
//!
//! An item is recorded before it is created, so a crash in between leaves a record without an object, never an object
//! without a record. Processes are the exception: their pid is known only afterwards.

use std::{
    fmt,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    str::FromStr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use anyhow::Context as _;
use nix::{
    mount::{MntFlags, umount2},
    unistd::geteuid,
};

use super::{Namespace, process};

/// An object outside this process that must be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Namespace(String),
    Mount(PathBuf),
    /// The start time distinguishes the process from a later one with the same pid.
    Process {
        pid: i32,
        start_time: u64,
    },
}

#[derive(Debug)]
pub(super) struct Registry {
    home: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    items: Vec<Item>,
    /// `None` once closed; nothing can be created then.
    state: Option<File>,
    /// Held as long as the lab is open; the kernel releases it however the process ends.
    lock: File,
}

// === impl Registry ===

impl Registry {
    pub(super) fn open(prefix: &str) -> anyhow::Result<Self> {
        let base = base();
        private_dir(&base)?;
        let lock = lock(&base.join(format!("{prefix}.lock")))
            .with_context(|| format!("the lab `{prefix}` cannot be opened"))?;
        let home = base.join(prefix);
        let state_path = home.join("state");
        if home.exists() {
            let lines = fs::read_to_string(&state_path).unwrap_or_default();
            remove(&lines.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>(), &home);
        }
        private_dir(&home)?;
        let state = File::create(&state_path).with_context(|| format!("cannot write `{}`", state_path.display()))?;
        Ok(Self { home, inner: Mutex::new(Inner { items: Vec::new(), state: Some(state), lock }) })
    }

    pub(super) fn home(&self) -> &Path {
        &self.home
    }

    /// Records `item`, then creates it.
    pub(super) fn make<T>(&self, item: Item, action: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let mut inner = self.lock();
        inner.record(item)?;
        action()
    }

    /// Creates an object, then records it.
    pub(super) fn adopt<T>(
        &self,
        action: impl FnOnce() -> anyhow::Result<T>,
        item: impl FnOnce(&T) -> Item,
    ) -> anyhow::Result<T> {
        let mut inner = self.lock();
        anyhow::ensure!(inner.state.is_some(), "the lab is closing");
        let made = action()?;
        inner.record(item(&made))?;
        Ok(made)
    }

    pub(super) fn close(&self) {
        let mut inner = self.lock();
        if inner.state.take().is_some() {
            remove(&inner.items, &self.home);
            inner.unlock();
        }
    }

    /// Closes without removing anything, like a crash.
    #[cfg(test)]
    pub(super) fn forget(&self) {
        let mut inner = self.lock();
        inner.state = None;
        inner.unlock();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn record(&mut self, item: Item) -> anyhow::Result<()> {
        let state = self.state.as_mut().context("the lab is closing")?;
        writeln!(state, "{item}").context("cannot write the lab's state file")?;
        self.items.push(item);
        Ok(())
    }

    /// Unlocks explicitly, because a child that another thread has forked holds a copy of the descriptor until it
    /// executes.
    fn unlock(&self) {
        if let Err(error) = self.lock.unlock() {
            eprintln!("warning: could not unlock the lab: {error}");
        }
    }
}

/// Removes `items`, latest first, and then `home`; reports failures on standard error.
fn remove(items: &[Item], home: &Path) {
    let mut problems = Vec::new();
    for item in items.iter().rev() {
        let result = match item {
            Item::Namespace(name) => Namespace::delete(name),
            // Detached: a process that still has a file open there must not keep the pins alive.
            Item::Mount(path) => match umount2(path, MntFlags::MNT_DETACH) {
                Ok(()) | Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => Ok(()),
                Err(error) => Err(anyhow::Error::new(error)),
            },
            Item::Process { pid, start_time } => process::end(*pid, *start_time),
        };
        if let Err(error) = result {
            problems.push(format!("`{item}`: {error:#}"));
        }
    }
    if let Err(error) = fs::remove_dir_all(home) {
        problems.push(format!("`{}`: {error}", home.display()));
    }
    for problem in problems {
        eprintln!("warning: could not remove {problem}");
    }
}

/// Returns the directory of all labs. For root it is below `/run`, which a reboot clears together with everything
/// recorded there; for other users it is a directory of their own among the temporary files.
fn base() -> PathBuf {
    if geteuid().is_root() {
        PathBuf::from("/run/xdp-ingress-lab")
    } else {
        std::env::temp_dir().join(format!("xdp-ingress-lab-{}", geteuid()))
    }
}

fn private_dir(path: &Path) -> anyhow::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("cannot make the directory `{}`", path.display()))?;
    let owner = fs::symlink_metadata(path).with_context(|| format!("cannot look at `{}`", path.display()))?.uid();
    anyhow::ensure!(owner == geteuid().as_raw(), "`{}` belongs to user {owner}; remove it", path.display());
    Ok(())
}

fn lock(path: &Path) -> anyhow::Result<File> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .with_context(|| format!("cannot open `{}`", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            file.read_to_string(&mut holder).ok();
            anyhow::bail!("process {} has it open; end that first", holder.trim());
        }
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("cannot lock `{}`", path.display()));
        }
    }
    file.set_len(0).context("cannot write the lock file")?;
    write!(file, "{}", std::process::id()).context("cannot write the lock file")?;
    Ok(file)
}

// === impl Item ===

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace(name) => write!(f, "namespace {name}"),
            Self::Mount(path) => write!(f, "mount {}", path.display()),
            Self::Process { pid, start_time } => write!(f, "process {pid} {start_time}"),
        }
    }
}

impl FromStr for Item {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Self> {
        let (kind, rest) = line.split_once(' ').with_context(|| format!("no kind in `{line}`"))?;
        match kind {
            "namespace" => Ok(Self::Namespace(rest.into())),
            "mount" => Ok(Self::Mount(rest.into())),
            "process" => {
                let (pid, start_time) = rest.split_once(' ').with_context(|| format!("no start time in `{line}`"))?;
                Ok(Self::Process { pid: pid.parse()?, start_time: start_time.parse()? })
            }
            _ => anyhow::bail!("unknown kind in `{line}`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Item;

    #[test]
    fn items_survive_the_state_file() {
        for item in [
            Item::Namespace("xd-a-node".into()),
            Item::Mount("/run/with space/bpf".into()),
            Item::Process { pid: 12, start_time: 345 },
        ] {
            assert_eq!(item.to_string().parse::<Item>().expect("own output parses"), item);
        }
        assert!("process 12".parse::<Item>().is_err());
        assert!("".parse::<Item>().is_err());
    }
}
