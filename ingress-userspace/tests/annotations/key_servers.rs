//! JWKS endpoints: the time and target of fetches, and access while there are no keys.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use ingress_control::translate::Options;
use ingress_model::Endpoint;
use rustls::HandshakeKind;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{
    Ingress, Site,
    ext_authz::service,
    tokens::{INVALID, Issuer, KEYS, MISSING, SECRET, bearer, check_refused, claims, jwks, key_set},
};
use ingress_proxy_testing::pki::{Authority, Issued, Seen, TlsPod, secret};
use ingress_proxy_testing::{DEADLINE, Origin, Proxy, Table, wait_until};

const URL: (&str, &str) = ("jwt-jwks-url", "http://sso.auth.svc.cluster.local/jwks?v=1");

/// The answer of a JWKS endpoint, which tests may replace.
#[derive(Clone)]
struct Said(Arc<Mutex<String>>);

impl Said {
    fn new(answer: String) -> Self {
        Self(Arc::new(Mutex::new(answer)))
    }

    fn set(&self, answer: String) {
        *self.0.lock().expect("unpoisoned") = answer;
    }

    fn server(&self) -> Origin {
        let Self(said) = self.clone();
        Origin::start(move |peer| {
            while peer.request().is_some() {
                let answer = said.lock().expect("unpoisoned").clone();
                peer.send(answer);
            }
        })
    }
}

fn answer(status: &str, fields: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{fields}\r\n{body}", body.len())
}

fn published(issuers: &[&Issuer]) -> String {
    answer("200 OK", "Cache-Control: public, max-age=300\r\n", &jwks(issuers))
}

fn unavailable() -> String {
    answer("503 Service Unavailable", "", "")
}

/// An Ingress that uses the keys at `server`.
fn keyed_by(server: &Origin, more: &[(&str, &str)]) -> Ingress {
    Ingress::with(&[&[URL][..], more].concat()).beside(&service(server.address))
}

/// Serves it from `pod`. Requests wait for keys as long as tests wait for any condition.
fn serve(ingress: &Ingress, pod: &Origin) -> Site {
    let (table, outcomes) = ingress.translated(&[pod.address], &Options::for_manifests());
    Site { proxy: started(&table, DEADLINE), outcomes }
}

fn started(table: &Table, key_patience: Duration) -> Proxy {
    Proxy::start_with(table, &ingress_proxy::Options { key_patience, ..ingress_proxy::Options::default() }, None)
}

fn publish(site: &Site, ingress: &Ingress, pod: &Origin) {
    let (table, outcomes) = ingress.translated(&[pod.address], &Options::for_manifests());
    assert_eq!(outcomes, "");
    site.proxy.publish(&table);
}

#[test]
fn keys_of_a_url_are_fetched_once_for_all_requests() {
    let (ec, hmac) = (Issuer::ec(), Issuer::hmac("hmac", SECRET));
    let server = Said::new(published(&[&ec, &hmac])).server();
    let pod = Origin::answering("pod");
    let site = serve(&keyed_by(&server, &[]), &pod).in_order();
    let good = bearer(&ec.sign(&claims(json!({}))));
    check_refused(&site.get("/"), 401, MISSING);
    assert_eq!(server.connections(), 0, "nobody needed them");
    for _ in 0..3 {
        assert_eq!(site.ask("/", &good).status, 200);
    }
    check_refused(&site.ask("/", &bearer(&Issuer::ec().sign(&claims(json!({}))))), 401, INVALID);
    for (audience, status) in [("api", 200), ("elsewhere", 401)] {
        publish(&site, &keyed_by(&server, &[("jwt-audience", audience)]), &pod);
        assert_eq!(site.ask("/", &good).status, status, "{audience}");
    }
    let heads = server.heads();
    assert_eq!(heads.len(), 1, "{heads:?}");
    assert!(heads[0].starts_with("get /jwks?v=1 http/1.1\r\n"), "{heads:?}");
    assert!(heads[0].contains("\r\nhost: sso.auth.svc.cluster.local\r\n"), "{heads:?}");
    assert!(!heads[0].contains("authorization"), "{heads:?}");
    check_refused(&site.ask("/", &bearer(&hmac.sign(&claims(json!({}))))), 401, INVALID);
}

#[test]
fn each_url_of_a_host_has_its_own_keys() {
    let ec = Issuer::ec();
    let (server, pod) = (Said::new(published(&[&ec])).server(), Origin::answering("pod"));
    let token = bearer(&ec.sign(&claims(json!({}))));
    let site = serve(&keyed_by(&server, &[]), &pod).in_order();
    assert_eq!(site.ask("/", &token).status, 200);
    let other = ("jwt-jwks-url", "http://sso.auth.svc.cluster.local/jwks2");
    publish(&site, &Ingress::with(&[other]).beside(&service(server.address)), &pod);
    assert_eq!(site.ask("/", &token).status, 200);
    let paths: Vec<_> = server.heads().iter().filter_map(|head| Some(head.split(' ').nth(1)?.to_owned())).collect();
    assert_eq!(paths, ["/jwks?v=1", "/jwks2"]);
}

#[test]
fn malformed_tokens_cause_no_fetch() {
    let ec = Issuer::ec();
    let (server, pod) = (Said::new(published(&[&ec])).server(), Origin::answering("pod"));
    let site = serve(&keyed_by(&server, &[]), &pod).in_order();
    // The last one declares itself unsigned.
    for text in ["hunter2", "a.b", "a.b.c", "e30.e30.", "eyJhbGciOiJub25lIn0.e30."] {
        check_refused(&site.ask("/", &bearer(text)), 401, INVALID);
    }
    assert_eq!(server.connections(), 0);
    assert_eq!(site.ask("/", &bearer(&ec.sign(&claims(json!({}))))).status, 200);
}

#[test]
fn an_unknown_key_causes_one_fetch() {
    let (one, other) = (Issuer { id: "one", ..Issuer::ec() }, Issuer { id: "other", ..Issuer::ec() });
    let said = Said::new(published(&[&one]));
    let (server, pod) = (said.server(), Origin::answering("pod"));
    let site = serve(&keyed_by(&server, &[]), &pod).in_order();
    let (first, second) = (bearer(&one.sign(&claims(json!({})))), bearer(&other.sign(&claims(json!({})))));
    assert_eq!(site.ask("/", &first).status, 200);
    said.set(published(&[&other]));
    check_refused(&site.ask("/", &second), 401, INVALID);
    wait_until("the other key is there", || site.ask("/", &second).status == 200);
    for _ in 0..3 {
        check_refused(&site.ask("/", &first), 401, INVALID);
    }
    assert_eq!((site.ask("/", &second).status, server.heads().len()), (200, 2));
}

#[test]
fn a_set_without_usable_keys_revokes_earlier_keys() {
    let (one, other) = (Issuer { id: "one", ..Issuer::ec() }, Issuer { id: "other", ..Issuer::ec() });
    let (first, second) = (bearer(&one.sign(&claims(json!({})))), bearer(&other.sign(&claims(json!({})))));
    for set in ["{\"keys\": []}", "{\"keys\": [{\"kty\": \"new\"}]}"] {
        let said = Said::new(published(&[&one]));
        let (server, pod) = (said.server(), Origin::answering("pod"));
        let site = serve(&keyed_by(&server, &[]), &pod).in_order();
        assert_eq!(site.ask("/", &first).status, 200, "{set}");
        said.set(answer("200 OK", "Cache-Control: max-age=86400\r\n", set));
        check_refused(&site.ask("/", &second), 401, INVALID);
        wait_until("nobody comes in any more", || site.ask("/", &first).status == 503);
        assert_eq!(server.heads().len(), 2, "{set}");
    }
}

#[test]
fn requests_are_refused_without_keys_from_the_url() {
    let ec = Issuer::ec();
    let (elsewhere, pod) = (Said::new(published(&[&ec])).server(), Origin::answering("pod"));
    let token = bearer(&ec.sign(&claims(json!({}))));
    let location = format!("Location: http://{}/jwks\r\n", elsewhere.address);
    let long = format!("{{\"pad\": \"{}\", {}", "x".repeat(256 * 1024), &jwks(&[&ec])[1..]);
    for said in [
        unavailable(),
        answer("302 Found", &location, ""),
        answer("404 Not Found", "", &jwks(&[&ec])),
        answer("200 OK", "", "<html></html>"),
        answer("200 OK", "", "{}"),
        answer("200 OK", "", "{\"keys\": {}}"),
        answer("200 OK", "", "{\"keys\": []}"),
        answer("200 OK", "", &long),
        "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nConnection: close\r\n".to_owned(),
        String::new(),
    ] {
        let closing = Origin::start({
            let said = said.clone();
            move |peer| {
                if peer.request().is_some() {
                    peer.send(&said);
                }
            }
        });
        let site = serve(&keyed_by(&closing, &[]), &pod).in_order();
        let shown = &said[..said.len().min(100)];
        assert_eq!((site.ask("/", &token).status, site.get("/").status), (503, 401), "{shown}");
    }
    let refusing = serve(&Ingress::with(&[URL]).beside(&service(Origin::refusing())), &pod).in_order();
    assert_eq!((refusing.ask("/", &token).status, refusing.get("/").status), (503, 401));
    assert_eq!((elsewhere.connections(), pod.connections()), (0, 0));
}

#[test]
fn fetched_keys_outlast_failures() {
    let (ec, other) = (Issuer::ec(), Issuer { id: "other", ..Issuer::ec() });
    let said = Said::new(unavailable());
    let (server, pod) = (said.server(), Origin::answering("pod"));
    let site = serve(&keyed_by(&server, &[]), &pod).in_order();
    let token = bearer(&ec.sign(&claims(json!({}))));
    assert_eq!(site.ask("/", &token).status, 503);
    said.set(published(&[&ec]));
    wait_until("it is asked again", || site.ask("/", &token).status == 200);
    said.set(unavailable());
    let fetches = server.heads().len();
    check_refused(&site.ask("/", &bearer(&other.sign(&claims(json!({}))))), 401, INVALID);
    wait_until("it is asked in vain", || server.heads().len() > fetches);
    assert_eq!(site.ask("/", &token).status, 200);
}

#[test]
fn requests_wait_for_the_first_keys() {
    let ec = Issuer::ec();
    let pod = Origin::answering("pod");
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().expect("unpoisoned");
    let server = Origin::start({
        let (gate, keys) = (Arc::clone(&gate), published(&[&ec]));
        move |peer| {
            while peer.request().is_some() {
                drop(gate.lock().expect("unpoisoned"));
                peer.send(&keys);
            }
        }
    });
    let site = serve(&keyed_by(&server, &[]), &pod).in_order();
    let token = bearer(&ec.sign(&claims(json!({}))));
    let mut clients = [site.client(), site.client(), site.client()];
    for client in &mut clients {
        client.send(format!("GET / HTTP/1.1\r\nHost: a.test\r\n{token}\r\n"));
    }
    wait_until("keys are asked for", || server.heads().len() == 1);
    drop(closed);
    for client in &mut clients {
        assert_eq!(client.response().status, 200);
    }
    assert_eq!(server.heads().len(), 1, "one fetch for all");
}

#[test]
fn requests_wait_for_keys_up_to_a_limit() {
    let ec = Issuer::ec();
    let pod = Origin::answering("pod");
    let silent = Origin::start(|peer| while peer.request().is_some() {});
    let (table, outcomes) = keyed_by(&silent, &[]).translated(&[pod.address], &Options::for_manifests());
    let site = Site { proxy: started(&table, Duration::from_millis(50)), outcomes }.in_order();
    let token = bearer(&ec.sign(&claims(json!({}))));
    for _ in 0..3 {
        assert_eq!(site.ask("/", &token).status, 503);
    }
    wait_until("it is asked", || silent.connections() > 0);
    assert_eq!(silent.connections(), 1, "for all of them");
}

#[test]
fn forbidden_jwks_urls_are_refused() {
    let ec = Issuer::ec();
    let pod = Origin::answering("pod");
    let token = bearer(&ec.sign(&claims(json!({}))));
    for (url, expect) in [
        ("https://127.0.0.1/jwks", "a loopback address"),
        ("https://[::1]/jwks", "a loopback address"),
        ("https://169.254.169.254/jwks", "a metadata address"),
        ("https://localhost/jwks", "the node itself"),
        ("https://intranet/jwks", "not a fully qualified name"),
        ("http://login.example.com/jwks", "only Services may have `http://`"),
        ("http://nobody.auth.svc.cluster.local/", "service `auth/nobody` does not exist"),
        ("http://away.auth.svc.cluster.local/", "service `auth/away` of `jwt-jwks-url` is of type ExternalName"),
        ("https://sso.auth.svc.cluster.local/", "a Service needs `http://`"),
        ("https://$host/jwks", "no host of its own"),
        ("https://login.example.com/$request_uri", "it has variables"),
        ("https://ann@login.example.com/", "it has a user"),
        ("login.example.com/jwks", "neither `http://` nor `https://`"),
    ] {
        let away = external(&service(pod.address)).replace("sso", "away");
        let site = Ingress::with(&[("jwt-jwks-url", url)]).beside(&service(pod.address)).beside(&away).serve(&pod);
        assert_eq!((site.ask("/", &token).status, site.get("/").status), (503, 503), "{url}");
        assert!(site.outcomes.contains(expect), "{url}: {}", site.outcomes);
    }
    let both = Ingress::with(&[URL, KEYS]).beside(&key_set(&[&ec])).beside(&service(pod.address)).serve(&pod);
    assert_eq!(both.ask("/", &token).status, 503);
    assert!(both.outcomes.contains("InvalidAnnotation") && both.outcomes.contains("remove one"), "{}", both.outcomes);
    let unresolved = serve(&Ingress::with(&[HTTPS]), &pod).in_order();
    assert_eq!((unresolved.ask("/", &token).status, unresolved.get("/").status), (503, 401));
    assert_eq!(pod.connections(), 0);
}

/// The same Service, as one of type ExternalName.
fn external(service: &str) -> String {
    service.replace("spec: {ports", "spec: {type: ExternalName, externalName: keys.example.com, ports")
}

#[test]
fn a_service_that_becomes_external_loses_its_keys() {
    let ec = Issuer::ec();
    let (server, pod) = (Said::new(published(&[&ec])).server(), Origin::answering("pod"));
    let token = bearer(&ec.sign(&claims(json!({}))));
    let site = serve(&keyed_by(&server, &[]), &pod).in_order();
    assert_eq!(site.ask("/", &token).status, 200);
    let away = Ingress::with(&[URL]).beside(&external(&service(server.address)));
    let (table, outcomes) = away.translated(&[pod.address], &Options::for_manifests());
    assert!(outcomes.contains("is of type ExternalName"), "{outcomes}");
    site.proxy.publish(&table);
    assert_eq!(site.ask("/", &token).status, 503);
}

// === over TLS ===

const HTTPS: (&str, &str) = ("jwt-jwks-url", "https://login.example.com/jwks?v=1");
const CA: (&str, &str) = ("jwt-jwks-ca-secret", "authority");

/// A self-signed certificate.
fn self_signed(name: &str) -> Issued {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("a certificate");
    Issued { cert: cert.pem(), key: signing_key.serialize_pem(), serial: rcgen::SerialNumber::from(1) }
}

/// Answers each request, which ends with an empty line, with `answer`. Returns the pod and the heads received.
fn over_tls(issued: &Issued, answer: String) -> (TlsPod, Arc<Mutex<Vec<String>>>) {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&heads);
    let server = TlsPod::start(issued, None, &[], move |mut stream| {
        let (answer, noted) = (answer.clone(), Arc::clone(&noted));
        async move {
            let (mut request, mut bytes) = (Vec::new(), [0; 4096]);
            while let Ok(count @ 1..) = stream.read(&mut bytes).await {
                request.extend_from_slice(&bytes[..count]);
                if request.ends_with(b"\r\n\r\n") {
                    let head = String::from_utf8(std::mem::take(&mut request)).expect("text");
                    noted.lock().expect("unpoisoned").push(head.to_lowercase());
                    stream.write_all(answer.as_bytes()).await.expect("sent");
                    stream.flush().await.expect("sent");
                }
            }
        }
    });
    (server, heads)
}

#[test]
fn the_certificate_of_the_jwks_endpoint_is_verified() {
    const NAME: &str = "login.example.com";
    let ec = Issuer::ec();
    let (own, other) = (Authority::new("own"), Authority::new("other"));
    let pod = Origin::answering("pod");
    let token = bearer(&ec.sign(&claims(json!({}))));
    for (certificate, issued, annotations, expect) in [
        ("self-signed", self_signed(NAME), &[HTTPS][..], 503),
        ("of nobody whom browsers trust", own.issue(NAME), &[HTTPS], 503),
        ("right", own.issue(NAME), &[HTTPS, CA], 200),
        ("self-signed, beside an authority", self_signed(NAME), &[HTTPS, CA], 503),
        ("of another authority", other.issue(NAME), &[HTTPS, CA], 503),
        ("for another name", own.issue("login.example.org"), &[HTTPS, CA], 503),
        ("expired", own.issue_expired(NAME), &[HTTPS, CA], 503),
    ] {
        let (server, heads) = over_tls(&issued, published(&[&ec]));
        let ingress = Ingress::with(annotations).beside(&secret("authority", &[("ca.crt", &own.pem)]));
        let (mut table, outcomes) = ingress.translated(&[pod.address], &Options::for_manifests());
        // The name does not resolve to this machine, so the endpoint is replaced after the translation.
        for key in table.0.upstreams.clone().keys().filter(|key| key.service().is_none()) {
            let upstream = table.0.upstreams.get_mut(key).expect("known");
            Arc::make_mut(upstream).endpoints = vec![Endpoint { address: server.address }];
        }
        let site = Site { proxy: started(&table, DEADLINE), outcomes }.in_order();
        assert_eq!(site.ask("/", &token).status, expect, "{certificate}");
        assert!(server.connections() > 0, "{certificate}");
        // When the proxy aborts a handshake, it is incomplete for the server, and no byte of a request can have been
        // sent.
        let (seen, heads) = (server.seen(), heads.lock().expect("unpoisoned").clone());
        if expect != 200 {
            assert_eq!((seen.len(), heads.len()), (0, 0), "{certificate}");
            continue;
        }
        let kind = Some(HandshakeKind::Full);
        assert_eq!(seen, [Seen { kind, server_name: Some(NAME.to_owned()), alpn: None, certificate: false }]);
        assert_eq!(heads.len(), 1);
        assert!(heads[0].starts_with("get /jwks?v=1 http/1.1\r\n"), "{heads:?}");
        assert!(heads[0].contains("\r\nhost: login.example.com\r\n"), "{heads:?}");
    }
}

#[test]
fn requests_are_refused_without_the_configured_ca() {
    let pod = Origin::answering("pod");
    for (annotations, held, remark) in [
        (&[HTTPS, CA][..], None, "SecretNotFound"),
        (&[HTTPS, CA], Some(secret("authority", &[("ca.crt", "hunter2")])), "no PEM block"),
        (&[HTTPS, CA], Some(secret("authority", &[("tls.crt", "hunter2")])), "`ca.crt` is missing"),
        (&[HTTPS, ("jwt-jwks-ca-secret", "auth/authority")], None, "in another namespace"),
        (&[URL, CA], None, "with `https://`, but there is no such URL"),
        (&[KEYS, CA], None, "with `https://`, but there is no such URL"),
    ] {
        let ingress = Ingress::with(annotations).beside(&service(pod.address));
        let ingress = held.iter().fold(ingress, |ingress, held| ingress.beside(held));
        let site = ingress.serve(&pod);
        assert!(site.outcomes.contains(remark), "{annotations:?}: {}", site.outcomes);
        assert!(!site.outcomes.contains("hunter2"), "{}", site.outcomes);
        assert_eq!(site.get("/").status, 503, "{annotations:?}");
    }
    assert_eq!(pod.connections(), 0);
}
