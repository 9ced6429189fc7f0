//! The network that a measurement has to itself, so that ports never clash.

use std::{fs, process::Command};

use anyhow::{Context as _, ensure};
use nix::sched::{CloneFlags, unshare};

use crate::process;

/// Moves this process into a network namespace of its own, if it may: what it starts from then on is there, too. Threads
/// that run already stay where they are.
///
/// # Errors
/// When root cannot make a namespace, or cannot make it fit to measure in.
pub(super) fn own() -> anyhow::Result<()> {
    if !process::is_root() {
        return Ok(());
    }
    unshare(CloneFlags::CLONE_NEWNET).context("cannot make a network namespace")?;
    prepare()
}

/// Loopback up, ports enough for a connection per request, and a congestion control without pacing: one that paces even
/// on loopback (BBR) hides the peers' differences on bodies.
fn prepare() -> anyhow::Result<()> {
    let status = Command::new("ip").args(["link", "set", "lo", "up"]).status().context("cannot run `ip`")?;
    ensure!(status.success(), "cannot bring loopback up in the namespace of the bench ({status})");
    fs::write("/proc/sys/net/ipv4/ip_local_port_range", "22000 65000").context("cannot widen the port range")?;
    let cubic = fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "cubic");
    cubic.or_else(|_| fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "reno")).context("no congestion control")
}
