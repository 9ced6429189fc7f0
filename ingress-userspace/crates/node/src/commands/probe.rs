//! `xdp-ingress probe`: queries a running process over its probe socket. It makes a few system calls without a runtime,
//! because it is started again and again in a read-only container. It opens only the socket.

use std::{
    io::{self, Read as _, Write as _},
    path::PathBuf,
    time::{Duration, Instant},
};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::config::cli::{Probe, ProbeArgs};

/// Maximum length of an answer: the reason is one line.
const ANSWER_MAX: usize = 4096;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    /// Negative answer of the process.
    #[error("not {probe}: {reason}")]
    Not { probe: &'static str, reason: String },
    #[error("no answer on `{path}`; is `xdp-ingress run --probe-socket` running?")]
    NoAnswer { path: PathBuf, source: io::Error },
    #[error("no answer on `{path}` within {timeout:?}; the process hangs or is still starting")]
    Late { path: PathBuf, timeout: Duration },
    #[error("another program than xdp-ingress answers on `{0}`; check `--socket`")]
    Strange(PathBuf),
}

/// Sends one probe.
///
/// # Errors
/// Fails if the answer is negative, or does not arrive in time.
pub(crate) fn run(args: ProbeArgs) -> Result<(), ProbeError> {
    let ProbeArgs { probe, socket: path, timeout } = args;
    let (name, target) = match probe {
        Probe::Live => ("live", "/healthz"),
        Probe::Started => ("started", "/startz"),
        Probe::Ready => ("ready", "/readyz"),
    };
    let answer = match ask(&path, target, timeout) {
        Ok(answer) => answer,
        Err(source) => {
            // A full backlog gives `WouldBlock` at once, and so does a socket time-out.
            let late = matches!(source.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
            return Err(if late { ProbeError::Late { path, timeout } } else { ProbeError::NoAnswer { path, source } });
        }
    };
    match parse(&answer) {
        Some((200, _)) => Ok(()),
        Some((_, reason)) => Err(ProbeError::Not { probe: name, reason }),
        None => Err(ProbeError::Strange(path)),
    }
}

fn ask(path: &PathBuf, target: &str, timeout: Duration) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + timeout;
    let mut socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A blocking connect would wait forever for room in the backlog of a hanging process.
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)?;
    socket.set_nonblocking(false)?;
    socket.set_write_timeout(Some(timeout))?;
    socket.write_all(format!("GET {target} HTTP/1.1\r\nhost: probe\r\nconnection: close\r\n\r\n").as_bytes())?;
    let (mut answer, mut piece) = (Vec::new(), [0; 1024]);
    while answer.len() < ANSWER_MAX {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        match socket.read(&mut piece)? {
            0 => break,
            len => answer.extend(piece.iter().take(len)),
        }
    }
    Ok(answer)
}

/// Parses the status and the first line of the body.
fn parse(answer: &[u8]) -> Option<(u16, String)> {
    let answer = String::from_utf8_lossy(answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some((status, body.lines().next().unwrap_or("it gives no reason").to_owned()))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, path::Path, thread};

    use super::*;

    fn args(path: &Path) -> ProbeArgs {
        ProbeArgs { probe: Probe::Ready, socket: path.to_owned(), timeout: Duration::from_millis(200) }
    }

    /// Returns the result of a probe if the process sends `answer`.
    fn probed(answer: &'static str) -> Result<(), ProbeError> {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("probe.sock");
        let listener = UnixListener::bind(&path).expect("binds");
        let server = thread::spawn(move || -> io::Result<()> {
            let (mut stream, _) = listener.accept()?;
            let mut request = [0; 1024];
            let len = stream.read(&mut request)?;
            assert!(request[..len].starts_with(b"GET /readyz HTTP/1.1\r\n"));
            stream.write_all(answer.as_bytes())
        });
        let result = run(args(&path));
        server.join().expect("no panic").expect("the server answers");
        result
    }

    #[test]
    fn a_probe_reports_the_first_line_of_the_response() {
        probed("HTTP/1.1 200 OK\r\n\r\nready\n").expect("200 is yes");
        let error = probed("HTTP/1.1 503 Service Unavailable\r\n\r\ndraining\nmore\n").expect_err("503 is no");
        assert_eq!(error.to_string(), "not ready: draining");
        assert!(matches!(probed("220 smtp.example\r\n"), Err(ProbeError::Strange(_))));
        assert!(matches!(probed(""), Err(ProbeError::Strange(_))));
    }

    #[test]
    fn missing_and_hung_processes_are_distinguished() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("probe.sock");
        assert!(matches!(run(args(&path)), Err(ProbeError::NoAnswer { .. })));
        let listener = UnixListener::bind(&path).expect("binds");
        let asked = Instant::now();
        assert!(matches!(run(args(&path)), Err(ProbeError::Late { .. })), "nobody accepts");
        assert!(asked.elapsed() >= Duration::from_millis(200));
        // Fills the backlog, which must not make a probe wait longer.
        let fill = || {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.set_nonblocking(true)?;
            socket.connect(&SockAddr::unix(&path)?).map(|()| socket)
        };
        let mut held = Vec::new();
        while let Ok(socket) = fill() {
            held.push(socket);
        }
        assert!(matches!(run(args(&path)), Err(ProbeError::Late { .. })));
        drop(listener);
        assert!(matches!(run(args(&path)), Err(ProbeError::NoAnswer { .. })));
    }
}
