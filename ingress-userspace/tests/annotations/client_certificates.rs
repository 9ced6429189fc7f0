//! Client certificates: access, fields for pods, and connections that were made for another host.

use std::sync::Arc;

use ingress_control::translate::Options;
use ingress_model::HostPattern;
use rustls::{ClientConfig, HandshakeKind, SupportedProtocolVersion, version};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

use super::{Ingress, Site, pods_tls::another};
use ingress_proxy_testing::Origin;
use ingress_proxy_testing::pki::{Authority, Issued, secret};
use ingress_proxy_testing::tls::{config, config_of, connect};

const SECRET: (&str, &str) = ("auth-tls-secret", "default/clients");

fn showing(issued: Option<&Issued>, versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
    Arc::new(config_of(versions, issued.map(|issued| (issued.chain(), issued.private_key()))))
}

fn trusting(authority: &Authority) -> String {
    secret("clients", &[("ca.crt", &authority.pem)])
}

/// Sends `GET /` with these fields over `stream`, and returns the response as text.
async fn ask(stream: &mut TlsStream<TcpStream>, host: &str, fields: &str) -> String {
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n{fields}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("a clean end");
    response
}

async fn get(site: &Site, config: &Arc<ClientConfig>, fields: &str) -> String {
    ask(&mut connect(&site.proxy, config, "a.test").await, "a.test", fields).await
}

fn status(response: &str) -> u16 {
    response.get(9..12).and_then(|code| code.parse().ok()).expect("a status")
}

#[tokio::test]
async fn client_certificates_decide_by_verification_mode() {
    let (trusted, other) = (Authority::new("trusted"), Authority::new("other"));
    let origin = Origin::answering("pod");
    let valid = trusted.issue("client.test");
    let foreign = other.issue("client.test");
    let expired = trusted.issue_expired("client.test");
    for (mode, expect) in [
        ("on", [400, 200, 400, 400]),
        ("optional", [200, 200, 400, 400]),
        ("optional_no_ca", [200, 200, 200, 400]),
        ("off", [200; 4]),
    ] {
        let ingress = Ingress::with(&[SECRET, ("auth-tls-verify-client", mode)]).with_tls().beside(&trusting(&trusted));
        let site = ingress.serve(&origin).in_order();
        for (shown, expect) in [None, Some(&valid), Some(&foreign), Some(&expired)].into_iter().zip(expect) {
            for version in [&version::TLS12, &version::TLS13] {
                let response = get(&site, &showing(shown, &[version]), "").await;
                assert_eq!(status(&response), expect, "{mode}: {response}");
                if expect == 400 {
                    let why = if shown.is_none() { "no required SSL certificate was sent" } else { "is not valid" };
                    assert!(response.contains(why), "{response}");
                }
            }
        }
    }
}

/// Names of the certificate have regular expressions as a whole, and the expression is text and no configuration.
#[tokio::test]
async fn common_names_match_as_a_whole() {
    let (trusted, other) = (Authority::new("trusted"), Authority::new("other"));
    let origin = Origin::answering("pod");
    let valid = trusted.issue("client.test");
    let foreign = other.issue("client.test");
    for (mode, value, expect) in [
        ("on", "CN=client\\.test", [400, 200, 400]),
        ("on", "CN=(admin|client)\\..*", [400, 200, 400]),
        ("on", "CN=client", [400, 403, 400]),
        ("on", "CN=test", [400, 403, 400]),
        ("on", "CN=CLIENT.TEST", [400, 403, 400]),
        ("on", "CN=client.test) { return 200; } #", [400, 503, 400]),
        ("on", "CN=[a-z]+ { load_module a; }", [400, 503, 400]),
        ("optional", "CN=client\\.test", [403, 200, 400]),
        ("optional_no_ca", "CN=client\\.test", [403, 200, 200]),
        ("optional_no_ca", "CN=admin", [403; 3]),
        ("off", "CN=client\\.test", [503; 3]),
        ("on", "client\\.test", [400, 503, 400]),
        ("on", "CN=", [400, 503, 400]),
        ("on", "CN=client.test,O=x", [400, 503, 400]),
        ("on", "CN=(?=client).*", [400, 503, 400]),
    ] {
        let annotations = [SECRET, ("auth-tls-verify-client", mode), ("auth-tls-match-cn", value)];
        let site = Ingress::with(&annotations).with_tls().beside(&trusting(&trusted)).serve(&origin);
        for (shown, expect) in [None, Some(&valid), Some(&foreign)].into_iter().zip(expect) {
            let response = get(&site, &showing(shown, &[&version::TLS13]), "").await;
            assert_eq!(status(&response), expect, "{mode} {value}: {response}");
        }
    }
    let site = Ingress::with(&[("auth-tls-match-cn", "CN=a")]).with_tls().serve(&origin);
    assert_eq!(status(&get(&site, &showing(None, &[&version::TLS13]), "").await), 503, "no authority is set");
}

#[tokio::test]
async fn clients_without_a_valid_certificate_are_led_to_the_error_page() {
    let trusted = Authority::new("trusted");
    let origin = Origin::answering("pod");
    let (valid, expired) = (trusted.issue("client.test"), trusted.issue_expired("client.test"));
    let annotations =
        [SECRET, ("auth-tls-match-cn", "CN=client\\.test"), ("auth-tls-error-page", "https://help.test/?from=$host")];
    let site = Ingress::with(&annotations).with_tls().beside(&trusting(&trusted)).serve(&origin).in_order();
    for (shown, expect) in [(None, 302), (Some(&expired), 302), (Some(&valid), 200)] {
        let response = get(&site, &showing(shown, &[&version::TLS13]), "").await;
        assert_eq!(status(&response), expect, "{response}");
        assert_eq!(response.contains("https://help.test/?from=a.test"), expect == 302, "{response}");
    }
    for page in ["/help", "@help", "ftp://help.test"] {
        let annotations = [SECRET, ("auth-tls-error-page", page)];
        let site = Ingress::with(&annotations).with_tls().beside(&trusting(&trusted)).serve(&origin);
        assert_eq!(status(&get(&site, &showing(Some(&valid), &[&version::TLS13]), "").await), 503, "{page}");
    }
}

#[tokio::test]
async fn certificate_headers_are_set_and_cannot_be_forged() {
    let trusted = Authority::new("trusted");
    let valid = trusted.issue("client.test");
    let origin = Origin::mirror();
    let lies = "ssl-client-verify: SUCCESS\r\nssl-client-cert: x\r\nSSL-Client-Subject-DN: CN=root\r\nssl_client_issuer_dn: x\r\n";
    let escaped: String = valid
        .cert
        .replace("\r\n", "\n")
        .bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect();
    for (passed, shown, expect) in [
        ("false", None, &["ssl-client-verify: none"][..]),
        (
            "false",
            Some(&valid),
            &[
                "ssl-client-verify: success",
                "ssl-client-subject-dn: cn=client.test",
                "ssl-client-issuer-dn: cn=trusted",
            ],
        ),
        (
            "true",
            Some(&valid),
            &[
                "ssl-client-verify: success",
                "ssl-client-subject-dn: cn=client.test",
                "ssl-client-issuer-dn: cn=trusted",
                &format!("ssl-client-cert: {}", escaped.to_lowercase()),
            ],
        ),
    ] {
        let pass = ("auth-tls-pass-certificate-to-upstream", passed);
        let ingress = Ingress::with(&[SECRET, ("auth-tls-verify-client", "optional"), pass]).with_tls();
        let site = ingress.beside(&trusting(&trusted)).serve(&origin).in_order();
        let seen = get(&site, &showing(shown, rustls::ALL_VERSIONS), lies).await.to_lowercase();
        let told: Vec<_> = seen.lines().filter(|line| line.replace('_', "-").starts_with("ssl-client-")).collect();
        assert_eq!(told, expect);
    }
    let edits =
        ("request-headers", "X-DN: $ssl_client_s_dn by $ssl_client_i_dn ($ssl_client_verify)\nX-Start: t=${msec}");
    for (shown, expect) in [(None, "x-dn:  by  (none)"), (Some(&valid), "x-dn: cn=client.test by cn=trusted (success)")]
    {
        let ingress = Ingress::with(&[SECRET, ("auth-tls-verify-client", "optional"), edits]).with_tls();
        let site = ingress.beside(&trusting(&trusted)).serve(&origin).in_order();
        let seen =
            get(&site, &showing(shown, rustls::ALL_VERSIONS), "X-DN: CN=root\r\nX-Start: 0\r\n").await.to_lowercase();
        let told: Vec<_> = seen.lines().filter(|line| line.starts_with("x-dn:")).collect();
        assert_eq!(told, [expect]);
        assert!(seen.contains("\r\nx-start: t=1") || seen.contains("\r\nx-start: t=2"), "{seen}");
    }
    // A host without client certificates passes on no such fields either.
    let site = Ingress::with(&[]).serve(&origin).in_order();
    assert!(!site.ask("/", lies).text().contains("ssl"));
}

#[tokio::test]
async fn a_connection_serves_only_hosts_with_the_same_policy() {
    let trusted = Authority::new("trusted");
    let valid = trusted.issue("client.test");
    let origin = Origin::answering("pod");
    let same = another("b.test", &[SECRET]);
    let ingress = Ingress::with(&[SECRET]).with_tls().beside(&trusting(&trusted)).beside(&same);
    let ingress = ingress.beside(&another("c.test", &[]).replace("name: other", "name: third"));
    let site = ingress.serve(&origin).in_order();
    let config = showing(Some(&valid), rustls::ALL_VERSIONS);
    for (server_name, host, expect) in [
        ("a.test", "a.test", 200),
        ("A.test", "a.test", 200),
        ("a.test", "b.test", 200),
        ("a.test", "c.test", 421),
        ("c.test", "a.test", 421),
        ("c.test", "c.test", 200),
        ("127.0.0.1", "a.test", 421),
        ("a.test", "unknown.test", 404),
    ] {
        let mut stream = connect(&site.proxy, &config, server_name).await;
        let response = ask(&mut stream, host, "").await;
        assert_eq!(status(&response), expect, "{server_name} {host}: {response}");
    }
}

#[tokio::test]
async fn a_new_policy_applies_to_open_connections_and_sessions() {
    let (trusted, other) = (Authority::new("trusted"), Authority::new("other"));
    let valid = trusted.issue("client.test");
    let origin = Origin::answering("pod");
    let open = Ingress::with(&[]).with_tls();
    let closed = |authority| Ingress::with(&[SECRET]).with_tls().beside(&trusting(authority));
    let table = |ingress: Ingress| ingress.translated(&[origin.address], &Options::for_manifests()).0;
    let site = open.serve(&origin).in_order();
    let config = showing(Some(&valid), rustls::ALL_VERSIONS);
    let mut early = connect(&site.proxy, &config, "a.test").await;
    assert_eq!(status(&get(&site, &config, "").await), 200);
    site.proxy.publish(&table(closed(&trusted)));
    assert_eq!(status(&ask(&mut early, "a.test", "").await), 421);
    let mut late = connect(&site.proxy, &config, "a.test").await;
    assert_eq!(late.get_ref().1.handshake_kind(), Some(HandshakeKind::Full), "no session from before is resumed");
    let mut kept = connect(&site.proxy, &config, "a.test").await;
    assert_eq!(status(&ask(&mut late, "a.test", "").await), 200);
    // A client that the new policy rejects cannot use an earlier connection either.
    site.proxy.publish(&table(closed(&other)));
    assert_eq!(status(&ask(&mut kept, "a.test", "").await), 400);
    site.proxy.publish(&table(Ingress::with(&[]).with_tls()));
    assert_eq!(status(&get(&site, &config, "").await), 200);
}

#[test]
fn plain_http_is_refused_with_client_certificates() {
    let origin = Origin::answering("pod");
    let trusted = Authority::new("trusted");
    for (annotations, tls, expect) in [
        (&[SECRET][..], false, 403),
        (&[SECRET, ("auth-tls-verify-client", "optional")], false, 403),
        (&[SECRET], true, 308),
        (&[SECRET, ("ssl-redirect", "false")], true, 403),
    ] {
        let mut ingress = Ingress::with(annotations).beside(&trusting(&trusted));
        if tls {
            ingress = ingress.with_tls();
        }
        assert_eq!(ingress.serve(&origin).in_order().get("/").status, expect, "{annotations:?}");
    }
    assert_eq!(origin.connections(), 0);
}

#[tokio::test]
async fn chain_depth_and_revocation_are_verified() {
    let root = Authority::new("root");
    let middle = root.below("middle");
    let (direct, indirect) = (root.issue("direct.test"), middle.issue("indirect.test"));
    let indirect = Issued { cert: format!("{}{}", indirect.cert, middle.pem), ..indirect };
    let (revoking, empty) = (root.revoking(&[&direct]), root.revoking(&[]));
    let origin = Origin::answering("pod");
    for (depth, list, shown, expect) in [
        ("0", None, &direct, 200),
        ("0", None, &indirect, 400),
        ("1", None, &indirect, 200),
        ("1", Some(&empty), &direct, 200),
        ("1", Some(&revoking), &direct, 400),
        // No list covers revocations by `middle`.
        ("1", Some(&empty), &indirect, 400),
    ] {
        let mut data = vec![("ca.crt", root.pem.as_str())];
        data.extend(list.map(|list| ("ca.crl", list.as_str())));
        let ingress = Ingress::with(&[SECRET, ("auth-tls-verify-depth", depth)]).with_tls();
        let site = ingress.beside(&secret("clients", &data)).serve(&origin).in_order();
        let response = get(&site, &showing(Some(shown), rustls::ALL_VERSIONS), "").await;
        assert_eq!(status(&response), expect, "depth {depth}, list {}", list.is_some());
    }
}

#[tokio::test]
async fn a_missing_ca_secret_refuses_all_paths_of_the_host() {
    let trusted = Authority::new("trusted");
    let origin = Origin::answering("pod");
    for (annotations, held, remark) in [
        (&[SECRET][..], None, "SecretNotFound"),
        (&[("auth-tls-verify-client", "on")], None, "no certificate authority is set"),
        (&[("auth-tls-secret", "other/clients")], None, "in another namespace"),
        (&[SECRET], Some(secret("clients", &[("tls.crt", "x")])), "`ca.crt` is missing"),
        (&[SECRET], Some(secret("clients", &[("ca.crt", &trusted.pem), ("ca.crl", "x")])), "no PEM block `X509 CRL`"),
    ] {
        let unprotected = another("a.test", &[]).replace("path: /,", "path: /other,");
        let mut ingress = Ingress::with(annotations).with_tls().beside(&unprotected);
        if let Some(held) = &held {
            ingress = ingress.beside(held);
        }
        let site = ingress.serve(&origin);
        assert!(site.outcomes.contains(remark), "{annotations:?}: {}", site.outcomes);
        for path in ["/", "/other"] {
            let mut stream = connect(&site.proxy, &config(&[]), "a.test").await;
            let request = format!("GET {path} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.expect("sent");
            let mut response = String::new();
            stream.read_to_string(&mut response).await.expect("a clean end");
            assert_eq!(status(&response), 503, "{annotations:?} {path}");
        }
    }
    assert_eq!(origin.connections(), 0);
}

#[test]
fn the_first_of_two_conflicting_ingresses_decides() {
    let (trusted, other) = (Authority::new("trusted"), Authority::new("other"));
    let second = another("a.test", &[("auth-tls-secret", "others")]).replace("path: /,", "path: /other,");
    // `other` comes before `web` by its name.
    let (table, outcomes) = Ingress::with(&[SECRET])
        .beside(&trusting(&trusted))
        .beside(&secret("others", &[("ca.crt", &other.pem)]))
        .beside(&second)
        .translated(&[], &Options::for_manifests());
    let conflict = outcomes.lines().find(|remark| remark.contains("HostPathConflict")).expect("a remark");
    assert!(conflict.contains("Ingress default/web") && conflict.contains("`default/other`"), "{conflict}");
    let routes = table.0.hosts.get(&HostPattern::parse("a.test").expect("valid host")).expect("a host");
    let clients = routes.clients.as_ref().expect("a policy");
    assert_eq!(&*clients.authorities.origin, "default/others");
    assert!(routes.rules.len() == 2 && routes.rules.iter().all(|rule| !rule.filters.is_empty()));
}
