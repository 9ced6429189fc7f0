//! A private network for a measurement, so that ports never clash.

use std::{fs, process::Command};

use anyhow::{Context as _, ensure};
use nix::sched::{CloneFlags, unshare};

use xtask_tools::process;

/// Moves this process into a new network namespace, if it has the rights. Programs started from then on are there, too;
/// threads that already run stay in the old namespace.
///
/// # Errors
/// Fails if root cannot create a namespace, or cannot prepare it for measurements.
pub(super) fn own() -> anyhow::Result<()> {
    if !process::is_root() {
        return Ok(());
    }
    unshare(CloneFlags::CLONE_NEWNET).context("cannot make a network namespace")?;
    prepare()
}

/// Prepares the namespace: loopback up, enough ports for a connection per request, and a congestion control without
/// pacing. Pacing on loopback (BBR) would hide the peers' differences on bodies.
fn prepare() -> anyhow::Result<()> {
    let status = Command::new("ip").args(["link", "set", "lo", "up"]).status().context("cannot run `ip`")?;
    ensure!(status.success(), "cannot bring loopback up in the namespace of the bench ({status})");
    fs::write("/proc/sys/net/ipv4/ip_local_port_range", "22000 65000").context("cannot widen the port range")?;
    let cubic = fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "cubic");
    cubic.or_else(|_| fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "reno")).context("no congestion control")
}
