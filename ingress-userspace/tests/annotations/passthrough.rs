//! TLS passthrough: connections passed on unread, their bytes at the pods, and refusals.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::Duration,
};

use ingress_common::{HostL7, Requests};
use ingress_control::translate::Options;
use rustls::ClientConnection;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Ingress, Site, pods_tls::another};
use ingress_proxy_testing::pki::{Authority, TlsPod};
use ingress_proxy_testing::tls::{config, connect};
use ingress_proxy_testing::{DEADLINE, Origin, Proxy, Table, wait_until};

const PASSTHROUGH: (&str, &str) = ("ssl-passthrough", "true");

/// Returns the ClientHello for `name`.
fn hello(name: &str) -> Vec<u8> {
    let name = ServerName::try_from(name.to_owned()).expect("valid name");
    let mut connection = ClientConnection::new(config(&["http/1.1"]), name).expect("a connection");
    let mut hello = Vec::new();
    connection.write_tls(&mut hello).expect("written");
    hello
}

/// Splits the same into records of this size.
fn in_records(hello: &[u8], size: usize) -> Vec<u8> {
    let (head, message) = hello.split_at(5);
    let record = |part: &[u8]| [&head[..3], &u16::try_from(part.len()).expect("short").to_be_bytes(), part].concat();
    message.chunks(size).flat_map(record).collect()
}

fn connect_raw(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connected");
    stream.set_nodelay(true).expect("set");
    stream.set_read_timeout(Some(DEADLINE)).expect("set");
    stream
}

/// A pod that reads to the end and answers with the number of bytes.
fn counting() -> Origin {
    Origin::start(|peer| {
        peer.until_closed();
        let text = format!("a pod got {} bytes", peer.received().len());
        peer.send(text);
    })
}

/// Returns the response to `bytes`, sent in pieces of this size.
fn exchange(site: &Site, bytes: &[u8], piece: usize) -> Result<Vec<u8>, ErrorKind> {
    let mut stream = connect_raw(site.proxy.https);
    for piece in bytes.chunks(piece) {
        stream.write_all(piece).map_err(|error| error.kind())?;
    }
    stream.shutdown(Shutdown::Write).map_err(|error| error.kind())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map(|_| answer).map_err(|error| error.kind())
}

#[tokio::test]
async fn passthrough_affects_only_its_host() {
    let authority = Authority::new("pods");
    let pod = TlsPod::start(&authority.issue("a.test"), None, &[], |mut stream| async move {
        let mut request = [0; 4];
        stream.read_exact(&mut request).await.expect("a request");
        stream.write_all(&request).await.expect("sent");
        stream.shutdown().await.expect("ended");
    });
    let ingress = Ingress::with(&[PASSTHROUGH]).beside(&another("b.test", &[]));
    let site = ingress.serve_from(&[pod.address]).in_order();
    for alpn in [&[][..], &["h2"]] {
        let mut stream = connect(&site.proxy, &config(alpn), "a.test").await;
        stream.write_all(b"ping").await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("a clean end");
        assert_eq!(answer, "ping");
        assert_eq!(stream.get_ref().1.alpn_protocol(), None, "pods know of no ALPN, the proxy would");
    }
    let names: Vec<_> = pod.seen().into_iter().map(|seen| seen.server_name).collect();
    assert_eq!(names, [Some("a.test".to_owned()), Some("a.test".to_owned())]);
    let stream = connect(&site.proxy, &config(&["h2"]), "b.test").await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]), "b.test has its end here");
    assert_eq!(pod.seen().len(), 2);
    // Plain HTTP has no server name: rules serve it.
    assert_eq!(site.get("/").status, 502, "the pod speaks TLS alone");
}

#[test]
fn all_bytes_are_forwarded_and_counted() {
    let pod = counting();
    let site = Ingress::with(&[PASSTHROUGH]).serve(&pod).in_order();
    let plain = hello("A.test");
    let mut expect = HostL7::default();
    let whole = usize::MAX;
    for (greeting, piece) in
        [(plain.clone(), whole), (plain.clone(), 16), (in_records(&plain, 7), whole), (in_records(&plain, 1), 16)]
    {
        let bytes = [&greeting[..], &[0; 10_000]].concat();
        let answer = exchange(&site, &bytes, piece).expect("an answer");
        let answer = String::from_utf8(answer).expect("text");
        assert_eq!(answer, format!("a pod got {} bytes", bytes.len()));
        expect.requests.success += 1;
        expect.bytes_in += bytes.len() as u64;
        expect.bytes_out += answer.len() as u64;
        site.proxy.wait_count(1, expect);
    }
}

#[test]
fn passthrough_pods_get_a_proxy_header_if_configured() {
    let pod = Origin::start(|peer| {
        peer.until_closed();
        let bytes = peer.take();
        peer.send(bytes);
    });
    for version in ["v1", "v2"] {
        let site = Ingress::with(&[PASSTHROUGH, ("proxy-protocol-upstream", version)]).serve(&pod).in_order();
        let mut stream = connect_raw(site.proxy.https);
        let (from, to) = (stream.local_addr().expect("an address").port(), site.proxy.https.port());
        let header = if version == "v1" {
            format!("PROXY TCP4 127.0.0.1 127.0.0.1 {from} {to}\r\n").into_bytes()
        } else {
            let fixed = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\0\0\x01\x7f\0\0\x01";
            [&fixed[..], &from.to_be_bytes(), &to.to_be_bytes()].concat()
        };
        let sent = hello("a.test");
        stream.write_all(&sent).expect("sent");
        stream.shutdown(Shutdown::Write).expect("ended");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an end in order");
        assert_eq!(answer.escape_ascii().to_string(), [header, sent.clone()].concat().escape_ascii().to_string());
        // The header is the proxy's; only the client's bytes are counted.
        let requests = Requests { success: 1, ..Requests::default() };
        let (bytes_in, bytes_out) = (sent.len() as u64, answer.len() as u64);
        site.proxy.wait_count(1, HostL7 { requests, bytes_in, bytes_out, ..HostL7::default() });
    }
}

#[test]
fn incomplete_client_hellos_reach_no_pod() {
    let pod = counting();
    let ingress = Ingress::with(&[PASSTHROUGH]);
    let (table, _) = ingress.translated(&[pod.address], &Options::for_manifests());
    let options =
        ingress_proxy::Options { handshake_timeout: Duration::from_millis(100), ..ingress_proxy::Options::default() };
    let site = Site { proxy: Proxy::start_with(&table, &options, None), outcomes: String::new() };
    let hello = hello("a.test");
    let errors = || site.proxy.shared.stats().handshake_errors;
    for (count, bytes) in
        [(1, &b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"[..]), (2, &hello[..hello.len() - 1]), (3, &[])]
    {
        let answer = exchange(&site, bytes, usize::MAX);
        assert!(!answer.is_ok_and(|answer| answer.starts_with(b"a pod")), "{}", bytes.escape_ascii());
        wait_until("it is counted", || errors() == count);
    }
    // An incomplete ClientHello times out with the handshake.
    let mut silent = connect_raw(site.proxy.https);
    silent.write_all(&hello[..100]).expect("sent");
    assert_eq!(silent.read(&mut [0]).unwrap_or(0), 0, "closed");
    wait_until("it is counted", || errors() == 4);
    assert_eq!(pod.connections(), 0);
}

#[test]
fn denied_and_unservable_connections_are_closed() {
    let pod = counting();
    let refused = Requests { client_error: 1, ..Requests::default() };
    let unserved = Requests { server_error: 1, ..Requests::default() };
    for (annotations, endpoints, requests) in [
        (&[PASSTHROUGH, ("denylist-source-range", "127.0.0.0/8")][..], vec![pod.address], refused),
        (&[PASSTHROUGH, ("whitelist-source-range", "192.0.2.0/24")], vec![pod.address], refused),
        (&[PASSTHROUGH], vec![Origin::refusing()], unserved),
        (&[PASSTHROUGH], vec![], unserved),
    ] {
        let site = Ingress::with(annotations).serve_from(&endpoints);
        let answer = exchange(&site, &hello("a.test"), usize::MAX);
        assert!(answer.is_err(), "no end in order: {annotations:?}");
        site.proxy.wait_count(1, HostL7 { requests, ..HostL7::default() });
    }
    assert_eq!(pod.connections(), 0);
    let site = Ingress::with(&[PASSTHROUGH, ("whitelist-source-range", "127.0.0.1")]).serve(&pod).in_order();
    assert!(exchange(&site, &hello("a.test"), usize::MAX).is_ok_and(|answer| answer.starts_with(b"a pod")));
}

#[test]
fn an_endpoint_that_refuses_is_skipped() {
    let pod = counting();
    let site = Ingress::with(&[PASSTHROUGH]).serve_from(&[Origin::refusing(), pod.address]).in_order();
    for _ in 0..4 {
        assert!(exchange(&site, &hello("a.test"), usize::MAX).is_ok_and(|answer| answer.starts_with(b"a pod")));
    }
}

#[test]
fn annotations_that_need_termination_are_refused_with_a_reason() {
    let pod = counting();
    for protection in [("limit-rps", "5"), ("auth-url", "http://web.default.svc.cluster.local/")] {
        let site = Ingress::with(&[PASSTHROUGH, protection]).serve(&pod);
        assert!(
            site.outcomes.contains("forwards connections without reading them"),
            "{protection:?}: {}",
            site.outcomes
        );
        assert!(exchange(&site, &hello("a.test"), usize::MAX).is_err(), "{protection:?}");
    }
    // Another Ingress of the host requires certificates, but a passthrough host cannot request them.
    let authority = Authority::new("clients");
    let asking = another("a.test", &[("auth-tls-secret", "default/clients")]).replace("path: /", "path: /x");
    let secret = ingress_proxy_testing::pki::secret("clients", &[("ca.crt", &authority.pem)]);
    let site = Ingress::with(&[PASSTHROUGH]).beside(&asking).beside(&secret).serve(&pod);
    assert!(exchange(&site, &hello("a.test"), usize::MAX).is_err());
    assert_eq!(pod.connections(), 0);
    let site = Ingress::with(&[("ssl-passthrough", "yes")]).serve(&pod);
    assert!(site.outcomes.contains("ssl-passthrough"), "{}", site.outcomes);
    assert_eq!(site.get("/").status, 503);
}

#[test]
fn a_stream_outlives_its_configuration_but_not_its_worker() {
    let pod = Origin::start(|peer| {
        while peer.more() {
            let bytes = peer.take();
            peer.send(bytes);
        }
    });
    let mut site = Ingress::with(&[PASSTHROUGH]).serve(&pod).in_order();
    let mut stream = connect_raw(site.proxy.https);
    let mut echo = |bytes: &[u8]| -> std::io::Result<()> {
        stream.write_all(bytes)?;
        let mut back = vec![0; bytes.len()];
        stream.read_exact(&mut back)?;
        assert_eq!(back, bytes);
        Ok(())
    };
    echo(&hello("a.test")).expect("echoed");
    site.proxy.publish(&Table::default());
    echo(b"still here").expect("echoed");
    assert_eq!(site.proxy.stop().cut, 1);
    assert!(echo(b"gone").is_err());
}

/// The path is irrelevant here: the rule for `/` decides, or else the first one.
#[test]
fn the_rule_for_the_root_path_decides() {
    let (root, other) = (counting(), counting());
    let service = |name: &str, port: u16, to: SocketAddr| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: default}}\nspec: {{ports: [{{port: {port}}}]}}\n---\n\
             apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {name}, namespace: default, labels: {{kubernetes.io/service-name: {name}}}}}\n\
             addressType: IPv4\nports: [{{port: {}}}]\nendpoints: [{{addresses: [{}]}}]",
            to.port(),
            to.ip()
        )
    };
    let ingress = Ingress::with(&[PASSTHROUGH]).path("/x", "Prefix").leading_to("other", 1).path("/", "Prefix");
    let site = ingress.beside(&service("other", 1, other.address)).serve(&root).in_order();
    assert!(exchange(&site, &hello("a.test"), usize::MAX).is_ok());
    let site = Ingress::with(&[PASSTHROUGH]).path("/x", "Prefix").serve(&root).in_order();
    assert!(exchange(&site, &hello("a.test"), usize::MAX).is_ok());
    assert_eq!((root.connections(), other.connections()), (2, 0));
}

#[test]
fn a_passthrough_connection_counts_for_its_worker_until_it_ends() {
    let pod = counting();
    let site = Ingress::with(&[PASSTHROUGH]).serve(&pod).in_order();
    let mut stream = connect_raw(site.proxy.https);
    stream.write_all(&hello("a.test")).expect("sent");
    wait_until("the pod has it", || pod.connections() == 1);
    assert_eq!(site.proxy.load().open, 1);
    drop(stream);
    wait_until("nothing is held", || site.proxy.load().open == 0);
}
