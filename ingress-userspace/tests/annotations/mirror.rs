//! Mirrored requests.

use std::net::SocketAddr;

use super::{Ingress, Site};
use ingress_proxy_testing::{Origin, wait_until};

/// Service `shadow` at `address`, in namespace `other`, and another in that of the Ingress.
fn services(address: SocketAddr) -> String {
    let service = |namespace: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: shadow, namespace: {namespace}}}\nspec: {{ports: [{{port: 8080}}]}}\n\
             ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: shadow\n  namespace: {namespace}\n  \
             labels: {{kubernetes.io/service-name: shadow}}\naddressType: IPv4\nports: [{{port: {}}}]\nendpoints: [{{addresses: [{}]}}]\n",
            address.port(),
            address.ip(),
        )
    };
    format!("{}---\n{}", service("default"), service("other"))
}

/// Records heads, and each body as another head.
fn shadow() -> Origin {
    Origin::start(|peer| {
        while let Some((head, body)) = peer.request() {
            let answer = format!("{}: {}", head.len(), String::from_utf8_lossy(&body));
            peer.note(&format!("body {}", String::from_utf8_lossy(&body)));
            peer.send(format!(
                "HTTP/1.1 500 No\r\nSet-Cookie: evil=1\r\nContent-Length: {}\r\n\r\n{answer}",
                answer.len()
            ));
        }
    })
}

const SHADOW: (&str, &str) = ("mirror-target", "http://shadow.other.svc.cluster.local:8080");

fn serve(annotations: &[(&str, &str)], pod: &Origin, shadow: SocketAddr) -> Site {
    Ingress::with(annotations).beside(&services(shadow)).serve(pod).in_order()
}

fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: a.test\r\nX-A: 1\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn requests_are_sent_to_pod_and_mirror() {
    for (target, line, host) in [
        (SHADOW.1, "post /x?y=1 http/1.1\r\n", "shadow.other.svc.cluster.local:8080"),
        ("shadow:8080", "post /x?y=1 http/1.1\r\n", "shadow.default.svc.cluster.local:8080"),
        ("http://shadow.other.svc:8080$request_uri", "post /x?y=1 http/1.1\r\n", "shadow.other.svc:8080"),
        ("http://shadow.other.svc:8080/$request_uri", "post /x?y=1 http/1.1\r\n", "shadow.other.svc:8080"),
        ("http://shadow.other.svc:8080/in$uri?of=$host", "post /in/x?of=a.test http/1.1\r\n", "shadow.other.svc:8080"),
    ] {
        let (pod, shadow) = (Origin::mirror(), shadow());
        let site = serve(&[("mirror-target", target)], &pod, shadow.address);
        let mut client = site.client();
        for count in [2, 4] {
            let response = client.send(post("/x?y=1", "hello")).response();
            assert_eq!((response.status, response.header("set-cookie")), (200, None));
            assert!(response.text().starts_with("post /x?y=1 "), "{}", response.text());
            wait_until("it is mirrored", || shadow.heads().len() == count);
        }
        let id = |head: &str| head.lines().find(|line| line.starts_with("x-request-id: ")).map(str::to_owned);
        for (pair, head) in shadow.heads().chunks(2).zip(pod.heads()) {
            assert!(id(&head).is_some() && id(&head) == id(&pair[0]), "{head}{}", pair[0]);
            assert!(pair[0].starts_with(line), "{target}: {}", pair[0]);
            assert!(
                pair[0].contains(&format!("\r\nhost: {host}\r\n")) && pair[0].contains("\r\nx-a: 1\r\n"),
                "{}",
                pair[0]
            );
            assert_eq!(pair[1], "body hello");
        }
        assert_eq!(site.proxy.shared.stats().mirrors_cut, 0);
    }
}

#[test]
fn body_and_host_of_mirrored_requests_are_configurable() {
    let (pod, shadow) = (Origin::mirror(), shadow());
    let annotations = [SHADOW, ("mirror-request-body", "off"), ("mirror-host", "b.test"), ("upstream-vhost", "c.test")];
    let site = serve(&annotations, &pod, shadow.address);
    assert!(site.client().send(post("/", "hello")).response().text().contains("\r\nhost: c.test\r\n"));
    wait_until("it is mirrored", || shadow.heads().len() == 2);
    let heads = shadow.heads();
    assert!(
        heads[0].contains("\r\nhost: b.test\r\n") && heads[0].contains("\r\ncontent-length: 0\r\n"),
        "{}",
        heads[0]
    );
    assert_eq!(heads[1], "body ");
}

#[test]
fn a_chunked_body_is_mirrored_as_it_arrives() {
    for trailers in ["", "X-Sum: 6\r\n"] {
        let (pod, shadow) = (Origin::answering("pod"), shadow());
        let site = serve(&[SHADOW], &pod, shadow.address);
        let mut client = site.client();
        client.send("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
        wait_until("the mirror has the head", || !shadow.heads().is_empty());
        assert_eq!(client.send(format!("3\r\ndef\r\n0\r\n{trailers}\r\n")).response().text(), "pod");
        wait_until("the mirror has all", || shadow.heads().contains(&"body abcdef".to_owned()));
        assert_eq!(site.proxy.shared.stats().mirrors_cut, 0, "{trailers}");
    }
}

#[test]
fn a_mirror_that_keeps_up_gets_a_whole_long_body() {
    // Less than may wait for a mirror, and many times more in all.
    const PART: usize = 128 << 10;
    const LENGTH: usize = 16 * PART;
    let pod = Origin::answering("pod");
    let shadow = Origin::start(|peer| {
        peer.head();
        let mut seen = 0;
        while peer.received().len() < LENGTH && peer.more() {
            let is_good = peer.received()[seen..].iter().all(|&byte| byte == b'x');
            seen = peer.received().len();
            peer.note(&if is_good { seen.to_string() } else { format!("other bytes before {seen}") });
        }
        peer.answer("");
    });
    let site = serve(&[SHADOW], &pod, shadow.address);
    let mut client = site.client();
    client.send(format!("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: {LENGTH}\r\n\r\n"));
    for part in 1..=LENGTH / PART {
        client.send("x".repeat(PART));
        let sent = (part * PART).to_string();
        wait_until("the mirror has what was sent", || shadow.heads().last() == Some(&sent));
    }
    assert_eq!(client.response().text(), "pod");
    assert_eq!(site.proxy.shared.stats().mirrors_cut, 0);
}

#[test]
fn an_absent_or_slow_mirror_does_not_affect_requests() {
    let pod = Origin::start(|peer| {
        while let Some((_, body)) = peer.request() {
            peer.answer(&body.len().to_string());
        }
    });
    let silent = Origin::start(|peer| {
        // Reads the head and no byte of the body, which soon fills the kernel's buffers.
        peer.head();
        std::thread::park_timeout(ingress_proxy_testing::DEADLINE / 5);
    });
    let closing = Origin::start(|_| {});
    for address in [Origin::refusing(), closing.address, silent.address] {
        let site = serve(&[SHADOW], &pod, address);
        let body = "x".repeat(16 << 20);
        let mut client = site.client();
        assert_eq!(client.send(post("/", &body)).response().text(), body.len().to_string());
        assert_eq!(client.send(post("/", "hello")).response().text(), "5");
        wait_until("it is counted", || site.proxy.shared.stats().mirrors_cut >= 1);
    }
}

#[test]
fn refused_requests_are_not_mirrored() {
    let (pod, shadow) = (Origin::answering("pod"), shadow());
    let site = serve(&[SHADOW, ("denylist-source-range", "127.0.0.0/8")], &pod, shadow.address);
    assert_eq!(site.get("/").status, 403);
    let site = serve(&[SHADOW, ("proxy-body-size", "1k")], &pod, shadow.address);
    assert_eq!(
        site.client().send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 2000\r\n\r\n").response().status,
        413
    );
    assert_eq!(site.get("/seen").status, 200);
    wait_until("it is mirrored", || shadow.heads().len() == 2);
    assert!(shadow.heads()[0].starts_with("get /seen "), "{:?}", shadow.heads());
}

#[test]
fn forbidden_mirror_targets_are_refused() {
    let pod = Origin::answering("pod");
    for (target, expect) in [
        ("http://127.0.0.1:10254/", "a loopback address"),
        ("http://[::ffff:10.0.0.1]/", "an IPv4 address written as IPv6"),
        ("http://169.254.169.254/latest", "a metadata address"),
        ("http://localhost/", "the node itself"),
        ("http://shadow.other.svc.cluster.local:81/", "has no TCP port `81`"),
        ("nobody:80", "service `default/nobody` does not exist"),
        ("http://$host/", "it has no host of its own"),
        ("ftp://a.test/", "neither `http://` nor `https://`"),
    ] {
        let site = Ingress::with(&[("mirror-target", target)]).beside(&services(pod.address)).serve(&pod);
        assert!(site.outcomes.contains(expect), "{target}: {}", site.outcomes);
        assert_eq!(site.get("/").text(), "pod", "{target}");
    }
    assert_eq!(pod.heads().len(), 8, "each request reached the pod alone");
}
