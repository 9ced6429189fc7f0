//! Annotations of ingress-nginx that are known but not supported, as tables with the message for each. This module
//! reports nothing itself.

use crate::translate::text::fits;

/// Reason why a known annotation is not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Other {
    /// The annotation tunes a feature that does not exist here.
    Ineffective { because: &'static str },
    /// The annotation protects the destination of a rule, so the rule must not be served without it.
    Protective { instead: &'static str },
}

pub(super) fn find(key: &str) -> Option<Other> {
    let is = |pattern: &str| fits(pattern, key);
    if let Some((_, because)) = INEFFECTIVE.iter().find(|(pattern, _)| is(pattern)) {
        return Some(Other::Ineffective { because });
    }
    PROTECTIVE.iter().find(|(pattern, _)| is(pattern)).map(|(_, instead)| Other::Protective { instead })
}

/// Returns `true` if `value` switches a protective key off.
pub(super) fn is_off(value: &str) -> bool {
    matches!(value, "" | "0" | "false" | "off")
}

const REMOVE: &str = "remove it to serve them";
const SNIPPETS: &str = "write annotations such as `response-headers` or `denylist-source-range` instead, because snippets of \
     configuration are not supported";
const FIREWALL: &str = "put a web application firewall in front of the services that need one";

/// Keys that protect the destination of a rule, and alternatives to them; `*` at the end stands for any rest. Snippets
/// are included because `deny`, `auth_request` and the like are written in them.
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

const STREAMS: &str = "bodies of responses are streamed and never buffered";
const POOLED: &str = "connections stay open while they are useful";

const INEFFECTIVE: &[(&str, &str)] = &[
    ("auth-keepalive*", POOLED),
    ("enable-rewrite-log", "this log does not exist"),
    ("http2-push-preload", "browsers no longer support server push"),
    ("proxy-buffering", STREAMS),
    ("proxy-buffers-number", STREAMS),
    ("proxy-busy-buffers-size", STREAMS),
    ("proxy-http-version", "pods are reached over HTTP/1.1, or over the protocol of `backend-protocol`"),
    ("proxy-max-temp-file-size", STREAMS),
    ("ssl-ciphers", "only safe ciphers are offered"),
    ("ssl-prefer-server-ciphers", "only safe ciphers are offered"),
    ("upstream-keepalive-*", POOLED),
];
