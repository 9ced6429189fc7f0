//! A child process with its log. The caller decides where the process runs.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::Context as _;
use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};

use super::{registry::Item, until, until_within};

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

/// Longest wait for a log message. Loading the kernel programs is the slow part, and most messages follow it.
const SAID: Duration = Duration::from_secs(30);

/// A running program. Dropping the value ends the program.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    start_time: u64,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with both outputs in the file `log`. It gets its own process group, so that a Ctrl-C at the
    /// terminal reaches only this process.
    pub fn spawn(name: &str, mut command: Command, log: PathBuf) -> anyhow::Result<Self> {
        let file = File::create(&log).with_context(|| format!("cannot write `{}`", log.display()))?;
        let second = file.try_clone().context("cannot share the log file")?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(second)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start `{}`", command.get_program().to_string_lossy()))?;
        let pid = child.id().cast_signed();
        let start_time = stat(pid).map(|stat| stat.start_time).unwrap_or_default();
        Ok(Self { name: name.into(), child, start_time, log })
    }

    pub(super) fn item(&self) -> Item {
        Item::Process { pid: self.pid(), start_time: self.start_time }
    }

    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    #[must_use]
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Returns the program's output so far.
    #[must_use]
    pub fn log(&self) -> String {
        read(&self.log)
    }

    /// Returns the last `lines` lines of the log.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Waits until `ready` returns `true`.
    ///
    /// # Errors
    /// Fails if the program ends first, or after `limit`; the message contains the end of its log.
    pub fn wait_until(&mut self, limit: Duration, what: &str, mut ready: impl FnMut() -> bool) -> anyhow::Result<()> {
        let mut ended = None;
        let result = until_within(limit, what, || {
            ended = self.exited();
            (ended.is_some() || ready()).then_some(())
        });
        match ended {
            Some(status) => anyhow::bail!("`{}` ended ({status}) before {what}:\n{}", self.name, self.log_tail(20)),
            None => result.with_context(|| format!("`{}` last said:\n{}", self.name, self.log_tail(20))),
        }
    }

    /// Waits until the program's log contains `text` `count` times.
    ///
    /// # Errors
    /// Fails if the program ends first, or after thirty seconds; the message contains the end of its log.
    pub fn wait_for_log(&mut self, text: &str, count: usize) -> anyhow::Result<()> {
        let log = self.log.clone();
        let is_said = || read(&log).matches(text).count() >= count;
        self.wait_until(SAID, &format!("`{text}` in its log, {count} times"), is_said)
    }

    /// Returns the exit status once there is one.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends `signal`.
    ///
    /// # Errors
    /// Fails if the process has ended and been waited for.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill(Pid::from_raw(self.pid()), signal).with_context(|| format!("cannot send {signal} to `{}`", self.name))
    }

    /// Sends SIGTERM to the program and waits for its end.
    ///
    /// # Errors
    /// Fails if the program has not ended within `limit`.
    pub fn terminate(&mut self, limit: Duration) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        until_within(limit, "a program to end after SIGTERM", || self.exited())
    }

    /// Kills the program, as a crash would, together with the processes that it started, and waits for it.
    ///
    /// # Errors
    /// Fails if the program does not end.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        // After a wait the process id may belong to another process.
        if self.exited().is_none() {
            let group = Pid::from_raw(self.pid());
            killpg(group, Signal::SIGKILL).with_context(|| format!("cannot kill `{}`", self.name))?;
        }
        self.child.wait().with_context(|| format!("cannot wait for `{}`", self.name))?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.exited().is_none() && self.terminate(GRACE).is_err() {
            self.kill().ok();
        }
    }
}

/// Returns the content of a log; empty if there is none.
fn read(log: &Path) -> String {
    fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Ends the process with this pid and this start time, if it still exists.
pub(super) fn end(pid: i32, start_time: u64) -> anyhow::Result<()> {
    let gone = || (!alive(pid, start_time)).then_some(());
    if gone().is_some() {
        return Ok(());
    }
    kill(Pid::from_raw(pid), Signal::SIGTERM).ok();
    if until_within(GRACE, "a left-over process to end", gone).is_err() {
        kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
        until("a killed process to end", gone)?;
    }
    Ok(())
}

/// Returns `true` if the process with this pid and this start time runs, and holds its files and ports.
pub fn alive(pid: i32, start_time: u64) -> bool {
    stat(pid).is_some_and(|stat| stat.start_time == start_time && stat.runs())
}

/// Returns the start time of the process, in the kernel's own unit.
pub fn start_time(pid: i32) -> Option<u64> {
    stat(pid).map(|stat| stat.start_time)
}

/// Fields 3, 20 and 22 of `/proc/<pid>/stat` (proc_pid_stat(5)).
#[derive(Debug)]
struct Stat {
    state: char,
    threads: u64,
    start_time: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The name in field 2 may contain spaces and parentheses; the fields after its last parenthesis cannot.
        let mut fields = text.rsplit_once(") ")?.1.split(' ');
        Some(Self {
            state: fields.next()?.chars().next()?,
            threads: fields.nth(16)?.parse().ok()?,
            start_time: fields.nth(1)?.parse().ok()?,
        })
    }

    /// Returns `true` until all threads have ended: the state is that of the first one, which may end before the others.
    fn runs(&self) -> bool {
        !matches!(self.state, 'Z' | 'X') || self.threads > 1
    }
}

fn stat(pid: i32) -> Option<Stat> {
    Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_runs_until_its_last_thread_has_ended() {
        let text = |state: char, threads: u8| {
            format!("12 (a) b) {state} 1 12 12 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 {threads} 0 5192686 0 0")
        };
        for (state, threads, expect) in [('S', 1, true), ('Z', 3, true), ('Z', 1, false), ('X', 0, false)] {
            let stat = Stat::parse(&text(state, threads)).expect("a stat file");
            assert_eq!((stat.runs(), stat.start_time), (expect, 5_192_686), "{stat:?}");
        }
    }

    #[test]
    fn a_reused_pid_is_another_process() {
        let own = std::process::id().cast_signed();
        let stat = stat(own).expect("this process has a stat file");
        assert!(alive(own, stat.start_time));
        assert!(!alive(own, stat.start_time + 1));
        end(own, stat.start_time + 1).expect("another process's pid is left alone");
    }
}
