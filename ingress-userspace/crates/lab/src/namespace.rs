//! A network namespace: created and named by ip(8), entered by threads. The module starts no other processes.

use std::{
    fs::{self, File},
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    thread::{self, JoinHandle},
};

use anyhow::Context as _;
use nix::sched::{CloneFlags, setns};

/// A network namespace; cheap to clone. The namespace lives as long as its lab, a handle or a thread in it.
#[derive(Clone, Debug)]
pub struct Namespace {
    name: String,
    /// `None` is the namespace of this process, which needs no entering.
    file: Option<Arc<File>>,
}

impl Namespace {
    /// Returns the namespace of this process.
    #[must_use]
    pub fn current() -> Self {
        Self { name: "this machine".into(), file: None }
    }

    pub fn create(name: &str) -> anyhow::Result<Self> {
        ip(&["netns", "add", name], "")?;
        let namespace = Self::open(name)?;
        // Duplicate address detection would make every IPv6 address unusable for its first second.
        namespace.sysctl("ipv6/conf/all/accept_dad", "0")?;
        namespace.sysctl("ipv6/conf/default/accept_dad", "0")?;
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Opens the existing namespace with this name.
    pub fn open(name: &str) -> anyhow::Result<Self> {
        let path = path_of(name);
        let file = File::open(&path).with_context(|| format!("cannot open `{}`", path.display()))?;
        Ok(Self { name: name.into(), file: Some(Arc::new(file)) })
    }

    pub fn delete(name: &str) -> anyhow::Result<()> {
        if path_of(name).exists() { ip(&["netns", "del", name], "") } else { Ok(()) }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its path for `nsenter --net=`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path_of(&self.name)
    }

    /// Runs `work` on a thread inside the namespace and waits for it. Sockets and processes created there belong to the
    /// namespace.
    ///
    /// # Errors
    /// Returns the errors of `work`. Also fails if the namespace cannot be entered.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                self.enter()?;
                work()
            });
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Starts a thread inside the namespace.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub fn thread<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<JoinHandle<anyhow::Result<T>>> {
        let namespace = self.clone();
        thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                namespace.enter()?;
                work()
            })
            .with_context(|| format!("cannot start the thread `{name}`"))
    }

    /// Runs lines of `ip -batch` inside the namespace.
    ///
    /// # Errors
    /// Fails if ip(8) fails; the message contains that of ip.
    pub fn ip(&self, batch: &str) -> anyhow::Result<()> {
        ip(&["-netns", &self.name, "-batch", "-"], batch).with_context(|| format!("in `{}`", self.name))
    }

    /// Sets `/proc/sys/net/<key>` inside the namespace.
    ///
    /// # Errors
    /// Fails if the kernel has no such key or refuses the value.
    pub fn sysctl(&self, key: &str, value: &str) -> anyhow::Result<()> {
        self.run(|| {
            let path = format!("/proc/sys/net/{key}");
            fs::write(&path, value).with_context(|| format!("cannot write `{value}` to `{path}`"))
        })
    }

    /// Lets the namespace forward IPv4 and IPv6.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    pub fn forwarding(&self) -> anyhow::Result<()> {
        self.sysctl("ipv4/ip_forward", "1")?;
        self.sysctl("ipv6/conf/all/forwarding", "1")
    }

    /// Moves the calling thread into the namespace.
    pub fn enter(&self) -> anyhow::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        setns(file.as_ref(), CloneFlags::CLONE_NEWNET).with_context(|| format!("cannot enter `{}`", self.name))
    }
}

pub fn path_of(name: &str) -> PathBuf {
    PathBuf::from("/run/netns").join(name)
}

fn ip(args: &[&str], input: &str) -> anyhow::Result<()> {
    let mut child = Command::new("ip")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run `ip` (package `iproute2`)")?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).context("cannot hand `ip` its commands")?;
    }
    let output = child.wait_with_output().context("cannot wait for `ip`")?;
    anyhow::ensure!(
        output.status.success(),
        "`ip {}` failed: {}{}",
        args.join(" "),
        String::from_utf8_lossy(&output.stderr).trim(),
        if input.is_empty() { String::new() } else { format!("; its commands were\n{input}") },
    );
    Ok(())
}
