//! CPU time and memory of a process with all of its descendants. It starts none.

use std::{fs, ops::Sub, time::Duration};

use anyhow::Context as _;
use nix::{
    time::{clock_getcpuclockid, clock_gettime},
    unistd::Pid,
};

use ingress_lab::memory;

/// The parent of all kernel threads.
pub(super) const KTHREADD: u32 = 2;

/// Returns the ids of a process and all its descendants.
pub(super) fn tree(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for task in tasks {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(children.split_whitespace().filter_map(|child| child.parse().ok()).flat_map(tree));
    }
    all
}

/// CPU time in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CpuTime {
    /// Exact to the nanosecond, except for children that have ended: their time is in ticks.
    pub(super) all: f64,
    /// The part in the kernel, which the kernel estimates by sampling at each tick.
    pub(super) kernel: f64,
}

/// Fields 15 to 17 of `/proc/PID/stat` (proc(5)).
#[derive(Debug, PartialEq, Eq)]
struct Ticks {
    kernel: u64,
    of_children: u64,
    kernel_of_children: u64,
}

// === impl CpuTime ===

impl CpuTime {
    /// Returns the time that processes and their ended children have used. A process that has ended meanwhile counts as
    /// zero.
    ///
    /// # Errors
    /// Fails if the kernel does not report the length of a tick.
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
    /// Parses the fields after the name, which may contain any character.
    fn of(stat: &str) -> Option<Self> {
        let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(12).map_while(|field| field.parse::<u64>().ok());
        let [kernel, user_of_children, kernel_of_children] = fields.take(3).collect::<Vec<_>>().try_into().ok()?;
        Some(Self { kernel, of_children: user_of_children + kernel_of_children, kernel_of_children })
    }
}

/// Converts ticks to seconds.
pub(super) fn seconds(ticks: u64) -> anyhow::Result<f64> {
    let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.context("no clock tick")?;
    Ok(ticks as f64 / per_second as f64)
}

/// Returns the bytes of memory of a process with all its descendants.
pub(super) fn memory(pid: u32) -> anyhow::Result<u64> {
    let own = memory::of(pid)?;
    // A process that has ended meanwhile uses no memory.
    let others = tree(pid).into_iter().skip(1).filter_map(|pid| memory::of(pid).ok());
    Ok(own + others.sum::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_ended_children_counts() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 5 6 70 80 20 0 1 0 300";
        assert_eq!(Ticks::of(stat), Some(Ticks { kernel: 6, of_children: 150, kernel_of_children: 80 }));
        assert_eq!(Ticks::of("7 (a) S 1 7 7 0 -1 4194560 100 0 0 0 5 6 70"), None);
    }

    #[test]
    fn cpu_time_is_finer_than_ticks() {
        let used = |pid| CpuTime::of([pid]).expect("the time of a process");
        let ticks = used(std::process::id()).all / seconds(1).expect("a tick");
        assert!(ticks > 0.0 && ticks.fract() > 0.0, "{ticks}");
        assert_eq!(used(u32::MAX >> 1), CpuTime::default(), "of a process that is not");
    }
}
