//! What a process has used with all of its descendants: time of CPUs, and memory. It starts none.

use std::{fs, ops::Sub};

use anyhow::Context as _;

use crate::lab::memory;

/// A process and all its descendants.
pub(super) fn tree(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for task in tasks {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(children.split_whitespace().filter_map(|child| child.parse().ok()).flat_map(tree));
    }
    all
}

/// Time of CPUs, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CpuTime {
    pub(super) user: f64,
    pub(super) kernel: f64,
}

// === impl CpuTime ===

impl CpuTime {
    /// What processes and those children of them that have ended have used. One that has ended meanwhile has used none.
    ///
    /// # Errors
    /// When the kernel does not tell how long a tick is.
    pub(super) fn of(pids: impl IntoIterator<Item = u32>) -> anyhow::Result<Self> {
        let all = pids.into_iter().filter_map(|pid| ticks(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?));
        let (user, kernel) =
            all.fold((0, 0), |(user, kernel), (more_user, more_kernel)| (user + more_user, kernel + more_kernel));
        Ok(Self { user: seconds(user)?, kernel: seconds(kernel)? })
    }

    pub(super) fn all(self) -> f64 {
        self.user + self.kernel
    }
}

impl Sub for CpuTime {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { user: self.user - other.user, kernel: self.kernel - other.kernel }
    }
}

/// User and system time: fields 14 to 17 of `/proc/PID/stat` (proc(5)), those of children that have ended included,
/// counted after the name, which may hold anything.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).map_while(|field| field.parse::<u64>().ok());
    let [user, kernel, user_of_children, kernel_of_children] =
        [fields.next()?, fields.next()?, fields.next()?, fields.next()?];
    Some((user + user_of_children, kernel + kernel_of_children))
}

/// Of so many ticks.
pub(super) fn seconds(ticks: u64) -> anyhow::Result<f64> {
    let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.context("no clock tick")?;
    Ok(ticks as f64 / per_second as f64)
}

/// Bytes of memory of a process with all its descendants.
pub(super) fn memory(pid: u32) -> anyhow::Result<u64> {
    let own = memory::of(pid)?;
    // One that has ended meanwhile takes nothing.
    let others = tree(pid).into_iter().skip(1).filter_map(|pid| memory::of(pid).ok());
    Ok(own + others.sum::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_children_that_ended_counts() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 5 6 70 80 20 0 1 0 300";
        assert_eq!(ticks(stat), Some((75, 86)));
        assert_eq!(ticks("7 (a) S 1 7 7 0 -1 4194560 100 0 0 0 5 6 70"), None);
    }
}
