//! TLS policies of upstreams: the names expected in certificates of pods, and the certificate presented to them.

use std::sync::Arc;

use ingress_model::{Authorities, Certificate, CertificateName, Protocol, UpstreamTls, Verify, Versions};
use ingress_proxy_testing::{
    Proxy, Table,
    pki::{Authority, TlsPod},
};
use rustls_pki_types::{DnsName, ServerName};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::server::TlsStream;

const SPIFFE: &str = "spiffe://a.test/pod";

/// Answers each request, which ends with an empty line, with 200.
async fn answer(mut stream: TlsStream<TcpStream>) {
    let (mut request, mut bytes) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut bytes).await {
        request.extend_from_slice(&bytes[..count]);
        if request.ends_with(b"\r\n\r\n") {
            request.clear();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntls").await.expect("sent");
            stream.flush().await.expect("sent");
        }
    }
}

fn server(name: &'static str) -> CertificateName {
    CertificateName::Server(ServerName::try_from(name).expect("a name"))
}

fn wildcard(parent: &'static str) -> CertificateName {
    CertificateName::Wildcard(DnsName::try_from(parent).expect("a name"))
}

fn uri(uri: &str) -> CertificateName {
    CertificateName::Uri(uri.into())
}

/// Returns the status for a request, and the server name in the handshake if one was completed.
fn status(pod: &TlsPod, trusted: &Authority, names: Vec<CertificateName>) -> (u16, Option<String>) {
    let authorities = Authorities { origin: "default/ca".into(), certificates: trusted.chain() };
    let policy = UpstreamTls {
        verify: Some(Verify { authorities: Arc::new(authorities), names, depth: None }),
        certificate: None,
        server_name: Some(ServerName::try_from("sni.test").expect("a name")),
        versions: Versions::default(),
    };
    let mut table = Table::default().host("a.test", &[pod.address]).speaking(Protocol::Https);
    let policy = Some(Arc::new(policy));
    for key in table.0.upstreams.clone().keys() {
        Arc::make_mut(table.0.upstreams.get_mut(key).expect("known")).tls = policy.clone();
    }
    let proxy = Proxy::start(&table);
    let response = proxy.client().get("a.test", "/");
    (response.status, pod.seen().pop().and_then(|seen| seen.server_name))
}

#[test]
fn a_certificate_needs_one_of_the_names() {
    let trusted = Authority::new("trusted");
    for (issued, names, expect) in [
        (&["pod.test"][..], vec![server("pod.test")], 200),
        (&["pod.test"], vec![server("x.test"), server("pod.test")], 200),
        (&["*.a.test"], vec![server("x.y"), server("pod.a.test")], 200),
        (&["pod.test"], vec![server("x.test"), server("y.test")], 502),
        // The name in the handshake does not count.
        (&["sni.test"], vec![server("x.test"), uri(SPIFFE)], 502),
        (&["sni.test"], vec![server("x.test")], 502),
        (&["pod.test", SPIFFE], vec![uri(SPIFFE)], 200),
        (&[SPIFFE], vec![server("pod.test"), uri(SPIFFE)], 200),
        (&["pod.test", SPIFFE], vec![server("pod.test"), uri("spiffe://a.test/other")], 200),
        (&["pod.test", SPIFFE], vec![uri("spiffe://a.test/po")], 502),
        (&["pod.test", SPIFFE], vec![uri("SPIFFE://a.test/pod")], 502),
        (&["pod.test"], vec![uri(SPIFFE)], 502),
        (&["pod.a.test"], vec![wildcard("a.test")], 200),
        (&["*.a.test"], vec![wildcard("a.test")], 200),
        (&["a.test"], vec![wildcard("a.test")], 502),
        (&["x.pod.a.test"], vec![wildcard("a.test"), server("b.test")], 502),
        (&["pod.test"], vec![], 502),
    ] {
        let pod = TlsPod::start(&trusted.issue_for(issued), None, &[], answer);
        let (status, server_name) = status(&pod, &trusted, names.clone());
        assert_eq!(status, expect, "{issued:?} {names:?}");
        assert_eq!(server_name.as_deref(), (expect == 200).then_some("sni.test"), "{issued:?} {names:?}");
    }
}

#[test]
fn a_matching_name_by_another_authority_does_not_count() {
    let (trusted, other) = (Authority::new("trusted"), Authority::new("other"));
    for names in [vec![uri(SPIFFE)], vec![wildcard("test")], vec![server("x.test"), server("pod.test")]] {
        let pod = TlsPod::start(&other.issue_for(&["pod.test", SPIFFE]), None, &[], answer);
        assert_eq!(status(&pod, &trusted, names.clone()), (502, None), "{names:?}");
    }
}

#[test]
fn a_certificate_is_presented_only_under_its_policy() {
    let trusted = Authority::new("trusted");
    let own = trusted.issue("proxy");
    let pod = TlsPod::start(&trusted.issue("pod.test"), Some(&trusted), &[], answer);
    let mut table = Table::default().host("own.test", &[pod.address]).host("none.test", &[pod.address]);
    table = table.speaking(Protocol::Https);
    let own = Arc::new(Certificate::from_pem("default/own", own.cert.as_bytes(), own.key.as_bytes()).expect("valid"));
    let authorities = Arc::new(Authorities { origin: "default/ca".into(), certificates: trusted.chain() });
    for key in table.0.upstreams.clone().keys() {
        let policy = UpstreamTls {
            verify: Some(Verify {
                authorities: Arc::clone(&authorities),
                names: vec![server("pod.test")],
                depth: None,
            }),
            certificate: key.as_str().contains("own").then(|| Arc::clone(&own)),
            server_name: None,
            versions: Versions::default(),
        };
        Arc::make_mut(table.0.upstreams.get_mut(key).expect("known")).tls = Some(Arc::new(policy));
    }
    let proxy = Proxy::start(&table);
    let mut client = proxy.client();
    for _ in 0..3 {
        assert_eq!(client.get("own.test", "/").status, 200);
        assert_eq!(client.get("none.test", "/").status, 502);
    }
    assert!(pod.seen().iter().all(|seen| seen.certificate));
}
