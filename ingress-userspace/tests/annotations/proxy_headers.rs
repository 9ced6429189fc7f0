//! PROXY headers to pods, and that no connection serves two clients.

use std::{
    io::Read as _,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use bytes::Bytes;
use http::Response;
use tokio::{io::AsyncReadExt as _, net::TcpStream};

use super::{Ingress, client::settings, configured, pods_tls::another};
use ingress_proxy_testing::ws::{echo, handshake};
use ingress_proxy_testing::{Origin, serve_connections, wait_until};

const V1: (&str, &str) = ("proxy-protocol-upstream", "v1");
const V2: (&str, &str) = ("proxy-protocol-upstream", "v2");
const LOCAL: (&str, &str) = ("proxy-real-ip-cidr", "127.0.0.0/8");
const GET: &str = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";

/// Bytes of a header of version 2 with IPv4.
const LENGTH: usize = 28;

/// The header of version 2 for 192.0.2.1:4711 at 198.51.100.1:80, as escapes.
fn told() -> String {
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\xc6\x33\x64\x01\x12\x67\0\x50".escape_ascii().to_string()
}

/// A load balancer's header with the same addresses.
const BEFORE: &str = "PROXY TCP4 192.0.2.1 198.51.100.1 4711 80\r\n";

#[test]
fn each_request_has_its_own_connection_with_a_proxy_header() {
    let origin = Origin::mirror();
    let site = Ingress::with(&[V1]).serve(&origin).in_order();
    let mut connections = 0;
    for _ in 0..2 {
        let mut client = site.client();
        let (from, to) = (client.local().port(), site.proxy.http.port());
        let expect = format!("proxy tcp4 127.0.0.1 127.0.0.1 {from} {to}\r\nget / http/1.1\r\n");
        for _ in 0..3 {
            let answer = client.get("a.test", "/");
            assert!(answer.text().starts_with(&expect), "{}", answer.text());
            connections += 1;
            assert_eq!(origin.connections(), connections);
        }
    }
}

#[test]
fn the_proxy_header_names_the_client_of_trusted_proxies() {
    let origin = Origin::mirror();
    let trusted = settings(&[("use-forwarded-headers", "true"), LOCAL]);
    let site = Ingress::with(&[V1]).beside(&trusted).serve_with(&[origin.address], &configured()).in_order();
    let to = site.proxy.http.port();
    for (client, expect) in [
        ("192.0.2.1", format!("proxy tcp4 192.0.2.1 127.0.0.1 0 {to}\r\n")),
        ("2001:db8::1", format!("proxy tcp6 2001:db8::1 ::ffff:127.0.0.1 0 {to}\r\n")),
    ] {
        let answer = site.ask("/", &format!("X-Forwarded-For: {client}\r\n"));
        assert!(answer.text().starts_with(&expect), "{}", answer.text());
    }
    let site = Ingress::with(&[V1]).serve(&origin).in_order();
    let answer = site.ask("/", "X-Forwarded-For: 192.0.2.1\r\n");
    assert!(answer.text().starts_with("proxy tcp4 127.0.0.1 127.0.0.1 "), "{}", answer.text());
}

#[test]
fn proxy_headers_are_forwarded_in_the_configured_version() {
    let origin = Origin::start(|peer| {
        let mut header = [0; LENGTH];
        if peer.stream.read_exact(&mut header).is_ok() {
            while peer.request().is_some() {
                peer.answer(&header.escape_ascii().to_string());
            }
        }
    });
    let proxied = settings(&[("use-proxy-protocol", "true"), LOCAL]);
    let site = Ingress::with(&[V2]).beside(&proxied).serve_with(&[origin.address], &configured()).in_order();
    let mut client = site.client();
    client.send(BEFORE);
    for count in 1..3 {
        assert_eq!(client.send(GET).response().text(), told());
        assert_eq!(origin.connections(), count);
    }
}

/// Answers each gRPC call with the first bytes of its connection.
async fn grpc(mut stream: TcpStream) {
    let mut header = [0; LENGTH];
    if stream.read_exact(&mut header).await.is_err() {
        return;
    }
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    while let Some(Ok((_, mut respond))) = connection.accept().await {
        let mut body = respond.send_response(Response::new(()), false).expect("sent");
        body.send_data(Bytes::from(header.escape_ascii().to_string()), true).expect("sent");
    }
}

/// Starts such a pod. Returns its address and its number of connections.
fn grpc_pod() -> (SocketAddr, Arc<AtomicUsize>) {
    let opened = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&opened);
    let address = serve_connections(move |stream| {
        count.fetch_add(1, SeqCst);
        grpc(stream)
    });
    (address, opened)
}

#[test]
fn http2_requests_share_no_connection_either() {
    let (pod, opened) = grpc_pod();
    let proxied = settings(&[("use-proxy-protocol", "true"), LOCAL]);
    let ingress = Ingress::with(&[V2, ("backend-protocol", "GRPC")]).beside(&proxied);
    let site = ingress.serve_with(&[pod], &configured()).in_order();
    let mut client = site.client();
    client.send(BEFORE);
    for count in 1..4 {
        assert_eq!(client.send(GET).response().text(), told());
        assert_eq!(opened.load(SeqCst), count);
    }
}

#[test]
fn the_proxy_header_precedes_tls() {
    let origin = Origin::start(|peer| {
        let mut begin = [0; LENGTH + 1];
        if peer.stream.read_exact(&mut begin).is_ok() {
            peer.note(&begin.escape_ascii().to_string());
        }
    });
    let proxied = settings(&[("use-proxy-protocol", "true"), LOCAL]);
    let ingress = Ingress::with(&[V2, ("backend-protocol", "HTTPS")]).beside(&proxied);
    let site = ingress.serve_with(&[origin.address], &configured()).in_order();
    assert_eq!(site.client().send(BEFORE).send(GET).response().status, 502, "the pod hangs up");
    // A TLS handshake record.
    assert_eq!(origin.heads(), [told() + "\\x16"]);
}

#[test]
fn other_ingresses_of_the_same_pods_send_no_proxy_header() {
    let origin = Origin::mirror();
    let site = Ingress::with(&[V1]).beside(&another("b.test", &[])).serve(&origin).in_order();
    let mut client = site.client();
    for count in 1..4 {
        let plain = client.get("b.test", "/");
        assert!(plain.text().starts_with("get / http/1.1\r\n"), "{}", plain.text());
        let told = client.get("a.test", "/");
        assert!(told.text().starts_with("proxy tcp4 "), "{}", told.text());
        assert_eq!(origin.connections(), 1 + count, "what is plain is shared");
    }
}

/// Returns the hop-by-hop fields of a head.
fn of_connection(head: &str) -> Vec<&str> {
    head.lines().filter(|line| line.starts_with("connection:") || line.starts_with("te:")).collect()
}

#[test]
fn requests_with_a_proxy_header_have_connection_close() {
    let origin = Origin::mirror();
    let site = Ingress::with(&[V1]).serve(&origin).in_order();
    for (fields, expect) in [
        ("", &["connection: close"][..]),
        ("Connection: keep-alive\r\n", &["connection: close"]),
        ("Connection: TE\r\nTE: trailers\r\n", &["connection: close, te", "te: trailers"]),
    ] {
        assert_eq!(of_connection(site.ask("/", fields).text()), expect, "{fields}");
    }
}

#[test]
fn a_websocket_has_a_proxy_header() {
    let origin = Origin::start(echo);
    let site = Ingress::with(&[V1]).serve(&origin).in_order();
    let mut client = site.client();
    let head = client.send(handshake()).head().expect("a head");
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    assert_eq!(client.send("ping").at_least(9), b"helloping");
    let request = &origin.heads()[0];
    assert!(request.starts_with("proxy tcp4 127.0.0.1 127.0.0.1 "), "{request}");
    assert_eq!(of_connection(request), ["connection: upgrade"]);
}

#[test]
fn authorization_requests_have_a_proxy_header_too() {
    let origin = Origin::mirror();
    let sso = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: sso, namespace: default, annotations: {xdp-ingress.io/proxy-protocol-upstream: v1}}\nspec:\n  ingressClassName: xdp\n  rules:\n  \
               - host: a.test\n    http: {paths: [{path: /sso, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}\n";
    let site = Ingress::with(&[("auth-url", "http://$host/sso")]).beside(sso).serve(&origin).in_order();
    assert_eq!(site.get("/").status, 200);
    let heads = origin.heads();
    let [question, request] = &heads[..] else { panic!("{heads:?}") };
    assert!(question.starts_with("proxy tcp4 127.0.0.1 127.0.0.1 "), "{question}");
    assert!(question.contains("\r\nget /sso http/1.1\r\n"), "{question}");
    assert_eq!(of_connection(question), ["connection: close"]);
    assert!(request.starts_with("get / http/1.1\r\n"), "{request}");
    assert_eq!(of_connection(request), [""; 0]);
}

#[test]
fn health_checks_send_proxy_unknown() {
    let (pod, other) = (Origin::mirror(), Origin::mirror());
    let [own_port, other_port] = [&pod, &other].map(|origin| origin.address.port().to_string());
    for (path, port, asked, header) in [
        ("/by-default", None, &pod, "proxy unknown\r\n"),
        ("/own", Some(&own_port), &pod, "proxy unknown\r\n"),
        ("/other", Some(&other_port), &other, ""),
    ] {
        let check = [V1, ("health-check-path", path), ("health-check-interval", "1s")];
        let port = port.map(|port| ("health-check-port", port.as_str()));
        let annotations: Vec<_> = check.into_iter().chain(port).collect();
        let _site = Ingress::with(&annotations).serve(&pod).in_order();
        let question = || asked.heads().into_iter().find(|head| head.contains(path));
        wait_until("a check has come", || question().is_some());
        let question = question().expect("a check");
        assert!(question.starts_with(&format!("{header}get {path} http/1.1\r\n")), "{question}");
    }
}

#[test]
fn an_unknown_version_is_refused() {
    let origin = Origin::mirror();
    let site = Ingress::with(&[("proxy-protocol-upstream", "v3")]).serve(&origin);
    assert!(site.outcomes.contains("`v1` or `v2`"), "{}", site.outcomes);
    assert_eq!(site.get("/").status, 503);
    assert_eq!(origin.connections(), 0);
}
