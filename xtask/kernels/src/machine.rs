//! An emulated machine with its console and its networks; dropping it ends the machine. The programs inside are the
//! caller's concern.
//!
//! Networks are QEMU's user-mode ones, or a wire of datagrams: they need no privilege and change nothing on this machine.
//! Two runs at the same time do not conflict, because each process forwards from its own loopback address.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::{NICS, Nic};

/// Poll interval: much longer than a check, much shorter than a boot.
const INTERVAL: Duration = Duration::from_millis(50);
/// The port of the admin address, in the machine and on this one.
const ADMIN: u16 = 9110;
/// Ports on this machine of the two ends of a wire: that of the NIC, and that of the caller.
const WIRE: [u16; 2] = [8002, 8003];
/// Address of this machine's loopback inside the emulated machine, through its first NIC.
pub(super) const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, NICS[0].subnet, 2);

/// Networks of the NICs of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Networks {
    /// User-mode networks, through which clients reach the machine.
    Users,
    /// A user-mode network for the first NIC. The second one has a wire of its own: each frame is a datagram from or to
    /// [`WIRE`].
    UsersAndWire,
}

/// A running machine.
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
    /// Fails if a file cannot be written, or QEMU not be started.
    pub(super) fn start(image: &Path, initramfs: &[u8], networks: Networks) -> Result<Self> {
        let dir = TempDir::with_prefix("xdp-ingress-machine-").context("cannot make a temporary directory")?;
        let file = dir.path().join("initramfs");
        fs::write(&file, initramfs).with_context(|| format!("cannot write `{}`", file.display()))?;
        let console = File::create(console(&dir)).context("cannot make the file of a console")?;
        let mut qemu = Command::new("qemu-system-x86_64");
        // Emulated even where KVM is available, so that the machine is the same everywhere.
        qemu.args(["-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "1024"]);
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio"]);
        // A panic ends the machine, and QEMU with it.
        qemu.args(["-no-reboot", "-append", "console=ttyS0 panic=-1 quiet"]);
        qemu.arg("-kernel").arg(image).arg("-initrd").arg(&file);
        for nic in &NICS {
            let Nic { driver, device, subnet, port: _, receives: _ } = nic;
            let has_wire = networks == Networks::UsersAndWire && *driver != NICS[0].driver;
            let network = if has_wire { wire(nic) } else { network(nic) };
            qemu.args(["-netdev", &network, "-device"]);
            // No ROM: it is needed only to boot over the network and comes in a separate package.
            qemu.arg(format!("{device},netdev={driver},romfile=,mac=52:54:00:12:34:{subnet:02x}"));
        }
        qemu.stdin(Stdio::null()).stdout(console.try_clone()?).stderr(console);
        let qemu = qemu.spawn().context("cannot start `qemu-system-x86_64`")?;
        Ok(Self { qemu, dir })
    }

    /// Returns the address that forwards to port 80 of the machine through `nic`.
    pub(super) fn http(nic: &Nic) -> SocketAddr {
        (address(), nic.port).into()
    }

    /// Returns the address that forwards to the machine's admin address.
    pub(super) fn admin() -> SocketAddr {
        (address(), ADMIN).into()
    }

    /// Returns the socket of the caller's end of a wire, connected to the NIC's end.
    ///
    /// # Errors
    /// Fails if the port is taken.
    pub(super) fn wire() -> Result<UdpSocket> {
        let [theirs, ours] = WIRE.map(|port| SocketAddr::from((address(), port)));
        let socket = UdpSocket::bind(ours).with_context(|| format!("cannot bind `{ours}`"))?;
        socket.connect(theirs).with_context(|| format!("cannot send to `{theirs}`"))?;
        Ok(socket)
    }

    /// Returns the whole console output so far.
    pub(super) fn console(&self) -> String {
        fs::read(console(&self.dir)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Calls `probe` with the console output until it returns a value.
    ///
    /// # Errors
    /// Returns the errors of `probe`. Also fails if the machine ends first or `probe` returns no value within `limit`.
    pub(super) fn wait<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut probe: impl FnMut(&str) -> Result<Option<T>>,
    ) -> Result<T> {
        let deadline = Instant::now() + limit;
        loop {
            // Checked before the console is read, so that the last lines are not missed.
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
        // Errors are ignored: the machine may have ended already.
        self.qemu.kill().and_then(|()| self.qemu.wait()).ok();
    }
}

fn console(dir: &TempDir) -> PathBuf {
    dir.path().join("console")
}

/// Returns QEMU's description of the network of one NIC, including its forwarded ports.
fn network(nic: &Nic) -> String {
    let Nic { driver, device: _, subnet, port, receives: _ } = nic;
    let (here, there) = (address(), format!("10.0.{subnet}.15"));
    let forward = |from: u16, to: u16| format!(",hostfwd=tcp:{here}:{from}-{there}:{to}");
    let admin = if *driver == NICS[0].driver { forward(ADMIN, ADMIN) } else { String::new() };
    format!("user,id={driver},net=10.0.{subnet}.0/24{}{admin}", forward(*port, 80))
}

/// Returns QEMU's description of the wire of one NIC.
fn wire(nic: &Nic) -> String {
    let (here, [own, other]) = (address(), WIRE);
    format!("socket,id={},localaddr={here}:{own},udp={here}:{other}", nic.driver)
}

/// Returns the loopback address of this process, built from its process id, which has 22 bits at most (proc(5),
/// `pid_max`).
fn address() -> Ipv4Addr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | high, middle, low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_nic_has_a_network_and_the_first_has_the_admin_address() {
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
        assert_eq!(wire(&NICS[1]), format!("socket,id=e1000,localaddr={here}:8002,udp={here}:8003"));
    }
}
