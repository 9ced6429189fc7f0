//! The resources with fixed values, and who may see them.

use http::Method;

use super::*;
use crate::daemon::admin::{
    Metrics,
    testing::{Fixed, ask, collect},
};

fn api() -> Answers {
    Answers::new(Arc::new(Fixed::with(Ok(()))), Metrics::All)
}

/// Returns the answer on the socket.
fn get(path: &str) -> (u16, Value) {
    let (status, body) = ask(&api(), Method::GET, path);
    (status, serde_json::from_str(&body).expect("JSON"))
}

/// Returns the status of a request that comes over TCP.
fn over(reach: Reach, path: &str, host: Option<&str>) -> u16 {
    let mut request = Request::builder().uri(path);
    if let Some(host) = host {
        request = request.header(header::HOST, host);
    }
    collect(api().answer(&request.body(()).expect("a request"), reach)).0
}

#[test]
fn each_resource_answers_and_is_documented() {
    let (status, index) = get("/api/v1");
    assert_eq!((status, &index["version"]), (200, &json!("v1")));
    let page = include_str!("../../../../../../../docs/api.md");
    for resource in index["resources"].as_array().expect("a list") {
        let path = resource["path"].as_str().expect("text");
        assert!(page.contains(&format!("`{path}`")), "docs/api.md does not describe `{path}`");
        for parameter in resource["parameters"].as_array().expect("a list") {
            let parameter = parameter.as_str().expect("text");
            assert!(page.contains(&format!("`{parameter}`")), "docs/api.md does not name `{parameter}` of `{path}`");
        }
        let concrete = match path {
            "/api/v1/stream" => continue,
            "/api/v1/explain" => "/api/v1/explain?url=https://web.test/app".to_owned(),
            path => path.replace("{host}", "web.test"),
        };
        let (status, body) = get(&concrete);
        assert_eq!(status, 200, "{concrete}: {body}");
    }
}

#[test]
fn lists_are_selected_and_paged() {
    let (_, routes) = get("/api/v1/routes?limit=1&offset=1");
    assert_eq!((&routes["total"], &routes["items"][0]["host"]), (&json!(2), &json!("web.test")));
    let (_, routes) = get("/api/v1/routes?host=OTHER");
    assert_eq!((&routes["total"], &routes["items"][0]["ingress"]), (&json!(1), &json!("default/web")));
    let (_, problems) = get("/api/v1/problems?severity=warning");
    let expected = json!([{
        "severity": "warning", "reason": "ServiceNotFound", "since": "2026-11-26T10:00:00Z",
        "message": "service `a/b` does not exist; create it",
        "object": { "kind": "Ingress", "namespace": "default", "name": "web", "file": null },
    }]);
    assert_eq!(problems["items"], expected);
    let (_, changes) = get("/api/v1/changes");
    assert_eq!((&changes[0]["milliseconds"], &changes[0]["at"]), (&json!(2.5), &json!("2026-11-26T10:00:00Z")));
    let worker = json!({ "name": "worker-0", "connections": 3, "seconds_since_sign_of_life": 0.25 });
    assert_eq!(get("/api/v1/workers").1, json!([worker]));
    let (_, host) = get("/api/v1/hosts/web.test");
    assert_eq!((&host["counters"]["id"], host["problems"].as_array().map(Vec::len)), (&json!(1), Some(1)));
}

#[test]
fn a_wrong_request_gets_the_reason() {
    for (path, status, reason) in [
        ("/api/v1/rutes", 404, "`/api/v1` lists"),
        ("/api/v2", 404, "`/api/v1` lists"),
        ("/api/v1/hosts/unknown.test", 404, "host unknown.test"),
        ("/api/v1/routes?hots=a", 400, "known here: host, namespace"),
        ("/api/v1/routes?limit=5000", 400, "from 1 to 1000"),
        ("/api/v1/hosts?sort=size", 400, "name, requests or packets"),
        ("/api/v1/problems?severity=error", 400, "neither"),
        ("/api/v1/explain", 400, "`url` is missing"),
        ("/api/v1/explain?url=ftp://a.test/", 400, "no scheme"),
        ("/api/v1/node?x=%ff", 400, "unknown parameter"),
    ] {
        let (got, body) = get(path);
        assert_eq!(got, status, "{path}");
        assert!(body["error"].as_str().is_some_and(|text| text.contains(reason)), "{path}: {body}");
    }
    assert_eq!(ask(&api(), Method::POST, "/api/v1/node").0, 405);
}

#[test]
fn only_the_node_sees_the_api_and_only_the_pod_sees_clients() {
    for path in ["/api/v1", "/api/v1/routes", "/api/v1/stream", "/api/x"] {
        assert_eq!(over(Reach::Network, path, Some("10.0.0.1:9110")), 403, "{path}");
    }
    for host in ["127.0.0.1:9110", "[::1]:9110", "localhost", "LOCALHOST:8080", "10.0.0.1"] {
        assert_eq!(over(Reach::Loopback, "/api/v1/routes", Some(host)), 200, "{host}");
    }
    for host in
        [None, Some("attacker.test"), Some("localhost.attacker.test:9110"), Some("127.0.0.1.attacker.test"), Some("")]
    {
        assert_eq!(over(Reach::Loopback, "/api/v1/routes", host), 403, "{host:?}");
    }
    for path in ["/api/v1/clients", "/api/v1/deny"] {
        assert_eq!(over(Reach::Loopback, path, Some("localhost")), 403, "{path}");
        assert_eq!(over(Reach::Socket, path, None), 200, "{path}");
    }
    assert_eq!(over(Reach::Network, "/healthz", Some("any.test")), 200, "health is for everyone");
}

#[test]
fn answers_are_neither_cached_nor_sniffed() {
    let request = Request::builder().uri("/api/v1/node").body(()).expect("a request");
    let response = api().answer(&request, Reach::Socket);
    assert_eq!(response.headers()[header::CACHE_CONTROL], "no-store");
    assert_eq!(response.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
}

#[tokio::test]
async fn a_long_answer_stops_neither_the_main_thread_nor_health() {
    let (go_on, waits) = std::sync::mpsc::channel();
    let source = Fixed::waiting(waits);
    let answers = Arc::new(Answers::new(Arc::new(source), Metrics::All));
    let request = Request::builder().uri("/api/v1/changes").body(()).expect("a request");
    let answer = tokio::spawn(Arc::clone(&answers).respond(request, Reach::Socket));
    tokio::task::yield_now().await;
    let health = Request::builder().uri("/healthz").body(()).expect("a request");
    assert_eq!(collect(answers.respond(health, Reach::Network).await).0, 200);
    go_on.send(()).expect("the source waits");
    let (status, body) = collect(answer.await.expect("no panic"));
    assert_eq!((status, body.is_empty()), (200, false));
}
