//! CPU time of the participants in a measurement: the load, the proxy, and the kernel on their behalf.
//!
//! On a link within one machine, packets are received by the process that sends them or by `ksoftirqd`. The scheduler's
//! time for these therefore covers everything, without other work of the machine. Kernels that exclude interrupts from
//! it (CONFIG_IRQ_TIME_ACCOUNTING) report them for the machine as a whole; on such kernels they are added.

use std::{fs, process::Command};

use anyhow::Context as _;
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike as _,
};

use crate::usage::{self, CpuTime};
use xtask_tools::process;

/// Reads the time that has been used so far.
#[derive(Debug)]
pub(super) struct Cpu {
    ksoftirqd: Vec<u32>,
    has_interrupts_apart: bool,
}

impl Cpu {
    pub(super) fn new() -> Self {
        let is_ksoftirqd = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("ksoftirqd/"))
        };
        let ksoftirqd = usage::tree(usage::KTHREADD).into_iter().filter(is_ksoftirqd).collect();
        Self { ksoftirqd, has_interrupts_apart: has_interrupts_apart() }
    }

    /// Returns the seconds used by the process `proxy`, by all ended children, and by the kernel for both.
    pub(super) fn used(&self, proxy: u32) -> anyhow::Result<f64> {
        let children = getrusage(UsageWho::RUSAGE_CHILDREN).context("cannot read what children have used")?;
        let children = (children.user_time() + children.system_time()).num_microseconds() as f64 / 1e6;
        let takes_part = usage::tree(proxy).into_iter().chain(self.ksoftirqd.iter().copied());
        let interrupts = if self.has_interrupts_apart { interrupts()? } else { 0.0 };
        Ok(children + CpuTime::of(takes_part)?.all + interrupts)
    }
}

/// Returns `true` if the kernel accounts interrupts separately. A kernel that does not show its configuration is
/// assumed not to.
fn has_interrupts_apart() -> bool {
    let packed = process::capture(Command::new("zcat").arg("/proc/config.gz"));
    let config = packed.or_else(|_absent| {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        anyhow::Ok(fs::read_to_string(format!("/boot/config-{}", release.trim()))?)
    });
    config.is_ok_and(|config| config.lines().any(|line| line == "CONFIG_IRQ_TIME_ACCOUNTING=y"))
}

/// Returns the seconds that all CPUs spent in interrupts.
fn interrupts() -> anyhow::Result<f64> {
    let stat = fs::read_to_string("/proc/stat").context("cannot read `/proc/stat`")?;
    usage::seconds(interrupt_ticks(&stat).context("`/proc/stat` has no time of interrupts")?)
}

/// Returns the sum of the fields `irq` and `softirq` of `/proc/stat` (`proc_stat(5)`).
fn interrupt_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.lines().next()?.split_whitespace().skip(6);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}
