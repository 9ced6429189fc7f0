//! Cost of the pure filters for a request and for the head of a response. Limits, passwords, tokens and mirrors belong
//! to the proxy and are measured in `benches/filters.rs`.

use std::{hint::black_box, slice, sync::Arc};

use criterion::{BatchSize, Criterion};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use ingress_model::route::{
    Subject,
    filter::{Edits, Lack, Shown, Verdict, apply, compress, compression, location, respond},
};
use ingress_model::{
    Access, Authentication, Authorities, Basic, ClientCertificates, Coding, Compression, Cors, CorsWildcards, Demand,
    Filter, HeaderEdits, HeaderText, MediaTypes, Networks, Offer, Origins, Pattern, Redirect, Rewrite, Satisfy,
    Template,
};

/// Header fields of a browser, including those of a preflight.
const REQUEST: [(&str, &str); 9] = [
    ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    ("accept-language", "en-GB,en;q=0.5"),
    ("access-control-request-method", "PUT"),
    ("authorization", "Basic YTpwYXNz"),
    ("cookie", "session=31d4d96e407aad42; theme=dark"),
    ("origin", "https://shop.bench.test"),
    ("referer", "https://shop.bench.test/"),
    ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
];

const RESPONSE: [(&str, &str); 7] = [
    ("cache-control", "max-age=60"),
    ("content-length", "10000"),
    ("content-type", "application/json"),
    ("date", "Sun, 22 Nov 2026 12:00:00 GMT"),
    ("etag", "\"31d4d96e\""),
    ("server", "pod"),
    ("set-cookie", "theme=dark; Path=/"),
];

pub(crate) fn bench(criterion: &mut Criterion) {
    let headers = fields(&REQUEST);
    let subject = Subject {
        method: &Method::GET,
        host: "shop.bench.test",
        port: None,
        target: "/api/v1/items/7?page=2",
        headers: &headers,
        secure: true,
        certificate: Shown::Valid,
        certificate_fields: "",
        client: [10, 3, 249, 7].into(),
        https_port: 443,
        listener_port: 443,
        clock: std::time::Duration::default,
    };
    requests(criterion, subject);
    responses(criterion, &subject);
}

fn requests(criterion: &mut Criterion, subject: Subject<'_>) {
    let plain = Subject { secure: false, ..subject };
    let preflight = Subject { method: &Method::OPTIONS, ..subject };
    let shows_none = Subject { certificate: Shown::Nothing, ..subject };
    let stranger = Subject { client: [192, 0, 2, 7].into(), ..subject };
    let https = Filter::RedirectHttps { status: 308, except: [].into() };
    let access = Filter::Access(Arc::new(access()));
    let to_https = "https://shop.bench.test/api/v1/items/7?page=2".to_owned();
    let cases = [
        ("redirect to HTTPS", https.clone(), plain, Verdict::Redirect { status: 308, location: to_https }),
        ("redirect to HTTPS, is there", https, subject, Verdict::Continue),
        ("client certificate", client_certificate(), subject, Verdict::Continue),
        ("client certificate, none", client_certificate(), shows_none, Verdict::Unproven(Lack::Certificate)),
        ("1000 networks", access.clone(), subject, Verdict::Continue),
        ("1000 networks, in none", access, stranger, Verdict::Deny),
        ("CORS", cors("*"), subject, Verdict::Continue),
        ("CORS, preflight", cors("*"), preflight, Verdict::Preflight),
        ("authentication, or 1000 networks", authentication(), subject, Verdict::Continue),
        ("rewrite", rewrite(None, "/items"), subject, Verdict::Continue),
        ("rewrite with groups", rewrite(Some("/api/v1(/|$)(.*)"), "/$2"), subject, Verdict::Continue),
        (
            "host for pods",
            Filter::UpstreamHost(HeaderText::Fixed(HeaderValue::from_static("pod.test"))),
            subject,
            Verdict::Continue,
        ),
        ("fields for pods", Filter::RequestHeaders(edits("X-A: 1\n-X-B")), subject, Verdict::Continue),
        ("fields for pods, rendered", Filter::RequestHeaders(edits(RENDERED)), subject, Verdict::Continue),
    ];
    let mut group = criterion.benchmark_group("request filter");
    for (name, filter, subject, expected) in &cases {
        assert_eq!(apply(filter, subject, &mut Edits::default()), *expected, "{name}");
        group.bench_function(*name, |bencher| {
            bencher.iter(|| {
                let mut edits = Edits::default();
                let verdict = apply(filter, black_box(subject), &mut edits);
                // Values are rendered when the head for the pod is written.
                edits.fields(subject).for_each(|field| drop(black_box(field)));
                verdict
            });
        });
    }
    let elsewhere = Template::parse("https://new.bench.test$request_uri").expect("a template");
    let redirect = Redirect { status: 301, location: elsewhere.into() };
    group.bench_function("redirect of the rule", |bencher| bencher.iter(|| location(&redirect, black_box(&subject))));
    group.finish();
}

fn responses(criterion: &mut Criterion, subject: &Subject<'_>) {
    const SHOPS: &str = "https://a.test,https://b.test,https://c.test,https://*.d.test,https://shop.bench.test";
    let cases = [
        ("CORS", cors("*")),
        ("CORS, five origins", cors(SHOPS)),
        ("fields", Filter::ResponseHeaders(edits("X-A: 1\n-Server"))),
        ("fields, rendered", Filter::ResponseHeaders(edits(RENDERED))),
        ("compression", Filter::Compression(Arc::new(codings()))),
        ("strict transport security", Filter::StrictTransportSecurity(HeaderValue::from_static("max-age=31536000"))),
    ];
    let head = fields(&RESPONSE);
    let mut group = criterion.benchmark_group("response filter");
    for (name, filter) in &cases {
        let filters = slice::from_ref(filter);
        let answer = |head: &mut HeaderMap| {
            respond(filters, subject, head);
            compression(filters).and_then(|how| compress(how, subject, StatusCode::OK, Some(10_000), head)).is_some()
        };
        let mut answered = head.clone();
        answer(&mut answered);
        assert_ne!(answered, head, "{name}");
        group.bench_function(*name, |bencher| {
            // As many heads as fit in a cache.
            bencher.iter_batched_ref(|| head.clone(), answer, BatchSize::NumIterations(100));
        });
    }
    group.finish();
}

const RENDERED: &str = "X-Client: $remote_addr\nX-From: $scheme://$host$request_uri\nX-Theme: $cookie_theme";

fn edits(text: &str) -> Arc<HeaderEdits> {
    Arc::new(HeaderEdits::parse(text).expect("changes"))
}

/// Allows a thousand networks; the client's is the last.
fn access() -> Access {
    let networks: String = (0..1000).map(|number| format!("10.{}.{}.0/25 ", number / 250, number % 250)).collect();
    Access { allow: Networks::parse(&networks).expect("networks"), deny: Networks::default() }
}

fn authentication() -> Filter {
    let basic = Basic::new("shop", "default", Arc::default());
    Filter::Authentication(Arc::new(Authentication {
        basic,
        token: None,
        ext_authz: None,
        satisfy: Satisfy::Any(access()),
    }))
}

fn client_certificate() -> Filter {
    let authorities = Arc::new(Authorities { origin: "bench/ca".into(), certificates: Vec::new() });
    let revoked = Vec::new();
    let clients = ClientCertificates {
        authorities,
        revoked,
        demand: Demand::Required,
        depth: 1,
        passed: false,
        name: None,
        error_page: None,
    };
    Filter::ClientCertificate(Arc::new(clients))
}

fn cors(origins: &str) -> Filter {
    Filter::Cors(Arc::new(Cors {
        origins: Origins::parse(origins).expect("origins"),
        methods: HeaderValue::from_static("GET, PUT, POST, DELETE, PATCH, OPTIONS"),
        headers: HeaderValue::from_static("DNT,Range,Content-Type,Authorization"),
        expose: Some(HeaderValue::from_static("X-Page")),
        credentials: true,
        max_age: 600,
        wildcards: CorsWildcards::AsConfigured,
    }))
}

fn rewrite(pattern: Option<&str>, target: &str) -> Filter {
    let pattern = pattern.map(|pattern| Pattern::of_path(pattern).expect("a pattern"));
    Filter::Rewrite(Arc::new(Rewrite::Template { pattern, target: Rewrite::parse(target).expect("a target") }))
}

fn codings() -> Compression {
    let types = Arc::new(MediaTypes::default());
    let offers = Coding::ALL.map(|coding| Offer { coding, level: 1, min_length: 256, types: Arc::clone(&types) });
    Compression { offers: offers.into(), without_gzip: None }
}

fn fields(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    let field =
        |(name, value): &(&'static str, &'static str)| (HeaderName::from_static(name), HeaderValue::from_static(value));
    fields.iter().map(field).collect()
}
