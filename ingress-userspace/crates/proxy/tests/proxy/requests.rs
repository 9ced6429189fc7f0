//! Well-formed requests and their results.

use ingress_model::{Action, Filter, HostPattern, Unavailable};
use ingress_proxy::Options;

use ingress_proxy_testing::{Origin, Proxy, Table, wait_until};

#[test]
fn requests_on_one_connection_reach_the_pod_of_their_host() {
    let (a, b) = (Origin::answering("a"), Origin::answering("b"));
    let proxy = Proxy::start(&Table::default().host("a.test", &[a.address]).host("*.b.test", &[b.address]));
    let mut client = proxy.client();
    for _ in 0..3 {
        assert_eq!(client.get("a.test", "/").text(), "a");
        assert_eq!(client.get("X.B.test.:8080", "/x?y").text(), "b");
    }
    assert_eq!((a.connections(), b.connections()), (1, 1));
    for _ in 0..3 {
        assert_eq!(proxy.client().get("a.test", "/").text(), "a");
    }
    assert_eq!(a.connections(), 1, "connections to pods are kept whoever the client is");
}

#[test]
fn forwarding_headers_are_set_and_connection_fields_dropped() {
    let origin = Origin::mirror();
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = proxy.client();
    client.send(
        "GET //x/./y/../z?q=//&r=.. HTTP/1.1\r\nHost: A.test:81\r\nConnection: keep-alive, x-drop\r\nX-Drop: 1\r\nX-Keep: 2\r\n\
         X-Forwarded-For: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\nUpgrade: h2c\r\nTE: gzip\r\nX-Request-Id: id-1\r\n\r\n",
    );
    let response = client.response();
    let via = response.text().lines().find_map(|line| line.strip_prefix("via: 1.1 xdp-ingress-")).expect("a via");
    assert!(via.len() == 8 && via.bytes().all(|byte| byte.is_ascii_hexdigit()), "{via}");
    let port = proxy.http.port();
    let expect = format!(
        "get /x/z?q=//&r=.. http/1.1\r\nhost: a.test:81\r\nx-keep: 2\r\nx-forwarded-for: 127.0.0.1\r\nx-real-ip: 127.0.0.1\r\n\
         x-forwarded-proto: http\r\nx-forwarded-scheme: http\r\nx-scheme: http\r\nx-forwarded-port: {port}\r\nx-forwarded-host: a.test:81\r\n\
         x-request-id: id-1\r\nvia: 1.1 xdp-ingress-{via}\r\n\r\n"
    );
    assert_eq!(response.text(), expect);
    assert_eq!(response.header("server"), Some("xdp-ingress"));
    assert!(response.header("date").is_some());
}

#[test]
fn targets_in_absolute_form_are_forwarded_in_origin_form() {
    let origin = Origin::mirror();
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    for (target, expect) in [
        ("http://a.test/x?y", "get /x?y http/1.1"),
        ("http://a.test?y", "get /?y http/1.1"),
        ("http://a.test", "get / http/1.1"),
    ] {
        let response = proxy.client().get("a.test", target);
        let request = format!("{target} {}", response.text());
        let mut client = proxy.client();
        let response = client.send(format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n\r\n")).response();
        assert!(response.text().starts_with(expect), "{request}");
    }
}

#[test]
fn connection_fields_of_the_pod_are_not_forwarded() {
    let origin = Origin::start(|peer| {
        while peer.request().is_some() {
            peer.send(
                "HTTP/1.1 201 Created\r\nServer: pod\r\nConnection: x-drop\r\nX-Drop: 1\r\nKeep-Alive: timeout=5\r\nUpgrade: h2c\r\n\
                 Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 2\r\n\r\nok",
            );
        }
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let response = proxy.client().get("a.test", "/");
    assert_eq!((response.status, response.text()), (201, "ok"));
    for absent in ["connection", "x-drop", "keep-alive", "upgrade"] {
        assert_eq!(response.header(absent), None, "{absent}");
    }
    assert_eq!(response.header("server"), Some("pod"));
    assert_eq!(response.head.matches("set-cookie").count(), 2);
}

#[test]
fn unservable_requests_get_their_status() {
    let proxy = Proxy::start(&Table::default().host("empty.test", &[]).host("down.test", &[Origin::refusing()]).rule(
        "refused.test",
        Vec::new(),
        Action::Refuse(Unavailable::NoService),
    ));
    let mut client = proxy.client();
    for (host, status) in [("other.test", 404), ("empty.test", 503), ("refused.test", 503), ("down.test", 502)] {
        let response = client.get(host, "/");
        assert_eq!(response.status, status, "{host}");
        for name in ["content-length", "content-type", "date", "server"] {
            assert!(response.header(name).is_some(), "{host} {name}");
        }
        assert!(!response.text().contains("127.0.0.1"), "{}", response.text());
    }
}

#[test]
fn plain_requests_are_redirected_except_acme_challenges() {
    let origin = Origin::answering("pod");
    let filters = vec![Filter::RedirectHttps { status: 308, except: [].into() }];
    let proxy = Proxy::start(&Table::default().host_with("a.test", &[origin.address], filters));
    let mut client = proxy.client();
    let response = client.get("a.test:80", "/x//y?z");
    assert_eq!((response.status, response.header("location")), (308, Some("https://a.test/x/y?z")));
    assert_eq!(client.get("a.test", "/.well-known/acme-challenge/t").text(), "pod");
    let escape = client.get("a.test", "/.well-known/acme-challenge/../../x");
    assert_eq!((escape.status, escape.header("location")), (308, Some("https://a.test/x")));
}

#[test]
fn options_for_the_server_is_not_redirected() {
    let origin = Origin::answering("pod");
    let filters = vec![Filter::RedirectHttps { status: 308, except: [].into() }];
    let mut table = Table::default().host_with("a.test", &[origin.address], filters);
    // Only the fallback of a host takes `*`.
    let pattern = HostPattern::parse("a.test").expect("valid host");
    let routes = std::sync::Arc::make_mut(table.0.hosts.get_mut(&pattern).expect("known"));
    routes.fallback = routes.rules.pop().map(Box::new);
    let proxy = Proxy::start(&table);
    let mut client = proxy.client();
    let response = client.send("OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n").response();
    assert_eq!((response.status, response.header("location")), (200, None));
    assert!(origin.heads()[0].starts_with("options * http/1.1\r\n"), "{:?}", origin.heads());
    assert_eq!(client.get("a.test", "/").status, 308);
}

#[test]
fn escaped_paths_evade_no_rule() {
    let origin = Origin::mirror();
    let table = Table::default().host("a.test", &[origin.address]);
    let proxy = Proxy::start(&table.path("a.test", "/admin", Action::Refuse(Unavailable::NoService)));
    let mut client = proxy.client();
    for path in ["/admin", "/%61dmin", "/%61%64min/x", "/x/%2e%2E/adm%69n", "//admin"] {
        assert_eq!(client.get("a.test", path).status, 503, "{path}");
    }
    let response = client.get("a.test", "/%62%2f%7Ec?%61");
    assert!(response.text().starts_with("get /b%2f~c?%61 http/1.1\r\n"), "{}", response.text());
}

#[test]
fn requests_before_the_first_configuration_get_retry_after() {
    let origin = Origin::answering("pod");
    let proxy = Proxy::start_empty(&Options::default());
    let mut client = proxy.client();
    let response = client.get("a.test", "/");
    assert_eq!((response.status, response.header("retry-after")), (503, Some("1")));
    proxy.publish(&Table::default().host("a.test", &[origin.address]));
    assert_eq!(client.get("a.test", "/").text(), "pod");
    assert_eq!(client.get("b.test", "/").status, 404);
}

#[test]
fn request_loops_end_with_508() {
    let proxy = Proxy::start(&Table::default());
    proxy.publish(&Table::default().host("a.test", &[proxy.http]));
    let mut client = proxy.client();
    assert_eq!(client.get("a.test", "/").status, 508);
    assert_eq!(client.send("GET / HTTP/1.1\r\nHost: a.test\r\nVia: 1.1 other\r\n\r\n").response().status, 508);
    // Each counts once for the client and once for the proxy's own request.
    wait_until("each is counted twice", || proxy.count(1).requests.server_error == 4);
}

#[test]
fn responses_without_a_body_have_none() {
    let origin = Origin::start(|peer| {
        while let Some((head, _)) = peer.request() {
            let (method, _) = head.split_once(' ').expect("a method");
            match method {
                "head" => peer.send("HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"),
                "delete" => peer.send("HTTP/1.1 204 No Content\r\n\r\n"),
                _ => peer.send("HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n"),
            }
        }
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = proxy.client();
    for (method, status) in [("HEAD", "200"), ("DELETE", "204"), ("GET", "304"), ("HEAD", "200")] {
        let head = client.send(format!("{method} / HTTP/1.1\r\nHost: a.test\r\n\r\n")).head().expect("a head");
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{method}: {head}");
        assert_eq!(head.contains("content-length: 1234"), method == "HEAD", "{head}");
    }
}

#[test]
fn http_1_0_is_served() {
    let origin = Origin::answering("pod");
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = proxy.client();
    let response = client.send("GET / HTTP/1.0\r\nHost: a.test\r\n\r\n").response();
    assert_eq!(response.text(), "pod");
    assert!(client.is_closed());
}

#[test]
fn a_client_that_is_still_sending_keeps_its_connection() {
    let proxy = Proxy::start(&Table::default());
    let mut client = proxy.client();
    for _ in 0..10 {
        client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4000000\r\n\r\n").send(vec![0; 4_000_000]);
        assert_eq!(client.response().status, 404);
    }
}

#[test]
fn every_response_has_length_date_and_server() {
    let origin = Origin::start(|peer| {
        while let Some((head, _)) = peer.request() {
            if head.contains("/close") {
                peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\npod");
                return;
            }
            peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\npod\r\n0\r\n\r\n");
        }
    });
    let filters = vec![Filter::RedirectHttps { status: 308, except: [].into() }];
    let table = Table::default().host("a.test", &[origin.address]).host("empty.test", &[]);
    let proxy = Proxy::start(&table.host_with("r.test", &[origin.address], filters));
    let mut client = proxy.client();
    for (host, path, status) in [
        ("a.test", "/", 200),
        ("a.test", "/close", 200),
        ("empty.test", "/", 503),
        ("none.test", "/", 404),
        ("r.test", "/", 308),
        ("a.test", "/%zz", 400),
    ] {
        let response = client.get(host, path);
        assert_eq!(response.status, status, "{host}{path}");
        let length = response.header("content-length").or(response.header("transfer-encoding"));
        assert!(length.is_some(), "{host}{path}: {}", response.head);
        for name in ["date", "server"] {
            assert!(response.header(name).is_some(), "{host}{path} {name}");
        }
        assert!(status == 200 || response.header("content-type") == Some("text/plain; charset=utf-8"), "{host}{path}");
    }
    let head = client.send("HEAD / HTTP/1.1\r\nHost: none.test\r\n\r\n").head().expect("a head");
    for name in ["content-length", "content-type", "date", "server"] {
        assert!(head.contains(&format!("\r\n{name}: ")), "{name}: {head}");
    }
}
