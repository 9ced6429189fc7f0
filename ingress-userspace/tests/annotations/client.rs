//! The client's identity: trusted proxies and the PROXY protocol, from settings to their effect on pods, filters and
//! redirects.

use std::{io::Write as _, net::SocketAddr, time::Instant};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{Ingress, Site, configured};
use ingress_proxy_testing::tls;
use ingress_proxy_testing::{Client, Origin, wait_until};

/// A ConfigMap with these settings.
pub(super) fn settings(data: &[(&str, &str)]) -> String {
    let data: String = data.iter().map(|(key, value)| format!("  {key}: {value:?}\n")).collect();
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: default}}\ndata:\n{data}")
}

fn serve(annotations: &[(&str, &str)], data: &[(&str, &str)], origin: &Origin) -> Site {
    let ingress = Ingress::with(annotations).beside(&settings(data));
    ingress.serve_with(&[origin.address], &configured())
}

/// Returns the fields about the client that the pod received.
fn told(head: &str) -> String {
    let names = ["x-forwarded-for", "x-real-ip", "x-forwarded-proto", "x-forwarded-host"];
    let value = |name: &&str| head.lines().find_map(|line| line.strip_prefix(*name)?.strip_prefix(": "));
    names.iter().map(|name| value(name).unwrap_or("-")).collect::<Vec<_>>().join("|")
}

const CLAIMS: &str = "X-Forwarded-For: 198.51.100.9, 192.0.2.1, 127.0.0.9\r\nX-Forwarded-Proto: https\r\n\
                      X-Forwarded-Host: b.test\r\nX-Real-IP: 198.51.100.7\r\nForwarded: for=198.51.100.8\r\n";
const OURS: &str = "127.0.0.1|127.0.0.1|http|a.test";

#[test]
fn only_trusted_proxies_may_set_forwarding_headers() {
    let origin = Origin::mirror();
    let (on, local) = (("use-forwarded-headers", "true"), ("proxy-real-ip-cidr", "127.0.0.0/8"));
    for (data, expect) in [
        (&[][..], OURS),
        (&[local], OURS),
        (&[on, ("proxy-real-ip-cidr", "10.0.0.0/8")], OURS),
        (&[on, local], "192.0.2.1|192.0.2.1|https|b.test"),
        (&[("enable-real-ip", "true"), local], "192.0.2.1|192.0.2.1|http|a.test"),
        (
            &[on, local, ("compute-full-forwarded-for", "true")],
            "198.51.100.9, 192.0.2.1, 127.0.0.9, 127.0.0.1|192.0.2.1|https|b.test",
        ),
        (&[on, local, ("forwarded-for-header", "X-Real-IP")], "198.51.100.7|198.51.100.7|https|b.test"),
    ] {
        let site = serve(&[], data, &origin).in_order();
        let response = site.ask("/", CLAIMS);
        assert_eq!(told(response.text()), expect, "{data:?}");
        assert!(!response.text().contains("forwarded: for="), "{}", response.text());
    }
}

#[test]
fn trust_without_a_list_is_ignored_and_reported() {
    let origin = Origin::mirror();
    let site = serve(&[], &[("use-forwarded-headers", "true")], &origin);
    assert_eq!(told(site.ask("/", CLAIMS).text()), OURS);
    assert!(site.outcomes.contains("InvalidSetting ConfigMap default/settings"), "{}", site.outcomes);
    assert!(site.outcomes.contains("no peer is trusted; list the networks"), "{}", site.outcomes);
    // ingress-nginx does this by default.
    let site = serve(&[], &[("use-forwarded-headers", "true"), ("proxy-real-ip-cidr", "0.0.0.0/0")], &origin);
    assert_eq!(told(site.ask("/", CLAIMS).text()), "198.51.100.9|198.51.100.9|https|b.test");
    assert!(site.outcomes.contains("UnsafeSetting"), "{}", site.outcomes);
    let site = serve(&[], &[("proxy-real-ip-cidr", "10.0.0.0/8, lots")], &origin);
    assert!(site.outcomes.contains("`lots` is neither"), "{}", site.outcomes);
}

#[test]
fn lists_redirects_and_variables_use_the_trusted_client_address() {
    let origin = Origin::mirror();
    let trusted = [("use-forwarded-headers", "true"), ("proxy-real-ip-cidr", "127.0.0.0/8")];
    let from = |address: &str| format!("X-Forwarded-For: {address}\r\n");
    let listed = [("whitelist-source-range", "192.0.2.0/24")];
    let site = serve(&listed, &trusted, &origin).in_order();
    assert_eq!(site.ask("/", &from("192.0.2.1")).status, 200);
    assert_eq!(site.ask("/", &from("192.0.3.1")).status, 403);
    assert_eq!(site.ask("/", &from("192.0.2.1, 192.0.3.1")).status, 403);
    assert_eq!(serve(&listed, &[], &origin).ask("/", &from("192.0.2.1")).status, 403);

    let redirected = [("force-ssl-redirect", "true")];
    let site = serve(&redirected, &trusted, &origin).in_order();
    assert_eq!(site.get("/").status, 308);
    assert_eq!(site.ask("/", "X-Forwarded-Proto: https\r\n").status, 200);
    assert_eq!(site.ask("/", "X-Forwarded-Proto: https, http\r\n").status, 308);
    assert_eq!(serve(&redirected, &[], &origin).ask("/", "X-Forwarded-Proto: https\r\n").status, 308);

    let noted = [("xdp-ingress.io/request-headers", "X-Who: $remote_addr $scheme")];
    let answer = serve(&noted, &trusted, &origin).in_order().ask("/", CLAIMS);
    assert!(answer.text().contains("x-who: 192.0.2.1 https\r\n"), "{}", answer.text());
}

const PROXY: (&str, &str) = ("use-proxy-protocol", "true");
const LOCAL: (&str, &str) = ("proxy-real-ip-cidr", "127.0.0.0/8");
const GET: &str = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";

fn header_v2(source: [u8; 4], destination_port: u16) -> Vec<u8> {
    let addresses =
        [&source[..], &[198, 51, 100, 1], &4711_u16.to_be_bytes(), &destination_port.to_be_bytes()].concat();
    let tlv = [0x04, 0, 2, 0, 0];
    let length = u16::try_from(addresses.len() + tlv.len()).expect("short").to_be_bytes();
    [b"\r\n\r\n\0\r\nQUIT\n\x21\x11", &length[..], &addresses, &tlv].concat()
}

#[test]
fn the_proxy_protocol_names_the_client() {
    let origin = Origin::mirror();
    let site = serve(&[("denylist-source-range", "192.0.2.66")], &[PROXY, LOCAL], &origin).in_order();
    let v1 = b"PROXY TCP4 192.0.2.1 198.51.100.1 4711 80\r\n";
    for (header, expect) in [
        (&v1[..], "192.0.2.1|192.0.2.1|http|a.test"),
        (&header_v2([192, 0, 2, 2], 80), "192.0.2.2|192.0.2.2|http|a.test"),
        // TLS was terminated by the load balancer.
        (&header_v2([192, 0, 2, 2], 443), "192.0.2.2|192.0.2.2|https|a.test"),
        (b"PROXY UNKNOWN\r\n", OURS),
    ] {
        let mut client = site.client();
        let first = client.send([header, GET.as_bytes()].concat()).response();
        assert_eq!(told(first.text()), expect);
        // The connection belongs to this client to its end, even if the client's fields differ.
        let again = client.send(format!("GET / HTTP/1.1\r\nHost: a.test\r\n{CLAIMS}\r\n")).response();
        assert_eq!(told(again.text()), expect);
    }
    assert_eq!(site.client().send(header_v2([192, 0, 2, 66], 80)).send(GET).response().status, 403);
    // Byte by byte.
    let mut client = site.client();
    client.stream.set_nodelay(true).expect("set");
    for byte in [&v1[..], GET.as_bytes()].concat() {
        client.stream.write_all(&[byte]).expect("sent");
    }
    assert_eq!(client.response().status, 200);
}

#[tokio::test]
async fn the_proxy_protocol_header_precedes_tls() {
    let origin = Origin::mirror();
    let site = Ingress::with(&[]).with_tls().beside(&settings(&[PROXY, LOCAL]));
    let site = site.serve_with(&[origin.address], &configured());
    let mut stream = TcpStream::connect(site.proxy.https).await.expect("connected");
    stream.write_all(&header_v2([192, 0, 2, 3], 443)).await.expect("sent");
    let mut stream = tls::handshake(stream, &tls::config(&[]), "a.test").await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n").await.expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("an answer");
    let answer = String::from_utf8(answer).expect("text");
    assert!(answer.contains("x-real-ip: 192.0.2.3\r\nx-forwarded-proto: https\r\n"), "{answer}");
}

#[test]
fn connections_without_the_header_are_closed() {
    let origin = Origin::mirror();
    let site = serve(&[], &[PROXY, LOCAL, ("proxy-protocol-header-timeout", "1")], &origin).in_order();
    let refused = || site.proxy.shared.stats().refused[0];
    for (n, bytes) in [GET.as_bytes(), b"PROXY TCP4 nonsense\r\n", b"\x16\x03\x01"].into_iter().enumerate() {
        let mut client = site.client();
        client.send(bytes);
        assert!(client.try_response().is_none());
        assert!(client.is_closed());
        wait_until("it is counted", || refused() == n as u64 + 1);
    }
    // Silence, and a header that does not end.
    for bytes in ["", "PROXY TCP4 192.0.2.1"] {
        let (mut client, begun) = (site.client(), Instant::now());
        client.send(bytes);
        assert!(client.is_closed());
        assert!(begun.elapsed().as_millis() >= 900, "{:?}", begun.elapsed());
    }
    let strict = serve(&[], &[PROXY, ("proxy-real-ip-cidr", "10.0.0.0/8")], &origin).in_order();
    let mut client = strict.client();
    client.send("PROXY TCP4 192.0.2.1 198.51.100.1 4711 80\r\n");
    assert!(client.is_closed());
    assert_eq!(origin.connections(), 0);
    let open = serve(&[], &[PROXY], &origin);
    assert!(open.outcomes.contains("any client can claim any address"), "{}", open.outcomes);
    assert_eq!(open.client().send("PROXY UNKNOWN\r\n").send(GET).response().status, 200);
}

#[test]
fn the_proxy_protocol_applies_to_new_connections() {
    let origin = Origin::mirror();
    let site = Ingress::with(&[]).serve(&origin).in_order();
    let mut before = site.client();
    assert_eq!(before.get("a.test", "/").status, 200);
    let address: SocketAddr = site.proxy.http;
    let ingress = Ingress::with(&[]).beside(&settings(&[PROXY, LOCAL]));
    site.proxy.publish(&ingress.translated(&[origin.address], &configured()).0);
    assert_eq!(before.get("a.test", "/").status, 200);
    wait_until("new connections need the header", || {
        let mut client = Client::connect(address);
        client.send("PROXY TCP4 192.0.2.1 198.51.100.1 4711 80\r\n").send(GET);
        client.try_response().is_some_and(|response| response.status == 200)
    });
    assert!(Client::connect(address).send(GET).try_response().is_none());
}

#[test]
fn connections_per_client_are_limited() {
    let origin = Origin::mirror();
    let max = ("max-connections-per-client", "2");
    let site = serve(&[], &[PROXY, LOCAL, max], &origin).in_order();
    let connect = |last| {
        let mut client = site.client();
        client.send(header_v2([192, 0, 2, last], 80)).send(GET);
        client
    };
    let mut held: Vec<_> = (0..2).map(|_| connect(1)).collect();
    assert!(held.iter_mut().all(|client| client.response().status == 200));
    assert!(connect(1).is_closed());
    wait_until("it is counted", || site.proxy.shared.stats().refused[2] == 1);
    assert_eq!(connect(2).response().status, 200);
    held.pop();
    wait_until("there is room", || connect(1).try_response().is_some());
    // A trusted proxy has connections for many clients; without trust it is a client.
    let trusted = [("use-forwarded-headers", "true"), LOCAL, max];
    for (data, expect) in [(&trusted[..], true), (&[max], false)] {
        let site = serve(&[], data, &origin).in_order();
        let mut held: Vec<_> = (0..3).map(|_| site.client()).collect();
        let served = held.iter_mut().all(|client| client.send(GET).try_response().is_some());
        assert_eq!(served, expect, "{data:?}");
    }
}
