//! Header rewriting with arbitrary configuration and requests. The target checks that filters only produce fields
//! and paths that are valid in a head, and that no value becomes several fields.
#![no_main]

use arbitrary::Arbitrary;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, uri::PathAndQuery};
use ingress_model::route::{
    Subject,
    filter::{self, Edits, Shown, Verdict},
};
use ingress_model::{Filter, HeaderEdits, Pattern, Rewrite};
use ingress_model::request_path::normalise;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    request: &'a str,
    response: &'a str,
    rewrite: &'a str,
    path: &'a str,
    query: &'a str,
    fields: Vec<(&'a str, &'a [u8])>,
    secure: bool,
}

fuzz_target!(|input: Input<'_>| {
    let Input { request, response, rewrite, path, query, fields, secure } = input;
    // Normalised like in the proxy.
    let path = format!("/{path}");
    let Ok(path) = normalise(&path) else { return };
    // A fragment is not part of the target, and is ignored.
    let Ok(uri) = format!("{path}?{query}").parse::<Uri>() else { return };
    let Some(target) = uri.path_and_query().map(PathAndQuery::as_str) else { return };
    let mut headers = HeaderMap::new();
    for (name, value) in fields.iter().take(50) {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    let mut filters = Vec::new();
    filters.extend(HeaderEdits::parse(request).ok().map(|edits| Filter::RequestHeaders(edits.into())));
    filters.extend(HeaderEdits::parse(response).ok().map(|edits| Filter::ResponseHeaders(edits.into())));
    let pattern = Pattern::of_path("/(.?)(.*)").expect("a pattern");
    if let Ok(target) = Rewrite::parse(rewrite) {
        filters.push(Filter::Rewrite(Rewrite::Template { pattern: Some(pattern), target }.into()));
    }
    let subject = Subject {
        method: &Method::GET,
        host: "a.test",
        port: secure.then_some(8443),
        target,
        headers: &headers,
        secure,
        certificate: Shown::Nothing,
        certificate_fields: "",
        client: [192, 0, 2, 1].into(),
        https_port: 443,
        listener_port: 80,
        clock: std::time::Duration::default,
    };
    let mut edits = Edits::default();
    for filter in &filters {
        assert_eq!(filter::apply(filter, &subject, &mut edits), Verdict::Continue);
    }
    if let Some(target) = &edits.target {
        check_target(target);
    }
    for (name, value) in edits.fields(&subject) {
        check_value(name, value.as_bytes());
    }
    let mut answer = headers.clone();
    filter::respond(&filters, &subject, &mut answer);
    for (name, value) in &answer {
        check_value(name, value.as_bytes());
    }
});

fn check_target(target: &str) {
    assert!(target.starts_with('/'), "{target:?}");
    assert!(target.bytes().all(|byte| byte > b' ' && byte != 0x7f && byte != b'#'), "{target:?}");
}

fn check_value(name: &HeaderName, value: &[u8]) {
    assert!(!value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)), "{name}: {value:?}");
}
