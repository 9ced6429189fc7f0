//! Memory pressure: compares usage with the memory limit of the process's cgroup. This module reads and decides;
//! workers act.
//!
//! | used | action, until usage is 5 points lower |
//! |---|---|
//! | 60 % | connections that buffer more than they may for clients that do not read are closed |
//! | 80 % | connections close after the response in flight, or at once if they buffer most for clients that do not read |
//! | 90 % | new connections are closed |
//! | 95 % | idle connections are closed, those to endpoints too |

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Memory pressure. Each level includes the actions of the levels before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Pressure {
    #[default]
    None,
    /// Connections are not kept alive.
    Tight,
    /// New connections are refused as well.
    Scarce,
    /// Connections without a request in flight are closed as well.
    Critical,
}

/// Memory usage of a cgroup and its limit, in bytes. Usage excludes memory that the kernel can reclaim at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub used: u64,
    /// `None` means unlimited.
    pub limit: Option<u64>,
}

/// The memory files of a cgroup, version 1 or 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    directory: PathBuf,
    files: &'static Files,
}

#[derive(Debug, PartialEq, Eq)]
struct Files {
    limit: &'static str,
    used: &'static str,
    /// Key in `memory.stat` of cached files that were not used lately.
    reclaimable: &'static str,
}

const V2: Files = Files { limit: "memory.max", used: "memory.current", reclaimable: "inactive_file" };
const V1: Files =
    Files { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", reclaimable: "total_inactive_file" };

/// Version 1 expresses "no limit" by a number near 2⁶³.
const NO_LIMIT: u64 = 1 << 60;

// === impl Usage ===

impl Usage {
    const FILLING: u128 = 60;

    /// Returns whether usage is at the first threshold, below the levels of [`Pressure`]; `was` is the previous answer,
    /// for hysteresis.
    pub(crate) fn is_filling(self, was: bool) -> bool {
        let Some(limit) = self.limit.filter(|limit| *limit > 0) else { return false };
        let percent = if was { Self::FILLING - Pressure::SLACK } else { Self::FILLING };
        u128::from(self.used) * 100 >= percent * u128::from(limit)
    }
}

// === impl Pressure ===

impl Pressure {
    const LEVELS: [(Self, u128); 3] = [(Self::Critical, 95), (Self::Scarce, 90), (Self::Tight, 80)];
    /// Percentage points by which usage must fall below a level to leave it, so that the level does not oscillate.
    const SLACK: u128 = 5;

    /// Returns the level that follows this one at the given usage.
    #[must_use]
    pub fn next(self, Usage { used, limit }: Usage) -> Self {
        let Some(limit) = limit.filter(|limit| *limit > 0) else { return Self::None };
        let at_least = |slack: u128| {
            let reached =
                |percent: u128| u128::from(used) * 100 + slack * u128::from(limit) >= percent * u128::from(limit);
            Self::LEVELS.into_iter().find(|(_, percent)| reached(*percent)).map_or(Self::None, |(level, _)| level)
        };
        at_least(0).max(self.min(at_least(Self::SLACK)))
    }

    pub(crate) fn of_level(level: u8) -> Self {
        [Self::None, Self::Tight, Self::Scarce, Self::Critical].get(usize::from(level)).copied().unwrap_or_default()
    }
}

// === impl Memory ===

impl Memory {
    /// Finds the cgroup of this process. Returns `None` without a memory controller.
    #[must_use]
    pub fn of_this_process() -> Option<Self> {
        Self::find(&fs::read_to_string("/proc/self/cgroup").ok()?, Path::new("/sys/fs/cgroup"))
    }

    /// Finds the first existing directory below `mount` for the lines of `/proc/self/cgroup`. In a container those
    /// paths may be the host's while the mounted hierarchy is the container's own, so the mount point is a candidate as
    /// well.
    fn find(cgroups: &str, mount: &Path) -> Option<Self> {
        let candidates = cgroups.lines().flat_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let mount = match controllers {
                "" => mount.to_owned(),
                _ if controllers.split(',').any(|name| name == "memory") => mount.join("memory"),
                _ => return Vec::new(),
            };
            vec![mount.join(path.trim_start_matches('/')), mount]
        });
        candidates.into_iter().find_map(|directory| Self::at(&directory))
    }

    /// Opens the cgroup in `directory`. Returns `None` if that has no file with a memory limit.
    #[must_use]
    pub fn at(directory: &Path) -> Option<Self> {
        let files = [&V2, &V1].into_iter().find(|files| directory.join(files.limit).exists())?;
        Some(Self { directory: directory.to_owned(), files })
    }

    /// Reads the current usage.
    ///
    /// # Errors
    /// Fails if a file cannot be read or does not hold a number.
    pub fn read(&self) -> io::Result<Usage> {
        let Files { limit, used, reclaimable } = self.files;
        let read = |name: &str| fs::read_to_string(self.directory.join(name));
        let limit = match read(limit)?.trim() {
            "max" => None,
            bytes => Some(number(bytes)?).filter(|limit| *limit < NO_LIMIT),
        };
        let stat = read("memory.stat").unwrap_or_default();
        let cached = stat.lines().find_map(|line| line.strip_prefix(reclaimable)?.strip_prefix(' '));
        let cached = cached.map_or(Ok(0), number)?;
        Ok(Usage { used: number(&read(used)?)?.saturating_sub(cached), limit })
    }
}

fn number(text: &str) -> io::Result<u64> {
    text.trim().parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_rises_at_once_and_falls_with_slack() {
        use Pressure::{Critical, None as Calm, Scarce, Tight};
        for (before, percent, expect) in [
            (Calm, 0, Calm),
            (Calm, 79, Calm),
            (Calm, 80, Tight),
            (Calm, 90, Scarce),
            (Calm, 95, Critical),
            (Calm, 200, Critical),
            (Tight, 79, Tight),
            (Tight, 75, Tight),
            (Tight, 74, Calm),
            (Scarce, 85, Scarce),
            (Scarce, 84, Tight),
            (Critical, 90, Critical),
            (Critical, 89, Scarce),
            (Critical, 80, Tight),
            (Critical, 10, Calm),
        ] {
            for limit in [100, 100 << 30, u64::MAX / 100 * 100] {
                let usage = Usage { used: (limit / 100).saturating_mul(percent), limit: Some(limit) };
                if percent <= 100 {
                    assert_eq!(before.next(usage), expect, "{before:?} {percent} of {limit}");
                }
            }
            let over = Usage { used: percent, limit: Some(100) };
            assert_eq!(before.next(over), expect, "{before:?} {percent}");
        }
        for limit in [None, Some(0)] {
            assert_eq!(Critical.next(Usage { used: u64::MAX, limit }), Calm);
        }
        for level in [Calm, Tight, Scarce, Critical] {
            assert_eq!(Pressure::of_level(level as u8), level);
        }
    }

    #[test]
    fn memory_fills_before_it_is_scarce() {
        for (was, percent, expect) in [(false, 59, false), (false, 60, true), (true, 55, true), (true, 54, false)] {
            for limit in [100, 100 << 30] {
                let usage = Usage { used: limit / 100 * percent, limit: Some(limit) };
                assert_eq!(usage.is_filling(was), expect, "{percent} of {limit}");
            }
        }
        assert!(!Usage { used: u64::MAX, limit: None }.is_filling(true));
    }

    fn cgroup(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        }
        directory
    }

    #[test]
    fn both_cgroup_versions_are_read() {
        const STAT: &str = "anon 5\ninactive_file 30\ntotal_inactive_file 40\n";
        for (files, expect) in [
            (
                &[("memory.max", "1000\n"), ("memory.current", "500\n"), ("memory.stat", STAT)][..],
                Some((470, Some(1000))),
            ),
            (&[("memory.max", "max\n"), ("memory.current", "500\n")], Some((500, None))),
            (
                &[("memory.limit_in_bytes", "1000\n"), ("memory.usage_in_bytes", "500\n"), ("memory.stat", STAT)],
                Some((460, Some(1000))),
            ),
            (&[("memory.limit_in_bytes", "9223372036854771712\n"), ("memory.usage_in_bytes", "5")], Some((5, None))),
            (&[("memory.max", "1000\n"), ("memory.current", "10\n"), ("memory.stat", STAT)], Some((0, Some(1000)))),
            (&[("memory.max", "lots\n"), ("memory.current", "500\n")], None),
            (&[("memory.max", "1000\n")], None),
        ] {
            let directory = cgroup(files);
            let usage = Memory::at(directory.path()).expect("a cgroup").read().ok();
            assert_eq!(usage, expect.map(|(used, limit)| Usage { used, limit }), "{files:?}");
        }
        assert_eq!(Memory::at(cgroup(&[("cgroup.procs", "")]).path()), None);
    }

    #[test]
    fn the_cgroup_is_found_by_its_path_or_its_mount() {
        for (cgroups, files, expect) in [
            ("0::/pod/a\n", &["pod/a/memory.max", "memory.max"][..], Some("pod/a")),
            ("0::/pod/a\n", &["memory.max"], Some("")),
            ("0::/\n", &["memory.max"], Some("")),
            ("0::/../../elsewhere\n", &["memory.max"], Some("")),
            ("4:memory:/pod/a\n0::/\n", &["memory/pod/a/memory.limit_in_bytes"], Some("memory/pod/a")),
            ("4:cpu,memory:/pod/a\n0::/\n", &["memory/memory.limit_in_bytes"], Some("memory")),
            ("3:cpu:/pod/a\n0::/\n", &["memory/memory.limit_in_bytes"], None),
            ("nonsense", &["memory.max"], Some("")),
            ("0::/\n", &["cgroup.procs"], None),
        ] {
            let files: Vec<_> = files.iter().map(|name| (*name, "1")).collect();
            let mount = cgroup(&files);
            let found = Memory::find(cgroups, mount.path()).map(|memory| memory.directory);
            let expect = expect.map(|path| mount.path().join(path));
            assert_eq!(found, expect, "{cgroups}");
        }
    }
}
