//! System calls of a running peer, by name: strace counts all of its threads.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Stdio},
};

use anyhow::{Context, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::counts::{Counter, Counts};

/// Counts the calls of a process.
#[derive(Debug)]
pub(super) struct Strace {
    pid: u32,
    summary: PathBuf,
    attached: Option<Attached>,
}

/// A running strace; it detaches from the peer when dropped.
#[derive(Debug)]
struct Attached {
    child: Child,
    /// Kept open, because strace prints a little more when it detaches.
    _said: BufReader<ChildStderr>,
}

// === impl Strace ===

impl Strace {
    pub(super) fn of(pid: u32, folder: &Path) -> Self {
        Self { pid, summary: folder.join("strace"), attached: None }
    }
}

impl Counter for Strace {
    fn begin(&mut self) -> anyhow::Result<()> {
        self.attached = Some(Attached::to(self.pid, &self.summary)?);
        Ok(())
    }

    fn end(&mut self) -> anyhow::Result<Counts> {
        let mut attached = self.attached.take().context("strace counts nothing")?;
        attached.let_go()?;
        let path = &self.summary;
        let text = fs::read_to_string(path).with_context(|| format!("strace left no `{}`", path.display()))?;
        counts(&text).with_context(|| format!("strace's summary cannot be read:\n{text}"))
    }
}

// === impl Attached ===

impl Attached {
    /// Returns when strace is attached to all threads.
    fn to(pid: u32, summary: &Path) -> anyhow::Result<Self> {
        let mut child = Command::new("strace")
            .args(["-f", "-c", "--summary-columns=name,calls", "-o"])
            .arg(summary)
            .args(["-p", &pid.to_string()])
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run `strace`")?;
        let mut said = BufReader::new(child.stderr.take().context("strace has no standard error")?);
        let mut line = String::new();
        let read = said.read_line(&mut line);
        let attached = Self { child, _said: said };
        read.context("cannot read what strace says")?;
        ensure!(line.contains(" attached"), "strace cannot count process {pid}; as root it can: {}", line.trim());
        Ok(attached)
    }

    /// Interrupts strace, which then writes its counts.
    fn let_go(&mut self) -> anyhow::Result<()> {
        if self.child.try_wait()?.is_none() {
            kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT)?;
            // Its status is that of the signal.
            self.child.wait()?;
        }
        Ok(())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Err(error) = self.let_go() {
            eprintln!("cannot stop strace: {error}");
        }
    }
}

/// Parses the rows between the two lines of dashes; strace prints no table if there was no call.
fn counts(text: &str) -> Option<Counts> {
    let mut counts = Counts::default();
    let rows = text.lines().skip_while(|line| !line.starts_with('-')).skip(1);
    for row in rows.take_while(|line| !line.starts_with('-')) {
        let (name, count) = row.split_once(' ')?;
        counts.add(name, count.trim().parse().ok()?);
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_read() {
        let text = "syscall              calls\n---------------- ---------\nwritev               10000\n\
            recvfrom             10064\n---------------- ---------\ntotal                20064\n";
        let mut expect = Counts::default();
        expect.add("writev", 10_000);
        expect.add("recvfrom", 10_064);
        assert_eq!(counts(text), Some(expect));
        assert_eq!(counts(""), Some(Counts::default()));
        assert_eq!(counts("-----\nread many\n-----\n"), None);
    }
}
