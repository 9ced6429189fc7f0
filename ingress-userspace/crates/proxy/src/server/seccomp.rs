//! System call filters (seccomp(2)) for threads that read untrusted input: each may make the calls of its work, and no
//! others. An attacker who takes over such a thread cannot execute a program, trace a process or mount a file system:
//! the first attempt ends the process, and kubelet starts another. Opening a file fails with an error.
//!
//! Threads started by such a thread inherit the filter, which cannot be removed.

use std::{collections::BTreeMap, env::consts::ARCH, fmt, io, num::NonZeroUsize, process, thread};

use libc::{c_long, *};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

/// Action on a system call outside the filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Seccomp {
    /// The process ends by SIGSYS, and the kernel's log names the call.
    #[default]
    Kill,
    /// The kernel's log names the call, which is then made. Opening a file is logged in the same way.
    Log,
    /// No filter is installed.
    Off,
}

/// The compiled filters.
#[derive(Clone)]
pub(crate) struct WorkerFilter(Vec<BpfProgram>);

/// Allowed with any arguments.
const ALLOWED: &[c_long] = &[
    // Open descriptors and incoming data.
    SYS_read,
    SYS_readv,
    SYS_write,
    SYS_writev,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_recvmmsg,
    SYS_sendto,
    SYS_sendmsg,
    SYS_sendmmsg,
    SYS_splice,
    SYS_accept4,
    SYS_bind,
    SYS_connect,
    SYS_listen,
    SYS_shutdown,
    SYS_getsockname,
    SYS_getpeername,
    SYS_getsockopt,
    SYS_setsockopt,
    SYS_pipe2,
    SYS_fcntl,
    SYS_close,
    // Waiting.
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_epoll_pwait2,
    SYS_eventfd2,
    SYS_ppoll,
    SYS_futex,
    SYS_nanosleep,
    SYS_clock_nanosleep,
    SYS_sched_yield,
    SYS_restart_syscall,
    // Time and randomness, where the vDSO (vdso(7)) lacks them.
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_gettimeofday,
    SYS_getrandom,
    // Memory, except for the calls that map it.
    SYS_brk,
    SYS_munmap,
    SYS_mremap,
    SYS_madvise,
    // Threads of the runtime: start, placement, end.
    SYS_clone3,
    SYS_set_robust_list,
    SYS_rseq,
    SYS_sched_getaffinity,
    SYS_getcpu,
    SYS_sigaltstack,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_gettid,
    SYS_getpid,
    // The kernel's version, which decides about segmentation offload for QUIC.
    SYS_uname,
    SYS_exit,
    SYS_exit_group,
];

/// Likewise, older calls that only this processor has.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[c_long] = &[SYS_epoll_wait, SYS_poll];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[c_long] = &[];

/// Calls that open a file or reveal something about one. They are refused with an error that libraries tolerate,
/// because libraries open files for a backtrace, or to learn about the machine. Calls on a descriptor (fstat, fstatfs)
/// could not open a file, but are refused like the others: no part of a worker needs them, and glibc turns fstat into
/// newfstatat.
const FILES: &[c_long] = &[
    SYS_openat,
    SYS_openat2,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_newfstatat,
    SYS_fstat,
    SYS_statx,
    SYS_statfs,
    SYS_fstatfs,
    SYS_readlinkat,
    SYS_getdents64,
    SYS_getcwd,
];

/// Likewise, older calls that only this processor has.
#[cfg(target_arch = "x86_64")]
const FILES_HERE: &[c_long] = &[SYS_open, SYS_creat, SYS_access, SYS_stat, SYS_lstat, SYS_readlink, SYS_getdents];
#[cfg(not(target_arch = "x86_64"))]
const FILES_HERE: &[c_long] = &[];

/// Commands of bpf(2) that access the entries of a map (linux/bpf.h). None creates or loads an object.
const BPF_MAP_LOOKUP_ELEM: u64 = 1;
const BPF_MAP_UPDATE_ELEM: u64 = 2;
const BPF_MAP_DELETE_ELEM: u64 = 3;

/// Operation of prctl(2) that names memory, used by allocators (linux/prctl.h). Not every C library has the constant.
const PR_SET_VMA: u64 = 0x5356_4d41;

// === impl WorkerFilter ===

impl WorkerFilter {
    /// Compiles the filters; `None` if they are switched off.
    pub(crate) fn new(seccomp: Seccomp) -> Result<Option<Self>, BackendError> {
        let otherwise = match seccomp {
            Seccomp::Off => return Ok(None),
            Seccomp::Kill => SeccompAction::KillProcess,
            Seccomp::Log => SeccompAction::Log,
        };
        let arch = ARCH.try_into()?;
        // The strictest of several filters wins, so this one must allow the calls that another one refuses.
        let allowed = SeccompFilter::new(rules(seccomp)?, otherwise, SeccompAction::Allow, arch)?;
        let refused = |calls: &[c_long], error: c_int| refused(calls, error, arch);
        let mut programs = vec![
            // The C library then falls back to clone(2), which has its flags in arguments rather than in memory.
            refused(&[SYS_clone3], ENOSYS)?,
            allowed.try_into()?,
        ];
        if seccomp == Seccomp::Kill {
            programs.insert(0, refused(&[FILES, FILES_HERE].concat(), EACCES)?);
        }
        Ok(Some(Self(programs)))
    }

    /// Binds this thread, and all threads that it starts from now on, for good.
    pub(crate) fn apply(&self) -> Result<(), seccompiler::Error> {
        let Self(programs) = self;
        programs.iter().try_for_each(|program| apply_filter(program))
    }

    /// Tries the filter on a thread that then ends, to find out whether the kernel and the container allow it.
    ///
    /// # Errors
    /// Fails if they do not, or if no thread can be started.
    pub(crate) fn try_out(&self) -> io::Result<()> {
        let filter = self.clone();
        let thread = thread::Builder::new().name("seccomp".to_owned()).spawn(move || filter.apply())?;
        match thread.join() {
            Ok(applied) => applied.map_err(io::Error::other),
            Err(_panic) => Err(io::Error::other("the thread that tried has panicked")),
        }
    }

    /// Applies the filter, if there is one. If the kernel or the container does not support filters, this is logged
    /// once per thread.
    pub(crate) fn bind(filter: Option<&Self>) {
        if let Some(filter) = filter
            && let Err(error) = filter.apply()
        {
            tracing::warn!(
                %error,
                "cannot filter the system calls of this thread; going on without (`--worker-seccomp off` says so, too)"
            );
        }
    }
}

impl fmt::Debug for WorkerFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(programs) = self;
        let instructions: usize = programs.iter().map(Vec::len).sum();
        f.debug_struct("Filter").field("instructions", &NonZeroUsize::new(instructions)).finish()
    }
}

/// Compiles a filter that fails these calls with an error and ignores others.
fn refused(calls: &[c_long], error: c_int, arch: TargetArch) -> Result<BpfProgram, BackendError> {
    let rules = calls.iter().map(|call| (*call, Vec::new())).collect();
    let error = SeccompAction::Errno(error.unsigned_abs());
    SeccompFilter::new(rules, SeccompAction::Allow, error, arch)?.try_into()
}

/// Returns the allowed calls, with their allowed arguments.
fn rules(seccomp: Seccomp) -> Result<BTreeMap<c_long, Vec<SeccompRule>>, BackendError> {
    let mut calls = [ALLOWED, ALLOWED_HERE].concat();
    // These calls are refused with an error by a filter of their own. To be logged, they must not be allowed here.
    if seccomp == Seccomp::Kill {
        calls.extend([FILES, FILES_HERE].concat());
    }
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> = calls.into_iter().map(|call| (call, Vec::new())).collect();
    let no_namespaces =
        CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWCGROUP;
    let thread = number(CLONE_VM | CLONE_THREAD);
    let with_arguments = [
        // Threads, but no processes.
        (SYS_clone, vec![masked(0, thread | number(no_namespaces), thread)?]),
        // Memory that is not executable.
        (SYS_mmap, vec![masked(2, number(PROT_EXEC), 0)?]),
        (SYS_mprotect, vec![masked(2, number(PROT_EXEC), 0)?]),
        (SYS_socket, any_of(0, [number(AF_INET), number(AF_INET6)])?),
        // Only with itself, as the runtime requests it.
        (SYS_socketpair, any_of(0, [number(AF_UNIX)])?),
        (SYS_ioctl, any_of(1, [number(FIONBIO), number(FIONREAD), number(FIOCLEX), number(TIOCOUTQ)])?),
        (SYS_prctl, any_of(0, [number(PR_SET_NAME), PR_SET_VMA])?),
        (SYS_bpf, any_of(0, [BPF_MAP_LOOKUP_ELEM, BPF_MAP_UPDATE_ELEM, BPF_MAP_DELETE_ELEM])?),
        // abort(3): a signal to this process and to no other.
        (SYS_tgkill, any_of(0, [process::id().into()])?),
    ];
    rules.extend(with_arguments);
    Ok(rules)
}

/// Allows any of these values of an argument.
fn any_of<const N: usize>(argument: u8, values: [u64; N]) -> Result<Vec<SeccompRule>, BackendError> {
    let rule = |value| SeccompRule::new(vec![SeccompCondition::new(argument, Dword, SeccompCmpOp::Eq, value)?]);
    values.into_iter().map(rule).collect()
}

/// Allows this value of the argument's bits in `mask`.
fn masked(argument: u8, mask: u64, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, Dword, SeccompCmpOp::MaskedEq(mask), value)?])
}

/// Converts a constant of the C library, which has different types in different libraries.
fn number(constant: impl TryInto<u64>) -> u64 {
    constant.try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream, UdpSocket},
        os::unix::{net::UnixStream, process::ExitStatusExt as _},
        process::Command,
    };

    use nix::{
        mount::{MsFlags, mount},
        sched::{CloneFlags, unshare},
        sys::{prctl, ptrace, signal::kill, stat, statfs},
        unistd::{Pid, getuid, setuid},
    };
    use socket2::{Domain, Socket, Type};

    use super::*;
    use ingress_panics::testing::{in_own_process, role};

    /// A name, and a function that returns whether the deed succeeds.
    type Deed = (&'static str, fn() -> bool);

    /// Actions of an attacker who has taken over a worker. It does not matter whether they would succeed without a
    /// filter, because the filter comes before the kernel's own checks.
    const DEEDS: [Deed; 10] = [
        ("execute", || Command::new("/bin/true").status().is_ok()),
        ("trace", || ptrace::getevent(Pid::parent()).is_ok()),
        ("kill", || kill(Pid::parent(), None).is_ok()),
        ("mount", || mount(None::<&str>, "/nowhere", None::<&str>, MsFlags::empty(), None::<&str>).is_ok()),
        ("unshare", || unshare(CloneFlags::CLONE_NEWUSER).is_ok()),
        ("dump", || prctl::set_dumpable(true).is_ok()),
        ("user", || setuid(getuid()).is_ok()),
        ("local socket", || UnixStream::connect("/nowhere").is_ok()),
        ("netlink", || Socket::new(Domain::from(AF_NETLINK), Type::from(SOCK_RAW), None).is_ok()),
        ("remove", || std::fs::remove_file("/nowhere").is_ok()),
    ];

    /// Runs `work` in a thread bound by the filter, in a process dedicated to that.
    fn bound(seccomp: Seccomp, work: impl FnOnce() + Send + 'static) {
        let filter = WorkerFilter::new(seccomp).expect("compiles").expect("a filter");
        let thread = thread::spawn(move || {
            filter.apply().expect("applies");
            work();
        });
        thread.join().expect("no panic");
    }

    #[test]
    fn a_forbidden_system_call_ends_the_process() {
        const TEST: &str = "server::seccomp::tests::a_forbidden_system_call_ends_the_process";
        if let Some(role) = role() {
            let (seccomp, name) = match role.strip_suffix(", logged") {
                Some(name) => (Seccomp::Log, name.to_owned()),
                None => (Seccomp::Kill, role),
            };
            let (_, deed) = DEEDS.into_iter().find(|(deed, _)| *deed == name).expect("a deed");
            return bound(seccomp, move || {
                let _done = deed();
            });
        }
        for (deed, _) in DEEDS {
            assert_eq!(in_own_process(TEST, deed).signal(), Some(SIGSYS), "{deed}");
            assert!(in_own_process(TEST, &format!("{deed}, logged")).success(), "{deed}");
        }
    }

    #[test]
    fn a_filtered_thread_works_and_opens_no_file() {
        const TEST: &str = "server::seccomp::tests::a_filtered_thread_works_and_opens_no_file";
        if role().is_some() {
            return bound(Seccomp::Kill, work);
        }
        assert!(in_own_process(TEST, "bound").success());
        assert!(WorkerFilter::new(Seccomp::Off).expect("nothing to compile").is_none());
    }

    fn work() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bound");
        let mut client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        let (mut server, _) = listener.accept().expect("accepted");
        client.set_nodelay(true).expect("an option");
        client.write_all(b"x").expect("sent");
        server.read_exact(&mut [0]).expect("received");
        UdpSocket::bind(("::1", 0)).expect("bound");
        // More than an allocator has in stock.
        assert_eq!(vec![1_u8; 64 << 20].iter().rev().take(9).count(), 9);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let computed = runtime.block_on(async { tokio::task::spawn_blocking(|| 7).await });
        assert_eq!(computed.expect("no panic"), 7);
        // A thread that it starts cannot open files either.
        for path in ["/proc/self/status", "/etc/passwd"] {
            let opened = thread::spawn(move || File::open(path)).join().expect("no panic");
            assert_eq!(opened.expect_err("refused").kind(), io::ErrorKind::PermissionDenied, "{path}");
        }
        assert!(File::create("/tmp/made-by-a-worker").is_err());
        let denied = Some(nix::errno::Errno::EACCES);
        assert_eq!(stat::fstat(&listener).err(), denied);
        assert_eq!(statfs::statfs("/proc").err(), denied);
        assert_eq!(statfs::fstatfs(&listener).err(), denied);
        // A panic costs a task here, too, and is logged.
        assert!(thread::spawn(|| panic!("provoked")).join().is_err());
    }

    #[test]
    fn file_access_is_refused_or_logged_and_never_allowed() {
        for call in [FILES, FILES_HERE].concat() {
            assert!(![ALLOWED, ALLOWED_HERE].concat().contains(&call), "{call}");
            // The strictest of several filters wins: the other one answers with an error.
            assert!(rules(Seccomp::Kill).expect("valid").contains_key(&call), "{call} would end the process");
            assert!(!rules(Seccomp::Log).expect("valid").contains_key(&call), "{call} would not be logged");
        }
    }

    #[test]
    fn a_trial_detects_unavailable_filters() {
        const TEST: &str = "server::seccomp::tests::a_trial_detects_unavailable_filters";
        let filter = WorkerFilter::new(Seccomp::Kill).expect("compiles").expect("a filter");
        if role().is_some() {
            filter.try_out().expect("this process may");
            // Simulates a container with a filter of its own that forbids this.
            let forbidden = refused(&[SYS_seccomp, SYS_prctl], EPERM, ARCH.try_into().expect("known")).expect("valid");
            apply_filter(&forbidden).expect("applies");
            assert!(filter.try_out().is_err());
            // The failure is tolerated unless a filter was requested.
            return WorkerFilter::bind(Some(&filter));
        }
        assert!(in_own_process(TEST, "bound").success());
    }
}
