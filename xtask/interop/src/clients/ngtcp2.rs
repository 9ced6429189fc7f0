//! The example client of ngtcp2 with GnuTLS, from Debian. It does not check certificates. Its log of packets has the proof
//! of each case, and the responses are files.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;
use xtask_tools::process;

use super::errand::Task;
use super::{Case, Host};
use crate::pod::pattern;
use crate::stage::Stage;

const PROGRAM: &str = "gtlsclient";
/// Requests at a time.
const STREAMS: usize = 300;
/// Connections, one after another.
const CONNECTIONS: usize = 20;
/// Response in bytes that takes several times as long as [`AMID`].
const LONG: usize = 8_000_000;
/// Time between the handshake and a change amid the response.
const AMID: &str = "30ms";
/// Time between the handshake and new keys, and a later one for the request.
const EARLY: &str = "50ms";
const LATE: &str = "200ms";
/// Longest time for a connection, by coreutils' `timeout`. The client's own limit is for silence alone.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same for one of several attempts: the product may have ended the connection, and its last packet may be lost.
const PATIENCE_AGAIN: Duration = Duration::from_secs(15);
/// Options on paths with faults. The product ends a handshake after 10 seconds, or 20 once the address is proven; the
/// client by itself does earlier.
const ON_PATH: [&str; 1] = ["--handshake-timeout=20s"];
/// Attempts to connect on paths with faults, where handshakes may lose too much.
const ATTEMPTS: usize = 3;
/// Lines of the log in an error.
const TAIL: usize = 40;
/// Cipher, in GnuTLS's words.
const CHACHA20: &str = "NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+CHACHA20-POLY1305";

/// Returns the program; installs it if it is missing.
pub(super) fn program() -> Result<PathBuf> {
    xtask_setup::packages(&["ngtcp2-client"], "test interop")?;
    process::find_program(PROGRAM).context("`gtlsclient` is missing")
}

/// Runs `cases`, and returns a line for each.
pub(super) fn said(program: &Path, stage: &Stage, host: &Host, cases: &[Case]) -> Result<String> {
    lines(program, stage, host, cases, Client::run)
}

/// Runs `tasks` on a path with faults, and returns a line for each.
pub(super) fn said_on_path(program: &Path, stage: &Stage, host: &Host, tasks: &[Task]) -> Result<String> {
    lines(program, stage, host, tasks, Client::run_on_path)
}

fn lines<'a, T: Copy + Display>(
    program: &'a Path,
    stage: &Stage,
    host: &'a Host,
    asked: &[T],
    run: impl Fn(&Client<'a>, T) -> Result<()>,
) -> Result<String> {
    let client = Client::new(program, host, &stage.scratch)?;
    let lines = asked.iter().map(|one| match run(&client, *one) {
        Ok(()) => format!("{one} ok\n"),
        Err(error) => format!("{one} {}\n", format!("{error:#}").replace('\n', " ")),
    });
    Ok(lines.collect())
}

struct Client<'a> {
    program: &'a Path,
    host: &'a Host,
    /// Directory for responses.
    scratch: TempDir,
    /// Longest time for a connection.
    patience: Duration,
}

impl<'a> Client<'a> {
    fn new(program: &'a Path, host: &'a Host, scratch: &Path) -> Result<Self> {
        let scratch = tempfile::tempdir_in(scratch).context("cannot make a directory for responses")?;
        Ok(Self { program, host, scratch, patience: PATIENCE })
    }

    fn run(&self, case: Case) -> Result<()> {
        match case {
            Case::Get | Case::Retry | Case::Ipv6 => self.get(1_000_000, &[]).map(drop),
            Case::Post | Case::Rebinding => self.post(1 << 20, &["echo"]),
            // Both requests have one body, and begin together.
            Case::Early => self.post(4 << 20, &["early", "echo"]),
            Case::Streams => self.get_all(&(1..=STREAMS).collect::<Vec<_>>(), &[]).map(drop),
            Case::Resumption => self.resumption(),
            Case::Migration => {
                let log = self.get(LONG, &["--change-local-addr", AMID])?;
                let ports = ports(&log);
                ensure!(ports.len() == 2, "the server has answered at {ports:?}");
                ensure!(has(&log, &["frm rx", "PATH_RESPONSE"]), "the path is not validated");
                Ok(())
            }
            Case::Keys => {
                // The server also updates its keys, but not before it has sent a part of the response.
                let log = self.get(1_000_000, &["--key-update", EARLY, "--delay-stream", LATE])?;
                ensure!(is_followed(&log), "the server has not followed an update of keys");
                Ok(())
            }
            Case::Chacha20 => {
                let log = self.get(100_000, &["--ciphers", CHACHA20])?;
                ensure!(has(&log, &["Negotiated cipher suite is CHACHA20-POLY1305"]), "another cipher");
                Ok(())
            }
            Case::Multiconnect => (0..CONNECTIONS).try_for_each(|_| self.get(1000, &[]).map(drop)),
            Case::Trailers => bail!("no such case"),
        }
    }

    fn run_on_path(&self, task: Task) -> Result<()> {
        match task {
            Task::Bytes(length) => self.get(length, &ON_PATH).map(drop),
            Task::Connections(count) => thread::scope(|scope| {
                let threads: Vec<_> = (0..count).map(|_| scope.spawn(|| self.get_apart())).collect();
                threads.into_iter().try_for_each(|thread| thread.join().ok().context("a thread panicked")?)
            }),
        }
    }

    /// Asks for a short response on a connection with a directory of its own, several times if need be.
    fn get_apart(&self) -> Result<()> {
        let client = Self { patience: PATIENCE_AGAIN, ..Self::new(self.program, self.host, self.scratch.path())? };
        let get = || client.get(1000, &ON_PATH).map(drop);
        (1..ATTEMPTS).fold(get(), |result, _| result.or_else(|_| get()))
    }

    /// Connects without a session, and with that of the server: the second flight of the server has no certificate.
    fn resumption(&self) -> Result<()> {
        let session = self.scratch.path().join("session");
        let session = session.to_str().context("a path that is not UTF-8")?;
        let flight = || -> Result<usize> {
            let log = self.get(1000, &["--disable-early-data", "--session-file", session])?;
            flight(&log).context("no handshake in the log")
        };
        let (full, resumed) = (flight()?, flight()?);
        ensure!(resumed * 2 < full, "the server has sent {full} and {resumed} bytes of its handshake");
        Ok(())
    }

    /// Asks for a response of `length` bytes, and returns the log.
    fn get(&self, length: usize, options: &[&str]) -> Result<String> {
        self.get_all(&[length], options)
    }

    /// Asks for responses of `lengths` bytes at a time.
    fn get_all(&self, lengths: &[usize], options: &[&str]) -> Result<String> {
        let paths: Vec<String> = lengths.iter().map(|length| format!("size/{length}")).collect();
        let log = self.connect(options, &paths)?;
        for length in lengths {
            self.check(&length.to_string(), &pattern(*length), &log)?;
        }
        Ok(log)
    }

    /// Sends `length` bytes to each of `paths`.
    fn post(&self, length: usize, paths: &[&str]) -> Result<()> {
        let (body, sent) = (self.scratch.path().join("body"), pattern(length));
        fs::write(&body, &sent)?;
        let body = body.to_str().context("a path that is not UTF-8")?;
        let log = self.connect(&["--http-method", "POST", "--data", body], paths)?;
        for path in paths {
            let expected = if *path == "echo" { &sent[..] } else { path.as_bytes() };
            self.check(path, expected, &log)?;
        }
        Ok(())
    }

    /// Connects and asks for `paths`. Each response is a file with the last part of its path as its name.
    fn connect(&self, options: &[&str], paths: &[impl Display]) -> Result<String> {
        let mut command = Command::new("timeout");
        command.arg(self.patience.as_secs().to_string()).arg(self.program);
        command.args(["--exit-on-all-streams-close", "--no-quic-dump", "--no-http-dump", "--timeout=20s"]);
        command.arg(format!("--sni={}", self.host.name)).arg("--download").arg(self.scratch.path()).args(options);
        command.args([self.host.at.ip().to_string(), self.host.at.port().to_string()]);
        command.args(paths.iter().map(|path| format!("https://{}/{path}", self.host)));
        // It succeeds in any case, and ends when the connection does.
        let output = command.stdin(Stdio::null()).output().context("cannot start it")?;
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        let answered = log.matches("[:status: 200]").count();
        ensure!(answered == paths.len(), "{answered} of {} requests were answered", paths.len());
        Ok(log)
    }

    /// Compares and removes a response. A difference is an error with the end of the log.
    fn check(&self, name: &str, expected: &[u8], log: &str) -> Result<()> {
        let path = self.scratch.path().join(name);
        let got = fs::read(&path).with_context(|| format!("no response for {name}"))?;
        fs::remove_file(path)?;
        let last: Vec<&str> = log.lines().rev().take(TAIL).collect();
        ensure!(got == expected, "{} bytes for {name}, backwards from the end: {}", got.len(), last.join("; "));
        Ok(())
    }
}

/// Returns whether a line of `log` has all of `words`.
fn has(log: &str, words: &[&str]) -> bool {
    log.lines().any(|line| words.iter().all(|word| line.contains(word)))
}

/// Returns whether the client was first to use new keys, and the server used them after that.
fn is_followed(log: &str) -> bool {
    let mut phases = log.lines().filter(|line| line.contains("type=1RTT k=1"));
    phases.next().is_some_and(|line| line.contains(" pkt tx ")) && phases.any(|line| line.contains(" pkt rx "))
}

/// Returns the ports of the client at which packets came.
fn ports(log: &str) -> BTreeSet<&str> {
    let received = log.lines().filter_map(|line| line.strip_prefix("Received packet: local="));
    received.filter_map(|rest| rest.split(' ').next()).collect()
}

/// Returns the bytes of the server's handshake after its first message.
fn flight(log: &str) -> Option<usize> {
    let frames = log
        .lines()
        .filter_map(|line| line.split_once("rx ")?.1.split_once("Handshake CRYPTO(0x06) offset="))
        .map(|(_, frame)| frame);
    let ends = frames.filter_map(|frame| {
        let (offset, length) = frame.trim().split_once(" len=")?;
        Some(offset.parse::<usize>().ok()? + length.parse::<usize>().ok()?)
    });
    ends.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
I00000002 0x49 frm rx 0 Initial CRYPTO(0x06) offset=0 len=90
I00000002 0x49 frm rx 0 Handshake CRYPTO(0x06) offset=0 len=500
I00000002 0x49 frm rx 1 Handshake CRYPTO(0x06) offset=500 len=110
I00000002 0x49 frm tx 1 Handshake CRYPTO(0x06) offset=0 len=3600
Received packet: local=[127.0.0.1]:42542 remote=[127.0.0.1]:19143 ecn=0x2 301 bytes
I00000006 0x49 pkt rx pkn=1 dcid=0x2c type=1RTT k=0
Sent packet: local=[127.0.0.1]:42543 remote=[127.0.0.1]:19143 ecn=0x2 301 bytes
I00000007 0x49 pkt tx pkn=1 dcid=0x2c type=1RTT k=1
Received packet: local=[127.0.0.1]:42542 remote=[127.0.0.1]:19143 ecn=0x2 30 bytes
";

    #[test]
    fn only_what_the_server_has_sent_is_a_proof() {
        assert_eq!(flight(LOG), Some(610));
        assert_eq!(ports(LOG).into_iter().collect::<Vec<_>>(), ["[127.0.0.1]:42542"]);
        assert!(has(LOG, &["pkt rx", "type=1RTT k=0"]));
        assert!(!is_followed(LOG));
        let own = "I00000008 0x49 pkt rx pkn=2 dcid=0x2c type=1RTT k=1\n";
        assert!(is_followed(&format!("{LOG}{own}")));
        assert!(!is_followed(&format!("{own}{LOG}{own}")));
    }
}
