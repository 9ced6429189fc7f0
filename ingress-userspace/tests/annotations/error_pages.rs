//! The default backend: answers in place of missing or failing pods.

use std::net::SocketAddr;

use ingress_control::{change::ObjectName, translate::Options};

use super::{Ingress, Site, configured};
use ingress_proxy_testing::Origin;

/// Service `errors` at `address`, in the namespace of the Ingress.
fn service(address: SocketAddr) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: errors, namespace: default}}\nspec: {{ports: [{{port: 8080}}]}}\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: errors\n  namespace: default\n  \
         labels: {{kubernetes.io/service-name: errors}}\naddressType: IPv4\nports: [{{port: {}}}]\nendpoints: [{{addresses: [{}]}}]\n",
        address.port(),
        address.ip(),
    )
}

/// A pod that answers with the status named by the path.
fn pod() -> Origin {
    Origin::start(|peer| {
        while let Some((head, _)) = peer.request() {
            let path = head.split(' ').nth(1).expect("a path");
            let status = path.trim_start_matches('/').split('?').next().unwrap_or("200");
            let body = if head.starts_with("head ") { "" } else { "stack trace" };
            peer.send(format!(
                "HTTP/1.1 {status} Said\r\nX-Pod: inside\r\nWWW-Authenticate: Bearer\r\nContent-Length: 11\r\n\r\n{body}"
            ));
        }
    })
}

/// A backend that echoes the request in its pages.
fn pages() -> Origin {
    Origin::start(|peer| {
        while let Some((head, body)) = peer.request() {
            assert!(body.is_empty());
            let page = format!("<h1>{head}</h1>");
            let body = if head.starts_with("head ") { "" } else { &page };
            peer.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{body}",
                page.len()
            ));
        }
    })
}

const ERRORS: [(&str, &str); 2] = [("custom-http-errors", "401,404,500,502,503"), ("default-backend", "errors")];

fn serve(annotations: &[(&str, &str)], pod: &Origin, pages: SocketAddr) -> Site {
    Ingress::with(annotations).beside(&service(pages)).serve(pod).in_order()
}

#[test]
fn error_pages_replace_pod_errors_and_keep_the_status() {
    let (pod, pages) = (pod(), pages());
    let site = serve(&ERRORS, &pod, pages.address);
    let mut client = site.client();
    let response = client
        .send("POST /404?a=b HTTP/1.1\r\nHost: a.test\r\nAccept: text/html\r\nX-Code: 200\r\nX-Namespace: kube-system\r\nContent-Type: text/plain\r\nIf-None-Match: x\r\nRange: bytes=0-1\r\nX-Request-ID: id1\r\nContent-Length: 5\r\n\r\nhello")
        .response();
    assert_eq!((response.status, response.header("content-type")), (404, Some("text/html")));
    assert_eq!((response.header("x-pod"), response.header("www-authenticate")), (None, None));
    for line in [
        "<h1>get / http/1.1\r\n",
        "\r\nhost: a.test\r\n",
        "\r\nx-code: 404\r\n",
        "\r\nx-format: text/html\r\n",
        "\r\nx-original-uri: /404?a=b\r\n",
        "\r\nx-namespace: default\r\n",
        "\r\nx-ingress-name: web\r\n",
        "\r\nx-service-name: web\r\n",
        "\r\nx-service-port: 80\r\n",
        "\r\nx-request-id: id1\r\n",
    ] {
        assert_eq!(response.text().matches(line).count(), 1, "{line}: {}", response.text());
    }
    for gone in ["if-none-match", "range", "content-", "hello", "kube-system"] {
        assert!(!response.text().contains(gone), "{gone}: {}", response.text());
    }
    for (path, status, replaced) in
        [("/500", 500, true), ("/200", 200, false), ("/403", 403, false), ("/503", 503, true)]
    {
        let response = client.get("a.test", path);
        assert_eq!((response.status, response.text().starts_with("<h1>")), (status, replaced), "{path}");
    }
    let unauthorized = client.get("a.test", "/401");
    assert_eq!((unauthorized.status, unauthorized.header("www-authenticate")), (401, Some("bearer")));
    client.send("HEAD /404 HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert!(client.head().expect("a head").starts_with("http/1.1 404"));
    assert!(pages.heads().last().is_some_and(|head| head.starts_with("head / ")));
    assert_eq!(client.get("a.test", "/200").status, 200, "what follows is not confused");
    assert_eq!((pod.connections(), pages.connections()), (1, 1), "connections are kept");
}

#[test]
fn an_unavailable_error_page_keeps_the_status() {
    let pod = pod();
    let closing = Origin::start(|_| {});
    let bodiless = Origin::start(|peer| {
        while peer.request().is_some() {
            peer.send("HTTP/1.1 304 Not Modified\r\n\r\n");
        }
    });
    for address in [Origin::refusing(), closing.address, bodiless.address] {
        let response = serve(&ERRORS, &pod, address).get("/500");
        assert_eq!((response.status, response.header("x-pod")), (500, None));
        assert_eq!(response.text(), "500 Internal Server Error: the backend answered with an error\n");
    }
}

#[test]
fn an_unreachable_pod_gets_an_error_page() {
    let pages = pages();
    let ingress = Ingress::with(&ERRORS).beside(&service(pages.address));
    let response = ingress.serve_from(&[Origin::refusing()]).in_order().get("/x");
    assert_eq!(response.status, 502);
    assert!(response.text().contains("\r\nx-code: 502\r\n"), "{}", response.text());
}

#[test]
fn refused_clients_get_no_error_page() {
    let (pod, pages) = (pod(), pages());
    let users = "apiVersion: v1\nkind: Secret\nmetadata: {name: users, namespace: default}\n\
                 stringData: {auth: 'ann:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ='}\n";
    let login = [&ERRORS[..], &[("auth-type", "basic"), ("auth-secret", "users")]].concat();
    let site = Ingress::with(&login).beside(users).beside(&service(pages.address)).serve(&pod).in_order();
    let refused = site.get("/404");
    assert_eq!((refused.status, refused.header("www-authenticate").is_some()), (401, true));
    let denied = [&ERRORS[..], &[("denylist-source-range", "127.0.0.0/8")]].concat();
    assert_eq!(serve(&denied, &pod, pages.address).get("/404").status, 403);
    let limited = [&ERRORS[..], &[("limit-rps", "1"), ("limit-burst-multiplier", "1")]].concat();
    let site_ = serve(&limited, &pod, pages.address);
    let statuses: Vec<_> = (0..4).map(|_| site_.get("/200").status).collect();
    assert!(statuses.contains(&503), "{statuses:?}");
    assert_eq!(pages.heads(), Vec::<String>::new());
    // An authenticated client gets the page, and the backend does not learn the password.
    let page = site.ask("/404", "Authorization: Basic YW5uOnNlY3JldA==\r\n");
    assert!(page.status == 404 && page.text().contains("x-code: 404") && !page.text().contains("authorization"));
}

#[test]
fn the_default_backend_replaces_missing_pods() {
    let stand_in = Origin::mirror();
    let annotations = [("default-backend", "errors"), ("rewrite-target", "/app")];
    let ingress = Ingress::with(&annotations).beside(&service(stand_in.address));
    let site = ingress.serve_from(&[]);
    let mut client = site.client();
    let response =
        client.send("PUT /x HTTP/1.1\r\nHost: a.test\r\nX-Code: 1\r\nContent-Length: 2\r\n\r\nhi").response();
    assert_eq!(response.status, 200);
    for line in
        ["put /app http/1.1\r\n", "\r\nx-code: 503\r\n", "\r\nx-service-name: web\r\n", "\r\ncontent-length: 2\r\n"]
    {
        assert_eq!(response.text().matches(line).count(), 1, "{line}: {}", response.text());
    }
    // The same holds for a service that does not exist, and no longer than needed.
    let missing = ingress.clone().leading_to("nobody", 80).serve_from(&[]);
    assert_eq!(
        (missing.get("/").status, missing.outcomes.contains("service `default/nobody` does not exist")),
        (200, true)
    );
    let pod = Origin::answering("pod");
    assert_eq!(ingress.serve(&pod).in_order().get("/").text(), "pod");
    let denied = Ingress::with(&[("default-backend", "errors"), ("denylist-source-range", "127.0.0.0/8")]);
    assert_eq!(denied.beside(&service(stand_in.address)).serve_from(&[]).get("/").status, 403);
}

#[test]
fn settings_apply_to_ingresses_without_annotation() {
    let (pod, pages) = (pod(), pages());
    let options = Options { default_backend: Some(ObjectName::new("default", "errors")), ..configured() };
    let with = |annotations: &[(&str, &str)], data: &str, options: &Options| {
        let settings = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: default}}\ndata: {{{data}}}\n"
        );
        let ingress = Ingress::with(annotations).beside(&service(pages.address)).beside(&settings);
        ingress.serve_with(&[pod.address], options)
    };
    let replaced = |site: &Site, path: &str| site.get(path).text().starts_with("<h1>");
    let site = with(&[], "custom-http-errors: '404, 503'", &options).in_order();
    assert_eq!(["/404", "/503", "/500"].map(|path| replaced(&site, path)), [true, true, false]);
    let site = with(&[("custom-http-errors", "500")], "custom-http-errors: '404'", &options).in_order();
    assert_eq!(["/404", "/500"].map(|path| replaced(&site, path)), [false, true]);
    let off = ("disable-proxy-intercept-errors", "true");
    assert!(!replaced(&with(&[off], "custom-http-errors: '404'", &options).in_order(), "/404"));
    let all_off = "custom-http-errors: '404', disable-proxy-intercept-errors: 'true'";
    assert!(!replaced(&with(&[], all_off, &options).in_order(), "/404"));
    // An unusable Service counts as none.
    for (name, expect) in [("nobody", "service `default/nobody` does not exist"), ("a/b", "it is as if not set")] {
        let site = with(&[("default-backend", name)], "custom-http-errors: '404'", &options);
        assert!(replaced(&site, "/404"), "{name}");
        assert_eq!((site.outcomes.lines().count(), site.outcomes.contains(expect)), (1, true), "{}", site.outcomes);
    }
    let nobody = with(&[], "custom-http-errors: '404'", &configured());
    assert!(!replaced(&nobody, "/404"));
    assert!(nobody.outcomes.contains("no Service makes the error pages"), "{}", nobody.outcomes);
}

#[test]
fn invalid_error_pages_are_reported() {
    let pod = pod();
    for (annotations, expect) in [
        (&[("custom-http-errors", "404")][..], "no Service makes the error pages"),
        (&[("custom-http-errors", "20x")], "write statuses from 300 to 599"),
        (&[("default-backend", "nobody"), ("custom-http-errors", "404")], "service `default/nobody` does not exist"),
        (&[("default-backend", "other/errors")], "not a Service of its namespace"),
    ] {
        let site = Ingress::with(annotations).serve(&pod);
        assert!(site.outcomes.contains(expect), "{annotations:?}: {}", site.outcomes);
        assert_eq!((site.get("/404").status, site.get("/404").text()), (404, "stack trace"));
    }
}
