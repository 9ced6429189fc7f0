//! Fields that a rule sets, adds and removes by lists, as pods and clients see them.

use ingress_model::{Filter, HeaderEdits};
use ingress_proxy_testing::{Origin, Proxy, Table};

fn lists() -> HeaderEdits {
    let set = [("X-Header-Set", "set-overwrites-$host")];
    let add = [("X-Header-Add", "1"), ("X-Header-Add-Append", "header-val-2")];
    HeaderEdits::literal(set, add, ["X-Header-Remove"]).expect("valid")
}

#[test]
fn lists_change_requests_once_and_literally() {
    let origin = Origin::mirror();
    let filters = vec![Filter::RequestHeaders(lists().into())];
    let proxy = Proxy::start(&Table::default().host_with("a.test", &[origin.address], filters));
    let mut client = proxy.client();
    client.send(
        "GET / HTTP/1.1\r\nHost: a.test\r\nx-header-SET: one\r\nX-Header-Set: two\r\nX-Header-Add-Append: append-val-1\r\n\
         X-Header-Remove: a\r\nX-Kept: b\r\n\r\n",
    );
    let response = client.response();
    let lines: Vec<_> =
        response.text().lines().filter(|line| line.starts_with("x-header") || line.starts_with("x-k")).collect();
    assert_eq!(
        lines,
        [
            "x-header-add-append: append-val-1",
            "x-kept: b",
            "x-header-set: set-overwrites-$host",
            "x-header-add: 1",
            "x-header-add-append: header-val-2",
        ]
    );
}

#[test]
fn lists_change_responses_once_and_literally() {
    let origin = Origin::start(|peer| {
        while peer.request().is_some() {
            peer.send(
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Header-Set: one\r\nX-Header-Set: two\r\n\
                 X-Header-Add-Append: append-val-1\r\nX-Header-Remove: a\r\n\r\n",
            );
        }
    });
    let filters = vec![Filter::ResponseHeaders(lists().into())];
    let proxy = Proxy::start(&Table::default().host_with("a.test", &[origin.address], filters));
    let response = proxy.client().get("a.test", "/");
    let mut lines: Vec<_> = response.head.lines().filter(|line| line.starts_with("x-header")).collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "x-header-add-append: append-val-1",
            "x-header-add-append: header-val-2",
            "x-header-add: 1",
            "x-header-set: set-overwrites-$host",
        ]
    );
}
