//! Reads the annotations of an Ingress that change how it is served. It decides nothing about other objects.
//!
//! Keys are data: what is not in a table here is reported as unsupported and changes nothing.

use k8s_openapi::api::networking::v1::Ingress;

use super::Context;
use crate::control::outcome::{ObjectRef, Reason};

/// What the annotations of one Ingress ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) redirect: Redirect,
    pub(super) service: Service,
}

/// Which requests over plain HTTP are redirected to HTTPS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Redirect {
    /// None.
    Never,
    /// Those for hosts that have TLS, whichever Ingress gives it to them: the default.
    #[default]
    WithTls,
    /// All.
    Always,
}

/// Whether the Ingress can be served as it was meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    Full,
    /// A protection it asks for is not there, so its rules answer an error.
    Refuse,
    /// It means to change another Ingress' rules and must not stand for itself.
    Withhold,
}

/// Ours goes before the one that is understood for compatibility.
const PREFIXES: [&str; 2] = ["xdp-ingress.io/", "nginx.ingress.kubernetes.io/"];

const SSL_REDIRECT: &str = "ssl-redirect";
const FORCE_SSL_REDIRECT: &str = "force-ssl-redirect";

/// Makes an Ingress a variant of another one's rules.
const CANARY: &str = "canary";

/// Keys that protect what is behind a rule; `*` at the end stands for any rest. Snippets are among them because `deny`,
/// `auth_request` and the like are written in them.
const PROTECTIVE: [&str; 16] = [
    "allowlist-source-range",
    "auth-*",
    "basic-auth*",
    "configuration-snippet",
    "denylist-source-range",
    "enable-modsecurity",
    "enable-owasp-core-rules",
    "enable-owasp-modsecurity-crs",
    "global-rate-limit*",
    "limit-*",
    "modsecurity-*",
    "rate-limit*",
    "server-snippet",
    "stream-snippet",
    "whitelist-source-range",
    "client-cert*",
];

/// Values with which a protective key asks for nothing.
const OFF: [&str; 4] = ["", "0", "false", "off"];

/// Reads every annotation of `ingress` with a known prefix.
pub(super) fn read(ingress: &Ingress, object: &ObjectRef, context: &mut Context<'_>) -> Policy {
    let redirect = match (boolean(FORCE_SSL_REDIRECT, ingress), boolean(SSL_REDIRECT, ingress)) {
        (Some(true), _) => Redirect::Always,
        (_, Some(false)) => Redirect::Never,
        _ => Redirect::WithTls,
    };
    let mut service = Service::Full;
    for (annotation, value) in ingress.metadata.annotations.iter().flatten() {
        let Some(key) = PREFIXES.iter().find_map(|prefix| annotation.strip_prefix(prefix)) else { continue };
        let value = value.trim();
        match key {
            SSL_REDIRECT | FORCE_SSL_REDIRECT => {
                if parse(value).is_none() {
                    let message = format!(
                        "annotation `{annotation}` is `{}`; write \"true\" or \"false\", the default applies",
                        shorten(value)
                    );
                    context.report(object, Reason::InvalidAnnotation, message);
                }
            }
            CANARY if parse(value) != Some(false) => {
                service = Service::Withhold;
                let message = format!("annotation `{annotation}` is not supported; this Ingress is not served");
                context.report(object, Reason::UnsupportedAnnotation, message);
            }
            _ if is_protective(key) => {
                if OFF.contains(&value) {
                    continue;
                }
                if service == Service::Full {
                    service = Service::Refuse;
                }
                let message = format!(
                    "annotation `{annotation}` is not supported; its rules answer 503 rather than go unprotected, remove it to serve them"
                );
                context.report(object, Reason::UnsupportedAnnotation, message);
            }
            _ => {
                let message = format!("annotation `{annotation}` is not supported and has no effect; remove it");
                context.report(object, Reason::UnsupportedAnnotation, message);
            }
        }
    }
    Policy { redirect, service }
}

fn boolean(key: &str, ingress: &Ingress) -> Option<bool> {
    let annotations = ingress.metadata.annotations.as_ref()?;
    PREFIXES.iter().find_map(|prefix| annotations.get(&format!("{prefix}{key}"))).and_then(|value| parse(value.trim()))
}

fn parse(value: &str) -> Option<bool> {
    match value {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

fn is_protective(key: &str) -> bool {
    PROTECTIVE.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(prefix) => key.starts_with(prefix),
        None => key == *pattern,
    })
}

/// A value as it is fit to be printed.
pub(super) fn shorten(value: &str) -> String {
    const MAX_CHARS: usize = 64;
    match value.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.into(),
    }
}
