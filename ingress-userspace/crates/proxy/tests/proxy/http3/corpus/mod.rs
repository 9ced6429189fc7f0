//! The corpora of HTTP/1 and HTTP/2, by HTTP/3: no request reaches a pod that readers could read differently, and the
//! host of the route is the one that the pod gets.

pub(super) mod raw;

use fastrand::Rng;

use ingress_proxy_testing::{Proxy, Table};
use raw::Raw;

use super::{connect_raw, start};
use crate::{
    authorities::{self, Asked},
    framing::{
        self,
        recorder::{Log, Recorder},
    },
};

/// A connection that is made again when it was closed.
struct Connection<'p> {
    proxy: &'p Proxy,
    open: Option<(quinn::Endpoint, Raw)>,
}

impl<'p> Connection<'p> {
    const fn new(proxy: &'p Proxy) -> Self {
        Self { proxy, open: None }
    }

    /// Returns the status and the content of a response; `None` if the stream is reset or the connection closed.
    async fn request(&mut self, bytes: &[u8]) -> Option<(u16, Vec<u8>)> {
        if self.open.is_none() {
            let (endpoint, quic) = connect_raw(self.proxy, "a.test").await.expect("a connection");
            self.open = Some((endpoint, Raw::new(&quic).await));
        }
        let (_, raw) = self.open.as_ref()?;
        match raw.request(bytes).await {
            Ok(answer) => answer,
            Err(_closed) => {
                self.open = None;
                None
            }
        }
    }
}

/// Translates the head of a request of HTTP/1 line by line, and gives it the rest of the bytes as its body.
fn translated(bytes: &[u8]) -> Option<Vec<u8>> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let (head, body) = (&bytes[..end], &bytes[end + 4..]);
    let mut lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    let mut request = lines.next()?.split(|byte| *byte == b' ');
    let (method, target) = (request.next()?.to_vec(), request.next()?.to_vec());
    let mut section = vec![
        (b":method".to_vec(), method),
        (b":scheme".to_vec(), b"https".to_vec()),
        (b":authority".to_vec(), b"a.test".to_vec()),
        (b":path".to_vec(), target),
    ];
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        section.push((line[..colon].to_ascii_lowercase(), value.trim_ascii().to_vec()));
    }
    let mut out = raw::headers(&section);
    if !body.is_empty() {
        out.extend(raw::data(body));
    }
    Some(out)
}

#[tokio::test]
async fn no_case_of_the_framing_corpus_reaches_a_pod_in_two_readings() {
    let pod = Recorder::start();
    let proxy = start(&Table::default().host("a.test", &[pod.address]).host("", &[pod.address]));
    let (mut client, mut served, mut refused) = (Connection::new(&proxy), 0, 0);
    for (name, bytes) in framing::requests() {
        let Some(request) = translated(&bytes) else { continue };
        let answer = client.request(&request).await;
        // The pod has recorded a request when it has answered; half of one ends with its connection.
        let Log { faults, seen, .. } = pod.take();
        assert!(faults.is_empty(), "{name}: the pod got {faults:?}");
        match answer {
            Some((200, _)) => {
                served += 1;
                assert_eq!(seen.len(), 1, "{name}: {seen:?}");
            }
            Some((status, _)) => {
                refused += 1;
                assert!((400..500).contains(&status), "{name}: {status}");
                assert!(seen.is_empty(), "{name}: {seen:?}");
            }
            None => refused += 1,
        }
    }
    println!("{served} served, {refused} refused");
    assert!(served > 40 && refused > 200, "{served} served, {refused} refused");
}

/// Changes of a good request that make it malformed (RFC 9114, 4.1 to 4.3).
#[tokio::test]
async fn malformed_requests_reach_no_pod() {
    const GOOD: &[(&str, &str)] =
        &[(":method", "POST"), (":scheme", "https"), (":authority", "a.test"), (":path", "/x")];
    let plus = |fields: &[(&'static str, &'static str)]| raw::headers(&[GOOD, fields].concat());
    let without = |name: &str| {
        let kept: Vec<_> = GOOD.iter().filter(|(known, _)| *known != name).copied().collect();
        raw::headers(&kept)
    };
    let with_body = |fields: &[(&'static str, &'static str)], body: &[u8]| [plus(fields), raw::data(body)].concat();
    let cases = [
        ("two authorities", plus(&[(":authority", "b.test")])),
        ("two paths", plus(&[(":path", "/y")])),
        ("a status", plus(&[(":status", "200")])),
        ("a pseudo-field behind a field", plus(&[("a", "b"), (":extra", "x")])),
        ("an unknown pseudo-field", plus(&[(":extra", "x")])),
        ("another host", plus(&[("host", "b.test")])),
        ("two hosts", plus(&[("host", "a.test"), ("host", "a.test")])),
        ("no method", without(":method")),
        ("no scheme", without(":scheme")),
        ("no path", without(":path")),
        ("no authority", without(":authority")),
        ("a name in upper case", plus(&[("X-A", "b")])),
        ("a name with a space", plus(&[("x a", "b")])),
        ("an empty name", plus(&[("", "b")])),
        ("a value with a line end", plus(&[("x-a", "b\r\nx-b: c")])),
        ("a value with zero", plus(&[("x-a", "b\0c")])),
        ("a value in white space", plus(&[("x-a", " b ")])),
        ("connection", plus(&[("connection", "close")])),
        ("transfer-encoding", with_body(&[("transfer-encoding", "chunked")], b"0\r\n\r\n")),
        ("upgrade", plus(&[("upgrade", "websocket")])),
        ("keep-alive", plus(&[("keep-alive", "5")])),
        ("te of more than trailers", plus(&[("te", "gzip")])),
        ("a length that is too large", with_body(&[("content-length", "4")], b"abc")),
        ("a length that is too small", with_body(&[("content-length", "2")], b"abc")),
        ("a length without a body", plus(&[("content-length", "3")])),
        ("two lengths", with_body(&[("content-length", "3"), ("content-length", "4")], b"abc")),
        ("a length with a sign", with_body(&[("content-length", "+3")], b"abc")),
        ("data before a head", [raw::data(b"abc"), plus(&[])].concat()),
        ("trailers with a pseudo-field", [with_body(&[], b"abc"), raw::headers(&[(":path", "/y")])].concat()),
    ];
    let pod = Recorder::start();
    let proxy = start(&Table::default().host("a.test", &[pod.address]).host("", &[pod.address]));
    let mut client = Connection::new(&proxy);
    for (name, bytes) in cases {
        let answer = client.request(&bytes).await;
        assert!(answer.as_ref().is_none_or(|(status, _)| (400..500).contains(status)), "{name}: {answer:?}");
        let Log { faults, seen, .. } = pod.take();
        assert!(faults.is_empty() && seen.is_empty(), "{name}: {faults:?} {seen:?}");
        assert_eq!(client.request(&plus(&[("x-a", "b")])).await.map(|(status, _)| status), Some(200), "after {name}");
        assert_eq!(pod.take().seen, ["POST /x a.test length:"], "after {name}");
    }
}

#[tokio::test]
async fn the_host_of_the_route_is_the_one_that_the_pod_gets() {
    const REQUESTS: usize = 2_000;
    let (table, pods) = authorities::table();
    let proxy = start(&table);
    let mut rng = Rng::with_seed(11);
    let (mut client, mut forwarded) = (Connection::new(&proxy), 0);
    for _ in 0..REQUESTS {
        let request = raw::headers(&Asked::of(&mut rng).http3(&mut rng));
        match client.request(&request).await {
            Some((200, text)) => {
                let text = String::from_utf8(text).expect("text");
                authorities::check(text.strip_prefix("pod ").expect("a pod"), &request);
                forwarded += 1;
            }
            Some((status, _)) => assert_eq!(status, 400, "{}", request.escape_ascii()),
            None => {}
        }
    }
    println!("{forwarded} of {REQUESTS} forwarded");
    assert!(forwarded > REQUESTS / 4, "{forwarded}");
    drop(pods);
}
