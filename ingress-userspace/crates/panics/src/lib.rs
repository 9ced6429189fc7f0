//! Containment of panics. A panic ends its task: a connection, a stream, a session or a check. The runtime drops that
//! task and goes on. A panic outside of a task, or in a [`vital`] one, would leave a process that looks healthy and
//! does part of its work. Repeated panics are not accidents either. In both cases the process ends and is restarted.

#![forbid(unsafe_code)]

#[cfg(any(test, feature = "testing"))]
pub mod testing;

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

/// Maximum number of panics within [`WINDOW`]; more end the process.
const MAX: usize = 10;
const WINDOW: Duration = Duration::from_secs(60);

static COUNT: AtomicU64 = AtomicU64::new(0);
static RECENT: Mutex<Recent> = Mutex::new(Recent::NONE);

/// Times of the last panics, as a ring buffer.
struct Recent {
    times: [Option<Instant>; MAX],
    /// Index of the oldest entry.
    oldest: usize,
}

/// Guard that ends the process when a panic drops it.
struct EndsProcess;

/// Installs a hook that counts and logs every panic, and ends the process if necessary.
pub fn install() {
    panic::set_hook(Box::new(react));
}

/// Returns the number of panics since [`install`].
#[must_use]
pub fn count() -> u64 {
    COUNT.load(Relaxed)
}

/// Runs `task`, on which others depend: a panic in it ends the process.
pub async fn vital<F: Future>(task: F) -> F::Output {
    let _ends = EndsProcess;
    task.await
}

fn react(info: &PanicHookInfo<'_>) {
    COUNT.fetch_add(1, Relaxed);
    let thread = thread::current();
    let (thread, at) = (thread.name().unwrap_or("unnamed"), info.location().map(tracing::field::display));
    // A formatted message may quote data of a client or a Secret.
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

/// Aborts at once: other threads may wait forever for a dead task, and the successor waits for this process to end.
fn end(why: &'static str) -> ! {
    tracing::error!("{why}");
    process::abort()
}

// === impl Recent ===

impl Recent {
    const NONE: Self = Self { times: [None; MAX], oldest: 0 };

    /// Adds a panic; returns whether there are too many.
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

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::{
        testing::{in_own_process, install_for_test, role},
        *,
    };

    const SIGABRT: i32 = 6;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime")
    }

    async fn task_that_panics() {
        let ended = tokio::spawn(async { panic!("a task") }).await;
        assert!(ended.is_err_and(|error| error.is_panic()));
    }

    #[test]
    fn panics_are_limited_within_a_window() {
        let (mut recent, start) = (Recent::NONE, Instant::now());
        for second in 0..10 {
            assert!(!recent.add(start + Duration::from_secs(second)), "{second}");
        }
        assert!(!recent.add(start + Duration::from_secs(60)), "the first is forgotten");
        assert!(recent.add(start + Duration::from_secs(60)), "the second is not");
    }

    fn run_panicking_tasks(tasks: u64) {
        install_for_test();
        runtime().block_on(async {
            for number in 1..=tasks {
                task_that_panics().await;
                assert_eq!(count(), number);
            }
        });
    }

    #[test]
    #[should_panic(expected = "no test `tests::a_missing_test`")]
    fn a_missing_test_has_no_process() {
        in_own_process("tests::a_missing_test", "any");
    }

    #[test]
    fn panics_of_tasks_are_survived_until_they_repeat() {
        const TEST: &str = "tests::panics_of_tasks_are_survived_until_they_repeat";
        if let Some(tasks) = role() {
            return run_panicking_tasks(tasks.parse().expect("a number of tasks"));
        }
        assert!(in_own_process(TEST, "10").success());
        assert_eq!(in_own_process(TEST, "11").signal(), Some(SIGABRT));
    }

    #[test]
    fn panics_of_threads_and_vital_tasks_end_the_process() {
        const TEST: &str = "tests::panics_of_threads_and_vital_tasks_end_the_process";
        match role().as_deref() {
            Some("thread") => {
                install_for_test();
                assert!(thread::spawn(|| panic!("a thread")).join().is_err());
            }
            Some(_) => {
                install_for_test();
                runtime().block_on(async {
                    let ended = tokio::spawn(vital(async { panic!("a task") })).await;
                    assert!(ended.is_err());
                });
            }
            None => {
                for role in ["thread", "vital task"] {
                    assert_eq!(in_own_process(TEST, role).signal(), Some(SIGABRT), "{role}");
                }
            }
        }
    }
}
