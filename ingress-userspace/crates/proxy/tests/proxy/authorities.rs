//! The authority: the host used for routing is the one that the pod receives, regardless of the client's spelling.
//!
//! Each host pattern has a pod of its own, which answers with its name and the `Host` it received. Requests are
//! generated from names and from strings that parsers tend to read differently, in HTTP/1 and HTTP/2.
//! `XDP_INGRESS_AUTHORITIES=1000000` generates a million of them.

use std::{env, thread};

use fastrand::Rng;

use crate::{
    frames::{DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, Raw, frame},
    framing::recorder,
    rfc9113::literal,
};
use ingress_proxy_testing::{Origin, Proxy, Table};

/// Requests of a test, half of HTTP/1 and half of HTTP/2.
const REQUESTS: usize = 40_000;
const THREADS: u64 = 2;

const PATTERNS: &[&str] = &["a.test", "b.test", "a.test.b.test", "*.w.test", ""];

/// Parts of requests.
const NAMES: &[&str] = &[
    "a.test",
    "b.test",
    "a.test.b.test",
    "x.w.test",
    "w.test",
    "y.x.w.test",
    "127.0.0.1",
    "[::1]",
    "none",
    "localhost",
];
const TAILS: &[&str] = &[
    "", "", "", "", ".", "..", ":80", ":", ":0080", ":65535", ":65536", ":99999", ":+80", ":x", ":80:80", ":80.",
    ".:80", "/", "/b.test", "#", "?b.test", "\\b.test", "@b.test", ",b.test", ", b.test", " b.test", "\tb.test", "%2e",
    "%00", "]", "[", ";", "'", "\"", "\u{b}", "\u{7f}",
];
const HEADS: &[&str] =
    &["", "", "", "", "user@", "a:b@", "@", ".", " ", "\t", "http://", "//", "[", "%61", "*.", "b.test,", "\u{c}"];

fn authority(rng: &mut Rng) -> String {
    let pick = |rng: &mut Rng, list: &[&'static str]| list[rng.usize(..list.len())];
    let mut name = pick(rng, NAMES).to_owned();
    match rng.u8(..10) {
        0 => name = name.to_uppercase(),
        1 => name = name.chars().map(|c| if rng.bool() { c.to_ascii_uppercase() } else { c }).collect(),
        2 => {
            let at = rng.usize(..=name.len());
            name.insert(at, char::from(rng.u8(0x20..0x80)));
        }
        _ => {}
    }
    // Mostly valid, or little would be forwarded.
    if rng.u8(..10) < 6 {
        return name;
    }
    format!("{}{name}{}", pick(rng, HEADS), pick(rng, TAILS))
}

/// Lines of a head that name hosts, and a target that may.
pub(crate) struct Asked {
    target: String,
    hosts: Vec<String>,
}

impl Asked {
    pub(crate) fn of(rng: &mut Rng) -> Self {
        let host = authority(rng);
        let (mut target, mut hosts) = ("/x?y".to_owned(), vec![host.clone()]);
        match rng.u8(..20) {
            0 => hosts.push(authority(rng)),
            1 => hosts.clear(),
            2..=4 => target = format!("http://{host}/x"),
            5 | 6 => target = format!("http://{}/x", authority(rng)),
            7 => target = format!("//{}/x", authority(rng)),
            8 => {
                hosts.clear();
                target = format!("http://{host}/x");
            }
            _ => {}
        }
        Self { target, hosts }
    }

    /// Writes it as HTTP/1, sometimes with other fields that name hosts.
    fn http1(&self, rng: &mut Rng) -> Vec<u8> {
        let version = if rng.u8(..20) == 0 { "1.0" } else { "1.1" };
        let mut text = format!("GET {} HTTP/{version}\r\n", self.target);
        for host in &self.hosts {
            let spellings: &[&str] = if rng.u8(..20) == 0 { &["Host ", "Host\t"] } else { &["Host", "host", "HOST"] };
            let name = spellings[rng.usize(..spellings.len())];
            text += &format!("{name}:{}{host}\r\n", [" ", "", "\t", "  "][rng.usize(..4)]);
        }
        match rng.u8(..8) {
            0 => text += "X-Forwarded-Host: b.test\r\n",
            1 => text += "Forwarded: host=b.test\r\n",
            2 => text += "Connection: host\r\n",
            3 => text += "X_Host: b.test\r\nHost_: b.test\r\n",
            _ => {}
        }
        (text + "\r\n").into_bytes()
    }

    /// Writes it as HTTP/2: the authority of the target becomes the pseudo-header field. There are no control
    /// characters, for which h2 ends the connection with all its requests (the frame cases have them).
    fn http2(&self, stream: u32, rng: &mut Rng) -> Vec<u8> {
        let section: Vec<_> =
            self.section(rng).iter().flat_map(|(name, value)| literal(name.as_bytes(), value.as_bytes())).collect();
        frame(HEADERS, END_HEADERS | END_STREAM, stream, &section)
    }

    /// Writes it as the lines of HTTP/3.
    pub(crate) fn http3(&self, rng: &mut Rng) -> Vec<(&'static str, String)> {
        self.section(rng)
    }

    fn section(&self, rng: &mut Rng) -> Vec<(&'static str, String)> {
        let sound = |text: &String| text.replace(|c: char| c.is_ascii_control() && c != '\t', "");
        let target = self.target.strip_prefix("http://").and_then(|rest| rest.split_once('/'));
        let (authority, path) = match target {
            Some((authority, path)) => (Some(authority.to_owned()), format!("/{path}")),
            None if self.hosts.len() < 2 && rng.bool() => (self.hosts.first().cloned(), self.target.clone()),
            None => (None, self.target.clone()),
        };
        let mut section = vec![(":method", "GET".to_owned()), (":scheme", "http".to_owned()), (":path", sound(&path))];
        section.extend(authority.iter().map(|authority| (":authority", sound(authority))));
        section.extend(self.hosts.iter().map(|host| ("host", sound(host))));
        section
    }
}

/// Returns a table with a pod for each pattern, and the pods.
pub(crate) fn table() -> (Table, Vec<Origin>) {
    let pods: Vec<_> = PATTERNS.iter().map(|pattern| pod(pattern)).collect();
    let hosts = PATTERNS.iter().zip(&pods);
    (hosts.fold(Table::default(), |table, (pattern, pod)| table.host(pattern, &[pod.address])), pods)
}

/// Returns the pattern that a request for `host` must be routed to, computed as simply as possible.
fn pattern(host: &str) -> &'static str {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    // A wildcard stands for one label.
    let rest = name.split_once('.').map_or("", |(_, rest)| rest);
    let wild = |pattern: &str| pattern.strip_prefix("*.").is_some_and(|suffix| suffix == rest);
    let exact = PATTERNS.iter().find(|pattern| **pattern == name && !name.is_empty());
    exact.or_else(|| PATTERNS.iter().find(|pattern| wild(pattern))).unwrap_or(&"")
}

/// Checks a pod's answer: its pattern, and the host that it received.
pub(crate) fn check(text: &str, request: &[u8]) {
    let shown = request.escape_ascii();
    let (own, host) = text.split_once(' ').expect("a pattern and a host");
    assert_eq!(own, pattern(host), "routed and forwarded differ, {host}: {shown}");
    let name = host.rsplit_once(':').filter(|_| !host.ends_with(']')).map_or(host, |(name, _)| name);
    assert!(!name.is_empty() && !name.ends_with('.') && name == name.to_ascii_lowercase(), "{host}: {shown}");
    let sent = String::from_utf8_lossy(request).to_ascii_lowercase();
    // HTTP/1.0 does not require a host.
    let names_none = sent.starts_with("get /") && sent.contains(" http/1.0\r\n") && !sent.contains("\r\nhost:");
    assert!(if names_none { host == "_" } else { sent.contains(name) }, "{host} was never sent: {shown}");
}

struct Bench {
    proxy: Proxy,
    _pods: Vec<Origin>,
}

impl Bench {
    fn new() -> Self {
        let (table, pods) = table();
        Self { proxy: Proxy::start(&table), _pods: pods }
    }

    /// Returns how many of `count` requests were forwarded.
    fn http1(&self, seed: u64, count: usize) -> usize {
        let mut rng = Rng::with_seed(seed);
        let (mut client, mut forwarded) = (self.proxy.client(), 0);
        for _ in 0..count {
            let request = Asked::of(&mut rng).http1(&mut rng);
            let response = client.send(&request).response();
            match response.status {
                200 => {
                    check(response.text().strip_prefix("pod ").expect("a pod"), &request);
                    forwarded += 1;
                }
                status => assert_eq!(status, 400, "{}", request.escape_ascii()),
            }
            if response.status == 400
                || response.header("connection").is_some()
                || request.windows(8).any(|w| w == b"HTTP/1.0")
            {
                client = self.proxy.client();
            }
        }
        forwarded
    }

    fn http2(&self, seed: u64, count: usize) -> usize {
        /// Concurrent requests on one connection.
        const BATCH: usize = 20;
        let mut rng = Rng::with_seed(seed);
        let mut forwarded = 0;
        for _ in 0..count / BATCH / 10 {
            let (mut client, mut stream) = (Raw::begun(&self.proxy, &[]), 1);
            for _ in 0..10 {
                let requests: Vec<_> = (0..BATCH)
                    .map(|number| {
                        let stream = stream + 2 * number as u32;
                        (stream, Asked::of(&mut rng).http2(stream, &mut rng))
                    })
                    .collect();
                stream += 2 * BATCH as u32;
                client.send(&requests.iter().flat_map(|(_, request)| request.clone()).collect::<Vec<_>>());
                let mut left = BATCH;
                while left > 0 {
                    let frame = client.next().expect("the connection goes on");
                    let request = requests.iter().find(|(stream, _)| *stream == frame.stream);
                    let ends = frame.kind == RST_STREAM || frame.flags & END_STREAM != 0 && frame.kind <= HEADERS;
                    let Some((_, request)) = request.filter(|_| ends || frame.kind == DATA) else { continue };
                    left -= usize::from(ends);
                    if frame.kind == DATA && frame.payload.starts_with(b"pod ") {
                        check(&String::from_utf8_lossy(&frame.payload[4..]), request);
                        forwarded += 1;
                    }
                }
            }
        }
        forwarded
    }
}

fn pod(pattern: &'static str) -> Origin {
    Origin::start(move |peer| {
        while let Some(head) = peer.raw_head() {
            let said = match recorder::read(head.as_bytes()) {
                Ok(Some((seen, _))) => format!("pod {pattern} {}", seen.split(' ').nth(2).unwrap_or_default()),
                fault => format!("pod ! {fault:?}"),
            };
            peer.answer(&said);
        }
    })
}

#[test]
fn the_routed_authority_is_the_forwarded_one() {
    let count = env::var("XDP_INGRESS_AUTHORITIES").ok().and_then(|count| count.parse().ok()).unwrap_or(REQUESTS);
    let each = count / 2 / THREADS as usize;
    let bench = Bench::new();
    let forwarded: Vec<(usize, usize)> = thread::scope(|scope| {
        let bench = &bench;
        let threads: Vec<_> =
            (0..THREADS).map(|seed| scope.spawn(move || (bench.http1(seed, each), bench.http2(seed, each)))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no difference")).collect()
    });
    println!("of {each} each, forwarded over HTTP/1 and HTTP/2: {forwarded:?}");
    // Some requests are forwarded, and some are not.
    for share in forwarded.iter().flat_map(|(http1, http2)| [http1, http2]) {
        assert!((each / 4..each).contains(share), "{forwarded:?}");
    }
}
