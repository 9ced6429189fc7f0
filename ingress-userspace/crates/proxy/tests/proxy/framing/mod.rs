//! The corpus of request framing (RFC 9110, 9112, and known cases of request smuggling), against a pod that records.
//!
//! To add a case, add a line to the file of its topic in `requests` (`case` says how), or a value to a table of
//! `generated`. The following holds for every case, sent whole and byte by byte:
//! - a pod gets only requests that all readers read alike: one framing, one host, nothing after it;
//! - no byte of a refused request reaches a pod, and never the end of a request with a malformed body;
//! - a bad request gets 4xx, never 5xx, and no request after it on its connection is served, unless its framing was
//!   valid;
//! - requests on another connection are unaffected.

mod case;
mod generated;
pub(crate) mod recorder;
mod responses;

use std::{
    collections::HashSet,
    fs,
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use case::{Case, Then, parse};
use recorder::{Log, Recorder};

use ingress_proxy_testing::{Client, DEADLINE, Proxy, Table};

/// Minimum number of cases of the project's own.
const ENOUGH: usize = 400;

/// Reads the cases of all files of a folder, so that a new file needs no compilation.
fn read_all(folder: &str) -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proxy/framing").join(folder);
    let files = fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<_> = files.collect();
    files.sort();
    let read = |path: PathBuf| {
        let topic = path.file_stem().expect("a name").to_string_lossy().into_owned();
        parse(&topic, &fs::read_to_string(&path).expect("a file"))
    };
    files.into_iter().flat_map(read).collect()
}

fn corpus() -> Vec<Case> {
    [read_all("requests"), generated::all()].concat()
}

/// Returns the names and bytes of all cases.
pub(crate) fn requests() -> impl Iterator<Item = (String, Vec<u8>)> {
    corpus().into_iter().map(|case| (case.name, case.bytes))
}

#[derive(Clone, Copy, Debug)]
enum Sent {
    Whole,
    Bytewise,
}

impl Sent {
    /// Writes `bytes`.
    ///
    /// # Errors
    /// Fails as writing does: the proxy may close before the end.
    fn write(self, stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Whole => stream.write_all(bytes),
            Self::Bytewise => bytes.chunks(1).try_for_each(|byte| {
                // The pause makes the proxy read each byte alone.
                thread::sleep(Duration::from_micros(50));
                stream.write_all(byte)
            }),
        }
    }
}

/// A request sent behind each case, which must not be served where the connection is closed.
const NEXT: &[u8] = b"GET /next HTTP/1.1\r\nHost: a.test\r\n\r\n";
const NEXT_SEEN: &str = "GET /next a.test none";
const OTHER_SEEN: &str = "GET /other a.test none";

struct Bench {
    pod: Recorder,
    proxy: Proxy,
    /// A well-behaved client.
    other: Client,
}

impl Bench {
    fn new() -> Self {
        let pod = Recorder::start();
        let proxy = Proxy::start(&Table::default().host("a.test", &[pod.address]).host("", &[pod.address]));
        let other = proxy.client();
        Self { pod, proxy, other }
    }

    /// Runs `case` and describes any deviation.
    fn run(&mut self, case: &Case, sent: Sent) -> Result<(), String> {
        let answers = self.send(case, sent);
        let other = self.other.send("GET /other HTTP/1.1\r\nHost: a.test\r\n\r\n").try_response();
        let Log { seen, bytes, whole, faults } = self.pod.take();
        if other.as_ref().is_none_or(|other| other.status != 200) {
            self.other = self.proxy.client();
            return Err(format!("another client got {other:?}"));
        }
        if !faults.is_empty() {
            return Err(format!("the pod got {faults:?}"));
        }
        if let Some(bad) = answers.statuses.iter().find(|status| **status >= 500) {
            return Err(format!("answered {bad}"));
        }
        if matches!(case.then, Then::Open | Then::Closed) && bytes != whole {
            return Err(format!("{} bytes of no request reached the pod", bytes - whole));
        }
        let goes_on = case.then == Then::Open;
        let served = case.statuses.iter().filter(|status| **status == 200).count();
        let mut own = seen.clone();
        own.retain(|seen| seen != NEXT_SEEN && seen != OTHER_SEEN);
        if own.len() != served || seen.len() != served + 1 + usize::from(goes_on) {
            return Err(format!("the pod saw {seen:?}, the client {answers:?}"));
        }
        if let Some(expect) = &case.seen {
            let expect = expect.escape_ascii().to_string();
            if own.join(" + ") != expect {
                return Err(format!("the pod saw {own:?}"));
            }
        }
        let mut statuses = case.statuses.clone();
        statuses.extend(goes_on.then_some(200));
        let is_expected = match case.then {
            Then::Cut => answers.statuses.starts_with(&statuses),
            Then::Open | Then::Closed | Then::Begun => {
                let own = answers.statuses.strip_prefix(statuses.as_slice());
                let is_last = |rest: &[u16]| rest.is_empty() || case.perhaps.is_some_and(|last| rest == [last]);
                own.is_some_and(is_last) && answers.ended != goes_on
            }
        };
        if is_expected { Ok(()) } else { Err(format!("the client got {answers:?}")) }
    }

    /// Sends the bytes of `case` and reads the answers: as many as expected, or to the end.
    fn send(&self, case: &Case, sent: Sent) -> Answers {
        let mut stream = TcpStream::connect(self.proxy.http).expect("connected");
        stream.set_read_timeout(Some(DEADLINE)).expect("timeout set");
        stream.set_nodelay(true).expect("set");
        let next = if case.then == Then::Cut { &b""[..] } else { NEXT };
        let bytes = [&case.bytes, next].concat();
        let gone = sent.write(&mut stream, &bytes).is_err();
        if !gone && case.then == Then::Cut {
            stream.shutdown(Shutdown::Write).expect("shut down");
        }
        let expect = (case.then == Then::Open).then_some(case.statuses.len() + 1);
        Answers::read(&mut stream, expect)
    }
}

/// Responses to a client.
#[derive(Debug, Default)]
struct Answers {
    statuses: Vec<u16>,
    /// The proxy ended the connection.
    ended: bool,
}

impl Answers {
    /// Reads to the end, or `count` responses. The pod's responses have no content.
    fn read(stream: &mut TcpStream, count: Option<usize>) -> Self {
        let (mut answers, mut buffer, mut bytes) = (Self::default(), Vec::new(), [0; 4096]);
        loop {
            while let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&buffer[..end + 4]).to_lowercase();
                let length = head.split("\r\n").find_map(|line| line.strip_prefix("content-length: "));
                let length: usize = length.map_or(0, |length| length.parse().expect("a length"));
                if buffer.len() < end + 4 + length {
                    break;
                }
                buffer.drain(..end + 4 + length);
                // A client of HTTP/1.0 is answered in its own version.
                let status = head.strip_prefix("http/1.").and_then(|rest| rest.split(' ').nth(1));
                answers.statuses.push(status.and_then(|status| status.parse().ok()).expect("a status"));
            }
            if count.is_some_and(|count| answers.statuses.len() >= count) {
                return answers;
            }
            match stream.read(&mut bytes) {
                Ok(count @ 1..) => buffer.extend_from_slice(&bytes[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return answers,
                Ok(_) | Err(_) => {
                    answers.ended = true;
                    return answers;
                }
            }
        }
    }
}

/// Runs all cases and reports all that deviate.
fn check(cases: &[Case]) {
    // Bytes of a request that has begun may reach the pod during the next case, so such cases have a bench of their
    // own.
    let (mut strict, mut lenient) = (Bench::new(), Bench::new());
    let mut wrong = Vec::new();
    for case in cases {
        for sent in [Sent::Whole, Sent::Bytewise] {
            let bench = if matches!(case.then, Then::Open | Then::Closed) { &mut strict } else { &mut lenient };
            // Long ones would only fill the socket byte by byte.
            if matches!(sent, Sent::Bytewise) && case.bytes.len() > 2000 {
                continue;
            }
            if let Err(why) = bench.run(case, sent) {
                let shown: String = case.bytes.escape_ascii().to_string().chars().take(300).collect();
                wrong.push(format!("{} ({sent:?}): {why}\n    {shown}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn every_case_of_the_corpus_is_served_or_refused_as_required() {
    check(&corpus());
}

#[test]
fn the_corpus_is_large_and_its_cases_differ() {
    let corpus = corpus();
    println!("{} cases", corpus.len());
    assert!(corpus.len() >= ENOUGH, "{}", corpus.len());
    let (mut names, mut bytes) = (HashSet::new(), HashSet::new());
    let twice = corpus.iter().filter(|case| !names.insert(&case.name) || !bytes.insert((&case.bytes, case.then)));
    assert_eq!(twice.map(|case| &case.name).collect::<Vec<_>>(), Vec::<&String>::new(), "stand there twice");
}

#[test]
fn refused_requests_are_counted() {
    let bench = Bench::new();
    for _ in 0..20 {
        assert!(bench.proxy.client().send("GET / HTTP/1.1\nHost: a.test\n\n").is_closed());
    }
    assert_eq!(bench.proxy.shared.stats().refused_framing, 20);
}
