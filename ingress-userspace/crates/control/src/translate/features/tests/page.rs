//! The page of annotations: one section for each topic, with an example and a table of its keys.

use std::collections::BTreeMap;

use super::{super::row::Otherwise, *};

/// A section of the page.
struct Topic {
    heading: &'static str,
    /// What the annotations are for, in a sentence.
    about: &'static str,
    /// Annotations with values, without prefix.
    example: &'static [(&'static str, &'static str)],
    /// Keys in the order of the table.
    keys: &'static [&'static str],
}

const TOPICS: [Topic; 28] = [
    Topic {
        heading: "Paths and rewriting",
        about: "Change the path that pods get, and the form of paths in rules.",
        example: &[("rewrite-target", "/$2"), ("use-regex", "true")],
        keys: &["rewrite-target", "use-regex", "x-forwarded-prefix", "app-root"],
    },
    Topic {
        heading: "Redirects and HTTPS",
        about: "Send clients elsewhere. Hosts with a certificate redirect plain HTTP by themselves.",
        example: &[("permanent-redirect", "https://www.example.com$request_uri"), ("permanent-redirect-code", "308")],
        keys: &[
            "ssl-redirect",
            "force-ssl-redirect",
            "from-to-www-redirect",
            "permanent-redirect",
            "permanent-redirect-code",
            "redirect-rules",
            "temporal-redirect",
            "temporal-redirect-code",
        ],
    },
    Topic {
        heading: "Hosts: aliases and sharing",
        about: "Serve further names, and let other namespaces add paths ([sharing hosts](sharing-hosts.md)).",
        example: &[("server-alias", "www.example.com, example.net")],
        keys: &["http3", "server-alias", "share-hosts-with"],
    },
    Topic {
        heading: "Backends: protocol, Service and Host",
        about: "Choose the protocol of the pods, and the way to them.",
        example: &[("backend-protocol", "GRPC")],
        keys: &["backend-protocol", "service-upstream", "upstream-vhost", "proxy-protocol-upstream", "default-backend"],
    },
    Topic {
        heading: "TLS to backends",
        about: "Verify the certificates of pods, and present one to them.",
        example: &[("backend-protocol", "HTTPS"), ("proxy-ssl-secret", "default/pods"), ("proxy-ssl-verify", "on")],
        keys: &[
            "proxy-ssl-name",
            "proxy-ssl-protocols",
            "proxy-ssl-secret",
            "proxy-ssl-server-name",
            "proxy-ssl-verify",
            "proxy-ssl-verify-depth",
        ],
    },
    Topic {
        heading: "TLS passthrough",
        about: "Pass TLS connections to the pods without decryption ([streams](streams.md#tls-passthrough)).",
        example: &[("ssl-passthrough", "true")],
        keys: &["ssl-passthrough"],
    },
    Topic {
        heading: "Timeouts",
        about: "Limit the time for connections and for pauses, also of WebSockets.",
        example: &[("proxy-connect-timeout", "2"), ("proxy-read-timeout", "300")],
        keys: &["proxy-connect-timeout", "proxy-read-timeout", "proxy-send-timeout"],
    },
    Topic {
        heading: "Body size and request buffering",
        about: "Bound bodies and heads, and keep slow clients away from pods ([limits](limits.md)).",
        example: &[("proxy-body-size", "8m"), ("proxy-request-buffering", "on")],
        keys: &["proxy-body-size", "proxy-buffer-size", "proxy-request-buffering", "client-body-buffer-size"],
    },
    Topic {
        heading: "Load balancing",
        about: "Choose the pod of a request ([balancing](balancing.md)).",
        example: &[("load-balance", "ewma"), ("slow-start", "30s")],
        keys: &[
            "load-balance",
            "upstream-hash-by",
            "upstream-hash-by-subset",
            "upstream-hash-by-subset-size",
            "slow-start",
        ],
    },
    Topic {
        heading: "Session affinity (sticky sessions)",
        about: "Keep a client with one pod by a cookie.",
        example: &[("affinity", "cookie"), ("session-cookie-name", "route")],
        keys: &[
            "affinity",
            "affinity-canary-behavior",
            "affinity-mode",
            "session-cookie-change-on-failure",
            "session-cookie-domain",
            "session-cookie-expires",
            "session-cookie-max-age",
            "session-cookie-name",
            "session-cookie-path",
            "session-cookie-samesite",
            "session-cookie-conditional-samesite-none",
            "session-cookie-secure",
        ],
    },
    Topic {
        heading: "Retries",
        about: "Send a failed request to another pod.",
        example: &[("proxy-next-upstream", "error timeout http_503"), ("proxy-next-upstream-tries", "2")],
        keys: &["proxy-next-upstream", "proxy-next-upstream-timeout", "proxy-next-upstream-tries"],
    },
    Topic {
        heading: "Health checks",
        about: "Ask pods for their health in intervals ([balancing](balancing.md#health-checks)).",
        example: &[("health-check-path", "/healthz"), ("health-check-interval", "5s")],
        keys: &[
            "health-check",
            "health-check-expected-statuses",
            "health-check-healthy-threshold",
            "health-check-host",
            "health-check-interval",
            "health-check-path",
            "health-check-port",
            "health-check-service",
            "health-check-timeout",
            "health-check-unhealthy-threshold",
        ],
    },
    Topic {
        heading: "Outlier detection",
        about: "Eject pods that fail requests for some time ([balancing](balancing.md#outlier-detection)).",
        example: &[("eject-after", "3"), ("eject-on-5xx", "true")],
        keys: &["eject-after", "eject-on-5xx", "eject-share", "eject-time", "eject-time-max"],
    },
    Topic {
        heading: "Circuit breakers",
        about: "Bound connections and requests to an upstream ([balancing](balancing.md#circuit-breakers)).",
        example: &[("max-requests", "200"), ("max-pending-requests", "50")],
        keys: &["max-connections", "max-pending-requests", "max-requests"],
    },
    Topic {
        heading: "Canary releases and traffic split",
        about: "Send a part of the requests to another Service ([guide](guides/canary.md)).",
        example: &[("canary", "true"), ("canary-weight", "10")],
        keys: &[
            "canary",
            "canary-by-cookie",
            "canary-by-header",
            "canary-by-header-pattern",
            "canary-by-header-value",
            "canary-weight",
            "canary-weight-total",
        ],
    },
    Topic {
        heading: "Mirroring",
        about: "Send a copy of each request to another Service ([responses](responses.md#mirrors)).",
        example: &[("mirror-target", "http://copy.default.svc.cluster.local$request_uri")],
        keys: &["mirror-host", "mirror-request-body", "mirror-target"],
    },
    Topic {
        heading: "Allow and deny lists",
        about: "Admit or refuse clients by their network ([clients](clients.md#the-clients-address)), and refuse paths.",
        example: &[("allowlist-source-range", "10.0.0.0/8, 192.0.2.1")],
        keys: &["allowlist-source-range", "whitelist-source-range", "denylist-source-range", "deny-paths", "satisfy"],
    },
    Topic {
        heading: "Rate limits",
        about: "Bound requests and connections of each client ([guide](guides/rate-limiting.md)).",
        example: &[("limit-rps", "10"), ("limit-burst-multiplier", "3")],
        keys: &[
            "limit-allowlist",
            "limit-whitelist",
            "limit-burst-multiplier",
            "limit-connections",
            "limit-rpm",
            "limit-rps",
            "limit-scope",
            "limit-rate",
            "limit-rate-after",
        ],
    },
    Topic {
        heading: "Basic authentication",
        about: "Ask for names and passwords (RFC 7617).",
        example: &[("auth-type", "basic"), ("auth-secret", "users")],
        keys: &["auth-type", "auth-secret", "auth-secret-type", "auth-realm"],
    },
    Topic {
        heading: "External authorization",
        about: "Ask a service about each request ([oauth2-proxy](guides/oauth2-proxy.md)).",
        example: &[
            ("auth-url", "http://oauth2-proxy.default.svc.cluster.local/oauth2/auth"),
            ("auth-signin", "https://$host/oauth2/start"),
        ],
        keys: &[
            "auth-url",
            "auth-signin",
            "auth-signin-redirect-param",
            "auth-method",
            "auth-timeout",
            "auth-skip-rules",
            "auth-response-headers",
            "auth-proxy-set-headers",
            "auth-request-redirect",
            "auth-cache-key",
            "auth-cache-duration",
            "auth-always-set-cookie",
            "enable-global-auth",
        ],
    },
    Topic {
        heading: "Client certificates (mTLS)",
        about: "Ask clients for certificates ([guide](guides/mutual-tls.md)).",
        example: &[("auth-tls-secret", "default/clients"), ("auth-tls-verify-client", "on")],
        keys: &[
            "auth-tls-secret",
            "auth-tls-verify-client",
            "auth-tls-verify-depth",
            "auth-tls-match-cn",
            "auth-tls-error-page",
            "auth-tls-pass-certificate-to-upstream",
        ],
    },
    Topic {
        heading: "JWT and OIDC tokens",
        about: "Verify tokens without another service ([tokens](tokens.md)).",
        example: &[
            ("jwt-issuer", "https://login.example.com"),
            ("jwt-jwks-url", "https://login.example.com/jwks"),
            ("jwt-audience", "shop"),
        ],
        keys: &[
            "jwt-audience",
            "jwt-claims-to-headers",
            "jwt-cookie",
            "jwt-header",
            "jwt-issuer",
            "jwt-jwks-ca-secret",
            "jwt-jwks-secret",
            "jwt-jwks-url",
            "jwt-required-claims",
        ],
    },
    Topic {
        heading: "CORS",
        about: "Let scripts of other origins use a host.",
        example: &[("enable-cors", "true"), ("cors-allow-origin", "https://app.example.com")],
        keys: &[
            "enable-cors",
            "cors-allow-credentials",
            "cors-allow-headers",
            "cors-allow-methods",
            "cors-allow-origin",
            "cors-expose-headers",
            "cors-max-age",
        ],
    },
    Topic {
        heading: "Header fields",
        about: "Set or remove fields of requests and responses.",
        example: &[("response-headers", "X-Frame-Options: DENY")],
        keys: &["request-headers", "response-headers", "custom-headers"],
    },
    Topic {
        heading: "URLs and cookies of pods",
        about: "Rewrite redirects and cookies of pods that do not know their public URL.",
        example: &[("proxy-cookie-path", "/ /app/"), ("proxy-redirect-from", "/"), ("proxy-redirect-to", "/app/")],
        keys: &["proxy-cookie-domain", "proxy-cookie-path", "proxy-redirect-from", "proxy-redirect-to"],
    },
    Topic {
        heading: "Compression",
        about: "Compress responses ([responses](responses.md#compression)).",
        example: &[("compression", "br, gzip")],
        keys: &["compression"],
    },
    Topic {
        heading: "Error pages",
        about: "Replace error responses of pods ([responses](responses.md#error-pages)).",
        example: &[("custom-http-errors", "404, 503"), ("default-backend", "errors")],
        keys: &["custom-http-errors", "disable-proxy-intercept-errors"],
    },
    Topic {
        heading: "Access log, metrics and traces",
        about: "Decide which requests are logged, counted by path, and traced ([tracing](tracing.md)).",
        example: &[("enable-access-log", "false"), ("metrics-per-path", "true")],
        keys: &[
            "enable-access-log",
            "metrics-per-path",
            "enable-opentelemetry",
            "opentelemetry-operation-name",
            "opentelemetry-trust-incoming-span",
        ],
    },
];

/// The page before its sections.
const INTRODUCTION: &str = "\
# Annotations

This page lists the annotations of an Ingress by topic. They change how its rules are served, for example:

```yaml
metadata:
  annotations:
    nginx.ingress.kubernetes.io/proxy-read-timeout: \"300\"
    xdp-ingress.io/health-check-path: /healthz
```

Write each with the prefix `nginx.ingress.kubernetes.io/` or `xdp-ingress.io/`; the second takes precedence. If
a value is invalid, an event on the Ingress names the valid ones. The default then applies. For keys marked *,
the rules answer 503 instead, because without the annotation they would be unsafe or lead to an unintended
destination. You can set the defaults of some annotations for all Ingresses with [settings](settings.md). Some
values are texts with [variables](#variables).

Routes of Gateway API take the same keys, with the prefix `xdp-ingress.io/` alone ([Gateway API](gateway.md#annotations)).
Keys marked † have no effect there; the [last section](#routes-of-gateway-api) lists the alternatives.

";

/// The end of the page. Not a table, because its readers take each row for an annotation.
const VARIABLES: &str = "
## Variables

A text with variables contains `$NAME` or `${NAME}`, under the names of nginx. The proxy replaces each with a property of
the request, or with nothing if the request lacks it. An unknown name makes the value invalid.

- `$scheme`: `http` or `https`, of the client's connection.
- `$host`: the host of the request, without a port.
- `$http_host`, `$best_http_host`: the host, with the port if the client sent one.
- `$request_uri`: path and query. `$escaped_request_uri` is the same, escaped for use as a query argument.
- `$uri`: the path.
- `$args`, `$query_string`: the query, without `?`. `$is_args` is `?` if there is a query.
- `$remote_addr`: the address of the [client](clients.md#the-clients-address).
- `$request_method`: the method.
- `$remote_user`: the name that the client sent by basic authentication. Only `auth-secret` verifies it.
- `$ssl_client_s_dn`, `$ssl_client_i_dn`: subject and issuer of the client's certificate (RFC 4514; bytes other than visible ASCII in
  hexadecimal, as `\\C3\\B6`), if the host asks for certificates (`auth-tls-secret`). With `auth-tls-verify-client: optional_no_ca`, only
  `$ssl_client_verify` says whether an authority has signed it:
  `SUCCESS`, `NONE`, or `FAILED:` and the reason.
- `$msec`: the time in seconds since 1970, with milliseconds.
- `$http_NAME`: the first field with this name, in lower case and with `_` for `-`, as `$http_user_agent`.
- `$cookie_NAME`, `$arg_NAME`: a cookie, or an argument of the query as the client wrote it.
- `$1` … `$9`: a group of the rule's regular expression in `rewrite-target`, or of the last expression that a rule of
  `redirect-rules` demands.

These values accept variables, too: redirects (`app-root`, `permanent-redirect`, `temporal-redirect`, `redirect-rules`),
`auth-signin`, the paths of `auth-url` and `mirror-target`, and header fields (`request-headers`, `response-headers`, ConfigMaps of fields).
The setting `log-format-upstream` has variables of its own, those of nginx's access log.
";

/// The section about routes, before the list of keys without an effect there.
const ROUTES: &str = "
## Routes of Gateway API

These keys have no effect on an HTTPRoute or GRPCRoute. An event on the route names each, and rules with a key that is also
marked * answer 503. Do this instead:

";

#[test]
fn listed_variables_exist() {
    let quoted = VARIABLES.split('`').skip(1).step_by(2);
    let listed: Vec<_> = quoted.filter(|text| text.starts_with('$') && !["$NAME", "${NAME}"].contains(text)).collect();
    assert!(listed.len() > 10, "{listed:?}");
    for text in listed {
        assert_eq!(
            Template::parse(&text.replace("NAME", "a")).map(|parsed| parsed.variables().count()),
            Ok(1),
            "{text}"
        );
    }
}

#[test]
fn each_annotation_has_one_topic_with_a_valid_example() {
    let mut keys: Vec<_> = TOPICS.iter().flat_map(|topic| topic.keys.iter().copied()).collect();
    keys.sort_unstable();
    let mut expected: Vec<_> = all_annotations().map(|key| key.name).collect();
    expected.sort_unstable();
    assert_eq!(keys, expected);
    for Topic { heading, example, keys, .. } in &TOPICS {
        let mut parsed = ParsedAnnotations::default();
        for (key, value) in *example {
            assert_eq!(parsed.read(key, value), Ok(()), "{heading}");
        }
        assert!(example.iter().any(|(key, _)| keys.contains(key)), "{heading}: the example is about another topic");
    }
}

/// `UPDATE_EXPECT=1` rewrites the page.
#[test]
fn the_page_of_annotations_lists_the_tables() {
    let rows: BTreeMap<_, _> = all_annotations().map(|key| (key.name, key)).collect();
    assert_eq!(rows.len(), all_annotations().count(), "each key once");
    let mut page = INTRODUCTION.to_owned();
    for Topic { heading, about, example, keys } in &TOPICS {
        page += &format!("## {heading}\n\n{about}\n\n```yaml\n");
        for (key, value) in *example {
            page += &format!("{}/{key}: {}\n", prefix(key), scalar(value));
        }
        page += "```\n\n| annotation | default | meaning |\n|---|---|---|\n";
        for key in *keys {
            let Some(Key { name, default, meaning, otherwise, instead_on_routes, .. }) = rows.get(key) else {
                continue;
            };
            let default = if default.is_empty() { "none".to_owned() } else { format!("`{default}`") };
            let mark = if *otherwise == Otherwise::Refuse { " *" } else { "" };
            let route_mark = if instead_on_routes.is_some() { " †" } else { "" };
            page += &format!("| `{name}`{mark}{route_mark} | {default} | {meaning} |\n");
        }
        page += "\n";
    }
    page += VARIABLES.trim_start();
    page += ROUTES;
    let mut by_remedy: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for key in all_annotations() {
        by_remedy.entry(key.instead_on_routes.unwrap_or_default()).or_default().push(format!("`{}`", key.name));
    }
    let mut lines: Vec<_> = by_remedy
        .iter()
        .filter(|(remedy, _)| !remedy.is_empty())
        .map(|(remedy, keys)| (keys.join(", "), remedy))
        .collect();
    lines.sort();
    for (keys, remedy) in lines {
        page += &format!("- {keys}: {remedy}.\n");
    }
    expect_test::expect_file!["../../../../../../../docs/annotations.md"].assert_eq(&page);
}

/// Returns the prefix that examples show: keys that ingress-nginx lacks have our own.
fn prefix(key: &str) -> &'static str {
    const OWN: [&str; 9] =
        ["compression", "eject-", "health-check", "jwt-", "max-", "metrics-", "response-", "share-", "slow-start"];
    if OWN.iter().any(|own| key.starts_with(own)) { "xdp-ingress.io" } else { "nginx.ingress.kubernetes.io" }
}

/// Returns `value` as a string of YAML, in quotes where it would otherwise be something else.
fn scalar(value: &str) -> String {
    let is_plain = value.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/')
        && !["true", "false", "on", "off"].contains(&value)
        && !value.contains(": ");
    if is_plain { value.to_owned() } else { format!("{value:?}") }
}
