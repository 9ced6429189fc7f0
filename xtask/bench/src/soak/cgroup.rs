//! A control group with a memory limit, of either version, for the length of a run.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::Context;

use ingress_lab::until_within;

/// The parent group and the file with the limit, by version.
const HIERARCHIES: [(&str, &str); 2] =
    [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")];

pub(super) struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates a group that limits its processes to `limit` bytes together.
    pub(super) fn with(limit: u64) -> anyhow::Result<Self> {
        for (parent, file) in HIERARCHIES {
            let path = Path::new(parent).join(format!("xdp-ingress-soak-{}", std::process::id()));
            if fs::create_dir(&path).is_err() {
                continue;
            }
            let group = Self(path);
            // A mount without the memory controller lacks this file; the group is then removed on drop.
            if group.0.join(file).exists() {
                fs::write(group.0.join(file), limit.to_string())
                    .with_context(|| format!("cannot set a limit in `{}`", group.0.display()))?;
                return Ok(group);
            }
        }
        anyhow::bail!("no control group with a limit of memory can be made: run as root, with cgroups mounted")
    }

    /// Returns a command that runs `binary` in the group.
    pub(super) fn command(&self, binary: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", r#"echo $$ > "$0" && exec "$@""#]).arg(self.0.join("cgroup.procs")).arg(binary);
        command
    }

    /// Returns the number of processes that the kernel has killed in the group for lack of memory.
    pub(super) fn killed(&self) -> anyhow::Result<u64> {
        let read = |name| fs::read_to_string(self.0.join(name));
        let text = read("memory.events").or_else(|_| read("memory.oom_control"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        let count = line.with_context(|| format!("no `oom_kill` in `{}`", self.0.display()))?;
        Ok(count.trim().parse()?)
    }
}

impl Drop for Cgroup {
    /// Waits until the group is empty, and removes it.
    fn drop(&mut self) {
        let removed = until_within(Duration::from_secs(10), "the control group to become empty", || {
            fs::remove_dir(&self.0).is_ok().then_some(())
        });
        if removed.is_err() {
            eprintln!("cannot remove the control group `{}`", self.0.display());
        }
    }
}
