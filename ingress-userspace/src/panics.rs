//! What a panic costs: the task in which it happens, which is a connection, a stream, a session or a check. The runtime
//! drops that task and goes on. A panic outside of a task, or in a [`vital`] one, would leave a process that looks well and
//! does part of its work, and panics that repeat are no accident: both end the process, which is then started anew.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    panic::{self, PanicHookInfo},
    process,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// More panics than these within [`WINDOW`] end the process.
const MAX: usize = 10;
const WINDOW: Duration = Duration::from_secs(60);

static COUNT: AtomicU64 = AtomicU64::new(0);
static RECENT: Mutex<Recent> = Mutex::new(Recent::NONE);

/// The times of the last panics.
struct Recent {
    times: [Option<Instant>; MAX],
    /// Where the oldest is.
    oldest: usize,
}

/// Ends the process when it is dropped by a panic.
struct EndsProcess;

/// Has every panic of this process counted and logged from now on, and the process ended where that is due.
pub fn install() {
    panic::set_hook(Box::new(react));
}

/// Panics since [`install`].
#[must_use]
pub fn count() -> u64 {
    COUNT.load(Relaxed)
}

/// Does `task`, on which others depend: where it panics, the process ends.
pub async fn vital<F: Future>(task: F) -> F::Output {
    let _ends = EndsProcess;
    task.await
}

fn react(info: &PanicHookInfo<'_>) {
    COUNT.fetch_add(1, Relaxed);
    let thread = thread::current();
    let (thread, at) = (thread.name().unwrap_or("unnamed"), info.location().map(tracing::field::display));
    // A message that was put together may quote what a client, or a Secret, has said.
    let why = info.payload().downcast_ref::<&'static str>().copied().unwrap_or("not shown, as it may quote data");
    tracing::error!(thread, at, why, "panic");
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        tracing::error!("{backtrace}");
    }
    if tokio::task::try_id().is_none() {
        end("a panic outside of a task ends the process");
    }
    if RECENT.lock().unwrap_or_else(PoisonError::into_inner).add(Instant::now()) {
        end("panics repeat and end the process");
    }
}

/// At once: other threads may wait for what does not come any more, and the successor waits for the end.
fn end(why: &'static str) -> ! {
    tracing::error!("{why}");
    process::abort()
}

// === impl Recent ===

impl Recent {
    const NONE: Self = Self { times: [None; MAX], oldest: 0 };

    /// Adds one; says whether there are too many.
    fn add(&mut self, now: Instant) -> bool {
        let Self { times, oldest } = self;
        let before = times[*oldest].replace(now);
        *oldest = (*oldest + 1) % MAX;
        before.is_some_and(|before| now.duration_since(before) < WINDOW)
    }
}

// === impl EndsProcess ===

impl Drop for EndsProcess {
    fn drop(&mut self) {
        if thread::panicking() {
            end("a panic of a task on which others depend ends the process");
        }
    }
}

/// Panics where a request asks for it. No build but that of the tests has it.
#[cfg(all(test, feature = "proxy"))]
#[expect(clippy::panic, reason = "that is what it is for")]
pub(crate) fn provoke(headers: &http::HeaderMap) {
    if headers.contains_key("x-provoke-panic") {
        panic!("provoked");
    }
}

/// As [`install`], for a test that [`in_own_process`] runs: what it says is shown if it fails.
#[cfg(test)]
pub(crate) fn install_for_test() {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    install();
}

/// Runs an ignored test of this binary as a process of its own, as a panic concerns the whole of it.
#[cfg(test)]
pub(crate) fn in_own_process(test: &str) -> process::ExitStatus {
    let own = std::env::current_exe().expect("the program's path");
    process::Command::new(own).args(["--exact", test, "--ignored", "--quiet"]).status().expect("started")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    const SIGABRT: i32 = 6;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime")
    }

    async fn task_that_panics() {
        let ended = tokio::spawn(async { panic!("a task") }).await;
        assert!(ended.is_err_and(|error| error.is_panic()));
    }

    #[test]
    fn panics_are_too_many_within_a_time() {
        let (mut recent, start) = (Recent::NONE, Instant::now());
        for second in 0..10 {
            assert!(!recent.add(start + Duration::from_secs(second)), "{second}");
        }
        assert!(!recent.add(start + Duration::from_secs(60)), "the first is forgotten");
        assert!(recent.add(start + Duration::from_secs(60)), "the second is not");
    }

    #[test]
    fn panics_of_tasks_are_survived_until_they_repeat() {
        assert!(in_own_process("panics::tests::ten_tasks_panic").success());
        assert_eq!(in_own_process("panics::tests::eleven_tasks_panic").signal(), Some(SIGABRT));
    }

    #[test]
    #[ignore = "run by `panics_of_tasks_are_survived_until_they_repeat`"]
    fn ten_tasks_panic() {
        install_for_test();
        runtime().block_on(async {
            for number in 1..=10 {
                task_that_panics().await;
                assert_eq!(count(), number);
            }
        });
    }

    #[test]
    #[ignore = "run by `panics_of_tasks_are_survived_until_they_repeat`"]
    fn eleven_tasks_panic() {
        install_for_test();
        runtime().block_on(async {
            for _ in 1..=11 {
                task_that_panics().await;
            }
        });
    }

    #[test]
    fn a_panic_that_others_would_miss_ends_the_process() {
        for test in ["panics::tests::a_thread_panics", "panics::tests::a_vital_task_panics"] {
            assert_eq!(in_own_process(test).signal(), Some(SIGABRT), "{test}");
        }
    }

    #[test]
    #[ignore = "run by `a_panic_that_others_would_miss_ends_the_process`"]
    fn a_thread_panics() {
        install_for_test();
        assert!(thread::spawn(|| panic!("a thread")).join().is_err());
    }

    #[test]
    #[ignore = "run by `a_panic_that_others_would_miss_ends_the_process`"]
    fn a_vital_task_panics() {
        install_for_test();
        runtime().block_on(async {
            let ended = tokio::spawn(vital(async { panic!("a task") })).await;
            assert!(ended.is_err());
        });
    }
}
