//! A network laboratory on one machine: namespaces, links, processes, a private bpffs, and their certain removal.
//!
//! It knows nothing of a particular topology beyond [`topology`], and touches nothing outside what it made: addresses,
//! routes and sysctls are set inside its own namespaces only.
//!
//! ```text
//! Lab ── Registry (lock + state file: a crashed run is swept by the next)
//!  ├─ Namespace   /run/netns/<prefix>-<name>, entered by threads with setns(2)
//!  ├─ Process     started inside a namespace, log in a file, ended by recorded pid and start time
//!  └─ bpffs       mounted in the lab's own directory
//! ```

pub mod api_server;
pub mod balance;
pub mod capability;
pub mod client;
pub mod controller;
pub mod credentials;
pub mod denied;
pub mod descriptors;
pub mod echo;
pub mod head;
pub mod idle;
pub mod load;
pub mod maps;
pub mod memory;
mod namespace;
pub mod nft;
pub mod packet;
pub mod pattern;
mod process;
mod registry;
pub mod topology;
mod wait;

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use anyhow::Context as _;
use nix::mount::MsFlags;

pub use namespace::Namespace;
pub(crate) use namespace::path_of as namespace_path;
pub use process::Process;
pub(crate) use process::{alive as is_alive, start_time};
pub use wait::{until, until_within};

use registry::{Item, Registry};

/// Everything one demo or one test makes on this machine. Dropping it removes all of it.
#[derive(Debug)]
pub struct Lab {
    prefix: String,
    registry: Arc<Registry>,
}

/// Takes a [`Lab`] down from another thread: after a signal, say.
#[derive(Clone, Debug)]
pub struct Closer(Arc<Registry>);

// === impl Lab ===

impl Lab {
    /// Opens the lab called `prefix`, after removing what an earlier run of that name may have left behind.
    ///
    /// # Errors
    /// If another process has the lab of this name open, or its directory cannot be made.
    pub fn open(prefix: &str) -> anyhow::Result<Self> {
        Ok(Self { prefix: prefix.into(), registry: Arc::new(Registry::open(prefix)?) })
    }

    /// The lab's own directory: logs, copies, sockets. Removed with the lab.
    #[must_use]
    pub fn home(&self) -> &Path {
        self.registry.home()
    }

    /// A handle that can take the lab down while its owner is busy.
    #[must_use]
    pub fn closer(&self) -> Closer {
        Closer(Arc::clone(&self.registry))
    }

    /// Makes a network namespace with its loopback interface up.
    ///
    /// # Errors
    /// If the caller may not make namespaces.
    pub fn namespace(&self, name: &str) -> anyhow::Result<Namespace> {
        let name = format!("{}-{name}", self.prefix);
        self.registry.make(Item::Namespace(name.clone()), || Namespace::create(&name))
    }

    /// Makes a pair of connected interfaces, both up, with this MTU.
    ///
    /// # Errors
    /// If ip(8) fails.
    pub fn link(&self, left: (&Namespace, &str), right: (&Namespace, &str), mtu: u32) -> anyhow::Result<()> {
        let ((left_ns, left_if), (right_ns, right_if)) = (left, right);
        left_ns.ip(&format!(
            "link add {left_if} mtu {mtu} type veth peer name {right_if} mtu {mtu} netns {}\nlink set {left_if} up",
            right_ns.name()
        ))?;
        right_ns.ip(&format!("link set {right_if} up"))
    }

    /// Starts `command` inside `namespace`; its output goes to `<home>/logs/<name>.log`.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn spawn(&self, namespace: &Namespace, name: &str, command: Command) -> anyhow::Result<Process> {
        let log = self.home().join("logs").join(format!("{name}.log"));
        fs::create_dir_all(self.home().join("logs")).context("cannot make the log directory")?;
        self.registry.adopt(|| namespace.run(move || Process::spawn(name, command, log)), Process::item)
    }

    /// A BPF file system of the lab's own, so that nothing under `/sys/fs/bpf` is touched.
    ///
    /// # Errors
    /// If the caller may not mount.
    pub fn bpffs(&self) -> anyhow::Result<PathBuf> {
        let path = self.home().join("bpf");
        if path.exists() {
            return Ok(path);
        }
        fs::create_dir_all(&path).with_context(|| format!("cannot make `{}`", path.display()))?;
        self.registry.make(Item::Mount(path.clone()), || {
            nix::mount::mount(Some("bpf"), &path, Some("bpf"), MsFlags::empty(), None::<&str>)
                .with_context(|| format!("cannot mount a BPF file system on `{}`", path.display()))
        })?;
        Ok(path)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.registry.close();
    }
}

// === impl Closer ===

impl Closer {
    /// Removes everything the lab made; later attempts to make something fail. Idempotent.
    pub fn close(&self) {
        self.0.close();
    }
}

/// A port of loopback that nobody has now.
///
/// # Errors
/// If there is none.
pub fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port of loopback")?;
    Ok(listener.local_addr().context("a listener has no address")?.port())
}

#[cfg(test)]
mod tests;
