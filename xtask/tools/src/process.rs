//! Runs other programs: with a time-out, with progress, and with their output kept for the error. Nothing runs through
//! a shell.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::progress::Progress;

/// Interval between checks of a running program.
const POLL: Duration = Duration::from_millis(20);
/// Bytes of a failed program's output that an error repeats.
const TAIL: usize = 4000;

/// Runs `command` with this process's own output.
///
/// # Errors
/// Fails if the program cannot be started or does not succeed.
pub fn run(command: &mut Command) -> Result<()> {
    let shown = show(command);
    let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status})");
    }
    Ok(())
}

/// Runs `command` and returns its standard output, trimmed.
///
/// # Errors
/// Fails if the program cannot be started or does not succeed; the error repeats its standard error.
pub fn capture(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{shown}`"))?;
    if !output.status.success() {
        bail!("`{shown}` failed ({})\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Runs `command` silently under a progress line called `label` and kills it after `limit`.
///
/// # Errors
/// Fails if the program cannot be started, does not succeed, or takes longer; the error repeats the end of its output.
pub fn run_shown(label: &str, command: &mut Command, limit: Duration) -> Result<()> {
    let shown = show(command);
    let mut log = scratch_file().context("cannot make a temporary file for the output of a program")?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
    let mut progress = Progress::begin(label);
    let mut child = command.spawn().with_context(|| format!("cannot start `{shown}`"))?;
    match wait(&mut child, limit, || progress.tick())? {
        Some(status) if status.success() => {
            progress.end("done");
            Ok(())
        }
        Some(status) => {
            progress.end("failed");
            bail!("`{shown}` failed ({status})\n{}", tail(&mut log))
        }
        None => {
            progress.end("gave up");
            bail!("`{shown}` did not end within {} s\n{}", limit.as_secs(), tail(&mut log))
        }
    }
}

/// Finds the program called `name` on `PATH` or in the directories of administration programs, which are often missing
/// from the `PATH` of an ordinary user.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    find_in(name, env::split_paths(&path).chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from)))
}

/// Returns the current value of the search path `variable` with `dir` in front.
pub fn prepend_path(variable: &str, dir: &Path) -> OsString {
    let mut value = dir.as_os_str().to_owned();
    if let Some(rest) = env::var_os(variable).filter(|rest| !rest.is_empty()) {
        value.push(":");
        value.push(rest);
    }
    value
}

/// Returns `true` if this process runs as root. Uses the effective user, as the kernel does.
pub fn is_root() -> bool {
    // The owner of a process's own directory in procfs is its effective user, so no foreign function is needed.
    std::fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0)
}

/// Returns `true` if `variable`, such as `REQUIRE_KUBE`, is set and not 0. It then forbids skipping steps for which
/// this machine lacks something.
pub fn is_required(variable: &str) -> bool {
    demands(env::var_os(variable).as_deref())
}

fn demands(value: Option<&OsStr>) -> bool {
    value.is_some_and(|value| !value.is_empty() && value != "0")
}

/// Formats a command line as a reader could type it.
pub fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

fn wait(child: &mut Child, limit: Duration, mut each: impl FnMut()) -> Result<Option<ExitStatus>> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if began.elapsed() > limit {
            child.kill().context("cannot kill a program that takes too long")?;
            child.wait()?;
            return Ok(None);
        }
        each();
        thread::sleep(POLL);
    }
}

fn scratch_file() -> Result<File> {
    let path = env::temp_dir().join(format!("xdp-ingress-xtask-{}-{:?}", std::process::id(), thread::current().id()));
    let file = File::options().read(true).append(true).create_new(true).open(&path)?;
    // The open file outlives its name, so no file is left behind, however this process ends.
    std::fs::remove_file(&path)?;
    Ok(file)
}

fn tail(log: &mut File) -> String {
    let mut bytes = Vec::new();
    if log.rewind().and_then(|()| log.read_to_end(&mut bytes)).is_err() {
        return "(its output cannot be read back)".to_owned();
    }
    let start = bytes.len().saturating_sub(TAIL);
    String::from_utf8_lossy(&bytes[start..]).trim_end().to_owned()
}

fn find_in(name: &str, dirs: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    dirs.map(|dir| dir.join(name)).find(|path| {
        std::fs::metadata(path).is_ok_and(|meta| {
            meta.is_file() && std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o111 != 0
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_quotes_the_output_of_the_program() {
        let error = run_shown("cat", Command::new("cat").arg("/no/such/file"), Duration::from_secs(10)).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("`cat /no/such/file` failed") && text.contains("No such file"), "{text}");
    }

    #[test]
    fn a_slow_program_is_killed() {
        let error = run_shown("tail", Command::new("tail").args(["-f", "/dev/null"]), Duration::ZERO).unwrap_err();
        assert!(format!("{error:#}").contains("did not end within 0 s"));
    }

    #[test]
    fn empty_and_0_demand_nothing() {
        for (value, expect) in
            [(None, false), (Some(""), false), (Some("0"), false), (Some("1"), true), (Some("yes"), true)]
        {
            assert_eq!(demands(value.map(OsStr::new)), expect, "{value:?}");
        }
    }

    #[test]
    fn only_executable_files_are_programs() {
        let check = |name: &str, dir: &str, found: bool| {
            assert_eq!(find_in(name, [PathBuf::from(dir)].into_iter()).is_some(), found, "{dir}/{name}");
        };
        check("sh", "/bin", true);
        check("passwd", "/etc", false);
        check("bin", "/", false);
        check("no-such-program", "/bin", false);
    }
}
