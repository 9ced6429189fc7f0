//! Reads the resources of this process and of its workers from `/proc`, at each scrape. Metrics are written elsewhere.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path, time::Duration};

use nix::sys::resource::{Resource, getrlimit};
use rustix::param::{clock_ticks_per_second, page_size};

/// Prefix of the thread names of workers; the number follows.
const WORKER: &str = "worker-";

/// Resources of this process. The names of the metrics are those of Prometheus' client libraries.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::daemon::admin) struct ProcessState {
    /// User and system time of all threads.
    pub(in crate::daemon::admin) cpu: Duration,
    /// Start, as time since 1970.
    pub(in crate::daemon::admin) started: Duration,
    pub(in crate::daemon::admin) resident_bytes: u64,
    pub(in crate::daemon::admin) virtual_bytes: u64,
    pub(in crate::daemon::admin) open_fds: u64,
    pub(in crate::daemon::admin) max_fds: u64,
    /// CPU time of each running worker, by its number in ascending order.
    pub(in crate::daemon::admin) workers: Vec<(usize, Duration)>,
}

/// A thread of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::daemon::admin) struct ThreadState {
    pub(in crate::daemon::admin) name: String,
    /// User and system time.
    pub(in crate::daemon::admin) cpu: Duration,
    /// CPU on which it ran last; `None` if the kernel does not say.
    pub(in crate::daemon::admin) processor: Option<u64>,
}

/// Contents of a file `stat` below `/proc` (proc_pid_stat(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stat<'s> {
    name: &'s str,
    ticks: u64,
    /// Ticks from the boot to the start.
    started: u64,
    virtual_bytes: u64,
    resident_pages: u64,
    processor: Option<u64>,
}

impl ProcessState {
    /// Returns `None` where `/proc` is not mounted, or hidden.
    pub(in crate::daemon::admin) fn read() -> Option<Self> {
        let text = fs::read_to_string("/proc/self/stat").ok()?;
        let Stat { name: _, ticks, started, virtual_bytes, resident_pages, processor: _ } = Stat::parse(&text)?;
        let booted = boot_time(&fs::read_to_string("/proc/stat").ok()?)?;
        let (max_fds, _) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
        Some(Self {
            cpu: time(ticks),
            started: Duration::from_secs(booted) + time(started),
            resident_bytes: resident_pages * page_size() as u64,
            virtual_bytes,
            open_fds: open_fds(Path::new("/proc/self/fd"))?,
            max_fds,
            workers: workers(),
        })
    }
}

impl<'s> Stat<'s> {
    fn parse(text: &'s str) -> Option<Self> {
        // The name may contain spaces and parentheses.
        let (name, fields) = text.rsplit_once(')')?;
        let name = name.split_once('(')?.1;
        let fields: Vec<_> = fields.split_ascii_whitespace().collect();
        // The page numbers fields from 1, and the state is field 3.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            name,
            ticks: field(14)? + field(15)?,
            started: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
            processor: field(39),
        })
    }

    /// Returns the number of the worker whose thread this is.
    fn worker(&self) -> Option<usize> {
        self.name.strip_prefix(WORKER)?.parse().ok()
    }
}

fn workers() -> Vec<(usize, Duration)> {
    let mut times = each_thread(|stat| Some((stat.worker()?, time(stat.ticks))));
    times.sort_unstable();
    times
}

/// Returns the threads of this process; none where `/proc` is not mounted, or hidden.
pub(in crate::daemon::admin) fn threads() -> Vec<ThreadState> {
    each_thread(|Stat { name, ticks, processor, .. }| {
        Some(ThreadState { name: (*name).to_owned(), cpu: time(*ticks), processor: *processor })
    })
}

fn each_thread<T>(of: impl Fn(&Stat<'_>) -> Option<T>) -> Vec<T> {
    // A thread may end while the directory is read.
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().filter_map(Result::ok);
    let states = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("stat")).ok()?;
        of(&Stat::parse(&text)?)
    });
    states.collect()
}

/// Returns the time of the boot in seconds since 1970.
fn boot_time(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// Returns the number of entries of `directory`. The kernel knows it from Linux 6.2 on (commit f1f1f2569901); before,
/// all entries are read.
fn open_fds(directory: &Path) -> Option<u64> {
    match fs::metadata(directory).ok()?.size() {
        // The directory is open while it is read.
        0 => Some((fs::read_dir(directory).ok()?.count() as u64).saturating_sub(1)),
        count => Some(count),
    }
}

fn time(ticks: u64) -> Duration {
    Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        sync::mpsc,
        thread,
        time::{Instant, SystemTime},
    };

    use super::*;

    #[test]
    fn a_name_may_contain_anything() {
        let text = "7 (worker-3) x) R 1 1 1 0 -1 0 0 0 0 0 11 22 0 0 20 0 1 0 4321 1048576 99 184467";
        let stat = Stat::parse(text).expect("complete");
        assert_eq!(
            stat,
            Stat {
                name: "worker-3) x",
                ticks: 33,
                started: 4321,
                virtual_bytes: 1_048_576,
                resident_pages: 99,
                processor: None
            }
        );
        assert_eq!(stat.worker(), None);
        assert_eq!(Stat { name: "worker-3", ..stat }.worker(), Some(3));
        for text in ["", "7 (a) R 1", "7 a R"] {
            assert_eq!(Stat::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_own_process_is_described() {
        let (end, ended) = mpsc::channel::<()>();
        let worker = thread::Builder::new().name("worker-41".into()).spawn(move || ended.recv().is_err());
        let deadline = Instant::now() + Duration::from_secs(30);
        let before = loop {
            let state = ProcessState::read().expect("/proc is mounted");
            // The thread sets its name itself.
            if state.cpu >= Duration::from_millis(20) && state.workers.iter().any(|(number, _)| *number == 41) {
                break state;
            }
            assert!(Instant::now() < deadline, "this loop uses CPU time, and the thread lives: {state:?}");
        };
        let files: Vec<_> = (0..20).map(|_| File::open("/dev/null").expect("it exists")).collect();
        let after = ProcessState::read().expect("/proc is mounted");
        // Other tests of this process open and close files, too.
        assert!(after.open_fds >= 20 && after.max_fds >= after.open_fds, "{after:?}");
        drop(files);
        assert!(after.cpu >= before.cpu, "{before:?} {after:?}");
        assert!(after.resident_bytes > 100_000 && after.virtual_bytes > after.resident_bytes, "{after:?}");
        let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + after.started);
        assert!(age.expect("in the past") < Duration::from_secs(3600), "{after:?}");
        let thread = threads().into_iter().find(|thread| thread.name == "worker-41").expect("it lives");
        assert!(thread.processor.is_some_and(|processor| processor < 4096), "{thread:?}");
        drop(end);
        assert!(worker.expect("a thread").join().expect("no panic"));
    }
}
