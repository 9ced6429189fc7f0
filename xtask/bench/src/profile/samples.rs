//! Distribution of a peer's time, including the kernel: perf samples it a thousand times a second.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
    time::Duration,
};

use anyhow::{Context, ensure};

use super::load::Load;
use crate::load;
use xtask_tools::process;

/// Length of the sampling, and of the load around it: from before perf starts until after it ends.
const LENGTH: Duration = Duration::from_secs(3);
const LOAD: Duration = Duration::from_secs(5);
/// Samples per second; not a round number, so that they do not keep step with timers.
const FREQUENCY: &str = "999";
/// This project's release has no frame pointers, so frames are found from a copy of the stack, of 32 KiB, which holds
/// all frames from a worker's task on.
const STACKS: &str = "dwarf,32768";

/// Number of samples that contain a symbol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// Samples with the symbol at the top of the stack.
    pub(super) own: u64,
    /// Samples with the symbol anywhere in the stack.
    pub(super) all: u64,
}

/// All stacks of a window, by symbol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Folded {
    pub(super) samples: u64,
    /// Samples within the kernel.
    pub(super) kernel: u64,
    symbols: BTreeMap<String, Seen>,
}

/// Samples the process under the load of `cargo xtask bench proxy`. `cpu-clock` is a timer of the kernel itself, which
/// virtual machines have, too.
pub(super) fn take(pid: u32, Load { case, target }: Load<'_>) -> anyhow::Result<Folded> {
    let data = target.folder.join("perf.data");
    let mut record = Command::new("perf");
    record.args(["record", "--quiet", "--event", "cpu-clock", "--freq", FREQUENCY, "--call-graph", STACKS]);
    record.args(["--pid", &pid.to_string(), "--output"]).arg(&data);
    record.args(["--", "sleep", &LENGTH.as_secs().to_string()]);
    let mut recording = record.spawn().context("cannot run `perf`")?;
    let loaded = load::run(case, target, LOAD);
    let status = recording.wait().context("cannot wait for `perf`")?;
    ensure!(status.success(), "`perf record` ended with {status}");
    loaded?;
    let mut script = Command::new("perf");
    script.args(["script", "--no-inline", "--fields", "ip,sym", "--input"]).arg(&data);
    let folded = Folded::of(&process::capture(&mut script)?);
    fs::remove_file(&data).with_context(|| format!("cannot remove `{}`", data.display()))?;
    ensure!(folded.samples > 0, "perf has seen nothing of process {pid}");
    Ok(folded)
}

impl Folded {
    /// Parses stacks in the output format of `perf script`: a line for each frame, the innermost first, and an empty
    /// line between two stacks.
    fn of(text: &str) -> Self {
        let mut folded = Self::default();
        for stack in text.split("\n\n") {
            folded.add(stack.lines().filter_map(frame));
        }
        folded
    }

    fn add<'t>(&mut self, frames: impl Iterator<Item = (u64, &'t str)>) {
        let mut seen = BTreeSet::new();
        for (address, symbol) in frames {
            if seen.is_empty() {
                self.samples += 1;
                // The upper half of the address space belongs to the kernel.
                self.kernel += u64::from(address >> 63 == 1);
                self.symbols.entry(symbol.to_owned()).or_default().own += 1;
            }
            // Counted once, even if the function is recursive.
            if seen.insert(symbol) {
                self.symbols.entry(symbol.to_owned()).or_default().all += 1;
            }
        }
    }

    /// Returns the symbols that ran most often, the most frequent first.
    pub(super) fn most(&self, count: usize) -> Vec<(&str, Seen)> {
        let mut all: Vec<(&str, Seen)> = self.symbols.iter().map(|(symbol, seen)| (symbol.as_str(), *seen)).collect();
        all.sort_by_key(|(_, seen)| std::cmp::Reverse((seen.own, seen.all)));
        all.truncate(count);
        all
    }
}

/// Parses address and symbol; `None` at the end of the copy of a stack.
fn frame(line: &str) -> Option<(u64, &str)> {
    let (address, symbol) = line.trim().split_once(' ')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    (address != u64::MAX).then_some((address, symbol))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_folded() {
        let text = "\n\tffffffff8203673b tcp_v4_rcv\n\tffffffff821ef691 do_syscall_64\n\
            \t           fde9d __GI___writev\n\t          ab032b ingress::<impl A for B>::poll\n\
            \tffffffffffffffff [unknown]\n\n\
            \t          ab0330 ingress::<impl A for B>::poll\n\t          ab0340 ingress::<impl A for B>::poll\n\n\
            \tffffffff8203673b tcp_v4_rcv\n\t           fde9d __GI___writev\n";
        let folded = Folded::of(text);
        assert_eq!((folded.samples, folded.kernel), (3, 2));
        let expect = [
            ("tcp_v4_rcv", Seen { own: 2, all: 2 }),
            ("ingress::<impl A for B>::poll", Seen { own: 1, all: 2 }),
            ("__GI___writev", Seen { own: 0, all: 2 }),
        ];
        assert_eq!(folded.most(3), expect);
        assert_eq!(Folded::of(""), Folded::default());
    }
}
