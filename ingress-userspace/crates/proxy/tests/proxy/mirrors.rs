//! Mirrors of rules: several, by share, with the request as the pod gets it.

use std::{net::SocketAddr, sync::Arc};

use http::HeaderValue;
use ingress_model::{
    Endpoint, Filter, HeaderEdits, HeaderText, Mirror, MirrorShare, PathModifier, ReplacementPath, Rewrite, Upstream,
    UpstreamKey,
};
use ingress_proxy_testing::{Origin, Peer, Proxy, Table, wait_until};

fn mirror(name: &str, share: Option<MirrorShare>) -> Filter {
    let upstream = UpstreamKey::new("default", name, "80");
    Filter::Mirror(Mirror { upstream, host: None, target: None, body: true, share }.into())
}

/// A table of `a.test` with these filters, and an upstream for each mirror.
fn table(pod: &Origin, filters: Vec<Filter>, mirrors: &[(&str, SocketAddr)]) -> Table {
    let mut table = Table::default().host_with("a.test", &[pod.address], filters);
    for (name, address) in mirrors {
        let endpoints = vec![Endpoint { address: *address }];
        let upstream = Arc::new(Upstream { endpoints, ..Upstream::default() });
        table.0.upstreams.insert(UpstreamKey::new("default", name, "80"), upstream);
    }
    table
}

/// Notes bodies as well as heads.
fn recording(peer: &mut Peer) {
    while let Some((_, body)) = peer.request() {
        peer.note(&format!("body {}", String::from_utf8_lossy(&body)));
        peer.answer("discarded");
    }
}

#[test]
fn each_mirror_gets_the_request_that_the_pod_gets() {
    let (pod, one, two) = (Origin::answering("pod"), Origin::start(recording), Origin::start(recording));
    let replacement = ReplacementPath::parse("/new").expect("valid");
    let filters = vec![
        Filter::Rewrite(Rewrite::Path(PathModifier::Prefix { matched: "/old".into(), replacement }).into()),
        Filter::UpstreamHost(HeaderText::Fixed(HeaderValue::from_static("b.test"))),
        Filter::RequestHeaders(HeaderEdits::literal([("X-Set", "1")], [], []).expect("valid").into()),
        mirror("one", None),
        mirror("two", None),
    ];
    let proxy = Proxy::start(&table(&pod, filters, &[("one", one.address), ("two", two.address)]));
    let mut client = proxy.client();
    let response = client.send("POST /old/x?q=1 HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello").response();
    assert_eq!(response.text(), "pod");
    for mirror in [&one, &two] {
        wait_until("the mirror has the body", || mirror.heads().len() == 2);
        let heads = mirror.heads();
        assert!(heads[0].starts_with("post /new/x?q=1 http/1.1\r\nhost: b.test\r\n"), "{}", heads[0]);
        assert!(heads[0].contains("\r\nx-set: 1\r\n"), "{}", heads[0]);
        assert_eq!(heads[1], "body hello");
    }
}

#[test]
fn a_share_of_requests_is_mirrored() {
    let (pod, some, every) = (Origin::answering("pod"), Origin::answering("some"), Origin::answering("every"));
    let filters = vec![mirror("some", MirrorShare::new(20, 100)), mirror("every", MirrorShare::new(1, 1))];
    let proxy = Proxy::start(&table(&pod, filters, &[("some", some.address), ("every", every.address)]));
    let mut client = proxy.client();
    for _ in 0..1000 {
        assert_eq!(client.get("a.test", "/").text(), "pod");
    }
    wait_until("each request is mirrored", || every.heads().len() == 1000);
    wait_until("a share of requests is mirrored", || some.heads().len() >= 195);
    assert!(some.heads().len() <= 205, "{}", some.heads().len());
}

#[test]
fn a_share_of_nothing_mirrors_nothing() {
    let (pod, none, every) = (Origin::answering("pod"), Origin::answering("none"), Origin::answering("every"));
    let filters = vec![mirror("none", MirrorShare::new(0, 100)), mirror("every", None)];
    let proxy = Proxy::start(&table(&pod, filters, &[("none", none.address), ("every", every.address)]));
    let mut client = proxy.client();
    for _ in 0..50 {
        assert_eq!(client.get("a.test", "/").text(), "pod");
    }
    wait_until("each request is mirrored", || every.heads().len() == 50);
    assert_eq!(none.heads().len(), 0);
}

#[test]
fn a_mirror_that_hangs_holds_up_neither_the_pod_nor_another_mirror() {
    let pod = Origin::answering("pod");
    let (hanging, one) = (Origin::start(|peer| peer.until_closed()), Origin::start(recording));
    let filters = vec![mirror("hanging", None), mirror("one", None)];
    let proxy = Proxy::start(&table(&pod, filters, &[("hanging", hanging.address), ("one", one.address)]));
    let mut client = proxy.client();
    for _ in 0..3 {
        let post = "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 2\r\n\r\nhi";
        assert_eq!(client.send(post).response().text(), "pod");
    }
    wait_until("the other mirror has all", || one.heads().len() == 6);
}
