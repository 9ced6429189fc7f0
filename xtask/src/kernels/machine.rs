//! One emulated machine with its console and its networks, ended when it is dropped. It knows nothing of what runs
//! there.
//!
//! Networks are QEMU's user-mode ones: no privilege is needed, nothing on this machine is changed, and two runs at one
//! time are not in each other's way, for each process forwards from a loopback address of its own.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::{NICS, Nic};

/// Long against looking, short against booting.
const INTERVAL: Duration = Duration::from_millis(50);
/// The port of the admin address, in the machine and on this one.
const ADMIN: u16 = 9110;
/// Where a machine finds this one's loopback, seen by its first NIC.
pub(super) const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, NICS[0].subnet, 2);

/// A machine that runs.
#[derive(Debug)]
pub(super) struct Machine {
    qemu: Child,
    /// Holds the initramfs and the console.
    dir: TempDir,
}

impl Machine {
    /// Starts a machine that boots the kernel in the file `image` with this initramfs.
    ///
    /// # Errors
    /// If a file cannot be written, or QEMU not be started.
    pub(super) fn start(image: &Path, initramfs: &[u8]) -> Result<Self> {
        let dir = TempDir::with_prefix("xdp-ingress-machine-").context("cannot make a temporary directory")?;
        let file = dir.path().join("initramfs");
        fs::write(&file, initramfs).with_context(|| format!("cannot write `{}`", file.display()))?;
        let console = File::create(console(&dir)).context("cannot make the file of a console")?;
        let mut qemu = Command::new("qemu-system-x86_64");
        // Emulated even where KVM could be had, so that it is the same machine everywhere.
        qemu.args(["-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "1024"]);
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio"]);
        // A panic ends the machine, and QEMU with it.
        qemu.args(["-no-reboot", "-append", "console=ttyS0 panic=-1 quiet"]);
        qemu.arg("-kernel").arg(image).arg("-initrd").arg(&file);
        for nic in &NICS {
            let Nic { driver, device, subnet, port: _, receives: _ } = nic;
            qemu.args(["-netdev", &network(nic), "-device"]);
            // Without a ROM, which is for booting over the network and a package of its own.
            qemu.arg(format!("{device},netdev={driver},romfile=,mac=52:54:00:12:34:{subnet:02x}"));
        }
        qemu.stdin(Stdio::null()).stdout(console.try_clone()?).stderr(console);
        let qemu = qemu.spawn().context("cannot start `qemu-system-x86_64`")?;
        Ok(Self { qemu, dir })
    }

    /// Where port 80 of the machine can be reached by way of `nic`.
    pub(super) fn http(nic: &Nic) -> SocketAddr {
        (address(), nic.port).into()
    }

    /// Where its admin address can be reached.
    pub(super) fn admin() -> SocketAddr {
        (address(), ADMIN).into()
    }

    /// All that the machine has said so far.
    pub(super) fn console(&self) -> String {
        fs::read(console(&self.dir)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Asks `probe`, which is shown the console, until it answers.
    ///
    /// # Errors
    /// Those of `probe`, and if the machine ends first or there is no answer within `limit`.
    pub(super) fn wait<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut probe: impl FnMut(&str) -> Result<Option<T>>,
    ) -> Result<T> {
        let deadline = Instant::now() + limit;
        loop {
            // Asked before it is looked at the console, so that the last words are not missed.
            let ended = self.qemu.try_wait().context("cannot ask for QEMU")?;
            if let Some(value) = probe(&self.console())? {
                return Ok(value);
            }
            if let Some(status) = ended {
                bail!("the machine ended ({status}) before {what}");
            }
            if Instant::now() > deadline {
                bail!("waited {} s in vain for {what}", limit.as_secs());
            }
            thread::sleep(INTERVAL);
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // One that has ended by itself is as well.
        self.qemu.kill().and_then(|()| self.qemu.wait()).ok();
    }
}

fn console(dir: &TempDir) -> PathBuf {
    dir.path().join("console")
}

/// The network of one NIC, and what is forwarded into it.
fn network(nic: &Nic) -> String {
    let Nic { driver, device: _, subnet, port, receives: _ } = nic;
    let (here, there) = (address(), format!("10.0.{subnet}.15"));
    let forward = |from: u16, to: u16| format!(",hostfwd=tcp:{here}:{from}-{there}:{to}");
    let admin = if *driver == NICS[0].driver { forward(ADMIN, ADMIN) } else { String::new() };
    format!("user,id={driver},net=10.0.{subnet}.0/24{}{admin}", forward(*port, 80))
}

/// The loopback address of this process: its number, which has 22 bits at most (proc(5), `pid_max`).
fn address() -> Ipv4Addr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | high, middle, low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_nic_has_a_network_and_the_first_the_admin_address() {
        let here = address();
        assert!(here.is_loopback());
        assert_eq!(
            NICS.each_ref().map(network),
            [
                format!(
                    "user,id=virtio_net,net=10.0.2.0/24,hostfwd=tcp:{here}:8000-10.0.2.15:80,\
                     hostfwd=tcp:{here}:9110-10.0.2.15:9110"
                ),
                format!("user,id=e1000,net=10.0.3.0/24,hostfwd=tcp:{here}:8001-10.0.3.15:80"),
            ]
        );
    }
}
