//! Annotations of ingress-nginx that are known but not supported, as tables with the verdict on each. This module reports
//! nothing itself.

use crate::{boolean, translate::text::fits, verdict::Verdict};

/// Reason why a known annotation is not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Other {
    /// The annotation tunes a feature that does not exist here, or that cannot be tuned.
    Ineffective { because: &'static str },
    /// The values `same` describe the actual behaviour, which other values cannot change.
    Fixed { same: &'static [&'static str], because: &'static str },
    /// The annotation protects the destination of a rule, so the rule must not be served without it.
    Protective { instead: &'static str },
}

pub(super) fn find(key: &str) -> Option<Other> {
    let is = |pattern: &str| fits(pattern, key);
    if let Some((_, because)) = INEFFECTIVE.iter().find(|(pattern, _)| is(pattern)) {
        return Some(Other::Ineffective { because });
    }
    if let Some(&(_, same, because)) = FIXED.iter().find(|(pattern, ..)| is(pattern)) {
        return Some(Other::Fixed { same, because });
    }
    PROTECTIVE.iter().find(|(pattern, _)| is(pattern)).map(|(_, instead)| Other::Protective { instead })
}

/// Returns `true` if `value` switches a protective key off.
pub(super) fn is_off(value: &str) -> bool {
    matches!(value, "" | "off") || boolean::boolean(value) == Some(false)
}

// === impl Other ===

impl Other {
    pub(super) const fn verdict(self) -> Verdict {
        match self {
            Self::Ineffective { because } => Verdict::no_effect(because),
            Self::Fixed { same: _, because } => Verdict::differs(because),
            Self::Protective { instead } => {
                Verdict::refused("its rules answer 503, because without it they would be unprotected", instead)
            }
        }
    }
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

const TRUE: &[&str] = &["true", "True", "TRUE", "t", "T", "1"];

/// Keys whose behaviour is fixed, the values that describe it, and what it is.
const FIXED: &[(&str, &[&str], &str)] = &[
    (
        "connection-proxy-header",
        &["keep-alive"],
        "connections to pods stay open, as with `keep-alive`, and requests for a WebSocket ask for the upgrade",
    ),
    ("preserve-trailing-slash", TRUE, "redirects to HTTPS always keep the path as it is, as with `true`"),
    ("proxy-buffering", &["off"], "bodies of responses are streamed and never buffered, as with `off`"),
    (
        "proxy-http-version",
        &["1.1"],
        "pods are reached over HTTP/1.1, or over the protocol of `backend-protocol`, and never over `1.0`",
    ),
    (
        "use-port-in-redirects",
        TRUE,
        "redirects to HTTPS always name the port of HTTPS unless it is 443, as with `true`",
    ),
];

const STREAMS: &str = "bodies of responses are streamed and never buffered";
const POOLED: &str = "connections stay open while they are useful";
const CIPHERS: &str = "only safe ciphers are offered";
const FASTCGI: &str = "pods are not reached over FastCGI, and `backend-protocol: FCGI` makes rules answer 503";

const INEFFECTIVE: &[(&str, &str)] = &[
    ("auth-keepalive*", POOLED),
    ("enable-rewrite-log", "this log does not exist"),
    ("fastcgi-index", FASTCGI),
    ("fastcgi-params-configmap", FASTCGI),
    ("http2-push-preload", "browsers no longer support server push"),
    ("proxy-buffers-number", STREAMS),
    ("proxy-busy-buffers-size", STREAMS),
    ("proxy-max-temp-file-size", STREAMS),
    ("proxy-ssl-ciphers", CIPHERS),
    ("relative-redirects", "redirects of the proxy always name scheme and host"),
    ("ssl-ciphers", CIPHERS),
    ("ssl-prefer-server-ciphers", CIPHERS),
    ("upstream-keepalive-*", POOLED),
];
