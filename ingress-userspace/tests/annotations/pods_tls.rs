//! TLS with pods: verification of the pod, the client certificate, and the server name.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use ingress_control::translate::Options;
use ingress_model::HostId;
use ingress_proxy::Snapshot;
use rustls::{ALL_VERSIONS, HandshakeKind, ServerConfig, SupportedProtocolVersion, crypto::aws_lc_rs, version};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::server::TlsStream;

use super::{Ingress, Site, client::settings, configured};
use ingress_proxy_testing::Origin;
use ingress_proxy_testing::pki::{Authority, Issued, Seen, TlsPod, secret};
use ingress_proxy_testing::tls::{config_of, connect};

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

fn pod(issued: &Issued) -> TlsPod {
    TlsPod::start(issued, None, &[], answer)
}

fn trusting(authority: &Authority) -> String {
    secret("pods", &[("ca.crt", &authority.pem)])
}

const HTTPS: (&str, &str) = ("backend-protocol", "HTTPS");
const SECRET: (&str, &str) = ("proxy-ssl-secret", "default/pods");
const VERIFY: (&str, &str) = ("proxy-ssl-verify", "on");

#[test]
fn pods_are_offered_the_versions_that_are_listed() {
    let pod = |versions: &[&'static SupportedProtocolVersion]| {
        let issued = Authority::new("pods").issue("pod.test");
        let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let builder = builder.with_protocol_versions(versions).expect("versions").with_no_client_auth();
        let config = builder.with_single_cert(issued.chain(), issued.private_key()).expect("a certificate");
        TlsPod::serving(config, answer)
    };
    let (old, new) = (pod(&[&version::TLS12]), pod(&[&version::TLS13]));
    for (value, expect) in [
        ("TLSv1.2", [200, 502]),
        ("TLSv1.3", [502, 200]),
        ("TLSv1 TLSv1.1 TLSv1.2 TLSv1.3", [200, 200]),
        ("TLSv1.1", [200, 200]),
    ] {
        for (pod, expect) in [&old, &new].into_iter().zip(expect) {
            let site = Ingress::with(&[HTTPS, ("proxy-ssl-protocols", value)]).serve_from(&[pod.address]);
            assert_eq!(site.get("/").status, expect, "{value}");
        }
    }
}

#[test]
fn chains_of_pods_are_no_deeper_than_allowed() {
    let trusted = Authority::new("trusted");
    let near = trusted.below("one");
    let far = near.below("two");
    let issued = |by: &Authority, above: &[&Authority]| {
        let issued = by.issue("web.default.svc");
        let above: String = above.iter().map(|authority| authority.pem.as_str()).collect();
        Issued { cert: format!("{}{above}", issued.cert), ..issued }
    };
    for (issued, depth, expect) in [
        (issued(&trusted, &[]), "0", 200),
        (issued(&near, &[&near]), "0", 502),
        (issued(&near, &[&near]), "1", 200),
        (issued(&far, &[&far, &near]), "1", 502),
        (issued(&far, &[&far, &near]), "2", 200),
        (issued(&far, &[&far, &near]), "", 200),
        (issued(&near, &[&near]), "deep", 503),
    ] {
        let pod = pod(&issued);
        let mut annotations = vec![HTTPS, SECRET, VERIFY];
        annotations.extend((!depth.is_empty()).then_some(("proxy-ssl-verify-depth", depth)));
        let site = Ingress::with(&annotations).beside(&trusting(&trusted)).serve_from(&[pod.address]);
        assert_eq!(site.get("/").status, expect, "{depth}");
    }
}

/// As nginx does with `proxy_pass $scheme://…`.
#[tokio::test]
async fn auto_http_reaches_pods_in_the_protocol_of_the_client() {
    let issued = Authority::new("pods").issue("pod.test");
    let (clear, secure) = (Origin::answering("clear"), pod(&issued));
    let trust = settings(&[("use-forwarded-headers", "true"), ("proxy-real-ip-cidr", "127.0.0.0/8")]);
    for affinity in [&[][..], &[("affinity", "cookie")]] {
        let mut annotations =
            vec![("backend-protocol", "AUTO_HTTP"), ("ssl-redirect", "false"), ("proxy-connect-timeout", "1")];
        annotations.extend(affinity);
        let ingress = Ingress::with(&annotations).with_tls().beside(&trust);
        // A pod without TLS waits for the end of a request that is none.
        for (address, http, https) in [(clear.address, 200, 504), (secure.address, 502, 200)] {
            let site = ingress.serve_with(&[address], &configured()).in_order();
            let response = site.ask("/", "X-Forwarded-Proto: https\r\n");
            assert_eq!(response.status, http, "{affinity:?}: the scheme is that of the connection");
            let response = over_tls(&site, "/").await;
            assert!(response.starts_with(&format!("HTTP/1.1 {https} ")), "{affinity:?}: {response}");
            if https == 200 {
                assert!(response.ends_with("tls"), "{response}");
                assert_eq!(response.contains("set-cookie"), !affinity.is_empty(), "{response}");
            }
        }
    }
}

/// Sends `GET` over a connection with TLS.
async fn over_tls(site: &Site, path: &str) -> String {
    let config = Arc::new(config_of(ALL_VERSIONS, None));
    let mut stream = connect(&site.proxy, &config, "a.test").await;
    let request = format!("GET {path} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("a clean end");
    response
}

#[test]
fn name_and_issuer_of_pod_certificates_are_verified() {
    let (trusted, other) = (Authority::new("trusted"), Authority::new("other"));
    for (issued, annotations, expect) in [
        (trusted.issue("web.default.svc"), &[HTTPS, SECRET, VERIFY][..], 200),
        (trusted.issue("pod.a.test"), &[HTTPS, SECRET, VERIFY], 502),
        (trusted.issue("pod.a.test"), &[HTTPS, SECRET, VERIFY, ("proxy-ssl-name", "pod.a.test")], 200),
        (trusted.issue("web.default.svc"), &[HTTPS, SECRET, VERIFY, ("proxy-ssl-name", "pod.a.test")], 502),
        (other.issue("web.default.svc"), &[HTTPS, SECRET, VERIFY], 502),
        (other.issue("web.default.svc"), &[HTTPS, SECRET, ("proxy-ssl-verify", "off")], 200),
        (other.issue("web.default.svc"), &[HTTPS], 200),
    ] {
        let pod = pod(&issued);
        let site = Ingress::with(annotations).beside(&trusting(&trusted)).serve_from(&[pod.address]).in_order();
        let response = site.get("/");
        assert_eq!(response.status, expect, "{annotations:?}");
        // When the proxy aborts a handshake, it is incomplete for the pod, and no byte of the request can have been
        // sent.
        assert_eq!(pod.seen().len(), usize::from(expect == 200), "{annotations:?}");
    }
}

#[test]
fn a_pod_with_an_invalid_certificate_is_skipped() {
    let trusted = Authority::new("trusted");
    let (right, wrong) = (pod(&trusted.issue("web.default.svc")), pod(&trusted.issue("x.test")));
    let ingress = Ingress::with(&[HTTPS, SECRET, VERIFY]).beside(&trusting(&trusted));
    let site = ingress.serve_from(&[right.address, wrong.address]).in_order();
    for _ in 0..6 {
        assert_eq!(site.get("/").status, 200);
    }
    assert!(wrong.seen().is_empty());
}

#[test]
fn sni_is_sent_if_configured() {
    let trusted = Authority::new("trusted");
    let name = ("proxy-ssl-name", "pod.a.test");
    let send = ("proxy-ssl-server-name", "on");
    for (annotations, expect) in [
        (&[HTTPS, name][..], None),
        (&[HTTPS, send], Some("web.default.svc")),
        (&[HTTPS, name, send], Some("pod.a.test")),
        (&[HTTPS, SECRET, VERIFY, name], None),
        (&[HTTPS, SECRET, VERIFY, name, send], Some("pod.a.test")),
    ] {
        let pod = pod(&trusted.issue("pod.a.test"));
        let site = Ingress::with(annotations).beside(&trusting(&trusted)).serve_from(&[pod.address]).in_order();
        assert_eq!(site.get("/").status, 200, "{annotations:?}");
        let seen = Seen {
            kind: Some(HandshakeKind::Full),
            server_name: expect.map(str::to_owned),
            alpn: None,
            certificate: false,
        };
        assert_eq!(pod.seen(), [seen], "{annotations:?}");
    }
}

#[test]
fn pods_that_request_a_certificate_get_the_configured_one() {
    let (trusted, other) = (Authority::new("trusted"), Authority::new("other"));
    for (own, expect) in [(trusted.issue("proxy"), 200), (other.issue("proxy"), 502)] {
        let pod = TlsPod::start(&trusted.issue("web.default.svc"), Some(&trusted), &[], answer);
        let held = secret("pods", &[("ca.crt", &trusted.pem), ("tls.crt", &own.cert), ("tls.key", &own.key)]);
        let site = Ingress::with(&[HTTPS, SECRET, VERIFY]).beside(&held).serve_from(&[pod.address]).in_order();
        assert_eq!(site.get("/").status, expect);
        assert_eq!(pod.seen().iter().filter(|seen| seen.certificate).count(), usize::from(expect == 200));
    }
}

/// An Ingress for `host` beside the one of the site.
pub(super) fn another(host: &str, annotations: &[(&str, &str)]) -> String {
    let lines: String =
        annotations.iter().map(|(key, value)| format!("    nginx.ingress.kubernetes.io/{key}: {value:?}\n")).collect();
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: other\n  namespace: default\n  annotations:\n    a: b\n{lines}\
         spec:\n  ingressClassName: xdp\n  rules:\n  - host: {host}\n    http:\n      paths:\n      \
         - {{path: /, pathType: Prefix, backend: {{service: {{name: web, port: {{number: 80}}}}}}}}"
    )
}

#[test]
fn connections_are_shared_only_under_the_same_policy() {
    let (trusted, other) = (Authority::new("trusted"), Authority::new("other"));
    let pod = pod(&trusted.issue("web.default.svc"));
    // The same pod, which the second Ingress must not trust although a connection to it is open.
    let believes_another = another("b.test", &[HTTPS, VERIFY, ("proxy-ssl-secret", "others")]);
    let site = Ingress::with(&[HTTPS, SECRET, VERIFY])
        .beside(&trusting(&trusted))
        .beside(&secret("others", &[("ca.crt", &other.pem)]))
        .beside(&believes_another)
        .serve_from(&[pod.address])
        .in_order();
    let mut client = site.client();
    for _ in 0..3 {
        assert_eq!(client.get("a.test", "/").status, 200);
        assert_eq!(client.get("b.test", "/").status, 502);
    }
    assert_eq!(pod.seen().len(), 1, "what is under one policy is shared");
}

#[test]
fn rules_without_their_secret_answer_503() {
    let trusted = Authority::new("trusted");
    let (own, stolen) = (trusted.issue("proxy"), trusted.issue("proxy"));
    let pod = pod(&trusted.issue("web.default.svc"));
    for (annotations, held, remark) in [
        (&[HTTPS, VERIFY][..], String::new(), "no certificate authority is set"),
        (&[HTTPS, SECRET], String::new(), "SecretNotFound"),
        (&[HTTPS, ("proxy-ssl-secret", "other/pods")], trusting(&trusted), "in another namespace"),
        (
            &[HTTPS, SECRET, VERIFY],
            secret("pods", &[("tls.crt", &own.cert), ("tls.key", &own.key)]),
            "`ca.crt` is missing",
        ),
        (&[HTTPS, SECRET], secret("pods", &[("tls.crt", &own.cert)]), "`tls.key` is missing"),
        (&[HTTPS, SECRET], secret("pods", &[("password", "x")]), "holds neither"),
        (&[HTTPS, SECRET], secret("pods", &[("ca.crt", "hunter2")]), "no PEM block"),
        (&[HTTPS, SECRET, ("proxy-ssl-verify", "maybe")], trusting(&trusted), "proxy-ssl-verify"),
        (&[HTTPS, SECRET, ("proxy-ssl-name", "a b")], trusting(&trusted), "proxy-ssl-name"),
    ] {
        let mut ingress = Ingress::with(annotations);
        if !held.is_empty() {
            ingress = ingress.beside(&held);
        }
        let site = ingress.serve_from(&[pod.address]);
        assert!(site.outcomes.contains(remark), "{annotations:?}: {}", site.outcomes);
        assert!(!site.outcomes.contains("hunter2"), "{}", site.outcomes);
        assert_eq!(site.get("/").status, 503, "{annotations:?}");
    }
    let mismatched = secret("pods", &[("tls.crt", &own.cert), ("tls.key", &stolen.key)]);
    let table =
        Ingress::with(&[HTTPS, SECRET]).beside(&mismatched).translated(&[pod.address], &Options::for_manifests()).0;
    let (_, problems) = Snapshot::compile(None, &table.0, |_| Some(HostId(1)));
    assert!(problems.len() == 1 && &*problems[0].origin == "default/pods", "{problems:?}");
    assert!(pod.seen().is_empty(), "no request goes out");
}

#[test]
fn verification_without_tls_is_ineffective() {
    let origin = Origin::answering("plain");
    let site = Ingress::with(&[SECRET, VERIFY]).beside(&trusting(&Authority::new("trusted"))).serve(&origin);
    assert!(site.outcomes.starts_with("note IneffectiveAnnotation"), "{}", site.outcomes);
    assert_eq!(site.get("/").text(), "plain");
}

/// Answers each gRPC call with its scheme.
async fn grpc(stream: TlsStream<TcpStream>) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let scheme = request.uri().scheme_str().unwrap_or_default().to_owned();
        let mut body = respond.send_response(Response::new(()), false).expect("sent");
        body.send_data(Bytes::from(scheme), true).expect("sent");
    }
}

#[test]
fn grpcs_is_http2_over_tls_with_the_same_verification() {
    let trusted = Authority::new("trusted");
    let grpcs = ("backend-protocol", "GRPCS");
    for (name, alpn, annotations, expect) in [
        ("web.default.svc", &["h2"][..], &[grpcs][..], 200),
        ("web.default.svc", &["h2"], &[grpcs, SECRET, VERIFY], 200),
        ("x.test", &["h2"], &[grpcs, SECRET, VERIFY], 502),
        // Without ALPN, HTTP/2 is not negotiated.
        ("web.default.svc", &[], &[grpcs], 502),
    ] {
        let pod = TlsPod::start(&trusted.issue(name), None, alpn, grpc);
        let site = Ingress::with(annotations).beside(&trusting(&trusted)).serve_from(&[pod.address]).in_order();
        let mut client = site.client();
        for _ in 0..3 {
            let response = client.get("a.test", "/");
            assert_eq!(response.status, expect, "{name} {annotations:?}");
            if expect == 200 {
                assert_eq!(response.text(), "https");
            }
        }
        if expect == 200 {
            let seen = Seen {
                kind: Some(HandshakeKind::Full),
                server_name: None,
                alpn: Some(b"h2".to_vec()),
                certificate: false,
            };
            assert_eq!(pod.seen(), [seen], "{annotations:?}");
        }
    }
}

#[test]
fn a_changed_secret_changes_the_trust_anchors() {
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let pod = pod(&first.issue("web.default.svc"));
    let ingress = Ingress::with(&[HTTPS, SECRET, VERIFY]);
    let site = ingress.clone().beside(&trusting(&first)).serve_from(&[pod.address]).in_order();
    let mut client = site.client();
    assert_eq!(client.get("a.test", "/").status, 200);
    for (authority, expect) in [(&second, 502), (&first, 200)] {
        let table =
            ingress.clone().beside(&trusting(authority)).translated(&[pod.address], &Options::for_manifests()).0;
        site.proxy.publish(&table);
        assert_eq!(client.get("a.test", "/").status, expect);
    }
}
