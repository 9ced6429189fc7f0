//! Size limits and time-outs.

use super::Ingress;
use ingress_proxy_testing::{Origin, wait_until};

#[test]
fn a_declared_oversized_body_is_refused_at_once() {
    let origin = Origin::answering("pod");
    let site = Ingress::with(&[("proxy-body-size", "1k")]).serve(&origin).in_order();
    let mut client = site.client();
    client.send(format!("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1024\r\n\r\n{}", "x".repeat(1024)));
    assert_eq!(client.response().status, 200);
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1025\r\n\r\n");
    assert_eq!(client.response().status, 413);
    assert!(client.is_closed());
    assert_eq!(origin.heads().len(), 1);
}

#[test]
fn an_oversized_chunked_body_is_aborted() {
    let origin = Origin::start(|peer| {
        peer.head();
        peer.until_closed();
    });
    let site = Ingress::with(&[("proxy-body-size", "1k")]).serve(&origin).in_order();
    let mut client = site.client();
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n");
    wait_until("the pod has the head", || origin.heads().len() == 1);
    client.send(format!("400\r\n{}\r\n1\r\nx\r\n", "x".repeat(1024)));
    assert_eq!(client.response().status, 413);
}

#[test]
fn an_oversized_response_head_is_a_502() {
    let origin = Origin::start(|peer| {
        while peer.request().is_some() {
            peer.send(format!("HTTP/1.1 200 OK\r\nX-Long: {}\r\nContent-Length: 0\r\n\r\n", "x".repeat(5000)));
        }
    });
    assert_eq!(Ingress::with(&[("proxy-buffer-size", "4k")]).serve(&origin).in_order().get("/").status, 502);
    assert_eq!(Ingress::with(&[("proxy-buffer-size", "8k")]).serve(&origin).in_order().get("/").status, 200);
}

#[test]
fn the_read_timeout_of_a_rule_applies() {
    let origin = Origin::start(|peer| peer.until_closed());
    let site = Ingress::with(&[("proxy-read-timeout", "1")]).serve(&origin).in_order();
    assert_eq!(site.get("/").status, 504);
}
