//! Laws of the tables: each key once, sorted, documented, with defaults that change nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use ingress_model::{MediaTypes, Template};

mod page;

fn all_annotations() -> impl Iterator<Item = &'static Key> {
    ANNOTATIONS.iter().flat_map(|rows| rows.keys())
}

#[test]
fn tables_are_sorted() {
    for keys in ANNOTATIONS.iter().map(|rows| rows.keys()).chain(SETTINGS.iter().map(|rows| rows.keys())) {
        assert!(keys.is_sorted_by_key(|key| key.name), "{keys:?}");
    }
}

/// Otherwise, the key that is read last would count, and a wider list could replace a stricter one.
#[test]
fn keys_with_one_meaning_are_known_as_such() {
    // Both are read: their values differ in form, and the page says which one counts.
    let read = ["session-cookie-expires", "temporal-redirect"];
    for Key { name, meaning, same_as, .. } in all_annotations().filter(|key| !read.contains(&key.name)) {
        assert_eq!(meaning.starts_with("the same as"), same_as.is_some(), "{name}");
        assert!(same_as.is_none_or(|other| annotation(other).is_some()), "{name}");
    }
}

#[test]
fn defaults_of_annotations_change_nothing() {
    for Key { name, default, .. } in all_annotations().filter(|key| !key.default.is_empty()) {
        let mut parsed = ParsedAnnotations::default();
        assert_eq!(parsed.read(name, default), Ok(()), "{name}");
        assert_eq!(parsed, ParsedAnnotations::default(), "{name}");
    }
}

#[test]
fn defaults_of_settings_change_nothing() {
    let defaults = Globals::of(&Classes::default());
    for Key { name, default, nginx, .. } in all_settings() {
        let mut globals = defaults.clone();
        assert_eq!(globals.read(name, default), Ok(()), "{name}");
        assert_eq!(globals, defaults, "{name}");
        assert_eq!(globals.read(name, nginx), Ok(()), "{name}");
    }
}

/// Keys that take any text: the name of an object, which is looked up later.
const ANY: [&str; 3] = ["auth-proxy-set-headers", "auth-secret", "custom-headers"];

#[test]
fn values_are_read_or_refused() {
    let cases = [
        ("affinity", "cookie", "ip"),
        ("affinity-canary-behavior", "legacy", "none"),
        ("affinity-mode", "persistent", "x"),
        ("allowlist-source-range", "10.0.0.0/8, 192.0.2.1", "10.0.0.0/99"),
        ("app-root", "/app", "app"),
        ("auth-always-set-cookie", "1", "on"),
        ("auth-cache-duration", "200 10s, 401 1m", "200 x"),
        ("auth-cache-key", "$http_authorization", "$nope"),
        ("auth-method", "POST", "BREW"),
        ("auth-request-redirect", "https://a.test$request_uri", "$1"),
        ("auth-response-headers", "X-User=X-Name, X-Email", "X-User=Host"),
        ("auth-signin", "https://$host/start", "start"),
        ("auth-signin-redirect-param", "back", "a&b"),
        ("auth-skip-rules", "path ~ ^/public/ and method = GET", "client = 10.0.0.0/8"),
        ("auth-timeout", "5", "0"),
        ("auth-tls-error-page", "https://help.test/$host", "/help"),
        ("auth-tls-match-cn", "CN=.*\\.a\\.test", "a.test"),
        ("auth-url", "https://$host/oauth2/auth", "http://$http_x/"),
        ("enable-global-auth", "false", "off"),
        ("auth-realm", "Admins only", "a\u{7}"),
        ("auth-secret-type", "auth-map", "auth-table"),
        ("auth-type", "basic", "digest"),
        ("auth-tls-pass-certificate-to-upstream", "true", "on"),
        ("auth-tls-secret", "default/clients", ""),
        ("auth-tls-verify-client", "optional", "true"),
        ("auth-tls-verify-depth", "2", "-1"),
        ("backend-protocol", "https", "gopher"),
        ("canary", "true", "yes"),
        ("canary-by-cookie", "c", "a;b"),
        ("canary-by-header", "X-Canary", "a b"),
        ("canary-by-header-pattern", "^eu", "("),
        ("canary-by-header-value", "eu", "\u{1}"),
        ("canary-weight", "10", "10%"),
        ("canary-weight-total", "1000", "0"),
        ("client-body-buffer-size", "64k", "65m"),
        ("compression", "br, gzip", "deflate"),
        ("cors-allow-credentials", "false", "no"),
        ("cors-allow-headers", "X-A, X-B", "X A"),
        ("cors-allow-methods", "GET", "GET;"),
        ("cors-allow-origin", "https://a.test", "a.test"),
        ("cors-expose-headers", "*", "\u{e9}"),
        ("cors-max-age", "0", "-1"),
        ("custom-http-errors", "404, 503", "404, 5xx"),
        ("default-backend", "errors", ""),
        ("disable-proxy-intercept-errors", "true", "on"),
        ("denylist-source-range", "::/0", "x"),
        ("jwt-audience", "a, https://b.test", "a,,b"),
        ("jwt-claims-to-headers", "sub=X-User, a.b=X-B", "sub=Host"),
        ("jwt-claims-to-headers", "https://a.test/roles=X-Roles", "sub"),
        ("jwt-cookie", "session", "a b"),
        ("jwt-header", "X-Token", "a b"),
        ("jwt-issuer", "https://login.test", ""),
        ("jwt-jwks-ca-secret", "default/authority", ""),
        ("jwt-jwks-secret", "default/keys", ""),
        ("jwt-jwks-url", "https://login.test:8443/jwks?x=y", "http://login.test/jwks"),
        ("jwt-jwks-url", "http://sso.auth.svc.cluster.local/jwks", "https://$host/jwks"),
        ("jwt-required-claims", "email_verified=true, scope=a|b, sub", "scope="),
        ("load-balance", "ewma", "random"),
        ("eject-after", "0", "never"),
        ("eject-on-5xx", "true", "on"),
        ("eject-share", "10", "0"),
        ("eject-time", "2s", "0"),
        ("eject-time-max", "1m", "2d"),
        ("health-check", "tcp", "ping"),
        ("health-check-expected-statuses", "200, 204, 300-399", "399-300"),
        ("health-check-healthy-threshold", "1", "0"),
        ("health-check-host", "a.test:80", "a b"),
        ("health-check-interval", "1s", "999ms"),
        ("health-check-path", "/healthz?x", "healthz"),
        ("health-check-port", "8081", "0"),
        ("health-check-service", "a.B", "a b"),
        ("health-check-timeout", "1", "never"),
        ("health-check-unhealthy-threshold", "1", "few"),
        ("max-connections", "100", "0"),
        ("max-pending-requests", "10", "-1"),
        ("max-requests", "100", "all"),
        ("slow-start", "30", "soon"),
        ("deny-paths", "/metrics=404, ~ \\.git", "metrics"),
        ("redirect-rules", "path ~ ^/a(.*) -> rewrite /$1", "-> rewrite /$host"),
        ("enable-access-log", "false", "no"),
        ("enable-opentelemetry", "true", "on"),
        ("metrics-per-path", "true", "all"),
        ("opentelemetry-operation-name", "$request_method $host", "$nope"),
        ("opentelemetry-trust-incoming-span", "false", "no"),
        ("enable-cors", "true", "on"),
        ("force-ssl-redirect", "TRUE", "on"),
        ("from-to-www-redirect", "true", "yes"),
        ("http3", "false", "off"),
        ("limit-allowlist", "10.0.0.0/8", "all"),
        ("limit-burst-multiplier", "2", "0"),
        ("limit-connections", "10", "-1"),
        ("limit-rpm", "10", "10/m"),
        ("limit-rate", "100", "100k"),
        ("limit-rate-after", "1024", "-1"),
        ("limit-rps", "10", "ten"),
        ("limit-scope", "cluster", "global"),
        ("limit-whitelist", "::1", "all"),
        ("mirror-host", "b.test:8080", "u@b.test"),
        ("mirror-request-body", "off", "no"),
        ("mirror-target", "https://b.test$request_uri", "ftp://b.test"),
        ("permanent-redirect", "https://b.test$request_uri", "https://b.test$nope"),
        ("permanent-redirect-code", "308", "200"),
        ("proxy-body-size", "8m", "8 megabytes"),
        ("proxy-buffer-size", "2m", "large"),
        ("proxy-connect-timeout", "1", "0"),
        ("proxy-cookie-domain", "~^(.*)\\.pod$ $1.test", "a"),
        ("proxy-cookie-path", "/ \"/; Secure\"", "/ /a /b"),
        ("proxy-redirect-from", "~*^http://[^/]+/", "~("),
        ("proxy-redirect-to", "https://$host/$1", "/$nope"),
        ("proxy-next-upstream", "error timeout http_502 non_idempotent", "error http_200"),
        ("proxy-next-upstream", "off", ""),
        ("proxy-next-upstream-timeout", "5s", "soon"),
        ("proxy-next-upstream-tries", "0", "many"),
        ("proxy-protocol-upstream", "v2", "2"),
        ("proxy-read-timeout", "1h", "soon"),
        ("proxy-request-buffering", "off", "no"),
        ("proxy-send-timeout", "3600s", ""),
        ("proxy-ssl-protocols", "TLSv1.1 TLSv1.2", "TLSv1.1"),
        ("proxy-ssl-verify-depth", "0", "-1"),
        ("session-cookie-conditional-samesite-none", "true", "on"),
        ("proxy-ssl-name", "pod.a.test", "https://a.test"),
        ("proxy-ssl-secret", "default/pods", ""),
        ("proxy-ssl-server-name", "on", "true"),
        ("proxy-ssl-verify", "on", "true"),
        ("request-headers", "X-A: 1\n-X-B", "Host: b"),
        ("response-headers", "X-A: 1", "X-A"),
        ("rewrite-target", "https://b.test/$1", "https://$1.b.test/"),
        ("rewrite-target", "/$2", "b.test/"),
        ("satisfy", "any", "some"),
        ("server-alias", "b.test, C.test", "b.*"),
        ("share-hosts-with", "team-a, team-b", "team a"),
        ("service-upstream", "true", "yes"),
        ("session-cookie-change-on-failure", "t", "on"),
        ("session-cookie-domain", "a.test", "a;b"),
        ("session-cookie-expires", "3600", "1h"),
        ("session-cookie-max-age", "-1", "-"),
        ("session-cookie-name", "route", "a b"),
        ("session-cookie-path", "/app", "/a; Secure"),
        ("session-cookie-samesite", "lax", "loose"),
        ("session-cookie-secure", "true", "on"),
        ("ssl-passthrough", "true", "on"),
        ("ssl-redirect", "false", "no"),
        ("temporal-redirect", "/x", "javascript:x"),
        ("temporal-redirect-code", "307", "30x"),
        ("upstream-hash-by", "$request_uri", "$nope"),
        ("upstream-hash-by-subset", "true", "on"),
        ("upstream-hash-by-subset-size", "2", "0"),
        ("upstream-vhost", "b.test:8080", "u@b.test"),
        ("upstream-vhost", "$service_name.$namespace.svc.cluster.local:8084", "$nope.b.test"),
        ("upstream-vhost", "$http_x_tenant.b.test", "$1.b.test"),
        ("use-regex", "true", "yes"),
        ("whitelist-source-range", "::1", "::x"),
        ("x-forwarded-prefix", "/app", "\u{1}"),
    ];
    let tried: BTreeSet<_> = cases.iter().map(|(key, _, _)| *key).collect();
    let any: BTreeSet<_> = ANY.into();
    assert_eq!(&tried | &any, all_annotations().map(|key| key.name).collect(), "every key is tried");
    for (key, good, bad) in cases {
        let mut parsed = ParsedAnnotations::default();
        assert_eq!(parsed.read(key, good), Ok(()), "{key}: {good}");
        assert_ne!(parsed, ParsedAnnotations::default(), "{key}: {good} changes nothing");
        let mut parsed = ParsedAnnotations::default();
        assert!(parsed.read(key, bad).is_err(), "{key}: {bad}");
        assert_eq!(parsed, ParsedAnnotations::default(), "{key}: {bad} changes something");
    }
}

#[test]
fn values_with_another_effect_are_explained() {
    for (key, value, expect) in [
        ("proxy-buffer-size", "1m", None),
        ("proxy-buffer-size", "2m", Some("larger than `1m`, which applies")),
        ("proxy-buffer-size", "512", Some("smaller than `1k`, which applies")),
        ("auth-cache-duration", "200 1d, 401 1m", None),
        ("auth-cache-duration", "200 1m, 401 1w", Some("longer than a day, which applies")),
        ("load-balance", "ewma", None),
        ("load-balance", "least_conn", Some("`least_request` applies")),
    ] {
        let note = annotation(key).and_then(|key| key.notes).and_then(|notes| notes(value));
        assert_eq!(note.as_deref(), expect, "{key}: {value}");
        assert_eq!(ParsedAnnotations::default().read(key, value), Ok(()), "{key}: {value}");
    }
}

/// `UPDATE_EXPECT=1` rewrites the page.
#[test]
fn the_page_of_settings_lists_the_tables() {
    let mut page = "# Settings for all hosts\n\n\
        This page lists the settings that an operator makes for all hosts. They are keys of a ConfigMap, which\n\
        `--configmap xdp-ingress/settings` names:\n\n\
        ```yaml\n\
        apiVersion: v1\n\
        kind: ConfigMap\n\
        metadata: {name: settings, namespace: xdp-ingress}\n\
        data:\n  \
          proxy-read-timeout: \"300\"\n  \
          disable-access-log: \"false\"\n\
        ```\n\n\
        A second ConfigMap takes precedence, key by key: the one that an IngressClass of this controller names in\n\
        `spec.parameters` (`kind: ConfigMap`, `scope: Namespace`). Among several classes, the oldest with parameters\n\
        decides. A change takes effect without a restart. If a value is invalid, an event on the ConfigMap names the valid\n\
        ones, and the key is as if not set. Other keys of ingress-nginx are accepted, and an event reports each one with an\n\
        effect there. The second default in the table applies with `--controller-class k8s.io/ingress-nginx`.\n\n\
        | key | default | with ingress-nginx's class | meaning |\n|---|---|---|---|\n"
        .to_owned();
    let rows: BTreeMap<_, _> = all_settings().map(|setting| (setting.name, setting)).collect();
    assert_eq!(rows.len(), all_settings().count(), "each key once");
    for Key { name, default, nginx, meaning, .. } in rows.values() {
        let quote = |value: &str| if value.is_empty() { "none".to_owned() } else { format!("`{value}`") };
        page += &format!("| `{name}` | {} | {} | {meaning} |\n", quote(default), quote(nginx));
    }
    expect_test::expect_file!["../../../../../../docs/settings.md"].assert_eq(&page);
}

#[test]
fn every_setting_changes_something() {
    for Key { name, default, .. } in all_settings() {
        let value = match *default {
            "true" => "false",
            "false" => "true",
            "308" => "302",
            "GET" => "POST",
            "rd" => "back",
            "200 202 401 5m" => "200 1m",
            "/.well-known/acme-challenge" => "/a",
            "TLSv1.2 TLSv1.3" => "TLSv1.3",
            "503" => "429",
            "round_robin" => "ewma",
            "node" => "cluster",
            "paths" => "open",
            "error" => "off",
            "keep-unchanged" => "reject-request",
            MediaTypes::DEFAULT => "text/css",
            "1" | "3" | "4" => "5",
            "4 8k" => "4 16k",
            "X-Forwarded-For" => "X-Client",
            "AlwaysOn" => "AlwaysOff",
            "0.01" => "0.5",
            "off" if name.starts_with("proxy-cookie") => "/a /b",
            "off" if *name == "proxy-redirect-to" => "/a",
            "" => match *name {
                "add-headers" | "proxy-set-headers" => "a/b",
                "custom-http-errors" => "404,503",
                "escalate-also" => "credentials, limit",
                "gzip-disable" => "MSIE",
                "host-sharing-grants" => "a, b",
                "global-auth-cache-key" => "$http_x",
                "global-auth-request-redirect" | "global-auth-signin" | "global-auth-url" => "https://$host/x",
                "no-tls-redirect-locations" => "/a, /b",
                "log-format-upstream" | "opentelemetry-operation-name" => "$host",
                "otlp-collector-host" => "collector.otel",
                "skip-access-log-urls" => "/a",
                "block-cidrs" | "denylist-source-range" | "proxy-real-ip-cidr" | "whitelist-source-range" => {
                    "10.0.0.0/8"
                }
                _ => "X-A, X-B",
            },
            _ => "42",
        };
        let mut globals = Globals::of(&Classes::default());
        assert_eq!(globals.read(name, value), Ok(()), "{name}");
        assert_ne!(globals, Globals::of(&Classes::default()), "{name}");
    }
}

/// Keys that take nearly any text.
const TEXTS: [&str; 3] = ["block-referers", "block-user-agents", "gzip-disable"];

#[test]
fn invalid_values_change_nothing() {
    for Key { name, .. } in all_settings() {
        let values = if TEXTS.contains(name) {
            ["~(", "~*a(", "~[", "~*)"]
        } else {
            ["no $pe", "-1$?", "9999999999999$9999999:", "5t$\u{e9}"]
        };
        for value in values {
            let mut globals = Globals::of(&Classes::default());
            assert!(globals.read(name, value).is_err(), "{name} {value}");
            assert_eq!(globals, Globals::of(&Classes::default()), "{name} {value}");
        }
    }
}
