//! Pods that speak HTTP/1.1 over TLS.

use std::{net::Shutdown, sync::Arc};

use ingress_model::Protocol;
use rustls::{
    HandshakeKind, ServerConfig,
    crypto::aws_lc_rs,
    sign::{CertifiedKey, SingleCertAndKey},
};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use ingress_proxy_testing::pki::{Seen, TlsPod};
use ingress_proxy_testing::tls::{config, connect};
use ingress_proxy_testing::ws;
use ingress_proxy_testing::{Origin, Proxy, Table, wait_until};

/// Key that signs for the certificate.
#[derive(Clone, Copy)]
enum Key {
    Own,
    Stolen,
}

/// A pod with a certificate for an unrelated name.
fn config_of(key: Key) -> ServerConfig {
    let made = || rcgen::generate_simple_self_signed(vec!["pod.invalid".to_owned()]).expect("certificate");
    let (shown, other) = (made(), made());
    let signing = match key {
        Key::Own => shown.signing_key,
        Key::Stolen => other.signing_key,
    };
    let provider = Arc::new(aws_lc_rs::default_provider());
    let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signing.serialize_der()));
    let key = provider.key_provider.load_private_key(der).expect("a key");
    let resolver = SingleCertAndKey::from(CertifiedKey::new(vec![shown.cert.der().clone()], key));
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(resolver))
}

/// Answers every request, which ends with an empty line, with `response`; closes afterwards if that says so.
fn start(key: Key, response: &'static [u8]) -> TlsPod {
    TlsPod::serving(config_of(key), move |mut stream| async move {
        let (mut request, mut bytes) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = stream.read(&mut bytes).await {
            request.extend_from_slice(&bytes[..count]);
            if !request.ends_with(b"\r\n\r\n") {
                continue;
            }
            request.clear();
            stream.write_all(response).await.expect("sent");
            stream.flush().await.expect("sent");
            if response.starts_with(b"HTTP/1.1 200 OK\r\nConnection: close") {
                break;
            }
        }
        drop(stream.shutdown().await);
    })
}

fn proxy_of(pod: &TlsPod) -> Proxy {
    Proxy::start(&Table::default().host("a.test", &[pod.address]).speaking(Protocol::Https))
}

const KEPT: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntls";
const CLOSED: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ntls";

#[test]
fn requests_share_a_connection_without_sni() {
    let origin = start(Key::Own, KEPT);
    let proxy = proxy_of(&origin);
    let mut client = proxy.client();
    for _ in 0..5 {
        let response = client.get("a.test", "/");
        assert_eq!((response.status, response.text()), (200, "tls"));
    }
    let seen = Seen { kind: Some(HandshakeKind::Full), server_name: None, alpn: None, certificate: false };
    assert_eq!(origin.seen(), [seen]);
}

#[test]
fn sessions_are_resumed() {
    let origin = start(Key::Own, CLOSED);
    let proxy = proxy_of(&origin);
    for _ in 0..3 {
        assert_eq!(proxy.client().get("a.test", "/").text(), "tls");
    }
    let kinds: Vec<_> = origin.seen().into_iter().filter_map(|seen| seen.kind).collect();
    assert_eq!(kinds, [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::Resumed]);
}

#[test]
fn a_pod_without_the_private_key_is_refused() {
    let origin = start(Key::Stolen, KEPT);
    assert_eq!(proxy_of(&origin).client().get("a.test", "/").status, 502);
    assert_eq!(origin.seen(), []);
}

#[test]
fn an_endpoint_without_tls_is_a_502() {
    let origin = Origin::start(|peer| {
        peer.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        peer.until_closed();
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]).speaking(Protocol::Https));
    assert_eq!(proxy.client().get("a.test", "/").status, 502);
}

#[test]
fn a_connection_serves_one_protocol() {
    let origin = start(Key::Own, KEPT);
    let table = Table::default().host("a.test", &[origin.address]);
    let proxy = Proxy::start(&table.clone().speaking(Protocol::Https));
    let mut client = proxy.client();
    assert_eq!(client.get("a.test", "/").text(), "tls");
    proxy.publish(&table);
    assert_ne!(client.get("a.test", "/").status, 200, "plain HTTP on a connection of its own");
    proxy.publish(&table.speaking(Protocol::Https));
    assert_eq!(client.get("a.test", "/").text(), "tls");
}

/// Reads until `stream` has sent `end`.
async fn until<S: tokio::io::AsyncRead + Unpin>(stream: &mut S, end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        text.push(char::from(stream.read_u8().await.expect("more")));
    }
    text
}

#[tokio::test]
async fn a_websocket_passes_over_tls_on_both_sides() {
    let origin = TlsPod::serving(config_of(Key::Own), |mut stream| async move {
        until(&mut stream, "\r\n\r\n").await;
        stream.write_all(format!("{}hello", ws::SWITCH).as_bytes()).await.expect("sent");
        stream.flush().await.expect("sent");
        let mut bytes = [0; 4096];
        // The client ends its side without close_notify, which reaches the pod as an orderly end.
        while let count @ 1.. = stream.read(&mut bytes).await.expect("an end in order") {
            stream.write_all(&bytes[..count]).await.expect("sent");
            stream.flush().await.expect("sent");
        }
        stream.write_all(b"bye").await.expect("sent");
        stream.flush().await.expect("sent");
        // The pod in turn sends no `close_notify`.
    });
    let proxy = proxy_of(&origin);
    let mut client = connect(&proxy, &config(&["http/1.1"]), "a.test").await;
    client.write_all(ws::handshake().as_bytes()).await.expect("sent");
    let head = until(&mut client, "hello").await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let sent: Vec<u8> = (0..300_000_u32).map(|i| (i % 251) as u8).collect();
    let (mut reader, mut writer) = tokio::io::split(client);
    let all = sent.clone();
    let writing = tokio::spawn(async move {
        writer.write_all(&all).await.expect("sent");
        writer.flush().await.expect("sent");
        writer
    });
    let mut received = vec![0; sent.len()];
    reader.read_exact(&mut received).await.expect("echoed");
    assert!(received == sent);
    let mut client = reader.unsplit(writing.await.expect("joined"));
    SockRef::from(client.get_ref().0).shutdown(Shutdown::Write).expect("shut down");
    let mut rest = String::new();
    client.read_to_string(&mut rest).await.expect("an end in order");
    assert_eq!(rest, "bye");
    wait_until("the request is over", || proxy.count(1).active == 0);
    assert_eq!(proxy.count(1).requests, [1, 0, 0, 0, 0].into());
}
