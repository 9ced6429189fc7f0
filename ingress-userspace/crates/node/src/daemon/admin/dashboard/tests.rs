//! Pages with fixed values: who may see them, wrong requests, hostile names, and events of open pages.

use super::*;
use crate::daemon::admin::{
    Metrics,
    testing::{Fixed, ask, collect},
};

/// Every page, with the id of its main table.
const TABLES: [(&str, &str); 8] = [
    ("/dashboard", "busiest"),
    ("/dashboard/hosts", "hosts"),
    ("/dashboard/hosts/web.test", "routes"),
    ("/dashboard/explain?url=https://web.test/other", ""),
    ("/dashboard/drops", "drops"),
    ("/dashboard/workers", "workers"),
    ("/dashboard/configuration", "problems"),
    ("/dashboard/certificates", "certificates"),
];

fn answers(source: Fixed) -> Answers {
    Answers::new(Arc::new(source), Metrics::All)
}

fn plain() -> Answers {
    answers(Fixed::with(Ok(())))
}

fn get(answers: &Answers, path: &str) -> (u16, String) {
    ask(answers, Method::GET, path)
}

#[test]
fn each_page_is_a_document_with_its_table() {
    let answers = plain();
    for (path, id) in TABLES {
        let (status, page) = get(&answers, path);
        assert_eq!(status, 200, "{path}: {page}");
        assert!(page.starts_with("<!DOCTYPE html><html lang=\"en\">") && page.ends_with("</html>"), "{path}");
        assert!(id.is_empty() || page.contains(&format!("<table id=\"{id}\">")), "{path}: {page}");
        assert_eq!(page.matches("<h1>").count(), 1, "{path}");
        assert_eq!(page.matches("aria-current=\"page\"").count(), 1, "{path}");
        assert!(!page.contains("192.0.2."), "{path} shows the address of a client");
        assert!(!page.contains("style=") && !page.contains("onclick") && !page.contains("<style"), "{path}");
        assert_eq!(page.matches("<script").count(), 1, "{path}");
    }
    let (_, page) = get(&answers, "/dashboard/configuration");
    assert!(page.contains("id=\"changes\"") && page.contains(">2.5<"), "milliseconds of a change: {page}");
    assert_eq!(get(&answers, "/dashboard/").0, 200);
}

#[test]
fn pages_allow_nothing_from_elsewhere() {
    let answers = plain();
    for (path, _) in TABLES.into_iter().chain([("/dashboard/nowhere", ""), ("/dashboard/assets/dashboard.js", "")]) {
        let request = Request::builder().uri(path).body(()).expect("a request");
        let response = answers.answer(&request, Reach::Socket);
        let headers = response.headers();
        assert!(headers[header::CONTENT_SECURITY_POLICY].to_str().is_ok_and(|policy| {
            policy.starts_with("default-src 'self';") && policy.contains("frame-ancestors 'none'")
        }));
        assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff", "{path}");
        assert_eq!(headers[header::REFERRER_POLICY], "no-referrer", "{path}");
        let cache = if path.contains("assets") { "no-cache" } else { "no-store" };
        assert_eq!(headers[header::CACHE_CONTROL], cache, "{path}");
        assert!(!headers.contains_key(header::SET_COOKIE) && !headers.contains_key("access-control-allow-origin"));
    }
}

#[test]
fn a_wrong_request_gets_a_page_with_the_reason() {
    let answers = plain();
    for (path, status, reason) in [
        ("/dashboard/nowhere", 404, "There is no page `/dashboard/nowhere`."),
        ("/dashboard/%3Cscript%3E", 404, "There is no page"),
        ("/dashboard/assets/", 404, "There is no page"),
        ("/dashboard/assets/../mod.rs", 404, "There is no page"),
        ("/dashboard/hosts/unknown.test", 404, "No host `unknown.test`"),
        ("/dashboard/hosts/%ff", 400, "not UTF-8"),
        ("/dashboard/hosts?sort=size", 400, "name, requests, errors, active, packets, bytes"),
        ("/dashboard/hosts?page=0", 400, "the first page is 1"),
        ("/dashboard/hosts?page=1&amp;x=2", 400, "Unknown parameter"),
        ("/dashboard/hosts?page=1&page=2", 400, "given twice"),
        ("/dashboard/hosts?offset=1", 400, "Unknown parameter `offset`"),
        ("/dashboard/configuration?severity=error", 400, "neither"),
        ("/dashboard?x=1", 400, "known here: none"),
    ] {
        let (got, page) = get(&answers, path);
        assert_eq!(got, status, "{path}: {page}");
        let text = page.replace("<code>", "`").replace("</code>", "`");
        assert!(text.contains(reason) && page.contains("<nav aria-label=\"Pages\">"), "{path}: {page}");
        assert!(!page.contains("data-live"), "{path}: an error page does not change");
    }
    let (status, page) = get(&answers, "/dashboard/explain?url=ftp://a.test/");
    assert!(status == 400 && page.contains("role=\"alert\"") && page.contains("no scheme"), "{page}");
    assert_eq!(ask(&answers, Method::POST, "/dashboard").0, 405);
}

#[test]
fn hostile_names_are_text() {
    const SCRIPT: &str = "<script>alert(1)</script>\"'&";
    let mut source = Fixed::with(Err(SCRIPT.to_owned()));
    source.hosts.push(format!("a{SCRIPT}.test"));
    source.text = SCRIPT;
    let answers = answers(source);
    let encoded = format::host_path(&format!("a{SCRIPT}.test"));
    let query: String = form_urlencoded::byte_serialize(SCRIPT.as_bytes()).collect();
    for path in TABLES.iter().map(|(path, _)| (*path).to_owned()).chain([
        encoded,
        format!("/dashboard/explain?url={query}"),
        format!("/dashboard/hosts?name={query}"),
        format!("/dashboard/hosts?sort={query}"),
        format!("/dashboard/configuration?reason={query}"),
        format!("/dashboard/certificates?name={query}"),
        format!("/dashboard/hosts/{query}"),
    ]) {
        let (status, page) = get(&answers, &path);
        assert!(
            status == 200
                || path.contains("sort=")
                || path.contains("url=%3C")
                || path.ends_with(&format!("hosts/{query}")),
            "{path}: {page}"
        );
        assert!(!page.contains("<script>alert") && !page.contains("\"'&"), "{path}: {page}");
        assert!(
            page.contains("&lt;script&gt;") || path == "/dashboard/certificates" || path == "/dashboard/drops",
            "{path}"
        );
    }
}

#[test]
fn long_lists_come_in_parts() {
    let mut source = Fixed::with(Ok(()));
    source.hosts = (0..450).map(|number| format!("h{number:03}.test")).collect();
    let answers = answers(source);
    let rows = |query: &str| {
        let (status, page) = get(&answers, &format!("/dashboard/hosts{query}"));
        assert_eq!(status, 200);
        let keys = page.split("<tr data-key=\"").skip(1).filter_map(|row| row.split('"').next());
        keys.map(str::to_owned).collect::<Vec<_>>()
    };
    let first = rows("");
    assert_eq!((first.len(), &*first[0], &*first[1]), (200, "(unattributed)", "h000.test"));
    let last = rows("?page=3");
    assert_eq!((last.len(), last.last().map(String::as_str)), (51, Some("h449.test")));
    assert_eq!(rows("?page=4"), Vec::<String>::new());
    assert_eq!(rows("?name=H44"), (440..450).map(|number| format!("h{number}.test")).collect::<Vec<_>>());
    // The source counts more for higher numbers.
    for sort in ["active", "packets"] {
        assert_eq!(rows(&format!("?sort={sort}"))[..2], ["h449.test", "h448.test"], "{sort}");
    }
    assert_eq!(rows("?name=nothing"), ["-"]);
}

#[test]
fn the_dashboard_is_reached_as_the_api_is() {
    let answers = plain();
    let over = |reach, path: &str, host: &str| {
        let request = Request::builder().uri(path).header(header::HOST, host).body(()).expect("a request");
        collect(answers.answer(&request, reach)).0
    };
    for path in ["/dashboard", "/dashboard/hosts", "/dashboard/assets/dashboard.js", "/dashboard/nowhere"] {
        assert_eq!(over(Reach::Network, path, "10.0.0.1:9110"), 403, "{path}");
        assert_eq!(over(Reach::Loopback, path, "attacker.test"), 403, "{path}");
    }
    assert_eq!(over(Reach::Loopback, "/dashboard", "localhost:9110"), 200);
    let mut off = plain();
    off.has_dashboard = false;
    let (status, text) = get(&off, "/dashboard/hosts");
    assert!(status == 404 && text.contains("--dashboard=false"), "{text}");
}

#[test]
fn an_event_has_only_a_changed_page() {
    let source: Arc<dyn AdminSource> = Arc::new(Fixed::with(Ok(())));
    let page = |path: &str| {
        let kind = PAGES.iter().find(|kind| kind.path == path).expect("a page");
        live::events(Arc::clone(&source), kind, Target::default())
    };
    for path in ["hosts", "configuration"] {
        let mut next = page(path);
        let first = next();
        assert!(first.starts_with("event: page\ndata: {\"at\":") && first.ends_with("}\n\n"), "{first}");
        assert!(first.contains("\"html\":\"<h1>") && first.lines().count() == 3, "one line of data: {first}");
        assert!(!next().contains("html"), "{path}");
    }
}

#[tokio::test]
async fn an_open_page_is_a_stream() {
    let answers = plain();
    let ask = |method, path: &str| {
        let request = Request::builder().method(method).uri(path).header(header::ACCEPT, "text/event-stream");
        answers.answer(&request.body(()).expect("a request"), Reach::Socket)
    };
    let open: Vec<_> = (0..8).map(|_| ask(Method::GET, "/dashboard/hosts?page=1")).collect();
    assert!(open.iter().all(|response| response.headers()[header::CONTENT_TYPE] == "text/event-stream"));
    assert_eq!(ask(Method::GET, "/dashboard").status(), 503);
    assert_eq!(ask(Method::HEAD, "/dashboard").status(), 200, "without a body, a page is as good");
    assert_eq!(ask(Method::GET, "/dashboard/hosts?page=0").status(), 400);
    drop(open);
    assert_eq!(ask(Method::GET, "/dashboard").status(), 200);
}
