//! Settings of ingress-nginx that are known but not supported, as tables with the verdict on each. This module reports
//! nothing itself.

use crate::{translate::text::fits, verdict::Verdict};

/// Reason why a known setting is not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Other {
    /// The setting tunes a feature that does not exist here, or that cannot be tuned.
    Ineffective { because: &'static str },
    /// The setting has an effect in ingress-nginx that is missing here. The values `same` describe the actual behaviour,
    /// so they need no report.
    Lost { same: &'static [&'static str], loss: &'static str, instead: &'static str },
    /// The setting will not be implemented. The values `same` ask for no more than the actual behaviour.
    Refused { same: &'static [&'static str], instead: &'static str },
}

pub(super) fn find(key: &str) -> Option<Other> {
    let is = |pattern: &str| fits(pattern, key);
    if let Some((_, because)) = INEFFECTIVE.iter().find(|(pattern, _)| is(pattern)) {
        return Some(Other::Ineffective { because });
    }
    if let Some((_, instead)) = REFUSED.iter().find(|(pattern, _)| is(pattern)) {
        return Some(Other::Refused { same: &["", "false", "False", "FALSE", "f", "F", "0"], instead });
    }
    LOST.iter().find(|lost| is(lost.0)).map(|&(_, same, loss, instead)| Other::Lost { same, loss, instead })
}

// === impl Other ===

impl Other {
    pub(super) const fn verdict(self) -> Verdict {
        match self {
            Self::Ineffective { because } => Verdict::no_effect(because),
            Self::Lost { same: _, loss, instead } => Verdict::refused(loss, instead),
            Self::Refused { same: _, instead } => Verdict::refused("it is not supported, and will not be", instead),
        }
    }
}

const SNIPPETS: &str = "write annotations instead, because snippets of configuration are not supported";
const TEMPLATES: &str = "remove it, because no template exists that a value could break out of";
const FIREWALL: &str = "put a web application firewall in front of the services that need one";
const TICKETS: &str = "keys cannot be settings; put them into a Secret that `--tls-ticket-secret` names";

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

const CIPHERS: &str =
    "ciphers and key exchanges are those of TLS 1.2 and 1.3 that are safe, all of them with forward secrecy";
const STAPLES: &str =
    "responses are not fetched; `tls.ocsp-staple` of a TLS Secret is stapled while it is valid (docs/tls.md)";
const STREAMS: &str = "bodies are streamed, and buffers have fixed sizes";
const HASHES: &str = "hash tables have no fixed sizes here";
const WORKERS: &str = "there is one worker thread for each CPU, see `--workers`";
const LOG: &str = "the log of the process goes to standard error, see `--log`";
const JAEGER: &str = "spans are sent by OTLP alone, and ingress-nginx itself no longer reads it";
const HEADS: &str = "`large-client-header-buffers` bounds heads of requests, over every version of HTTP";
const NO_STATUS: &str = "there is no status page of nginx";
const SESSIONS: &str = "sessions are resumed by tickets alone, so there is no cache";

/// `*` at the end stands for any rest.
const INEFFECTIVE: &[(&str, &str)] = &[
    ("client-body-buffer-size", "the annotation sets it for the rules that buffer bodies"),
    ("client-header-buffer-size", "buffers for heads grow as they are needed"),
    ("debug-connections", LOG),
    ("default-type", "responses of pods keep the type that they have, or have none"),
    ("disable-ipv6-dns", "names are resolved to addresses of both families"),
    ("enable-aio-write", "no files are written"),
    ("enable-multi-accept", "workers accept all waiting connections"),
    ("enable-ocsp", STAPLES),
    ("enable-serial-reloads", "changes take effect without a reload"),
    ("error-log-level", LOG),
    ("error-log-path", LOG),
    ("forwarded-for-proxy-protocol-header", "the address in a PROXY protocol header is the client's everywhere"),
    ("geoip2-autoreload-in-minutes", "there is no GeoIP database"),
    ("grpc-buffer-size-kb", STREAMS),
    ("http2-max-field-size", HEADS),
    ("http2-max-header-size", HEADS),
    ("http2-max-requests", "connections have no maximum number of requests"),
    ("ignore-invalid-headers", "requests with invalid names of fields get 400"),
    ("jaeger-*", JAEGER),
    ("log-format-escape-none", "values in `log-format-upstream` are always escaped"),
    ("lua-shared-dicts", "there is no Lua"),
    ("map-hash-*", HASHES),
    ("max-worker-connections", "`max-connections` sets the maximum of each worker"),
    ("max-worker-open-files", "the process raises its limit of open files to the hard limit"),
    ("nginx-status-ipv4-whitelist", NO_STATUS),
    ("nginx-status-ipv6-whitelist", NO_STATUS),
    ("opentelemetry-config", "settings such as `otlp-collector-host` have all that it would contain"),
    ("proxy-buffering", STREAMS),
    ("proxy-buffers-number", STREAMS),
    ("proxy-busy-buffers-size", STREAMS),
    ("proxy-headers-hash-*", HASHES),
    ("proxy-ssl-location-only", "`proxy-ssl-…` annotations apply to the rules of their Ingress"),
    ("reuse-port", "each worker has sockets of its own"),
    ("server-name-hash-*", HASHES),
    ("ssl-buffer-size", STREAMS),
    ("ssl-ciphers", CIPHERS),
    ("ssl-dh-param", CIPHERS),
    ("ssl-ecdh-curve", CIPHERS),
    ("ssl-prefer-server-ciphers", CIPHERS),
    ("ssl-session-cache", SESSIONS),
    ("ssl-session-cache-size", SESSIONS),
    ("strict-validate-path-type", "paths of every type may have any character that a URL path may have"),
    ("variables-hash-*", HASHES),
    ("worker-cpu-affinity", WORKERS),
    ("worker-processes", WORKERS),
];

const STDOUT: &[&str] = &["", "/var/log/nginx/access.log", "/dev/stdout"];
const LOG_LOSS: &str = "lines of the access log go to standard output, unbuffered";
const SYSLOG: &str = "no log is sent to a syslog server";
const COLLECT: &str = "have the log collector of the cluster read the log of the pods";
const GEOIP: &str = "addresses are not looked up in GeoIP databases, and no variable has a country";
const GEOIP_INSTEAD: &str = "let a proxy in front set a field, or use `block-cidrs`";
const REDIRECTS: &str = "redirects of the proxy always name scheme and host";

/// Keys, values that match the actual behaviour, the loss with other values, and the remedy.
const LOST: &[(&str, &[&str], &str, &str)] = &[
    ("access-log-params", &[""], LOG_LOSS, COLLECT),
    ("access-log-path", STDOUT, LOG_LOSS, COLLECT),
    (
        "allow-backend-server-header",
        &["true"],
        "the field `Server` of pods always passes",
        "hide it with `hide-headers: Server`",
    ),
    (
        "allow-cross-namespace-resources",
        &["false"],
        "annotations name Secrets and ConfigMaps of their own namespace",
        "copy the object into the namespace of the Ingress",
    ),
    ("bind-address", &[""], "the ports are served on every address of the node", "use a firewall of the node"),
    ("disable-ipv6", &["false"], "the ports are served over IPv4 and IPv6", "use a firewall of the node"),
    (
        "enable-access-log-for-default-backend",
        &["true"],
        "requests for the default backend are in the access log like others",
        "remove it",
    ),
    ("enable-syslog", &["false"], SYSLOG, COLLECT),
    ("generate-request-id", &["true"], "pods always get `X-Request-ID`", "remove it"),
    ("http-access-log-path", STDOUT, LOG_LOSS, COLLECT),
    (
        "keep-alive-requests",
        &["1000"],
        "connections have no maximum number of requests",
        "`keep-alive` limits idle ones",
    ),
    (
        "limit-conn-zone-variable",
        &["", "$binary_remote_addr", "$remote_addr"],
        "limits of connections count by the client's address",
        "remove it",
    ),
    ("log-format-stream", &[""], "connections of TCP and UDP services are not logged", "use their metrics"),
    (
        "proxy-add-original-uri-header",
        &["false"],
        "pods do not get `X-Original-URI`",
        "`proxy-set-headers` with `X-Original-URI: $request_uri`",
    ),
    (
        "proxy-buffer-size",
        &[""],
        "heads of responses have up to 64 KiB, unless an Ingress sets the annotation",
        "the annotation `proxy-buffer-size`",
    ),
    (
        "proxy-request-buffering",
        &["off"],
        "bodies of requests are streamed, unless an Ingress sets the annotation",
        "the annotation `proxy-request-buffering`",
    ),
    ("relative-redirects", &["false"], REDIRECTS, "remove it"),
    ("server-tokens", &["false"], "responses never name a version", "remove it"),
    ("stream-access-log-path", STDOUT, "connections of TCP and UDP services are not logged", "use their metrics"),
    ("syslog-host", &[""], SYSLOG, COLLECT),
    ("syslog-port", &["514"], SYSLOG, COLLECT),
    ("upstream-keepalive-requests", &["10000"], "connections to pods have no maximum number of requests", "remove it"),
    ("upstream-keepalive-time", &["1h"], "connections to pods have no maximum age", "`upstream-keepalive-timeout`"),
    ("use-geoip", &["", "false", "true"], GEOIP, GEOIP_INSTEAD),
    ("use-geoip2", &["false"], GEOIP, GEOIP_INSTEAD),
    (
        "worker-shutdown-timeout",
        &["240s"],
        "the time for connections to end is a flag",
        "`--drain-timeout`, or `controller.drainTimeout` of the chart",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_in_one_table() {
        let keys = || {
            let names = INEFFECTIVE.iter().map(|(key, _)| *key);
            names.chain(REFUSED.iter().map(|(key, _)| *key)).chain(LOST.iter().map(|lost| lost.0))
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
