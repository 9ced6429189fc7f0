//! Redirects of rules, as clients see them: status and `Location`, over plain HTTP and TLS.

use std::num::NonZeroU16;

use ingress_model::{Action, Host, Location, LocationParts, PathModifier, Redirect, ReplacementPath, UrlScheme};
use ingress_proxy_testing::{
    Proxy, Table,
    tls::{config, connect},
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

fn redirect(status: u16, parts: LocationParts) -> Action {
    Action::Redirect(Redirect { status, location: Location::Parts(parts) }.into())
}

fn replacement(text: &str) -> ReplacementPath {
    ReplacementPath::parse(text).expect("valid")
}

/// A host with a redirect for each path.
fn table() -> Table {
    let prefix = |matched: &str, text| PathModifier::Prefix { matched: matched.into(), replacement: replacement(text) };
    let mut table = Table::default();
    for (path, status, parts) in [
        ("/see", 303, LocationParts::default()),
        ("/https", 308, LocationParts { scheme: Some(UrlScheme::Https), ..LocationParts::default() }),
        ("/http", 307, LocationParts { scheme: Some(UrlScheme::Http), ..LocationParts::default() }),
        ("/port", 301, LocationParts { port: NonZeroU16::new(80), ..LocationParts::default() }),
        ("/host", 302, LocationParts { host: Host::parse("b.test").ok(), ..LocationParts::default() }),
        (
            "/full",
            302,
            LocationParts { path: Some(PathModifier::Full(replacement("/new"))), ..LocationParts::default() },
        ),
        ("/old", 302, LocationParts { path: Some(prefix("/old", "/new")), ..LocationParts::default() }),
        ("/strip", 302, LocationParts { path: Some(prefix("/strip", "")), ..LocationParts::default() }),
    ] {
        table = table.path("a.test", path, redirect(status, parts));
    }
    table
}

#[test]
fn a_redirect_replaces_the_parts_that_it_names() {
    let proxy = Proxy::start(&table());
    let own = proxy.http.port();
    let mut client = proxy.client();
    for (path, status, location) in [
        ("/see/x?q=1", 303, format!("http://a.test:{own}/see/x?q=1")),
        ("/https/x", 308, "https://a.test/https/x".to_owned()),
        ("/http/x", 307, "http://a.test/http/x".to_owned()),
        ("/port", 301, "http://a.test/port".to_owned()),
        ("/host", 302, format!("http://b.test:{own}/host")),
        ("/full/x/y?q=1", 302, format!("http://a.test:{own}/new?q=1")),
        ("/old/x?q=1&r=/old", 302, format!("http://a.test:{own}/new/x?q=1&r=/old")),
        ("/old", 302, format!("http://a.test:{own}/new")),
        ("/strip", 302, format!("http://a.test:{own}/")),
        ("/strip/x", 302, format!("http://a.test:{own}/x")),
    ] {
        // The port that the client names is not that of the listener.
        let response = client.get("a.test:1234", path);
        assert_eq!((response.status, response.header("location")), (status, Some(&*location)), "{path}");
    }
}

#[tokio::test]
async fn a_redirect_over_tls_keeps_scheme_and_port() {
    let proxy = Proxy::start(&table());
    let own = proxy.https.port();
    let mut stream = connect(&proxy, &config(&["http/1.1"]), "a.test").await;
    for (path, location) in [
        ("/host", format!("https://b.test:{own}/host")),
        ("/http", "http://a.test/http".to_owned()),
        ("/port", "https://a.test:80/port".to_owned()),
        ("/https", "https://a.test/https".to_owned()),
    ] {
        stream.write_all(format!("HEAD {path} HTTP/1.1\r\nHost: a.test\r\n\r\n").as_bytes()).await.expect("sent");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a byte"));
        }
        let head = String::from_utf8(head).expect("text").to_lowercase();
        assert!(head.contains(&format!("location: {location}\r\n")), "{path}: {head}");
    }
}
