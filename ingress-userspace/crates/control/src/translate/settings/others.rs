//! Settings of ingress-nginx that are known but not supported, as tables with the message for each. This module reports
//! nothing itself.

use crate::translate::text::fits;

/// Reason why a known setting is not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Other {
    /// The setting tunes a feature that does not exist here, or that cannot be tuned.
    Ineffective { because: &'static str },
    /// The setting is not implemented. Its default describes the actual behaviour, so the default value needs no
    /// report.
    Later { default: &'static str },
    /// The setting will not be implemented.
    Refused { instead: &'static str },
}

pub(super) fn find(key: &str) -> Option<Other> {
    let is = |pattern: &&str| fits(pattern, key);
    if INEFFECTIVE.iter().any(is) {
        return Some(Other::Ineffective { because: "it has no counterpart here" });
    }
    if let Some((_, because)) = FIXED.iter().find(|(pattern, _)| is(pattern)) {
        return Some(Other::Ineffective { because });
    }
    if let Some((_, instead)) = REFUSED.iter().find(|(pattern, _)| is(pattern)) {
        return Some(Other::Refused { instead });
    }
    LATER.iter().find(|(pattern, _)| is(pattern)).map(|(_, default)| Other::Later { default })
}

const SNIPPETS: &str = "write annotations instead, because snippets of configuration are not supported";
const TEMPLATES: &str = "remove it, because no template exists that a value could break out of";
const FIREWALL: &str = "put a web application firewall in front of the services that need one";

const CIPHERS: &str =
    "ciphers and key exchanges are those of TLS 1.2 and 1.3 that are safe, all of them with forward secrecy";
const TICKETS: &str = "keys cannot be settings; put them into a Secret that `--tls-ticket-secret` names";

const STAPLES: &str =
    "responses are not fetched; `tls.ocsp-staple` of a TLS Secret is stapled while it is valid (docs/tls.md)";

const FIXED: &[(&str, &str)] = &[
    ("enable-ocsp", STAPLES),
    ("ssl-ciphers", CIPHERS),
    ("ssl-dh-param", CIPHERS),
    ("ssl-ecdh-curve", CIPHERS),
    ("ssl-prefer-server-ciphers", CIPHERS),
];

/// `*` at the end stands for any rest.
const INEFFECTIVE: &[&str] = &[
    "client-body-buffer-size",
    "debug-connections",
    "disable-ipv6-dns",
    "enable-aio-write",
    "enable-multi-accept",
    "enable-serial-reloads",
    "error-log-level",
    "error-log-path",
    "forwarded-for-proxy-protocol-header",
    "geoip2-autoreload-in-minutes",
    "grpc-buffer-size-kb",
    "http2-max-field-size",
    "http2-max-header-size",
    "http2-max-requests",
    "jaeger-*",
    "log-format-escape-none",
    "lua-shared-dicts",
    "map-hash-*",
    "max-worker-connections",
    "max-worker-open-files",
    "nginx-status-ipv4-whitelist",
    "nginx-status-ipv6-whitelist",
    "proxy-buffering",
    "proxy-buffers-number",
    "proxy-busy-buffers-size",
    "proxy-cookie-*",
    "proxy-headers-hash-*",
    "proxy-redirect-from",
    "proxy-ssl-location-only",
    "reuse-port",
    "server-name-hash-*",
    "ssl-buffer-size",
    "ssl-session-cache",
    "ssl-session-cache-size",
    "use-geoip",
    "use-geoip2",
    "variables-hash-*",
    "worker-cpu-affinity",
    "worker-processes",
];

const REFUSED: &[(&str, &str)] = &[
    ("allow-snippet-annotations", SNIPPETS),
    ("annotation-value-word-blocklist", TEMPLATES),
    ("annotations-risk-level", TEMPLATES),
    ("enable-modsecurity", FIREWALL),
    ("enable-owasp-modsecurity-crs", FIREWALL),
    ("global-auth-snippet", SNIPPETS),
    ("http-snippet", SNIPPETS),
    ("location-snippet", SNIPPETS),
    ("main-snippet", SNIPPETS),
    ("modsecurity-snippet", SNIPPETS),
    ("server-snippet", SNIPPETS),
    ("ssl-session-ticket-key", TICKETS),
    ("stream-snippet", SNIPPETS),
];

/// Keys, and the values that match the actual behaviour.
const LATER: &[(&str, &str)] = &[
    ("access-log-params", ""),
    ("access-log-path", ""),
    ("allow-backend-server-header", "false"),
    ("allow-cross-namespace-resources", "false"),
    ("bind-address", ""),
    ("client-header-buffer-size", "1k"),
    ("default-type", ""),
    ("disable-ipv6", "false"),
    ("enable-access-log-for-default-backend", "false"),
    ("enable-syslog", "false"),
    ("generate-request-id", "true"),
    ("http-access-log-path", ""),
    ("ignore-invalid-headers", "true"),
    ("keep-alive-requests", "1000"),
    ("large-client-header-buffers", "4 8k"),
    ("limit-conn-zone-variable", ""),
    ("limit-rate", "0"),
    ("limit-rate-after", "0"),
    ("log-format-stream", ""),
    ("opentelemetry-config", ""),
    ("proxy-add-original-uri-header", "false"),
    ("proxy-buffer-size", ""),
    ("proxy-request-buffering", "on"),
    ("relative-redirects", "false"),
    ("server-tokens", "false"),
    ("stream-access-log-path", ""),
    ("strict-validate-path-type", "true"),
    ("syslog-host", ""),
    ("syslog-port", "514"),
    ("upstream-keepalive-requests", "10000"),
    ("upstream-keepalive-time", "1h"),
    ("worker-shutdown-timeout", "240s"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_in_one_table() {
        let keys = || {
            let names = INEFFECTIVE.iter().copied();
            let names = names.chain(FIXED.iter().map(|(key, _)| *key));
            names.chain(REFUSED.iter().map(|(key, _)| *key)).chain(LATER.iter().map(|(key, _)| *key))
        };
        for key in keys() {
            let sample = key.replace('*', "x");
            let matching = keys().filter(|other| match other.strip_suffix('*') {
                Some(prefix) => sample.starts_with(prefix),
                None => *other == sample,
            });
            assert_eq!(matching.count(), 1, "{key}");
            assert!(crate::translate::features::setting(&sample).is_none(), "{key} is honoured, too");
        }
    }
}
