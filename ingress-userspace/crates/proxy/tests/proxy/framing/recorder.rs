//! A pod that records each received byte and parses as strictly as possible: its parser shares nothing with the
//! product.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use ingress_proxy_testing::DEADLINE;

/// A pod that answers each complete request with 200.
pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    log: Arc<Mutex<Log>>,
}

/// Everything received since the last look.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    /// Complete requests, in the form of [`read`].
    pub(crate) seen: Vec<String>,
    /// Bytes of all requests.
    pub(crate) bytes: usize,
    /// Bytes of complete requests.
    pub(crate) whole: usize,
    /// Descriptions of requests that two readers could read differently.
    pub(crate) faults: Vec<String>,
}

impl Recorder {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bound");
        let address = listener.local_addr().expect("address");
        let log = Arc::<Mutex<Log>>::default();
        let shared = Arc::clone(&log);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let log = Arc::clone(&shared);
                thread::spawn(move || record(stream, &log));
            }
        });
        Self { address, log }
    }

    pub(crate) fn take(&self) -> Log {
        std::mem::take(&mut self.log.lock().expect("unpoisoned"))
    }
}

fn record(mut stream: TcpStream, log: &Mutex<Log>) {
    stream.set_read_timeout(Some(DEADLINE)).expect("timeout set");
    let (mut buffer, mut bytes) = (Vec::new(), [0; 16 * 1024]);
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        buffer.extend_from_slice(&bytes[..count]);
        log.lock().expect("unpoisoned").bytes += count;
        loop {
            match read(&buffer) {
                Ok(None) => break,
                Ok(Some((seen, length))) => {
                    buffer.drain(..length);
                    let mut log = log.lock().expect("unpoisoned");
                    log.whole += length;
                    log.seen.push(seen);
                    drop(log);
                    if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
                        return;
                    }
                }
                Err(why) => {
                    let shown = buffer.escape_ascii();
                    return log.lock().expect("unpoisoned").faults.push(format!("{why}: {shown}"));
                }
            }
        }
    }
}

/// Parses the first request in `bytes` into `METHOD target host framing:body` and its length; `None` if it is not
/// complete yet.
///
/// # Errors
/// Fails at everything that two readers might read differently.
pub(crate) fn read(bytes: &[u8]) -> Result<Option<(String, usize)>, &'static str> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let (head, mut at) = (&bytes[..end], end + 4);
    if head.iter().any(|&byte| byte == 0 || byte == 0x7f || (byte < 0x20 && !b"\r\n\t".contains(&byte))) {
        return Err("a control byte");
    }
    let head = String::from_utf8_lossy(head);
    let mut lines = head.split("\r\n");
    if lines.clone().any(|line| line.contains(['\r', '\n'])) {
        return Err("a bare line end");
    }
    let request_line: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, target, "HTTP/1.1"] = request_line.as_slice() else { return Err("no request line") };
    if method.is_empty() || !method.bytes().all(is_token) || target.is_empty() || target.contains('#') {
        return Err("no method or target");
    }
    let (mut hosts, mut lengths, mut codings) = (Vec::new(), Vec::new(), Vec::new());
    for line in lines {
        let (name, value) = line.split_once(": ").ok_or("no field")?;
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err("no name of a field");
        }
        match name.to_ascii_lowercase().replace('_', "-").as_str() {
            "host" => hosts.push(value),
            "content-length" => lengths.push(value),
            "transfer-encoding" => codings.push(value),
            _ => {}
        }
    }
    let [host] = hosts.as_slice() else { return Err("not one host") };
    let (framing, body) = match (lengths.as_slice(), codings.as_slice()) {
        ([], []) => ("none", Some(Vec::new())),
        ([length], []) => {
            let length: usize = length.parse().map_err(|_no_number| "no length")?;
            let end = at.checked_add(length).ok_or("a huge length")?;
            let body = bytes.get(at..end);
            at = end;
            ("length:", body.map(<[u8]>::to_vec))
        }
        ([], ["chunked"]) => ("chunked:", chunks(bytes, &mut at)?),
        _ => return Err("more than one framing"),
    };
    let seen = |body: Vec<u8>| [format!("{method} {target} {host} {framing}").as_bytes(), &body].concat();
    Ok(body.map(|body| (seen(body).escape_ascii().to_string(), at)))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Parses chunks without extensions, and trailers; `at` is moved behind them.
fn chunks(bytes: &[u8], at: &mut usize) -> Result<Option<Vec<u8>>, &'static str> {
    let mut body = Vec::new();
    loop {
        let Some(line) = line(bytes, at)? else { return Ok(None) };
        if line.is_empty() || !line.iter().all(u8::is_ascii_hexdigit) {
            return Err("no size of a chunk");
        }
        let size = usize::from_str_radix(&line.escape_ascii().to_string(), 16).map_err(|_too_large| "a huge chunk")?;
        if size == 0 {
            break;
        }
        let end = at.checked_add(size).and_then(|end| end.checked_add(2)).ok_or("a huge chunk")?;
        let Some(chunk) = bytes.get(*at..end) else { return Ok(None) };
        body.extend_from_slice(chunk.strip_suffix(b"\r\n").ok_or("no end of a chunk")?);
        *at = end;
    }
    loop {
        match line(bytes, at)? {
            None => return Ok(None),
            Some(b"") => return Ok(Some(body)),
            Some(trailer) => {
                let colon = trailer.iter().position(|&byte| byte == b':').ok_or("no trailer")?;
                let (name, value) = (&trailer[..colon], &trailer[colon + 1..]);
                if name.is_empty() || !name.iter().copied().all(is_token) {
                    return Err("no name of a trailer");
                }
                // The proxy writes one space.
                if value.strip_prefix(b" ").is_none_or(|value| value != value.trim_ascii()) {
                    return Err("white space around a trailer");
                }
            }
        }
    }
}

fn line<'b>(bytes: &'b [u8], at: &mut usize) -> Result<Option<&'b [u8]>, &'static str> {
    let rest = bytes.get(*at..).unwrap_or_default();
    let Some(end) = rest.iter().position(|&byte| byte == b'\n') else { return Ok(None) };
    *at += end + 1;
    let line = rest[..end].strip_suffix(b"\r").ok_or("a bare LF")?;
    if line.contains(&b'\r') { Err("a bare CR") } else { Ok(Some(line)) }
}

#[test]
fn the_recorder_is_strict() {
    let request = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc";
    assert_eq!(read(request.as_bytes()), Ok(Some(("POST / a length:abc".to_owned(), request.len()))));
    assert_eq!(read(&request.as_bytes()[..request.len() - 1]), Ok(None));
    for (from, to) in [
        ("content-length: 3", "content-length: 3\r\ncontent-length: 3"),
        ("content-length: 3", "content-length: 3\r\ntransfer-encoding: chunked"),
        ("content-length: 3", "content_length: 3\r\ncontent-length: 3"),
        ("content-length: 3", "content-length: 3\r\nx: a\rb"),
        ("content-length: 3", "content-length: 3\r\nx: a\nb"),
        ("content-length: 3", "content-length: 3\r\nx : b"),
        ("host: a", "host: a\r\nhost: b"),
        ("host: a\r\n", ""),
        ("POST /", "POST /#"),
    ] {
        assert!(read(request.replace(from, to).as_bytes()).is_err(), "{to}");
    }
    let chunked = |trailer: &str| {
        format!("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n{trailer}\r\n\r\n")
    };
    assert!(read(chunked("x-a: b").as_bytes()).is_ok_and(|seen| seen.is_some()));
    for trailer in ["\"x\": b", "x-a:  b", "x-a: b ", "x-a : b", "x-a", ": b"] {
        assert!(read(chunked(trailer).as_bytes()).is_err(), "{trailer}");
    }
}
