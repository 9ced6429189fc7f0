//! Parts of a message beside head and body: trailers, interim responses, early responses and responses without a body.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::Builder;
use hyper_util::rt::TokioExecutor;

use ingress_proxy_testing::tls::{http2, http2_with};
use ingress_proxy_testing::{Client, Origin, Proxy, Table, wait_until};

fn proxy(origin: &Origin) -> Proxy {
    Proxy::start(&Table::default().host("a.test", &[origin.address]))
}

/// Reads the rest of a chunked message, as sent.
fn until_end(client: &mut Client) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        text.extend(client.at_least(1));
    }
    String::from_utf8(text).expect("text")
}

/// Answers with trailers, one of which is not allowed.
fn with_trailers() -> Origin {
    Origin::start(|peer| {
        while let Some(head) = peer.head() {
            if head.starts_with("post") {
                while !peer.received().ends_with(b"\r\n\r\n") && peer.more() {}
            }
            // The pod's trailers echo the client's trailers.
            let received = String::from_utf8(peer.take()).expect("text");
            let echo = if received.contains("\r\n0\r\nx-sum: 9\r\n\r\n") { "x-echo: 9\r\n" } else { "" };
            peer.send(format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum, set-cookie\r\n\r\n\
                 3\r\npod\r\n0\r\nx-sum: 7\r\nset-cookie: a=1\r\n{echo}\r\n",
            ));
        }
    })
}

#[test]
fn trailers_reach_http1_clients_that_accept_them() {
    let origin = with_trailers();
    let proxy = proxy(&origin);
    let mut client = proxy.client();
    for (fields, asked) in
        [("", false), ("TE: trailers\r\nConnection: TE\r\n", true), ("TE: gzip\r\nConnection: TE\r\n", false)]
    {
        client.send(format!("GET / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n"));
        let head = client.head().expect("a head");
        assert!(head.contains("\r\ntrailer: x-sum, set-cookie\r\n"), "{head}");
        let expect = if asked { "3\r\npod\r\n0\r\nx-sum: 7\r\n\r\n" } else { "3\r\npod\r\n0\r\n\r\n" };
        assert_eq!(until_end(&mut client), expect, "{fields}");
        let told = origin.heads().last().expect("a head").contains("\r\nconnection: te\r\nte: trailers\r\n");
        assert_eq!(told, asked, "{fields}");
    }
}

/// A body of unknown length.
struct Unsized(VecDeque<Frame<Bytes>>);

impl Body for Unsized {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }
}

#[tokio::test]
async fn trailers_pass_between_http2_and_http1() {
    let origin = with_trailers();
    let proxy = proxy(&origin);
    let mut client = http2_with(&proxy, Builder::new(TokioExecutor::new())).await;
    let trailers = HeaderMap::from_iter([("x-sum".parse().expect("a name"), "9".parse().expect("a value"))]);
    let frames = VecDeque::from([Frame::data(Bytes::from_static(b"ping")), Frame::trailers(trailers)]);
    let request = Request::post("https://a.test/").header("te", "trailers").body(Unsized(frames));
    let response = client.send_request(request.expect("valid request")).await.expect("a response");
    let body = response.into_body().collect().await.expect("a body");
    let trailers: Vec<_> =
        body.trailers().expect("trailers").iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    assert_eq!(trailers, [("x-sum", &b"7"[..]), ("x-echo", b"9")]);
    assert_eq!(body.to_bytes(), "pod");
    assert!(origin.heads()[0].contains("\r\nte: trailers\r\n"));
}

#[test]
fn trailers_of_a_request_reach_the_pod() {
    let origin = Origin::start(|peer| {
        peer.head();
        while !peer.received().ends_with(b"\r\n\r\n") && peer.more() {}
        let received = String::from_utf8(peer.take()).expect("text");
        peer.answer(&received);
    });
    let proxy = proxy(&origin);
    let request = "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n\
                   3\r\nabc\r\n0\r\nx-sum: 9\r\nx-forwarded-for: evil\r\nauthorization: evil\r\n\r\n";
    let text = proxy.client().send(request).response().text().to_owned();
    assert!(text.ends_with("3\r\nabc\r\n0\r\nx-sum: 9\r\n\r\n"), "{text}");
}

#[tokio::test]
async fn interim_responses_are_not_forwarded() {
    let origin = Origin::start(|peer| {
        while peer.request().is_some() {
            for interim in ["100 Continue", "102 Processing", "103 Early Hints\r\nLink: </a.css>; rel=preload"] {
                peer.send(format!("HTTP/1.1 {interim}\r\n\r\n"));
            }
            peer.answer("pod");
        }
    });
    let proxy = proxy(&origin);
    let mut client = http2(&proxy).await;
    for _ in 0..2 {
        let response = proxy.client().get("a.test", "/");
        assert_eq!((response.status, response.text(), response.header("link")), (200, "pod", None));
        let request = Request::get("https://a.test/").body(Full::default()).expect("valid request");
        let response = client.send_request(request).await.expect("a response");
        assert_eq!((response.status(), response.headers().get("link")), (StatusCode::OK, None));
        assert_eq!(response.into_body().collect().await.expect("a body").to_bytes(), "pod");
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_response_may_precede_the_end_of_the_request() {
    let origin = Origin::start(|peer| {
        peer.head();
        peer.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\ntoo");
        peer.until_closed();
    });
    let proxy = proxy(&origin);
    let mut client = proxy.client();
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 100000000\r\n\r\n0123456789");
    let response = client.response();
    assert_eq!((response.status, response.text()), (413, "too"));
    wait_until("the request is over", || proxy.count(1).active == 0);
    // The rest of its body is not taken for a request.
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert!(client.is_closed());
    assert_eq!(origin.heads().len(), 1);
}

#[tokio::test]
async fn a_response_to_head_has_the_fields_of_get_and_no_body() {
    let origin = Origin::start(|peer| {
        while let Some(head) = peer.head() {
            let body = if head.starts_with("head") { "" } else { "0123456789" };
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 10\r\nETag: \"x\"\r\n\r\n{body}"));
        }
    });
    let proxy = proxy(&origin);
    let mut client = proxy.client();
    let head = client.send("HEAD / HTTP/1.1\r\nHost: a.test\r\n\r\n").head().expect("a head");
    assert!(head.contains("\r\ncontent-length: 10\r\n") && head.contains("\r\netag: \"x\"\r\n"), "{head}");
    assert_eq!(client.get("a.test", "/").text(), "0123456789");
    let mut client = http2(&proxy).await;
    let request = Request::head("https://a.test/").body(Full::default()).expect("valid request");
    let response = client.send_request(request).await.expect("a response");
    assert_eq!(
        (&response.headers()["content-length"], &response.headers()["etag"]),
        (&"10".parse().expect("a value"), &"\"x\"".parse().expect("a value"))
    );
    assert_eq!(response.into_body().collect().await.expect("no body").to_bytes(), "");
    assert_eq!((origin.connections(), proxy.count(1).bytes_out), (1, 10));
}
