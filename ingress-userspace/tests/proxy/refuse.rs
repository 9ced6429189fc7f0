//! Malformed requests are refused before a pod sees a byte, and the connection ends.

use crate::support::{Origin, Proxy, Table};

/// Sends `request`, which must be answered with `status` without a byte to the pod.
fn check(proxy: &Proxy, origin: &Origin, request: &[u8], status: u16) {
    let shown = String::from_utf8_lossy(&request[..request.len().min(120)]).into_owned();
    let mut client = proxy.client();
    let response = client.send(request).head().unwrap_or_default();
    assert!(response.starts_with(&format!("http/1.1 {status} ")), "{shown:?}: {response}");
    assert_eq!(origin.heads(), Vec::<String>::new(), "{shown:?}");
}

fn proxy() -> (Proxy, Origin) {
    let origin = Origin::answering("pod");
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]).host("", &[origin.address]));
    (proxy, origin)
}

/// Whether a request sent behind the refused one could be taken for one.
fn check_closed(proxy: &Proxy, origin: &Origin, request: &str) {
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n";
    check(proxy, origin, format!("{request}{smuggled}").as_bytes(), 400);
    let mut client = proxy.client();
    client.send(request);
    assert!(client.head().is_some_and(|head| head.starts_with("http/1.1 400 ")), "{request:?}");
    assert!(client.is_closed(), "{request:?}");
}

#[test]
fn ambiguous_framing_is_refused() {
    let (proxy, origin) = proxy();
    for fields in [
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        "Content-Length: 3\r\nContent-Length: 4\r\n",
        "Content-Length: 3, 4\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: +3\r\n",
        "Content-Length: 3x\r\n",
        "Content-Length : 3\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: ,chunked\r\n",
        "Transfer-Encoding: chunked,\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: gzip\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: \"chunked\"\r\n",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding:\r\n chunked\r\n",
        "X: a\r\n folded\r\n",
        "X: a\rb\r\n",
        "X: a\0b\r\n",
        "X: a\n",
        "X y: a\r\n",
        ": a\r\n",
        "no colon\r\n",
    ] {
        check_closed(&proxy, &origin, &format!("POST / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n"));
    }
    check_closed(&proxy, &origin, "POST / HTTP/1.0\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n");
}

#[test]
fn malformed_request_lines_are_refused() {
    let (proxy, origin) = proxy();
    for line in [
        "GET / HTTP/1.1\n",
        "GET /#fragment HTTP/1.1\r\n",
        "GET /\r\n",
        "GET / HTTP/2.0\r\n",
        "GET / HTTP/1.2\r\n",
        "GET  / HTTP/1.1\r\n",
        "GET /a b HTTP/1.1\r\n",
        "GET /\0 HTTP/1.1\r\n",
        " GET / HTTP/1.1\r\n",
        "GET\t/ HTTP/1.1\r\n",
        "G@T / HTTP/1.1\r\n",
        "CONNECT a.test:80 HTTP/1.1\r\n",
    ] {
        check_closed(&proxy, &origin, &format!("{line}Host: a.test\r\n\r\n"));
    }
}

#[test]
fn requests_without_one_authority_are_refused() {
    let (proxy, origin) = proxy();
    for (target, hosts) in [
        ("/", &[][..]),
        ("/", &["a.test", "a.test"]),
        ("/", &["a.test", "b.test"]),
        ("/", &[""]),
        ("/", &["user@a.test"]),
        ("/", &["[::1"]),
        ("/", &["a.test/x"]),
        ("/", &["a..test"]),
        ("/", &["a.test:99999"]),
        ("/", &["a.test, b.test"]),
        ("/", &["a.test\u{0b}"]),
        ("http://a.test/", &["b.test"]),
        ("http://a.test/", &[]),
        ("http://user@a.test/", &["a.test"]),
    ] {
        let hosts: String = hosts.iter().map(|host| format!("Host: {host}\r\n")).collect();
        check_closed(&proxy, &origin, &format!("GET {target} HTTP/1.1\r\n{hosts}\r\n"));
    }
}

#[test]
fn paths_without_a_normal_form_are_refused() {
    let (proxy, origin) = proxy();
    for path in ["/..", "/a/../..", "/%2e%2e/x", "/a%00", "/a%zz", "/a%2", "*"] {
        check(&proxy, &origin, format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n\r\n").as_bytes(), 400);
    }
}

#[test]
fn oversized_heads_get_their_status() {
    let (proxy, origin) = proxy();
    let long = |size: usize| "a".repeat(size);
    let line = format!("GET /{} HTTP/1.1\r\nHost: a.test\r\n\r\n", long(8 * 1024));
    check(&proxy, &origin, line.as_bytes(), 414);
    let field = format!("GET / HTTP/1.1\r\nHost: a.test\r\nX: {}\r\n\r\n", long(32 * 1024));
    check(&proxy, &origin, field.as_bytes(), 431);
    let many = "X: y\r\n".repeat(101);
    check(&proxy, &origin, format!("GET / HTTP/1.1\r\nHost: a.test\r\n{many}\r\n").as_bytes(), 431);
}

#[test]
fn malformed_chunks_are_the_clients_fault() {
    for chunks in
        ["x\r\n", "3\nabc\r\n0\r\n\r\n", "3\r\nabcd\r\n", "3;x\ny\r\nabc\r\n", "10000000000000000\r\n", "-1\r\n"]
    {
        let (proxy, _origin) = proxy();
        let mut client = proxy.client();
        client.send("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n").send(chunks);
        let head = client.head().unwrap_or_else(|| panic!("closed without a word: {chunks:?}"));
        assert!(head.starts_with("http/1.1 400 "), "{chunks:?}: {head}");
        assert!(client.is_closed(), "{chunks:?}");
    }
}

#[test]
fn a_refused_connection_does_not_disturb_others() {
    let (proxy, _origin) = proxy();
    let mut good = proxy.client();
    for _ in 0..20 {
        assert_eq!(good.get("a.test", "/").text(), "pod");
        let mut bad = proxy.client();
        bad.send("GET / HTTP/1.1\nHost: a.test\n\n");
        assert!(bad.is_closed());
    }
    assert_eq!(proxy.shared.stats().refused_framing, 20);
}

#[test]
fn a_head_may_come_byte_by_byte() {
    let (proxy, origin) = proxy();
    let mut client = proxy.client();
    for byte in b"POST /x HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" {
        client.send([*byte]);
    }
    assert_eq!(client.response().text(), "pod");
    assert_eq!(origin.heads().len(), 1);
}
