//! Random Ingresses of one host, and the paths of requests that decide between them.

use std::collections::BTreeSet;

use fastrand::Rng;
use ingress_nginx_model::{HostIngress, IngressPath, PathKind, boundaries};

const ELEMENTS: [&str; 14] =
    ["a", "b", "ab", "A", "foo", "foobar", "Foo", "api", "v1.0", "v1x0", "x-y", "x_y", "~u", "foo."];
const EXPRESSIONS: [&str; 22] = [
    "/a(/|$)(.*)",
    "/foo(/|$)(.*)",
    "/foo/[0-9]+",
    "/foo/[a-z]+",
    "/f.*",
    "/(a|b)/foo",
    "/api/v[12]",
    "/foo$",
    "/[^/]+/foo",
    r"/v1\.0/.*",
    r"/v1\.0",
    "/ab?",
    "/.*",
    "/()(.*)",
    "/(.*)",
    "/foo|/b",
    "/a|b",
    "/x[-_]y",
    r"/\w+/\d{1,3}$",
    "/(?:foo|api)/.+",
    r"/a\\b",
    "/foo/?$",
];
const TARGETS: [&str; 5] = ["/", "/$1", "/$2", "/foo", "/a/b"];
/// Paths that the expressions are meant for, beside those of the sets.
const SAMPLES: [&str; 22] = [
    "/", "/a", "/a/", "/ax", "/b/foo", "/foo/7", "/foo/x7", "/FOO/7/", "/api", "/api/v1", "/api/v3", "/v1.0/x",
    "/v1x0/x", "/x/foo", "/foo", "/foo/", "/f", "/x-y", "/w/123", "/w/1234", "/c/b", "/a%5cb",
];

/// Returns one to four Ingresses of a host, the oldest first.
pub(crate) fn random(rng: &mut Rng) -> Vec<HostIngress> {
    let has_expressions = rng.u8(..5) < 2;
    (0..rng.usize(1..5)).map(|_| ingress(rng, has_expressions)).collect()
}

fn ingress(rng: &mut Rng, may_have_expressions: bool) -> HostIngress {
    let use_regex = may_have_expressions && rng.bool();
    let rewrite_target = may_have_expressions && rng.u8(..3) == 0;
    let is_written = use_regex || rewrite_target;
    HostIngress {
        use_regex,
        rewrite_target: rewrite_target.then(|| pick(rng, &TARGETS).to_owned()),
        has_app_root: rng.u8(..16) == 0,
        paths: (0..rng.usize(..5)).map(|_| path(rng, is_written)).collect(),
    }
}

fn path(rng: &mut Rng, may_be_expression: bool) -> IngressPath {
    let kind = if rng.u8(..3) == 0 { PathKind::Exact } else { PathKind::Prefix };
    if may_be_expression && rng.bool() {
        return IngressPath { kind, text: pick(rng, &EXPRESSIONS).to_owned() };
    }
    let mut text = String::new();
    for _ in 0..rng.usize(..4) {
        text.push('/');
        text.push_str(pick(rng, &ELEMENTS));
    }
    if text.is_empty() && rng.bool() {
        return IngressPath { kind, text };
    }
    if text.is_empty() || rng.u8(..4) == 0 {
        text.push('/');
    }
    IngressPath { kind, text }
}

fn pick(rng: &mut Rng, all: &[&'static str]) -> &'static str {
    all[rng.usize(..all.len())]
}

/// Returns the paths of requests that decide between the paths of `ingresses`, and those for the expressions.
pub(crate) fn requests(ingresses: &[HostIngress]) -> BTreeSet<String> {
    let samples = SAMPLES.iter().map(|path| (*path).to_owned());
    samples.chain(boundaries(ingresses)).collect()
}
