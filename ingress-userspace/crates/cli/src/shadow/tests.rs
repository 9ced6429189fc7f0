use std::io::Cursor;

use expect_test::expect;

use super::*;
use crate::check;

const CLASS: &str = "\
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: { name: nginx }
spec: { controller: k8s.io/ingress-nginx }
";

const OBJECTS: &str = r#"
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: { namespace: shop, name: web, annotations: { nginx.ingress.kubernetes.io/ssl-redirect: "true" } }
spec:
  ingressClassName: nginx
  tls: [{ hosts: [shop.test] }]
  rules:
    - host: shop.test
      http:
        paths:
          - { path: /, pathType: Prefix, backend: { service: { name: web, port: { number: 80 } } } }
          - { path: /api, pathType: Prefix, backend: { service: { name: api, port: { name: http } } } }
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: { namespace: shop, name: old, annotations: { nginx.ingress.kubernetes.io/permanent-redirect: "https://shop.test" } }
spec:
  ingressClassName: nginx
  rules:
    - host: old.test
      http: { paths: [{ path: /, pathType: Prefix, backend: { service: { name: web, port: { number: 80 } } } }] }
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: { namespace: shop, name: waf, annotations: { nginx.ingress.kubernetes.io/enable-modsecurity: "true" } }
spec:
  ingressClassName: nginx
  rules:
    - host: waf.test
      http: { paths: [{ path: /, pathType: Prefix, backend: { service: { name: web, port: { number: 80 } } } }] }
---
apiVersion: v1
kind: Service
metadata: { namespace: shop, name: api }
spec: { ports: [{ name: http, port: 8080 }] }
"#;

const CONTROLLER: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: { namespace: ingress-nginx, name: c }
spec: { template: { spec: { containers: [{ image: 'ingress-nginx/controller:v1', args: [--configmap=ingress-nginx/c] }] } } }
";

fn installation_of(text: &str) -> Installation {
    let mut installation = check::installation_of(text);
    assume_services(&mut installation.objects);
    installation
}

fn installation() -> Installation {
    installation_of(OBJECTS)
}

/// Returns an Ingress for the host `NAME.test` and Service `web`.
fn ingress(name: &str, annotations: &[(&str, &str)]) -> String {
    let annotations: Vec<_> = annotations.iter().map(|(key, value)| format!("{key}: {value:?}")).collect();
    let annotations = annotations.join(", ").replace("nginx/", "nginx.ingress.kubernetes.io/");
    format!(
        "apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {{ namespace: shop, name: {name}, annotations: {{ {annotations} }} }}
spec:
  ingressClassName: nginx
  rules:
    - host: {name}.test
      http: {{ paths: [{{ path: /, pathType: Prefix, backend: {{ service: {{ name: web, port: {{ number: 80 }} }} }} }}] }}
"
    )
}

fn line(scheme: &str, host: &str, request: &str, status: u16, upstream: &str, address: &str) -> String {
    format!(
        "192.0.2.1 - - [27/Nov/2026:00:00:00 +0000] \"{request}\" {status} 5 \"-\" \"curl/8 [x] - \\x22y\\x22\" 80 0.001 \
         [{upstream}] [] {address} 5 0.001 {status} 0123abcd {scheme} \"{host}\"\n"
    )
}

fn replayed(log: &str) -> ShadowReport {
    replayed_by(&installation(), log)
}

fn replayed_by(installation: &Installation, log: &str) -> ShadowReport {
    let format = LineFormat::parse(&format!("{DEFAULT_FORMAT}{ADDED}")).expect("the format");
    replay(installation, &format, Cursor::new(log)).expect("a report")
}

/// Returns the numbers of alike and different lines, and the reasons of undecided ones.
fn counts(report: &ShadowReport) -> (u64, u64, Vec<(&str, u64)>) {
    let undecided = report.undecided.iter().map(|(reason, count)| (reason.as_str(), *count));
    (report.alike, report.different, undecided.collect())
}

#[test]
fn requests_are_compared_with_their_answers() {
    let pod = "10.0.0.1:8080";
    let log = [
        line("https", "shop.test", "GET / HTTP/2.0", 200, "shop-web-80", pod),
        // The port of the Ingress is a name; a second try has a second address.
        line(
            "https",
            "shop.test",
            "GET /api/x?token=secret HTTP/1.1",
            200,
            "shop-api-http",
            "10.0.0.1:80, 10.0.0.2:80",
        ),
        line("https", "shop.test", "GET /api/x HTTP/1.1", 200, "shop-api-8080", "10.0.0.1:80 : 10.0.0.2:80, unix:/a"),
        line("http", "shop.test", "GET / HTTP/1.1", 308, "shop-web-80", "-"),
        line("http", "old.test", "GET /a HTTP/1.1", 301, "shop-web-80", "-"),
        line("http", "none.test", "GET /a HTTP/1.1", 404, "upstream-default-backend", "-"),
        line("https", "shop.test", "GET /slow HTTP/1.1", 499, "shop-web-80", "-"),
        line("https", "shop.test", "GET /down HTTP/1.1", 503, "shop-web-80", "-"),
        line("https", "shop.test", "POST /big HTTP/1.1", 413, "shop-web-80", "-"),
        // Differences.
        line("https", "shop.test", "GET /apis?ids=1,2;token=secret HTTP/1.1", 200, "shop-api-http", pod),
        line("https", "shop.test", "GET /apis/2 HTTP/1.1", 200, "shop-api-http", pod),
        line("http", "waf.test", "GET / HTTP/1.1", 200, "shop-web-80", pod),
        line("http", "waf.test", "GET / HTTP/1.1", 403, "shop-web-80", "-"),
        line("https", "shop.test", "GET /login HTTP/1.1", 401, "shop-web-80", "-"),
        // Nothing can be said about these.
        line("http", "_", "-", 400, "", "-"),
        line("http", "-", "GET / HTTP/1.1", 400, "", "-"),
        "torn\n".to_owned(),
        "I1127 08:00:00.000000 7 controller.go:190] \"Configuration changes detected\"\n".to_owned(),
        "\n\n".to_owned(),
        line("https", "shop.test", "GET / HTTP/1.1", 200, "shop-web-80", pod).replace("\"shop.test\"\n", ""),
    ]
    .concat();
    let report = replayed(&log);
    expect![[r#"
        19 lines
        ALIKE 9   DIFFERENT 5   UNDECIDED 5

        REQUESTS  HOST       INGRESS   NGINX                 HERE                       LINE  EXAMPLE
               2  shop.test  shop/web  pod of shop-api-http  pod of shop/web:80           10  GET shop.test/apis?…
               1  waf.test   shop/waf  pod of shop-web-80    503: policy not supported    12  GET waf.test/
               1  waf.test   shop/waf  403                   503: policy not supported    13  GET waf.test/
               1  shop.test  shop/web  401                   pod of shop/web:80           14  GET shop.test/login

        Undecided lines:
               3  the line has another form than the format
               1  the line has no request
               1  the line names no host
    "#]]
    .assert_eq(&render::table(&report, true, Palette::NONE));
    assert_eq!(report.lines, report.alike + report.different + report.undecided.values().sum::<u64>());
    assert_eq!((report.alike, report.different, report.undecided.values().sum()), (9, 5, 5));
    assert!(!format!("{report:?}").contains("secret"), "queries may be secrets");
}

#[test]
fn without_a_scheme_both_are_possible() {
    let format = "$remote_addr \"$request\" $status [$proxy_upstream_name] $upstream_addr $http_host";
    let format = LineFormat::parse(format).expect("a format");
    let log = "192.0.2.1 \"GET / HTTP/1.1\" 308 [shop-web-80] - shop.test:80\n\
               192.0.2.1 \"GET / HTTP/1.1\" 200 [shop-web-80] 10.0.0.1:80 shop.test\n";
    let report = replay(&installation(), &format, Cursor::new(log)).expect("a report");
    assert_eq!((report.alike, report.different), (2, 0), "{report:?}");
}

#[test]
fn escapes_of_both_kinds_are_undone() {
    let format = LineFormat::parse(r#"{"r": "$request", "h": "$host", "s": $status, "c": "$http_cookie"}"#);
    let format = format.expect("a format");
    let line = r#"{"r": "GET /a\"b\u0041\/ HTTP/1.1", "h": "a.test", "s": 200, "c": "x\x3d\\"}"#;
    let read = format.read(line).expect("a line");
    assert_eq!((&*read.target, &*read.method, read.status), ("/a\"bA/", "GET", 200));
    assert_eq!(read.headers, [("cookie".to_owned(), "x=\\".to_owned())]);
    assert_eq!(format.read(r#"{"r": "GET / HTTP/1.1", "h": "a.test", "s": x, "c": ""}"#), Err(Unreadable::Form));
    // A torn escape stands for itself.
    let line = r#"{"r": "GET /\x4", "h": "a.test", "s": 200, "c": ""}"#;
    assert_eq!(format.read(line), Err(Unreadable::NoRequest));
}

#[test]
fn insufficient_formats_are_refused() {
    let error = |format: &str| LineFormat::parse(format).expect_err(format).to_string();
    assert!(error(DEFAULT_FORMAT).contains("--print-format"));
    assert!(error("$host $status").contains("$request"));
    assert!(error("$host $request").contains("$status"));
    assert!(error("$host$status \"$request\"").contains("before `$status`"));
    assert!(patch().expect("a patch").contains("log-format-upstream: "));
}

#[test]
fn a_log_torn_at_any_byte_loses_no_line() {
    let whole = line("https", "shop.test", "GET / HTTP/1.1", 200, "shop-web-80", "10.0.0.1:80").into_bytes();
    let (installation, format) = (installation(), LineFormat::parse(&format!("{DEFAULT_FORMAT}{ADDED}")));
    let format = format.expect("the format");
    for at in (1..whole.len() - 1).step_by(3) {
        let log = [&whole[..at], b"\n\xff\0\n", &whole[at..], &whole].concat();
        let report = replay(&installation, &format, Cursor::new(log)).expect("a report");
        let undecided: u64 = report.undecided.values().sum();
        // Without the beginning of the client's address, the rest has the form of a line.
        assert_eq!((report.lines, report.alike + undecided, report.different), (4, 4, 0), "{at}");
        assert!((1..=2).contains(&report.alike), "{at}");
    }
}

#[test]
fn causes_and_lines_are_bounded() {
    let log: String = (0..1_500)
        .map(|n| line("https", "shop.test", "GET / HTTP/1.1", 200, &format!("other-{n}-80"), "10.0.0.1:80"))
        .chain([line("https", "shop.test", &format!("GET /{} HTTP/1.1", "x".repeat(100_000)), 200, "shop-web-80", "-")])
        .chain([line("https", "shop.test", "GET / HTTP/1.1", 200, "shop-web-80", "10.0.0.1:80")])
        .collect();
    let report = replayed(&log);
    assert_eq!((report.differences.len(), report.unlisted, report.different), (1_000, 500, 1_500));
    assert_eq!((report.lines, report.alike), (1_502, 1), "a long line is one line");
}

#[test]
fn commands_of_the_page_work() {
    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: ShadowArgs,
    }

    let home = tempfile::tempdir().expect("a directory");
    let path = |name: &str| home.path().join(name);
    std::fs::create_dir(path("manifests")).expect("made");
    std::fs::write(path("manifests/all.yaml"), OBJECTS).expect("written");
    let data = patch()
        .expect("a patch")
        .replace("data:", "apiVersion: v1\nkind: ConfigMap\nmetadata: { namespace: ingress-nginx, name: c }\ndata:");
    std::fs::write(path("manifests/settings.yaml"), data).expect("written");
    std::fs::write(path("manifests/controller.yaml"), CONTROLLER).expect("written");
    std::fs::write(path("access.log"), line("https", "shop.test", "GET /a HTTP/1.1", 200, "shop-web-80", "-"))
        .expect("written");
    let page = include_str!("../../../../../docs/migrate/shadow.md");
    let commands: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("xdp-ingress shadow")).collect();
    assert!(commands.len() >= 5, "{commands:?}");
    for command in commands {
        let words =
            command.split_once('>').map_or(command, |(words, _)| words).split_whitespace().map(|word| match word {
                "./manifests" | "access.log" => path(word).display().to_string(),
                word => word.to_owned(),
            });
        let line = ["shadow".to_owned()].into_iter().chain(words);
        let Line { args } = <Line as clap::Parser>::try_parse_from(line).expect(command);
        // Without a cluster, its command is only parsed.
        if args.print_format || args.installation.from_dir.is_some() {
            shadow(&args).expect(command);
        }
    }
}

#[test]
fn rules_that_need_a_secret_are_undecided() {
    let basic = [("nginx/auth-type", "basic"), ("nginx/auth-secret", "users")];
    let firewall = ("nginx/enable-modsecurity", "true");
    let clients = [("nginx/auth-tls-secret", "shop/ca")];
    let text = [
        CLASS.to_owned(),
        ingress("basic", &basic),
        ingress("both", &[basic[0], basic[1], firewall]),
        ingress("clients", &clients),
        ingress("guest", &[]).replace("guest.test", "clients.test").replace("path: /,", "path: /guest,"),
        ingress("fields", &[("nginx/custom-headers", "shop/fields")]),
    ];
    let pod = "10.0.0.1:80";
    let log = [
        line("https", "basic.test", "GET / HTTP/1.1", 200, "shop-web-80", pod),
        line("https", "basic.test", "GET / HTTP/1.1", 401, "shop-web-80", "-"),
        line("https", "both.test", "GET / HTTP/1.1", 200, "shop-web-80", pod),
        line("https", "clients.test", "GET / HTTP/1.1", 400, "shop-web-80", "-"),
        line("https", "clients.test", "GET /guest HTTP/1.1", 200, "shop-web-80", pod),
        line("https", "fields.test", "GET / HTTP/1.1", 200, "shop-web-80", pod),
    ];
    let mut installation = installation_of(&text.join("---\n"));
    let secret = "the rule needs a Secret, and no Secret is read";
    let config_map = "the rule needs a ConfigMap, which is not in the directory";
    let report = replayed_by(&installation, &log.concat());
    assert_eq!(counts(&report), (0, 1, vec![(config_map, 1), (secret, 4)]), "{report:?}");
    assert_eq!(report.differences[0].ingress, "shop/both", "another problem refuses its rules anyway");
    // A cluster is asked for its ConfigMaps.
    installation.is_directory = false;
    let report = replayed_by(&installation, &log.concat());
    assert_eq!(counts(&report), (0, 2, vec![(secret, 4)]), "{report:?}");
}

#[test]
fn preflights_error_pages_and_slow_clients_are_alike() {
    let pages = [("nginx/custom-http-errors", "404,500"), ("nginx/default-backend", "pages")];
    let service =
        "apiVersion: v1\nkind: Service\nmetadata: { namespace: shop, name: pages }\nspec: { ports: [{ port: 80 }] }\n";
    let text = [ingress("cors", &[("nginx/enable-cors", "true")]), ingress("pages", &pages), service.to_owned()];
    let installation = installation_of(&text.join("---\n"));
    let pod = "10.0.0.1:80";
    let alike = [
        line("https", "cors.test", "OPTIONS / HTTP/1.1", 204, "shop-web-80", "-"),
        line("https", "pages.test", "GET / HTTP/1.1", 404, "custom-default-backend-shop-pages", pod),
        line("https", "pages.test", "GET / HTTP/1.1", 500, "upstream-default-backend", pod),
        line("https", "cors.test", "POST / HTTP/1.1", 408, "shop-web-80", "-"),
        line("https", "cors.test", "POST / HTTP/1.1", 400, "shop-web-80", "-"),
        line("https", "cors.test", "TRACE / HTTP/1.1", 405, "", "-"),
        line("https", "cors.test", "GET http://cors.test/a HTTP/1.1", 200, "shop-web-80", pod),
        // Before a location is chosen, the scheme is empty.
        line("", "cors.test", "GET / HTTP/1.1", 200, "shop-web-80", pod),
    ];
    let different = [
        line("https", "cors.test", "GET / HTTP/1.1", 204, "shop-web-80", "-"),
        line("https", "pages.test", "OPTIONS / HTTP/1.1", 204, "shop-web-80", "-"),
        line("https", "cors.test", "GET / HTTP/1.1", 404, "upstream-default-backend", pod),
        line("https", "cors.test", "POST / HTTP/1.1", 408, "shop-other-80", "-"),
    ];
    let report = replayed_by(&installation, &[alike.concat(), different.concat()].concat());
    assert_eq!(counts(&report), (8, 4, Vec::new()), "{:#?}", report.differences);
}

#[test]
fn what_the_log_does_not_tell_is_undecided() {
    let rule = "header:X-Forwarded-Proto = http -> 301 https://rule.test/";
    let text = [
        ingress("rule", &[("xdp-ingress.io/redirect-rules", rule)]),
        ingress("tls", &[("nginx/ssl-passthrough", "true")]),
    ];
    let installation = installation_of(&text.join("---\n"));
    let log = [
        line("https", "rule.test", "GET / HTTP/1.1", 200, "shop-web-80", "10.0.0.1:80"),
        line("https", "tls.test", "GET / HTTP/1.1", 200, "shop-web-80", "10.0.0.1:80"),
        line("http", "tls.test", "GET / HTTP/1.1", 200, "shop-web-80", "10.0.0.1:80"),
        line("", "tls.test", "GET / HTTP/1.1", 200, "shop-other-80", "10.0.0.1:80"),
    ];
    let report = replayed_by(&installation, &log.concat());
    let undecided = vec![
        ("TLS of the host is passed through here, and nginx ended it", 1),
        ("the rule asks about the field `x-forwarded-proto`, which the log does not have", 1),
    ];
    assert_eq!(counts(&report), (1, 1, undecided), "{report:?}");
    assert_eq!(report.differences[0].here, "pod of shop/web:80");
    // A format with the field decides.
    let format = LineFormat::parse("$host \"$request\" $status [$proxy_upstream_name] $http_x_forwarded_proto");
    let log = "rule.test \"GET / HTTP/1.1\" 301 [shop-web-80] http\nrule.test \"GET / HTTP/1.1\" 200 [shop-web-80] -\n";
    let report = replay(&installation, &format.expect("a format"), Cursor::new(log)).expect("a report");
    assert_eq!(counts(&report), (2, 0, Vec::new()), "{report:?}");
}

#[test]
fn lines_of_other_namespaces_are_undecided() {
    let installation = installation_of(&[CLASS, OBJECTS].join("---"));
    let installation = Installation { is_directory: false, is_partial: true, ..installation };
    let pod = "10.0.0.1:80";
    let log = [
        line("https", "shop.test", "GET / HTTP/1.1", 200, "shop-web-80", pod),
        line("https", "shop.test", "GET / HTTP/1.1", 200, "shop-api-http", pod),
        line("https", "blog.test", "GET / HTTP/1.1", 200, "blog-web-80", pod),
        line("https", "blog.test", "GET / HTTP/1.1", 500, "upstream-default-backend", pod),
        line("https", "blog.test", "GET / HTTP/1.1", 404, "", "-"),
    ];
    let report = replayed_by(&installation, &log.concat());
    let undecided = vec![("another namespace serves the request, and only one is read", 3)];
    assert_eq!(counts(&report), (1, 1, undecided), "{report:?}");
}

#[test]
fn a_log_without_a_decision_is_an_error() {
    let error = |log: &str| has_decided(&replayed(log)).expect_err(log).to_string();
    assert!(error("").contains("no line"));
    let wrong = error("a\nb\n");
    assert!(wrong.contains("`--format`") && wrong.contains("2 of 2 lines: the line has another form"), "{wrong}");
    let good = line("https", "shop.test", "GET / HTTP/1.1", 200, "shop-web-80", "10.0.0.1:80");
    let shown = |log: &str| render::table(&replayed(log), true, Palette::NONE);
    assert!(has_decided(&replayed(&format!("{good}a\nb\n"))).is_ok());
    assert!(shown(&format!("{good}a\nb\n")).contains("Most lines are undecided"));
    assert!(!shown(&format!("{good}{good}a\nb\n")).contains("Most lines"));
}

#[test]
fn paths_of_one_kind_are_one_difference() {
    let log: String = (0..5)
        .map(|n| {
            let request = format!("GET /{n}/..%2fapi HTTP/1.1");
            line("https", "shop.test", &request, 200, "shop-web-80", "10.0.0.1:80")
        })
        .collect();
    let report = replayed(&log);
    assert_eq!((report.different, report.differences.len()), (5, 1), "{report:?}");
    assert_eq!(report.differences[0].example, "GET shop.test/0/..%2fapi");
}

#[test]
fn values_without_escapes_are_refused() {
    let settings = |value: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{ namespace: ingress-nginx, name: c }}\ndata: {{ log-format-escape-none: {value:?} }}"
        )
    };
    let read = |value: &str| {
        let installation = check::installation_of(&[CONTROLLER, &settings(value)].join("---\n"));
        format(Some("$host $request $status"), &installation)
    };
    assert!(read("false").is_ok());
    assert!(read("true").expect_err("raw values").to_string().contains("quotation mark"));
}
