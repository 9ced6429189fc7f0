//! Hosts that HTTP/3 serves, the offer of it in `alt-svc`, certificates, and rules about addresses.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use ingress_model::{
    Access, Authorities, Blocked, Certificate, ClientCertificates, Demand, Filter, Handshakes, HostPattern, Networks,
    Passthrough, RequestRules, Settings, Trust, Versions,
};
use ingress_proxy_testing::tls::{config, connect};
use ingress_proxy_testing::{Origin, Proxy, Table, pki, until};

use super::{Client, connect_raw, request, start};

/// Requirements on the certificates of clients.
pub(super) fn asking() -> ClientCertificates {
    let authority = pki::Authority::new("clients");
    ClientCertificates {
        authorities: Arc::new(Authorities::from_pem("default/ca", authority.pem.as_bytes()).expect("an authority")),
        revoked: Vec::new(),
        demand: Demand::Optional,
        depth: 1,
        passed: false,
        name: None,
        error_page: None,
    }
}

/// A host of each kind: served, with client certificates, passed through, and one that wants no HTTP/3.
fn table(origin: &Origin) -> Table {
    let hosts = ["a.test", "asks.test", "passes.test", "refuses.test"];
    let mut table = hosts.iter().fold(Table::default(), |table, host| table.host(host, &[origin.address]));
    let passthrough = Passthrough { upstream: None, access: None, connect_timeout: Duration::from_secs(1) };
    for host in &hosts[1..] {
        let pattern = HostPattern::parse(host).expect("valid host");
        let routes = Arc::make_mut(table.0.hosts.get_mut(&pattern).expect("known"));
        match *host {
            "asks.test" => routes.clients = Some(Arc::new(asking())),
            "passes.test" => routes.passthrough = Some(Arc::new(passthrough.clone())),
            _ => routes.refuses_http3 = true,
        }
    }
    table
}

#[tokio::test]
async fn hosts_whose_tls_differs_are_refused_by_name_and_by_request() {
    let origin = Origin::answering("pod");
    let proxy = start(&table(&origin));
    let client = Client::connect(&proxy, "a.test").await;
    for host in ["asks.test", "passes.test", "refuses.test"] {
        assert!(connect_raw(&proxy, host).await.is_err(), "{host}");
        assert_eq!(client.get(host, "/").await.status(), 421, "{host}");
    }
    assert_eq!(client.get("a.test", "/").await.text(), "pod");
    assert_eq!(origin.heads().len(), 1);
}

#[tokio::test]
async fn settings_that_http3_cannot_keep_switch_it_off() {
    let origin = Origin::answering("pod");
    let tls12 = Handshakes { versions: Versions::Tls12, ..Handshakes::default() };
    let proxied = Trust { proxy_protocol: true, ..Trust::default() };
    let base = || Table::default().host("a.test", &[origin.address]);
    let proxy = start(&base());
    let client = Client::connect(&proxy, "a.test").await;
    for settings in
        [Settings { handshakes: tls12, ..Settings::default() }, Settings { trust: proxied, ..Settings::default() }]
    {
        proxy.publish(&base().settings(settings));
        assert_eq!(client.get("a.test", "/").await.status(), 421);
        assert!(connect_raw(&proxy, "a.test").await.is_err());
    }
    proxy.publish(&base());
    assert_eq!(client.get("a.test", "/").await.status(), 200);
    assert!(connect_raw(&proxy, "a.test").await.is_ok());
}

/// The `alt-svc` of a response over TLS, by HTTP/2 or HTTP/1.1.
pub(super) async fn offered(proxy: &Proxy, alpn: &str, host: &str) -> Option<String> {
    let stream = TokioIo::new(connect(proxy, &config(&[alpn]), "a.test").await);
    let request = http::Request::get(format!("https://{host}/")).header("host", host).body(Full::<Bytes>::default());
    let mut request = request.expect("a request");
    let response = if alpn == "h2" {
        request.headers_mut().remove("host");
        let executor = hyper_util::rt::TokioExecutor::new();
        let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, stream).await.expect("HTTP/2");
        tokio::spawn(connection);
        sender.send_request(request).await
    } else {
        *request.uri_mut() = "/".parse().expect("a path");
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.expect("HTTP/1");
        tokio::spawn(connection);
        sender.send_request(request).await
    };
    let response = response.expect("a response");
    let offered = response.headers().get("alt-svc").map(|value| value.to_str().expect("text").to_owned());
    drop(response.into_body().collect().await);
    offered
}

#[tokio::test]
async fn clients_of_tls_are_offered_http3_for_hosts_that_it_serves() {
    let origin = Origin::start(|peer| {
        while peer.request().is_some() {
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nAlt-Svc: pod\r\n\r\n");
        }
    });
    let proxy = start(&table(&origin));
    for alpn in ["h2", "http/1.1"] {
        let own = Some("h3=\":443\"; ma=86400".to_owned());
        assert_eq!(offered(&proxy, alpn, "a.test").await, own, "{alpn}");
        assert_eq!(offered(&proxy, alpn, "refuses.test").await, Some("pod".to_owned()), "{alpn}");
        for host in ["asks.test", "none.test"] {
            assert_eq!(offered(&proxy, alpn, host).await, None, "{alpn} {host}");
        }
    }
    assert_eq!(proxy.client().get("a.test", "/").header("alt-svc"), Some("pod"), "without TLS");
    let client = Client::connect(&proxy, "a.test").await;
    assert_eq!(client.get("a.test", "/").await.header("alt-svc"), Some("pod"), "by HTTP/3 itself");
    // A process without HTTP/3 says nothing.
    let without = Proxy::start(&table(&origin));
    assert_eq!(offered(&without, "h2", "a.test").await, Some("pod".to_owned()));
}

/// A field that tells clients to forget earlier offers.
fn clear() -> Option<String> {
    Some("clear".to_owned())
}

#[tokio::test]
async fn clients_are_told_when_http3_is_switched_off() {
    let origin = Origin::start(|peer| {
        while peer.request().is_some() {
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nAlt-Svc: pod\r\n\r\n");
        }
    });
    let table = |refuses_http3: bool, settings: Settings| {
        let mut table = table(&origin).settings(settings);
        let pattern = HostPattern::parse("a.test").expect("valid host");
        Arc::make_mut(table.0.hosts.get_mut(&pattern).expect("known")).refuses_http3 = refuses_http3;
        table
    };
    let on = Settings::default;
    let off = || Settings { http3: false, ..Settings::default() };
    let (own, pod) = (Some("h3=\":443\"; ma=86400".to_owned()), Some("pod".to_owned()));
    let proxy = start(&table(false, on()));
    for (what, refuses_http3, settings, expected) in [
        ("on", false, on(), own.clone()),
        ("off for the host", true, on(), clear()),
        ("on again", false, on(), own.clone()),
        ("off for all", false, off(), clear()),
        ("off for both", true, off(), clear()),
        ("on for the others", true, on(), clear()),
        ("on for it, too", false, on(), own),
    ] {
        proxy.publish(&table(refuses_http3, settings));
        for alpn in ["h2", "http/1.1"] {
            assert_eq!(offered(&proxy, alpn, "a.test").await, expected, "{what}, {alpn}");
        }
        assert_eq!(offered(&proxy, "h2", "refuses.test").await, pod, "{what}, a host that was never served");
        assert_eq!(proxy.client().get("a.test", "/").header("alt-svc"), Some("pod"), "{what}, without TLS");
    }
    // A process that starts with HTTP/3 off has made no offer.
    let other = start(&table(false, off()));
    assert_eq!(offered(&other, "h2", "a.test").await, pod);
}

#[tokio::test]
async fn nothing_is_offered_that_does_not_answer() {
    let origin = Origin::answering("pod");
    let proxy = Proxy::start_http3_unasked(&Table::default().host("a.test", &[origin.address]), &super::options(), 1);
    let own = Some("h3=\":443\"; ma=86400".to_owned());
    assert_eq!(offered(&proxy, "h2", "a.test").await, None, "it was not asked yet");
    for (answers, expected) in [(false, None), (true, own.clone()), (false, clear()), (true, own)] {
        proxy.shared.set_http3_answers(answers);
        assert_eq!(offered(&proxy, "h2", "a.test").await, expected, "{answers}");
    }
    until("all workers serve it", || proxy.shared.http3_workers() == 1).await;
}

#[tokio::test]
async fn a_new_certificate_is_for_new_connections() {
    let origin = Origin::answering("pod");
    let table = |serial: u8| {
        let made = rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).expect("a certificate");
        let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let origin_name = format!("default/{serial}");
        let certificate = Certificate::from_pem(&origin_name, cert.as_bytes(), key.as_bytes()).expect("valid pem");
        let mut table = Table::default().host("a.test", &[origin.address]);
        let pattern = HostPattern::parse("a.test").expect("valid host");
        table.0.server_names.insert(pattern, Some(Arc::clone(&certificate.origin)));
        table.0.certificates.insert(Arc::clone(&certificate.origin), Arc::new(certificate));
        (table, made.cert.der().clone())
    };
    let shown = |client: &Client| {
        let chain = client.quic.peer_identity().expect("a certificate");
        chain.downcast::<Vec<rustls_pki_types::CertificateDer<'static>>>().expect("a chain")[0].clone()
    };
    let ((first, first_der), (second, second_der)) = (table(1), table(2));
    let proxy = start(&first);
    let old = Client::connect(&proxy, "a.test").await;
    assert_eq!(shown(&old), first_der);
    proxy.publish(&second);
    let new = Client::connect(&proxy, "a.test").await;
    assert_eq!(shown(&new), second_der);
    for client in [&old, &new] {
        assert_eq!(client.get("a.test", "/").await.text(), "pod");
    }
}

#[tokio::test]
async fn rules_about_addresses_must_admit_the_first_and_the_current_one() {
    let networks = |text| Networks::parse(text).expect("networks");
    let access = |allow, deny| Filter::Access(Arc::new(Access { allow: networks(allow), deny: networks(deny) }));
    let origin = Origin::mirror();
    let hosts = [
        // Host, networks that are allowed and denied, and statuses at 127.0.0.1 and 127.0.0.2 for a client of the first.
        ("open.test", "", "", [200, 200]),
        ("first.test", "127.0.0.1", "", [200, 403]),
        ("second.test", "127.0.0.2", "", [403, 403]),
        ("both.test", "127.0.0.1,127.0.0.2", "", [200, 200]),
        ("not-first.test", "", "127.0.0.1", [403, 403]),
        ("not-second.test", "", "127.0.0.2", [200, 403]),
    ];
    let rules = |text| Filter::RequestRules(Arc::new(RequestRules::redirects(text).expect("valid")));
    let ruled = [
        // Host, rules, and the same statuses.
        ("first-rule.test", "client = 127.0.0.1 -> 404", [404, 404]),
        ("second-rule.test", "client = 127.0.0.2 -> 404", [200, 403]),
        ("any-but-first.test", "client != 127.0.0.1 -> 404", [200, 403]),
        ("other-rule.test", "client = 127.0.0.9 -> 404", [200, 200]),
    ];
    let table = hosts.iter().fold(Table::default(), |table, (host, allow, deny, _)| {
        table.host_with(host, &[origin.address], vec![access(allow, deny)])
    });
    let table =
        ruled.iter().fold(table, |table, (host, text, _)| table.host_with(host, &[origin.address], vec![rules(text)]));
    let hosts: Vec<_> = hosts
        .iter()
        .map(|(host, .., statuses)| (*host, *statuses))
        .chain(ruled.iter().map(|(host, _, statuses)| (*host, *statuses)))
        .collect();
    let proxy = start(&table);
    let client = Client::connect(&proxy, "open.test").await;
    for (at, address) in ["127.0.0.1", "127.0.0.2"].into_iter().enumerate() {
        client.move_to(address);
        for (host, statuses) in &hosts {
            let got = client.get(host, "/").await;
            assert_eq!(got.status(), statuses[at], "{host} at {address}");
            if got.status() == 200 {
                // The new address is not proven, so pods do not hear of it.
                assert!(got.text().contains("\r\nx-forwarded-for: 127.0.0.1\r\n"), "{host} at {address}");
            }
        }
    }
    let blocked = Blocked { networks: networks("127.0.0.2"), ..Blocked::default() };
    proxy.publish(&table.settings(Settings { blocked: Some(Arc::new(blocked)), ..Settings::default() }));
    assert_eq!(client.get("open.test", "/").await.status(), 403);
    client.move_to("127.0.0.1");
    assert_eq!(client.get("open.test", "/").await.status(), 200);
    until("the changes are counted", || proxy.shared.stats().http3.migrated >= 2).await;
}

#[tokio::test]
async fn a_request_survives_a_change_of_address() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let origin = Origin::start(move |peer| {
        while let Some((_, body)) = peer.request() {
            wait.lock().expect("unpoisoned").recv().expect("told to go on");
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()));
            peer.send(body);
        }
    });
    let proxy = start(&Table::default().host("a.test", &[origin.address]));
    let client = Client::connect(&proxy, "a.test").await;
    let body = super::pattern(300_000);
    let asked = client.send(request(Method::POST, "a.test", "/", body.clone()));
    let moves = async {
        until("the pod has the request", || origin.heads().len() == 1).await;
        client.move_to("127.0.0.3");
        go.send(()).expect("sent");
    };
    let (got, ()) = tokio::join!(asked, moves);
    let got = got.expect("a response");
    assert_eq!(got.head.status(), StatusCode::OK);
    assert!(got.body == body);
}
