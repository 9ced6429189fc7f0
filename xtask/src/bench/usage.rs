//! What a process has used with all of its descendants: time of CPUs, and memory. It starts none.

use std::fs;

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

/// User and system time of a process and of those children that it had and that ended: fields 14 to 17 of
/// `/proc/PID/stat` (proc(5)), counted after the name, which may hold anything.
pub(super) fn cpu_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat_ticks(&stat)
}

fn stat_ticks(stat: &str) -> Option<u64> {
    let fields: Vec<u64> =
        stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(4).map_while(|field| field.parse().ok()).collect();
    (fields.len() == 4).then(|| fields.iter().sum())
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
        assert_eq!(stat_ticks(stat), Some(161));
        assert_eq!(stat_ticks("7 (a) S 1 7 7 0 -1 4194560 100 0 0 0 5 6 70"), None);
    }
}
