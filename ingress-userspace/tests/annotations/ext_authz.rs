//! External authorization.

use std::net::SocketAddr;

use http::Response;
use ingress_control::translate::Options;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{Ingress, Site, configured};
use ingress_proxy_testing::pki::{Authority, TlsPod};
use ingress_proxy_testing::{Origin, serve_connections};

const URL: (&str, &str) = ("auth-url", "http://sso.auth.svc.cluster.local/verify?for=$uri");

/// Service `sso` in namespace `auth`, at `address`.
pub(super) fn service(address: SocketAddr) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: sso, namespace: auth}}\nspec: {{ports: [{{port: 80}}]}}\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: sso\n  namespace: auth\n  \
         labels: {{kubernetes.io/service-name: sso}}\naddressType: IPv4\nports: [{{port: {}}}]\nendpoints: [{{addresses: [{}]}}]\n",
        address.port(),
        address.ip(),
    )
}

/// A service that admits clients with a cookie of the value `ann`, and answers others with `status`.
fn guard(status: &'static str) -> Origin {
    Origin::start(move |peer| {
        while let Some((head, body)) = peer.request() {
            assert!(body.is_empty());
            if head.contains("cookie: user=ann\r\n") {
                peer.send("HTTP/1.1 202 Accepted\r\nX-User: ann\r\nX-Group: a\r\nX-Group: b\r\nSet-Cookie: seen=1\r\nContent-Length: 2\r\n\r\nhi");
            } else {
                peer.send(format!(
                    "HTTP/1.1 {status}\r\nWWW-Authenticate: Bearer realm=\"sso\"\r\nSet-Cookie: seen=0\r\nContent-Length: 0\r\n\r\n"
                ));
            }
        }
    })
}

const ANN: &str = "Cookie: user=ann\r\n";

fn site(annotations: &[(&str, &str)], sso: &Origin, pod: &Origin) -> Site {
    Ingress::with(annotations).beside(&service(sso.address)).serve(pod)
}

#[test]
fn the_authorization_response_decides() {
    let pod = Origin::mirror();
    let annotations = [URL, ("auth-response-headers", "X-User, X-Group, X-None, X-User=X-Remote-User")];
    for (status, expect, challenge) in [
        ("401 Unauthorized", 401, Some("bearer realm=\"sso\"")),
        ("403 Forbidden", 403, Some("bearer realm=\"sso\"")),
        ("404 Not Found", 500, None),
        ("302 Found", 500, None),
        ("500 Oops", 500, None),
    ] {
        let sso = guard(status);
        let site = site(&annotations, &sso, &pod).in_order();
        let refused = site.ask("/", "X-User: root\r\n");
        assert_eq!((refused.status, refused.header("www-authenticate")), (expect, challenge), "{status}");
        assert_eq!(refused.header("set-cookie"), None, "{status}");
        let let_in = site.ask("/x", &format!("{ANN}X-User: root\r\nX-None: root\r\nX-Remote-User: root\r\nX-A: 1\r\n"));
        assert_eq!((let_in.status, let_in.header("set-cookie")), (200, Some("seen=1")));
        for line in [
            "\r\nx-remote-user: ann\r\n",
            "\r\nx-user: ann\r\n",
            "\r\nx-group: a\r\n",
            "\r\nx-group: b\r\n",
            "\r\nx-a: 1\r\n",
        ] {
            assert_eq!(let_in.text().matches(line).count(), 1, "{line} {}", let_in.text());
        }
        assert!(!let_in.text().contains("root"), "what clients say of themselves is dropped: {}", let_in.text());
        assert_eq!(sso.connections(), 1, "connections are kept");
    }
    // One for each of the five that were admitted.
    assert_eq!(pod.heads().len(), 5);
}

#[test]
fn the_authorization_request_has_all_but_the_body() {
    let (sso, pod) = (guard("401 Unauthorized"), Origin::mirror());
    let site = site(&[URL], &sso, &pod).in_order();
    let body = "Content-Length: 5\r\nRange: bytes=0-1\r\nIf-Match: x\r\nConnection: close, x-hop\r\nX-Hop: 1\r\nX-Forwarded-For: 10.9.9.9\r\n";
    let head =
        format!("PUT /a/../b%20c?d=e HTTP/1.1\r\nHost: a.test:8080\r\nAuthorization: Bearer t\r\n{ANN}{body}\r\nhello");
    let response = site.client().send(head).response();
    assert_eq!(response.status, 200);
    assert!(response.text().contains("put /b%20c?d=e ") && response.text().contains("content-length: 5"));
    assert!(response.text().contains("authorization: bearer t"));
    let question = &sso.heads()[0];
    for line in [
        "get /verify?for=/b%20c http/1.1\r\n",
        "host: sso.auth.svc.cluster.local\r\n",
        "authorization: bearer t\r\n",
        "cookie: user=ann\r\n",
        "x-original-url: http://a.test:8080/b%20c?d=e\r\n",
        "x-original-method: put\r\n",
        "x-auth-request-redirect: /b%20c?d=e\r\n",
        "x-sent-from: nginx-ingress-controller\r\n",
        "x-forwarded-for: 127.0.0.1\r\n",
        "x-real-ip: 127.0.0.1\r\n",
    ] {
        assert_eq!(question.matches(line).count(), 1, "{line}: {question}");
    }
    for gone in ["content-length", "transfer-encoding", "range", "if-match", "x-hop", "10.9.9.9", "x-forwarded-host"] {
        assert!(!question.contains(gone), "{gone}: {question}");
    }
}

#[test]
fn the_service_is_not_asked_about_exempt_requests() {
    let (sso, pod) = (guard("401 Unauthorized"), Origin::mirror());
    let rules = ("auth-skip-rules", "path ~ ^/public/\nmethod = OPTIONS");
    let site = site(&[URL, ("auth-response-headers", "X-User"), rules], &sso, &pod).in_order();
    let exempt = site.ask("/public/x", "X-User: root\r\n");
    assert_eq!(exempt.status, 200);
    assert!(!exempt.text().contains("root"), "what clients say of themselves is dropped: {}", exempt.text());
    let head = "OPTIONS /x HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";
    assert_eq!(site.client().send(head).response().status, 200);
    assert_eq!(sso.connections(), 0);
    for path in ["/", "/public", "/public/../x", "/public/..%2fx", "/public/..;/x", "/public/%2e%2e/x"] {
        assert_eq!(site.get(path).status, 401, "{path}");
    }
    assert_eq!(site.ask("/x", ANN).status, 200);
}

#[test]
fn unauthenticated_clients_are_redirected_to_sign_in() {
    let pod = Origin::answering("pod");
    let annotations = [URL, ("auth-signin", "https://login.test/start")];
    let sso = guard("401 Unauthorized");
    let site_ = site(&annotations, &sso, &pod).in_order();
    let response = site_.get("/x?y=1&z");
    assert_eq!(response.status, 302);
    let location = "https://login.test/start?rd=http://a.test%2fx%3fy%3d1%26z";
    assert_eq!((response.header("location"), response.header("set-cookie")), (Some(location), Some("seen=0")));
    let named = [&annotations[..], &[("auth-signin-redirect-param", "back")]].concat();
    let location = site(&named, &sso, &pod).in_order().location("/x").1;
    assert_eq!(location, "https://login.test/start?back=http://a.test%2fx");
    assert_eq!(site(&annotations, &guard("403 Forbidden"), &pod).get("/").status, 403, "who is known is not");
    assert_eq!(pod.connections(), 0);
}

#[test]
fn the_authorization_request_is_configurable() {
    let (sso, pod) = (guard("401 Unauthorized"), Origin::answering("pod"));
    let annotations = [
        URL,
        ("auth-method", "POST"),
        ("auth-request-redirect", "https://$host/back"),
        ("auth-always-set-cookie", "true"),
        ("auth-proxy-set-headers", "default/fields"),
    ];
    let fields = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: fields, namespace: default}\n\
                  data: {X-Path: $uri, X-Sent-From: us, Authorization: ''}\n";
    let ingress = Ingress::with(&annotations).beside(&service(sso.address));
    let site = ingress.clone().beside(fields).serve(&pod).in_order();
    let refused = site.ask("/p", "Authorization: Bearer t\r\n");
    assert_eq!((refused.status, refused.header("set-cookie")), (401, Some("seen=0")));
    let question = &sso.heads()[0];
    for line in [
        "post /verify?for=/p ",
        "content-length: 0\r\n",
        "x-auth-request-redirect: https://a.test/back\r\n",
        "x-path: /p\r\n",
        "x-sent-from: us\r\n",
    ] {
        assert_eq!(question.matches(line).count(), 1, "{line}: {question}");
    }
    assert!(!question.contains("authorization") && !question.contains("nginx"), "{question}");
    let missing = ingress.serve(&pod);
    assert_eq!(missing.get("/").status, 503);
    assert!(missing.outcomes.contains("ConfigMapNotFound"), "{}", missing.outcomes);
}

#[test]
fn an_authorization_service_over_tls_gets_sni() {
    let pod = Origin::answering("pod");
    let sso = TlsPod::start(&Authority::new("any").issue("any.test"), None, &[], |mut stream| async move {
        let mut question = [0; 4096];
        let mut length = 0;
        while let Ok(count @ 1..) = stream.read(&mut question[length..]).await {
            length += count;
            if question[..length].ends_with(b"\r\n\r\n") {
                stream.write_all(b"HTTP/1.1 204 Fine\r\n\r\n").await.expect("sent");
                stream.flush().await.expect("sent");
                length = 0;
            }
        }
    });
    let annotations = [("auth-url", "https://sso.auth.svc.cluster.local:80/verify")];
    let site = Ingress::with(&annotations).beside(&service(sso.address)).serve(&pod).in_order();
    assert_eq!(site.get("/").text(), "pod");
    let names: Vec<_> = sso.seen().into_iter().map(|seen| seen.server_name).collect();
    assert_eq!(names, [Some("sso.auth.svc.cluster.local".to_owned())]);
}

#[test]
fn the_sign_in_redirect_keeps_the_port() {
    let (sso, pod) = (guard("401 Unauthorized"), Origin::answering("pod"));
    let site = site(&[URL, ("auth-signin", "https://login.test/start")], &sso, &pod).in_order();
    let response = site.client().get("a.test:8443", "/x");
    assert_eq!(response.header("location"), Some("https://login.test/start?rd=http://a.test:8443%2fx"));
}

/// A rule for `/oauth2` of the host, which leads to the service.
const OAUTH2: &str = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: sso, namespace: auth, annotations: {xdp-ingress.io/limit-rpm: \"1\"}}\nspec:\n  ingressClassName: xdp\n  rules:\n  \
                      - host: a.test\n    http: {paths: [{path: /oauth2, pathType: Prefix, backend: {service: {name: sso, port: {number: 80}}}}]}\n";

#[test]
fn an_authorization_service_on_the_same_host_may_use_http2() {
    let sso = serve_connections(|stream| async move {
        let Ok(mut connection) = h2::server::handshake(stream).await else { return };
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            assert_eq!((request.uri().path(), request.method().as_str()), ("/oauth2/auth", "GET"));
            let status = if request.headers().contains_key("cookie") { 200 } else { 401 };
            respond.send_response(Response::builder().status(status).body(()).expect("valid"), true).expect("sent");
        }
    });
    let http2 = service(sso).replace("{port: 80}", "{port: 80, appProtocol: kubernetes.io/h2c}");
    let pod = Origin::answering("pod");
    let site = Ingress::with(&[("auth-url", "https://$host/oauth2/auth")]).beside(&http2).beside(OAUTH2);
    let site = site.serve(&pod).in_order();
    for _ in 0..3 {
        assert_eq!((site.ask("/", ANN).status, site.get("/").status), (200, 401));
    }
}

#[test]
fn the_authorization_service_may_be_on_the_same_host() {
    let (sso, pod) = (guard("401 Unauthorized"), Origin::answering("pod"));
    let annotations = [
        ("auth-url", "https://$host/oauth2/auth"),
        ("auth-signin", "https://$host/oauth2/start?rd=$escaped_request_uri"),
    ];
    let site = Ingress::with(&annotations).beside(&service(sso.address)).beside(OAUTH2).serve(&pod).in_order();
    assert_eq!(site.ask("/", ANN).text(), "pod");
    assert_eq!(site.location("/x"), (302, "https://a.test/oauth2/start?rd=%2fx".into()));
    let question = &sso.heads()[0];
    assert!(question.starts_with("get /oauth2/auth ") && question.contains("\r\nhost: a.test\r\n"), "{question}");
    // A client redirected to the sign-in page reaches it.
    assert_eq!(site.get("/oauth2/start").status, 401);
    assert_eq!(sso.heads().len(), 3);
    // The rule's limit applies to clients, which may send six requests in a row, but not to authorization requests.
    assert!((0..9).all(|_| site.ask("/", ANN).text() == "pod"));
    assert!((0..9).any(|_| site.get("/oauth2/start").status == 503));
    let alone = Ingress::with(&annotations).serve(&pod).in_order();
    assert_eq!(alone.get("/").status, 500, "a rule does not ask itself for ever");
}

#[test]
fn authorization_responses_are_cached_by_key() {
    let (sso, pod) = (
        Origin::start(|peer| {
            while let Some((head, _)) = peer.request() {
                let status = if head.contains("bearer good") { "200 OK" } else { "403 No" };
                let extra = if head.contains("no-store") { "Cache-Control: private, no-store\r\n" } else { "" };
                peer.send(format!("HTTP/1.1 {status}\r\nX-User: u{}\r\n{extra}Content-Length: 0\r\n\r\n", head.len()));
            }
        }),
        Origin::mirror(),
    );
    let annotations = [
        URL,
        ("auth-cache-key", "$http_authorization"),
        ("auth-cache-duration", "200 1m, 401 1s"),
        ("auth-response-headers", "X-User"),
    ];
    let site = site(&annotations, &sso, &pod).in_order();
    let asked = |fields: &str, status: u16, questions: usize| {
        let response = site.ask("/", fields);
        assert_eq!((response.status, sso.heads().len()), (status, questions), "{fields}");
        response
    };
    let first = asked("Authorization: Bearer good\r\n", 200, 1);
    let user = first.text().lines().find(|line| line.starts_with("x-user")).expect("a user").to_owned();
    let second = asked("Authorization: Bearer good\r\nX-B: 1\r\n", 200, 1);
    assert!(second.text().contains(&user), "{}", second.text());
    asked("Authorization: Bearer good2\r\n", 200, 2);
    asked("Authorization: Bearer bad\r\n", 403, 3);
    asked("Authorization: Bearer bad\r\n", 403, 4);
    asked("", 403, 5);
    asked("", 403, 6);
    for questions in [7, 8] {
        asked("Authorization: Bearer good no-store\r\n", 200, questions);
    }
    // Ambiguous fields, which this proxy could read differently from the service, are never answered from the cache.
    for questions in [9, 10] {
        asked("Authorization: Bearer good\r\nAuthorization: Bearer bad\r\n", 200, questions);
    }
    // A rule that uses no field of the response leaves the client's in place; a rule that uses it does not.
    let other = Ingress::with(&annotations[..3]).beside(&service(sso.address)).serve(&pod).in_order();
    assert!(other.ask("/", "Authorization: Bearer good\r\nX-User: c\r\n").text().contains("x-user: c\r\n"));
    other.proxy.publish(
        &Ingress::with(&annotations)
            .beside(&service(sso.address))
            .translated(&[pod.address], &Options::for_manifests())
            .0,
    );
    assert!(!other.ask("/", "Authorization: Bearer good\r\nX-User: c\r\n").text().contains("x-user: c\r\n"));
}

#[test]
fn a_failing_authorization_service_denies_access() {
    let pod = Origin::answering("pod");
    let silent = Origin::start(|peer| while peer.request().is_some() {});
    let closing = Origin::start(|_| {});
    for address in [Origin::refusing(), closing.address] {
        let site = Ingress::with(&[URL]).beside(&service(address)).serve(&pod).in_order();
        assert_eq!(site.ask("/", ANN).status, 500);
    }
    let annotations = [URL, ("proxy-read-timeout", "1")];
    let site = Ingress::with(&annotations).beside(&service(silent.address)).serve(&pod).in_order();
    assert_eq!((site.get("/").status, silent.heads().len()), (500, 1));
    let unready = service(silent.address).replace("endpoints: [{", "endpoints: [{conditions: {ready: false}, ");
    let site = Ingress::with(&[URL]).beside(&unready).serve(&pod);
    assert_eq!((site.get("/").status, site.outcomes.contains("NoReadyEndpoints")), (500, true), "{}", site.outcomes);
}

#[test]
fn forbidden_authorization_urls_are_refused() {
    let pod = Origin::answering("pod");
    for (url, expect) in [
        ("http://127.0.0.1:10254/metrics", "a loopback address"),
        ("http://[::1]/", "a loopback address"),
        ("http://169.254.169.254/latest", "a metadata address"),
        ("http://localhost/", "the node itself"),
        ("http://intranet/", "not a fully qualified name"),
        ("http://nobody.auth.svc.cluster.local/", "service `auth/nobody` does not exist"),
        ("http://sso.auth.svc.cluster.local:81/", "has no TCP port `81`"),
        ("http://$arg_host/", "variables other than `$host`"),
        ("gopher://sso.auth.svc.cluster.local/", "neither `http://` nor `https://`"),
    ] {
        let site = Ingress::with(&[("auth-url", url)]).beside(&service(pod.address)).serve(&pod);
        assert_eq!(site.get("/").status, 503, "{url}");
        assert!(site.outcomes.contains(expect), "{url}: {}", site.outcomes);
    }
    let site = Ingress::with(&[("auth-url", "http://login.example.com/")]).serve(&pod).in_order();
    assert_eq!(site.get("/").status, 500, "until the name is resolved");
    assert_eq!(pod.connections(), 0);
}

/// `ann:secret`.
const PASSWORD: &str = "Authorization: Basic YW5uOnNlY3JldA==\r\n";
const USERS: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: users, namespace: default}\n\
                     stringData: {auth: 'ann:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ='}\n";

#[test]
fn password_and_authorization_service_combine() {
    let (sso, pod) = (guard("403 Forbidden"), Origin::mirror());
    let both = format!("{ANN}{PASSWORD}");
    for (satisfy, neither, cookie, password, both_) in [("all", 401, 401, 403, 200), ("any", 401, 200, 200, 200)] {
        let annotations = [URL, ("auth-secret", "users"), ("satisfy", satisfy)];
        let site = Ingress::with(&annotations).beside(&service(sso.address)).beside(USERS).serve(&pod).in_order();
        let statuses = ["", ANN, PASSWORD, &both].map(|fields| site.ask("/", fields).status);
        assert_eq!(statuses, [neither, cookie, password, both_], "{satisfy}");
    }
    assert!(pod.heads().iter().all(|head| !head.contains("authorization")));
}

#[test]
fn a_client_that_the_service_does_not_judge_forges_none_of_its_fields() {
    let (sso, pod) = (guard("403 Forbidden"), Origin::mirror());
    let any = [URL, ("satisfy", "any"), ("auth-response-headers", "X-User, X-Group=X-Remote-Group")];
    let by_password = [&any[..], &[("auth-secret", "users")]].concat();
    let by_address = [&any[..], &[("allowlist-source-range", "127.0.0.0/8")]].concat();
    for (annotations, fields) in [(&by_password, PASSWORD), (&by_address, "")] {
        let site = Ingress::with(annotations).beside(&service(sso.address)).beside(USERS).serve(&pod).in_order();
        let forged = format!("{fields}X-User: root\r\nX-Remote-Group: root\r\nX-A: 1\r\n");
        let let_in = site.ask("/", &forged);
        assert_eq!((let_in.status, let_in.text().contains("\r\nx-a: 1\r\n")), (200, true), "{}", let_in.text());
        assert!(!let_in.text().contains("root"), "{annotations:?} {}", let_in.text());
    }
    assert_eq!(sso.heads().len(), 0);
}

#[test]
fn a_global_authorization_service_applies_to_all_ingresses() {
    let (sso, pod) = (guard("401 Unauthorized"), Origin::answering("pod"));
    let settings = |data: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: default}}\ndata: {{{data}}}\n")
    };
    let global =
        settings("global-auth-url: 'http://sso.auth.svc.cluster.local/all', global-auth-signin: 'https://login.test/'");
    let serve = |annotations: &[(&str, &str)], settings: &str| {
        let paths = ["/open", "/.well-known/acme-challenge", "/"];
        let ingress = paths.iter().fold(Ingress::with(annotations), |ingress, path| ingress.path(path, "Prefix"));
        ingress.beside(&service(sso.address)).beside(settings).serve_with(&[pod.address], &configured())
    };
    let site = serve(&[], &global).in_order();
    assert_eq!(site.location("/"), (302, "https://login.test/?rd=http://a.test%2f".into()));
    assert_eq!((site.ask("/", ANN).status, site.get("/.well-known/acme-challenge/x").status), (200, 200));
    assert!(sso.heads()[0].starts_with("get /all "));
    let own = serve(&[URL], &global).in_order();
    assert_eq!(own.get("/").status, 401, "an Ingress with its own does not sign in elsewhere");
    let without = serve(&[("enable-global-auth", "false")], &global).in_order();
    assert_eq!(without.get("/").status, 200);
    let open =
        serve(&[], &settings("global-auth-url: 'http://sso.auth.svc.cluster.local/all', no-auth-locations: '/open'"))
            .in_order();
    let statuses =
        ["/open/x", "/opener", "/.well-known/acme-challenge/x", "/open/../"].map(|path| open.get(path).status);
    assert_eq!(statuses, [200, 401, 401, 401]);
    for broken in
        ["global-auth-url: sso", "global-auth-url: 'http://sso.auth.svc/', global-auth-response-headers: Host"]
    {
        let site = serve(&[], &settings(broken));
        assert_eq!(
            (site.ask("/", ANN).status, site.outcomes.contains("InvalidSetting")),
            (503, true),
            "{}",
            site.outcomes
        );
        assert_eq!(serve(&[("enable-global-auth", "false")], &settings(broken)).get("/").status, 200);
    }
}
