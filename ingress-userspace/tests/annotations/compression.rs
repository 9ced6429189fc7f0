//! Responses that are compressed on their way.

use std::{
    io::Write as _,
    sync::{Mutex, mpsc},
};

use super::{Ingress, Site, configured};
use ingress_proxy_testing::{Client, Origin};

const JSON: &str = "Content-Type: application/json\r\nETag: \"v1\"\r\nAccept-Ranges: bytes\r\n";

/// A body of some length that compresses well.
fn body() -> String {
    (0..20_000).map(|n| format!("{{\"id\": {n}, \"name\": \"item {}\"}},\n", n % 97)).collect()
}

/// A pod that answers with these fields and [`body`].
fn pod(fields: &'static str) -> Origin {
    Origin::start(move |peer| {
        let body = body();
        while peer.request().is_some() {
            peer.send(format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n{body}", body.len()));
        }
    })
}

/// Decodes as much of `bytes` as is complete.
fn decode(coding: &str, bytes: &[u8]) -> String {
    let output = match coding {
        "gzip" => {
            let mut decoder = flate2::write::GzDecoder::new(Vec::new());
            decoder.write_all(bytes).and_then(|()| decoder.flush()).expect("gzip");
            decoder.get_ref().clone()
        }
        "br" => {
            let mut decoder = brotli::DecompressorWriter::new(Vec::new(), 4096);
            decoder.write_all(bytes).and_then(|()| decoder.flush()).expect("brotli");
            decoder.get_ref().clone()
        }
        "zstd" => {
            let mut decoder = zstd::stream::write::Decoder::new(Vec::new()).expect("a decoder");
            decoder.write_all(bytes).and_then(|()| decoder.flush()).expect("zstd");
            decoder.get_ref().clone()
        }
        other => unreachable!("no coding {other}"),
    };
    String::from_utf8(output).expect("text")
}

fn settings(data: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: default}}\ndata: {{{data}}}\n")
}

fn serve(annotations: &[(&str, &str)], data: &str, pod: &Origin) -> Site {
    Ingress::with(annotations).beside(&settings(data)).serve_with(&[pod.address], &configured()).in_order()
}

/// Returns the coding of the answer to this `Accept-Encoding`, after checking that the answer is whole.
fn coding(site: &Site, accepted: &str) -> Option<String> {
    let response = site.ask("/", &format!("Accept-Encoding: {accepted}\r\n"));
    let coding = response.header("content-encoding").map(str::to_owned);
    match &coding {
        Some(coding) => {
            assert!(decode(coding, &response.body) == body(), "{coding}");
            assert!(response.body.len() * 5 < body().len(), "{coding}: {}", response.body.len());
            assert_eq!(response.header("content-length"), None);
            assert_eq!((response.header("accept-ranges"), response.header("vary")), (None, Some("accept-encoding")));
        }
        None => assert!(response.body == body().as_bytes()),
    }
    coding
}

#[test]
fn settings_and_annotations_select_the_codings() {
    let pod = pod(JSON);
    let every = "gzip, br, zstd";
    for (data, annotations, expect) in [
        ("", &[][..], [None, None]),
        ("use-gzip: 'true'", &[], [Some("gzip"), Some("gzip")]),
        ("enable-brotli: 'true'", &[], [Some("br"), None]),
        ("enable-zstd: 'true', use-gzip: 'true'", &[], [Some("zstd"), Some("gzip")]),
        ("use-gzip: 'true'", &[("xdp-ingress.io/compression", "off")], [None, None]),
        ("use-gzip: 'true'", &[("xdp-ingress.io/compression", "br")], [Some("br"), None]),
        ("", &[("xdp-ingress.io/compression", "gzip, zstd")], [Some("gzip"), Some("gzip")]),
        ("use-gzip: 'true', gzip-types: 'text/css'", &[], [None, None]),
        ("use-gzip: 'true', gzip-types: '*', gzip-level: '9'", &[], [Some("gzip"), Some("gzip")]),
        ("use-gzip: 'true', gzip-min-length: '100000000'", &[], [None, None]),
        ("enable-brotli: 'true', brotli-level: '0', brotli-types: 'application/json'", &[], [Some("br"), None]),
        ("enable-zstd: 'true', zstd-level: '9', zstd-min-length: '1k'", &[], [Some("zstd"), None]),
        ("enable-brotli: 'true', brotli-min-length: '100m'", &[], [None, None]),
        ("enable-zstd: 'true', zstd-types: 'text/css'", &[], [None, None]),
    ] {
        let site = serve(annotations, data, &pod);
        assert_eq!(
            [every, "gzip"].map(|accepted| coding(&site, accepted)),
            expect.map(|name| name.map(str::to_owned)),
            "{data}"
        );
        assert_eq!(coding(&site, "identity"), None);
    }
    let site = serve(&[], "use-gzip: 'true', gzip-disable: 'MSIE [1-6]\\.'", &pod);
    let old = site.ask("/", "Accept-Encoding: gzip\r\nUser-Agent: Mozilla/4.0 (compatible; MSIE 6.0)\r\n");
    assert_eq!(old.header("content-encoding"), None);
    assert_eq!(coding(&site, "gzip").as_deref(), Some("gzip"));
}

#[test]
fn etags_become_weak_for_get_and_head() {
    let site = serve(&[], "use-gzip: 'true'", &pod(JSON));
    assert_eq!(site.ask("/", "Accept-Encoding: gzip\r\n").header("etag"), Some("w/\"v1\""));
    assert_eq!(site.get("/").header("etag"), Some("\"v1\""));
    // Responses to HEAD carry the same fields, even if the length of GET's body is unknown.
    for framing in ["Content-Length: 1000", "Transfer-Encoding: chunked"] {
        let pod = Origin::start(move |peer| {
            while peer.request().is_some() {
                peer.send(format!("HTTP/1.1 200 OK\r\n{JSON}{framing}\r\n\r\n"));
            }
        });
        let site = serve(&[], "use-gzip: 'true'", &pod);
        let mut client = site.client();
        for _ in 0..2 {
            client.send("HEAD / HTTP/1.1\r\nHost: a.test\r\nAccept-Encoding: gzip\r\n\r\n");
            let head = client.head().expect("a head");
            for line in ["content-encoding: gzip\r\n", "etag: w/\"v1\"\r\n", "vary: accept-encoding\r\n"] {
                assert!(head.contains(line), "{line}: {head}");
            }
            assert!(!head.contains("content-length"), "{head}");
        }
    }
}

#[test]
fn encoded_partial_and_no_transform_responses_pass() {
    for fields in [
        "Content-Type: application/json\r\nContent-Encoding: br\r\n",
        "Content-Type: application/json\r\nCache-Control: no-transform\r\n",
        "Content-Type: image/png\r\n",
        "",
    ] {
        let site = serve(&[("xdp-ingress.io/compression", "gzip")], "", &pod(fields));
        let response = site.ask("/", "Accept-Encoding: gzip\r\n");
        assert!(response.body == body().as_bytes(), "{fields}");
        assert!(response.header("content-length").is_some(), "{fields}");
    }
    let partial = Origin::start(|peer| {
        while peer.request().is_some() {
            peer.send("HTTP/1.1 206 Partial Content\r\nContent-Type: text/plain\r\nContent-Range: bytes 0-4/500\r\nContent-Length: 5\r\n\r\nhello");
        }
    });
    let site = serve(&[("xdp-ingress.io/compression", "gzip")], "", &partial);
    let response = site.ask("/", "Accept-Encoding: gzip\r\nRange: bytes=0-4\r\n");
    assert_eq!((response.status, response.text()), (206, "hello"));
}

/// Returns the data of a chunked body so far.
fn unchunked(mut raw: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    while let Some(end) = raw.iter().position(|byte| *byte == b'\n') {
        let size = std::str::from_utf8(&raw[..end]).expect("text").trim();
        let size = usize::from_str_radix(size, 16).expect("a chunk size");
        let rest = &raw[end + 1..];
        data.extend_from_slice(&rest[..size.min(rest.len())]);
        raw = rest.get(size + 2..).unwrap_or_default();
    }
    data
}

/// Reads on until the decoded body ends in `text`.
fn read_until(client: &mut Client, raw: &mut Vec<u8>, coding: &str, text: &str) {
    while !decode(coding, &unchunked(raw)).ends_with(text) {
        raw.extend(client.at_least(1));
    }
}

#[test]
fn server_sent_events_are_flushed_at_once() {
    for coding in ["gzip", "br", "zstd"] {
        let (go, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let pod = Origin::start(move |peer| {
            peer.request();
            peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
            for n in 0..3 {
                wait.lock().expect("unpoisoned").recv().expect("told to go on");
                peer.send(format!("d\r\ndata: event{n}\n\r\n"));
            }
            peer.send("0\r\n\r\n");
        });
        let site = serve(
            &[("xdp-ingress.io/compression", coding)],
            &format!("{}-types: '*'", if coding == "br" { "brotli" } else { coding }),
            &pod,
        );
        let mut client = site.client();
        client.send(format!("GET / HTTP/1.1\r\nHost: a.test\r\nAccept-Encoding: {coding}\r\n\r\n"));
        // The head does not wait for the first event either.
        assert!(client.head().expect("a head").contains(&format!("content-encoding: {coding}\r\n")));
        let mut raw = Vec::new();
        for n in 0..3 {
            go.send(()).expect("sent");
            read_until(&mut client, &mut raw, coding, &format!("data: event{n}\n"));
        }
        while !raw.ends_with(b"0\r\n\r\n") {
            raw.extend(client.at_least(1));
        }
        assert_eq!(decode(coding, &unchunked(&raw)), "data: event0\ndata: event1\ndata: event2\n");
    }
}

#[test]
fn a_truncated_body_stays_truncated() {
    let pod = Origin::start(|peer| {
        peer.request();
        peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\n\r\nbegin");
    });
    let site = serve(&[("xdp-ingress.io/compression", "gzip")], "", &pod);
    let mut client = site.client();
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\nAccept-Encoding: gzip\r\n\r\n");
    assert!(client.try_response().is_none(), "the end of the chunks is missing");
}

#[test]
fn unknown_codings_are_reported() {
    let pod = pod(JSON);
    let site = Ingress::with(&[("xdp-ingress.io/compression", "gzip, deflate")]).serve(&pod);
    assert!(
        site.outcomes.contains("write `gzip`, `br` and `zstd`, separated by commas, or `off`"),
        "{}",
        site.outcomes
    );
    assert_eq!(coding(&site, "gzip"), None);
}
