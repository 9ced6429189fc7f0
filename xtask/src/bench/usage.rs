//! What a process has used with all of its descendants: time of CPUs, and memory. It starts none.

use std::{fs, ops::Sub, time::Duration};

use anyhow::Context as _;
use nix::{
    time::{clock_getcpuclockid, clock_gettime},
    unistd::Pid,
};

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
    /// To the nanosecond, but for children that have ended: their time is in ticks.
    pub(super) all: f64,
    /// Those of it within the kernel, which it divides by looking at each tick.
    pub(super) kernel: f64,
}

/// Fields 14 to 17 of `/proc/PID/stat` (proc(5)).
#[derive(Debug, PartialEq, Eq)]
struct Ticks {
    kernel: u64,
    of_children: u64,
    kernel_of_children: u64,
}

// === impl CpuTime ===

impl CpuTime {
    /// What processes and those children of them that have ended have used. A process that has ended meanwhile has used
    /// none.
    ///
    /// # Errors
    /// When the kernel does not tell how long a tick is.
    pub(super) fn of(pids: impl IntoIterator<Item = u32>) -> anyhow::Result<Self> {
        let mut sum = Self::default();
        for pid in pids {
            let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed())).and_then(clock_gettime);
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok();
            if let (Ok(own), Some(ticks)) = (clock, stat.as_deref().and_then(Ticks::of)) {
                let Ticks { kernel, of_children, kernel_of_children } = ticks;
                sum.all += Duration::from(own).as_secs_f64() + seconds(of_children)?;
                sum.kernel += seconds(kernel + kernel_of_children)?;
            }
        }
        Ok(sum)
    }
}

impl Sub for CpuTime {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { all: self.all - other.all, kernel: self.kernel - other.kernel }
    }
}

// === impl Ticks ===

impl Ticks {
    /// Counted after the name, which may hold anything.
    fn of(stat: &str) -> Option<Self> {
        let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(12).map_while(|field| field.parse::<u64>().ok());
        let [kernel, user_of_children, kernel_of_children] = fields.take(3).collect::<Vec<_>>().try_into().ok()?;
        Some(Self { kernel, of_children: user_of_children + kernel_of_children, kernel_of_children })
    }
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
        assert_eq!(Ticks::of(stat), Some(Ticks { kernel: 6, of_children: 150, kernel_of_children: 80 }));
        assert_eq!(Ticks::of("7 (a) S 1 7 7 0 -1 4194560 100 0 0 0 5 6 70"), None);
    }

    #[test]
    fn time_is_told_more_finely_than_in_ticks() {
        let used = |pid| CpuTime::of([pid]).expect("the time of a process");
        let ticks = used(std::process::id()).all / seconds(1).expect("a tick");
        assert!(ticks > 0.0 && ticks.fract() > 0.0, "{ticks}");
        assert_eq!(used(u32::MAX >> 1), CpuTime::default(), "of a process that is not");
    }
}
