//! Log output that peers can cause with the default filter: nothing per frame or request.
#![allow(clippy::panic, reason = "helpers of tests may fail a test")]

use std::{
    fs::File,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Longest wait for any condition. Only a failing test waits that long.
const DEADLINE: Duration = Duration::from_secs(20);

/// The preface of HTTP/2 and an empty SETTINGS frame.
const BEGIN: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const PING_ACK: &[u8] = b"\0\0\x08\x06\x01\0\0\0\0unasked!";

/// A serving process, killed on drop.
struct Product {
    child: Child,
    http: SocketAddr,
    https: SocketAddr,
}

impl Drop for Product {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.child.kill().and_then(|()| self.child.wait()).is_err();
    }
}

impl Product {
    fn start(manifests: &Path, log: File, options: &[&str]) -> Self {
        let free = || TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()).expect("a port");
        let [http, https, admin] = [free(), free(), free()];
        let child = Command::new(env!("CARGO_BIN_EXE_xdp-ingress"))
            .args(["run", "--steer", "bind", "--xdp-mode", "off", "--workers", "1", "--manifests"])
            .arg(manifests)
            .args(["--http-port", &http.port().to_string(), "--https-port", &https.port().to_string()])
            .args(["--admin-addr", &admin.to_string()])
            .args(options)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("started");
        let product = Self { child, http, https };
        let start = Instant::now();
        while !product.serves() {
            assert!(start.elapsed() < DEADLINE, "it does not serve");
            thread::park_timeout(Duration::from_millis(1));
        }
        product
    }

    /// Returns whether a request on a connection of its own gets an answer from the published routes.
    fn serves(&self) -> bool {
        let ask = || {
            let mut stream = TcpStream::connect(self.http)?;
            stream.set_read_timeout(Some(DEADLINE))?;
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            std::io::Result::Ok(answer)
        };
        ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 404"))
    }
}

/// Sends `bytes` and reads until the peer closes or falls silent.
fn send(to: SocketAddr, bytes: &[u8]) {
    let mut stream = TcpStream::connect(to).expect("connected");
    stream.set_read_timeout(Some(Duration::from_millis(200))).expect("set");
    let mut reader = stream.try_clone().expect("cloned");
    let drain = thread::spawn(move || while matches!(reader.read(&mut [0; 16 * 1024]), Ok(1..)) {});
    // The peer may close before it has read everything.
    stream.write_all(bytes).unwrap_or_default();
    drain.join().expect("read");
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// `GET http://a.test/` from the static table of HPACK.
const GET: &[u8] = b"\x82\x86\x84\x01\x06a.test";

/// Frames and heads that could each cause a log line, by the thousand.
fn floods() -> Vec<(&'static str, Vec<u8>)> {
    let streams = || (0..4_000).map(|number| 2 * number + 1);
    let per_stream = |frames: &dyn Fn(u32) -> Vec<u8>| [BEGIN.to_vec(), streams().flat_map(frames).collect()].concat();
    vec![
        ("PING ACK that answers nothing", [BEGIN, &PING_ACK.repeat(9_000)].concat()),
        (
            "requests cancelled by the client",
            per_stream(&|id| [frame(1, 5, id, GET), frame(3, 0, id, &[0, 0, 0, 8])].concat()),
        ),
        ("streams that we reset", per_stream(&|id| [frame(1, 4, id, GET), frame(8, 0, id, &[0; 4])].concat())),
        (
            "frames for streams that are over",
            per_stream(&|id| [frame(1, 5, id, GET), frame(8, 0, id, &[0, 0, 0, 1])].concat()),
        ),
        ("malformed requests", per_stream(&|id| frame(1, 5, id, &[GET, b"\0\x01A\x01x"].concat()))),
        ("unknown frames", [BEGIN, &frame(0xfa, 0, 0, b"12345678").repeat(9_000)].concat()),
        ("GOAWAY", [BEGIN, &frame(7, 0, 0, &[0; 8]).repeat(1_000)].concat()),
        ("requests of HTTP/1", b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n".repeat(4_000)),
        ("malformed heads", b"GET /%00 HTTP/1.1\r\nHost: a.test\r\n\r\n".repeat(1_000)),
        ("no protocol", vec![0x16; 64 * 1024]),
    ]
}

#[test]
fn frames_and_requests_write_no_log_lines() {
    let directory = tempfile::tempdir().expect("a directory");
    let log = tempfile::NamedTempFile::new().expect("a file");
    let product = Product::start(directory.path(), log.reopen().expect("opened"), &[]);
    let lines = || std::fs::read_to_string(log.path()).expect("text");
    for (what, bytes) in floods() {
        let before = lines().lines().count();
        for to in [product.http, product.https, product.http] {
            send(to, &bytes);
        }
        assert!(product.serves(), "{what}");
        let after = lines();
        let written: Vec<_> = after.lines().skip(before).take(3).collect();
        assert_eq!(written, [""; 0], "{what}: {} lines", after.lines().count() - before);
    }
}
