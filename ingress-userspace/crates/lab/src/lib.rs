//! A network laboratory on one machine: namespaces, links, processes, a private bpffs, and their certain removal.
//!
//! The laboratory assumes no particular topology outside [`topology`], and touches nothing that it did not create:
//! addresses, routes and sysctls are set inside its own namespaces only.
//!
//! ```text
//! Lab ── Registry (lock + state file: the next run removes the leftovers of a crash)
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
pub use namespace::path_of as namespace_path;
pub use process::Process;
pub use process::{alive as is_alive, start_time};
pub use wait::{until, until_within};

use registry::{Item, Registry};

/// Everything that one demo or one test creates on this machine. Dropping the value removes all of it.
#[derive(Debug)]
pub struct Lab {
    prefix: String,
    registry: Arc<Registry>,
}

/// Handle that removes a [`Lab`] from another thread, for example after a signal.
#[derive(Clone, Debug)]
pub struct Closer(Arc<Registry>);

// === impl Lab ===

impl Lab {
    /// Opens the lab called `prefix`, after removing leftovers of an earlier run with that name.
    ///
    /// # Errors
    /// Fails if another process has the lab of this name open, or its directory cannot be created.
    pub fn open(prefix: &str) -> anyhow::Result<Self> {
        Ok(Self { prefix: prefix.into(), registry: Arc::new(Registry::open(prefix)?) })
    }

    /// Returns the lab's own directory, for logs, copies and sockets. It is removed with the lab.
    #[must_use]
    pub fn home(&self) -> &Path {
        self.registry.home()
    }

    /// Returns a handle that can remove the lab while its owner is busy.
    #[must_use]
    pub fn closer(&self) -> Closer {
        Closer(Arc::clone(&self.registry))
    }

    /// Creates a network namespace with its loopback interface up.
    ///
    /// # Errors
    /// Fails if the caller may not create namespaces.
    pub fn namespace(&self, name: &str) -> anyhow::Result<Namespace> {
        let name = format!("{}-{name}", self.prefix);
        self.registry.make(Item::Namespace(name.clone()), || Namespace::create(&name))
    }

    /// Creates a pair of connected interfaces, both up, with this MTU.
    ///
    /// # Errors
    /// Fails if ip(8) fails.
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
    /// Fails if the program cannot be started.
    pub fn spawn(&self, namespace: &Namespace, name: &str, command: Command) -> anyhow::Result<Process> {
        let log = self.home().join("logs").join(format!("{name}.log"));
        fs::create_dir_all(self.home().join("logs")).context("cannot make the log directory")?;
        self.registry.adopt(|| namespace.run(move || Process::spawn(name, command, log)), Process::item)
    }

    /// Mounts a BPF file system for this lab, so that nothing under `/sys/fs/bpf` is touched.
    ///
    /// # Errors
    /// Fails if the caller may not mount.
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
    /// Removes everything the lab created; later attempts to create something fail. Idempotent.
    pub fn close(&self) {
        self.0.close();
    }
}

/// Returns a loopback port that is currently free.
///
/// # Errors
/// Fails if no port is free.
pub fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port of loopback")?;
    Ok(listener.local_addr().context("a listener has no address")?.port())
}

#[cfg(test)]
mod tests;
