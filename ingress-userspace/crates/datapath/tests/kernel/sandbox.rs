//! A sandbox for one test: namespaces and a BPF file system of its own, and a deadline.

use std::{
    ffi::CString,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc,
    thread,
    time::Duration,
};

use aya::maps::MapData;
use ingress_datapath::{ClientShare, Interfaces, Missing, Options, XdpMode, probe};
use ingress_lab::capability::skipped;
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use xtask_tools::process::is_required;

/// A load that the verifier gives up on takes up to 80 s.
const DEADLINE: Duration = Duration::from_secs(600);

pub(crate) struct Sandbox {
    directory: tempfile::TempDir,
}

/// Runs `test` in a sandbox, or prints why it cannot.
#[track_caller]
pub(crate) fn sandboxed(test: impl FnOnce(&Sandbox) + Send + 'static) {
    let missing: Vec<Missing> =
        probe(Path::new("/")).into_iter().filter(|missing| !matches!(missing, Missing::Bpffs(_))).collect();
    if !missing.is_empty() {
        let why = missing.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        assert!(!is_required("REQUIRE_KERNEL"), "REQUIRE_KERNEL=1, but: {why}");
        skipped("tests/kernel", &why);
        return;
    }
    let (done, wait) = mpsc::channel();
    let runner = thread::spawn(move || {
        test(&Sandbox::new());
        done.send(()).expect("the test still waits");
    });
    match wait.recv_timeout(DEADLINE) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("not done within {DEADLINE:?}"),
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {
            if let Err(panic) = runner.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

impl Sandbox {
    fn new() -> Self {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET).expect("own namespaces");
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("private mounts");
        let directory = tempfile::tempdir().expect("a directory");
        mount(Some("bpf"), directory.path(), Some("bpf"), MsFlags::empty(), none).expect("a BPF file system");
        ip("link set lo up");
        Self { directory }
    }

    pub(crate) fn bpffs(&self) -> PathBuf {
        self.directory.path().join("xdp-ingress")
    }

    /// Opens the map `name` that is pinned in this sandbox.
    #[track_caller]
    pub(crate) fn map(&self, name: &str) -> MapData {
        MapData::from_pin(self.bpffs().join("v1/maps").join(name)).expect("pinned")
    }

    /// Options for pins in this sandbox.
    pub(crate) fn options(&self, interfaces: &[&str]) -> Options {
        Options {
            bpffs: self.bpffs(),
            interfaces: named(interfaces),
            xdp_mode: XdpMode::Auto,
            tc_hook: None,
            lookup: true,
            rewrites: false,
            initial_share: ClientShare::ALL,
            syn_cookies: None,
            host_capacity: 64,
            debug_log: false,
            measure: false,
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // The rest goes with the namespaces when the thread ends.
        nix::mount::umount2(self.directory.path(), nix::mount::MntFlags::MNT_DETACH).expect("unmounted");
    }
}

/// Interfaces of these names, and none above them.
pub(crate) fn named(names: &[&str]) -> Interfaces {
    Interfaces { names: names.iter().map(|&name| name.to_owned()).collect(), above: Vec::new() }
}

/// Detaches a pinned link, as `bpftool link detach` does. The pin stays.
#[track_caller]
pub(crate) fn detach(sandbox: &Sandbox, name: &str) {
    const LINK_DETACH: libc::c_int = 34;
    bpf(LINK_DETACH, u64::from(open_link(sandbox, name).as_raw_fd().cast_unsigned()));
}

/// Opens a pinned link. The kernel keeps it, with its program attached, until it is closed or detached.
#[track_caller]
pub(crate) fn open_link(sandbox: &Sandbox, name: &str) -> OwnedFd {
    const OBJ_GET: libc::c_int = 7;
    let path = sandbox.bpffs().join("v1/links").join(name);
    let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
    let link = i32::try_from(bpf(OBJ_GET, path.as_ptr().addr() as u64)).expect("a descriptor");
    // SAFETY: the descriptor is new.
    unsafe { OwnedFd::from_raw_fd(link) }
}

/// Runs a `command` with attributes that begin with the number `first`, and are 0 after it.
#[track_caller]
fn bpf(command: libc::c_int, first: u64) -> libc::c_long {
    let attributes = [first, 0];
    // SAFETY: the kernel reads so many bytes of the attributes, and for `OBJ_GET` the path that they point to.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(&attributes)) };
    assert!(result >= 0, "command {command}: {}", std::io::Error::last_os_error());
    result
}

/// Runs `ip` in this thread's namespace.
#[track_caller]
pub(crate) fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("`ip` of iproute2 runs");
    assert!(status.success(), "ip {arguments}: {status}");
}
