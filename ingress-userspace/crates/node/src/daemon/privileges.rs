//! Drops privileges that are no longer needed. Capabilities belong to threads, and a new thread inherits those of its
//! creator. Threads with fewer capabilities are therefore started from a thread that has fewer.
//!
//! | thread | keeps | for |
//! |---|---|---|
//! | main | what [`MAIN`] names | attaching to interfaces, addresses, ports and slots |
//! | control | `DAC_READ_SEARCH`, `DAC_OVERRIDE`, `BPF` | manifests of other users; numbering hosts, before Linux 5.19 |
//! | api | nothing | it listens on a port above 1023, and its files belong to this process's user |
//! | workers | nothing | sockets and maps that are open already need no capability |
//!
//! An attacker in a worker still runs as this process's user and shares its memory. Dropping capabilities limits the
//! first step, but is no isolation boundary.

use std::{io, thread};

use anyhow::Context as _;
use nix::sys::{
    prctl,
    resource::{Resource, setrlimit},
};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};
use tracing::{info, warn};

/// Capabilities that the main thread keeps. `SYS_ADMIN` replaces `BPF` and `PERFMON` in containers that have only that.
const MAIN: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::NET_BIND_SERVICE);
const CONTROL: CapabilitySet =
    CapabilitySet::DAC_READ_SEARCH.union(CapabilitySet::DAC_OVERRIDE).union(CapabilitySet::BPF);

/// Protects private keys in memory: no crash writes them to a core file. Other processes of this user without
/// `CAP_SYS_PTRACE` cannot read them from `/proc` or attach to this process.
///
/// # Errors
/// Fails if the kernel refuses.
pub(crate) fn hide_memory() -> anyhow::Result<()> {
    // The limit alone has no effect if `core_pattern` names a program (core(5)).
    prctl::set_dumpable(false).context("cannot make the process undumpable")?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0).context("cannot forbid core files")
}

/// Runs `start` without any capability. Threads started by it have none either, and cannot gain any by running another
/// program. `works` returns whether maps can be used; if they cannot, the threads keep `CAP_BPF`.
///
/// Kernels before 5.19 require it for every bpf(2) call if `kernel.unprivileged_bpf_disabled` is set (kernel commit
/// c8644cd0efe7).
///
/// # Errors
/// Fails if the kernel refuses to drop capabilities, or a thread cannot be started.
pub(crate) fn without<T: Send>(works: impl Fn() -> bool + Send, start: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
    thread::scope(|scope| {
        let starter = thread::Builder::new().name("starter".into()).spawn_scoped(scope, move || {
            set_no_new_privs(true).context("cannot set no_new_privs")?;
            let held = capabilities(None).context("cannot read the capabilities of this thread")?.permitted;
            // Only removed from the effective set at first, so that they can be restored.
            set(CapabilitySet::empty(), held).context("cannot drop capabilities for now")?;
            let kept = if works() { CapabilitySet::empty() } else { held & CapabilitySet::BPF };
            set(kept, kept).context("cannot drop capabilities")?;
            if kept.is_empty() {
                info!("workers run without capabilities");
            } else {
                warn!("workers keep CAP_BPF: this kernel requires it for every use of a map (5.19 does not)");
            }
            anyhow::Ok(start())
        });
        let starter = starter.context("cannot start a thread")?;
        starter.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Drops, on this thread, all capabilities that the main thread does not need after its start.
pub(crate) fn keep_for_main() {
    keep(MAIN, "main");
}

/// Drops, on this thread, all capabilities not needed to read the configuration.
pub(crate) fn keep_for_control() {
    keep(CONTROL, "control");
}

/// Drops all capabilities on this thread, which serves the API to remote clients.
pub(crate) fn keep_for_api() {
    keep(CapabilitySet::empty(), "api");
}

fn keep(wanted: CapabilitySet, thread: &'static str) {
    let given_up = capabilities(None).map_err(io::Error::from).and_then(|CapabilitySets { permitted, .. }| {
        // Kept only as a replacement for others: a thread with it is nearly root.
        let stand_in = wanted.contains(CapabilitySet::BPF) && !permitted.contains(CapabilitySet::BPF);
        let wanted = if stand_in { wanted | CapabilitySet::SYS_ADMIN } else { wanted };
        let kept = permitted & wanted;
        set(kept, kept)
    });
    match given_up {
        Ok(()) => {}
        Err(error) => warn!(%error, thread, "cannot drop capabilities; continuing with them"),
    }
}

fn set(effective: CapabilitySet, permitted: CapabilitySet) -> io::Result<()> {
    let sets = CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_with_keys_write_no_core_dumps() {
        // Applies to all later tests of this process, which need no access to its memory beyond their own.
        hide_memory().expect("the kernel allows to have less");
        assert!(!prctl::get_dumpable().expect("readable"));
        assert_eq!(nix::sys::resource::getrlimit(Resource::RLIMIT_CORE).expect("readable"), (0, 0));
    }

    fn permitted() -> CapabilitySet {
        capabilities(None).expect("readable").permitted
    }

    #[test]
    fn threads_inherit_an_empty_capability_set() {
        let own = permitted();
        let seen = without(|| true, || thread::spawn(permitted).join().expect("no panic")).expect("starts");
        assert_eq!(seen, CapabilitySet::empty());
        assert_eq!(permitted(), own, "the caller keeps its own");
    }

    #[test]
    fn cap_bpf_stays_if_maps_need_it() {
        let own = permitted() & CapabilitySet::BPF;
        assert_eq!(without(|| false, permitted).expect("starts"), own);
    }

    #[test]
    fn a_thread_keeps_only_the_capabilities_it_needs() {
        for (keep, needs) in [(keep_for_main as fn(), MAIN), (keep_for_control, CONTROL)] {
            let kept = thread::spawn(move || {
                let before = permitted();
                keep();
                (before, permitted())
            });
            let (before, after) = kept.join().expect("no panic");
            assert_eq!(after, before & needs);
        }
    }
}
