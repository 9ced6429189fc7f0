//! Annotations of ingress-nginx that are known but not honoured, as tables: what to say of each. It says nothing
//! itself.

use super::fits;

/// Why a known annotation is not honoured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Other {
    /// It tunes something that is not there.
    Ineffective { because: &'static str },
    /// It protects what is behind a rule, so that the rule must not be served without it.
    Protective { instead: &'static str },
}

pub(super) fn find(key: &str) -> Option<Other> {
    let is = |pattern: &str| fits(pattern, key);
    if let Some((_, because)) = INEFFECTIVE.iter().find(|(pattern, _)| is(pattern)) {
        return Some(Other::Ineffective { because });
    }
    PROTECTIVE.iter().find(|(pattern, _)| is(pattern)).map(|(_, instead)| Other::Protective { instead })
}

/// Whether `value` is one with which a protective key asks for nothing.
pub(super) fn is_off(value: &str) -> bool {
    matches!(value, "" | "0" | "false" | "off")
}

const REMOVE: &str = "remove it to serve them";
const SNIPPETS: &str =
    "write annotations as `response-headers` or `denylist-source-range` instead, configuration is never taken as text";
const FIREWALL: &str = "put a web application firewall in front of the services that need one";

/// Keys that protect what is behind a rule, and what to do instead; `*` at the end stands for any rest. Snippets are
/// among them because `deny`, `auth_request` and the like are written in them.
const PROTECTIVE: &[(&str, &str)] = &[
    ("auth-*", REMOVE),
    ("basic-auth*", REMOVE),
    ("client-cert*", REMOVE),
    ("configuration-snippet", SNIPPETS),
    ("enable-modsecurity", FIREWALL),
    ("enable-owasp-core-rules", FIREWALL),
    ("enable-owasp-modsecurity-crs", FIREWALL),
    ("global-rate-limit*", REMOVE),
    ("limit-*", REMOVE),
    ("modsecurity-*", FIREWALL),
    ("rate-limit*", REMOVE),
    ("server-snippet", SNIPPETS),
    ("stream-snippet", SNIPPETS),
];

const STREAMS: &str = "bodies are streamed and never kept";
const POOLED: &str = "connections are kept as long as they are of use";

const INEFFECTIVE: &[(&str, &str)] = &[
    ("auth-keepalive*", POOLED),
    ("client-body-buffer-size", STREAMS),
    ("enable-rewrite-log", "there is no such log"),
    ("http2-push-preload", "no browser takes pushes any more"),
    ("proxy-buffering", STREAMS),
    ("proxy-buffers-number", STREAMS),
    ("proxy-busy-buffers-size", STREAMS),
    ("proxy-http-version", "HTTP/1.1 is spoken to pods, or what `backend-protocol` says"),
    ("proxy-max-temp-file-size", STREAMS),
    ("proxy-request-buffering", STREAMS),
    ("ssl-ciphers", "only ciphers that are safe are offered"),
    ("ssl-prefer-server-ciphers", "only ciphers that are safe are offered"),
    ("upstream-keepalive-*", POOLED),
];
