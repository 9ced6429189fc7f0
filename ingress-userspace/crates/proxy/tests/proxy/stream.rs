//! Bodies pass as they arrive, without waiting for their end.

use ingress_proxy_testing::{Origin, Proxy, Table};

#[test]
fn a_pod_sees_an_upload_before_its_end() {
    let origin = Origin::start(|peer| {
        let head = peer.head().expect("a head");
        while peer.received().is_empty() {
            assert!(peer.more());
        }
        // The client sends the rest only once it has this.
        peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
        let body = peer.body(&head).expect("a body");
        peer.send(format!("{:x}\r\n{}\r\n0\r\n\r\n", body.len(), String::from_utf8(body).expect("text")));
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 6\r\n\r\nabc");
    assert!(client.head().expect("a head").starts_with("http/1.1 200"));
    assert_eq!(client.at_least(10), b"5\r\nfirst\r\n");
    client.send("def");
    assert_eq!(client.at_least(16), b"6\r\nabcdef\r\n0\r\n\r\n");
}

#[test]
fn a_client_sees_a_response_before_its_end() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let origin = Origin::start(move |peer| {
        peer.request();
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc");
        wait.lock().expect("unpoisoned").recv().expect("told to go on");
        peer.send("def");
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = proxy.client();
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").head();
    assert_eq!(client.at_least(3), b"abc");
    go.send(()).expect("sent");
    assert_eq!(client.at_least(3), b"def");
}

#[test]
fn large_bodies_pass_whole_both_ways() {
    let origin = Origin::start(|peer| {
        while let Some((head, body)) = peer.request() {
            peer.send(format!(
                "HTTP/1.1 200 OK\r\nX-Length: {}\r\nContent-Length: {}\r\n\r\n",
                head.contains("chunked"),
                body.len()
            ));
            peer.send(&body);
        }
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let body: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    let mut client = proxy.client();
    client.send(format!("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: {}\r\n\r\n", body.len())).send(&body);
    assert!(client.response().body == body);
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n");
    for chunk in body.chunks(70_000) {
        client.send(format!("{:X}\r\n", chunk.len())).send(chunk).send("\r\n");
    }
    client.send("0\r\n\r\n");
    let response = client.response();
    assert_eq!(response.header("x-length"), Some("true"));
    assert!(response.body == body);
}

#[test]
fn a_truncated_response_does_not_look_complete() {
    for (head, part) in [("Content-Length: 10", "abc"), ("Transfer-Encoding: chunked", "3\r\nabc\r\n")] {
        let origin = Origin::start(move |peer| {
            peer.request();
            peer.send(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{part}"));
        });
        let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
        let mut client = proxy.client();
        client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
        assert!(client.try_response().is_none(), "{head}");
    }
}

#[test]
fn the_proxy_answers_expectations() {
    let origin = Origin::start(|peer| {
        while let Some((head, body)) = peer.request() {
            assert!(!head.contains("expect"), "{head}");
            peer.answer(std::str::from_utf8(&body).expect("text"));
        }
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    assert!(client.head().expect("an interim response").starts_with("http/1.1 100"));
    assert_eq!(client.send("abc").response().text(), "abc");
}
