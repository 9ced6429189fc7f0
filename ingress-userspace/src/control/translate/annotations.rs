//! Reads the annotations of an Ingress that change how it is served. It decides nothing about other objects.
//!
//! Keys are data: what is not in a table here is reported as unsupported and changes nothing.

use k8s_openapi::api::networking::v1::Ingress;

use super::{
    Context,
    protocol::{self, Wanted},
    settings::Globals,
};
use crate::control::outcome::{ObjectRef, Reason};

/// What the annotations of one Ingress ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) redirect: Redirect,
    pub(super) service: Service,
    pub(super) protocol: Wanted,
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

/// Our prefix, which goes before the one that is understood for compatibility.
const PREFIX: &str = "xdp-ingress.io";

const SSL_REDIRECT: &str = "ssl-redirect";
const FORCE_SSL_REDIRECT: &str = "force-ssl-redirect";
const BACKEND_PROTOCOL: &str = "backend-protocol";

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

/// Keys whose value is a list of the networks that may come in.
const ALLOWLISTS: [&str; 2] = ["allowlist-source-range", "whitelist-source-range"];

/// Reads every annotation of `ingress` with a known prefix.
pub(super) fn read(ingress: &Ingress, object: &ObjectRef, context: &mut Context<'_>) -> Policy {
    let prefixes = [PREFIX, context.options.annotations_prefix.trim_end_matches('/')];
    let redirect = redirect(ingress, prefixes, &context.globals);
    let protocol = value(BACKEND_PROTOCOL, ingress, prefixes);
    let mut service = Service::Full;
    for (annotation, value) in ingress.metadata.annotations.iter().flatten() {
        let Some(key) = prefixes.iter().find_map(|prefix| annotation.strip_prefix(prefix)?.strip_prefix('/')) else {
            continue;
        };
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
            BACKEND_PROTOCOL if Some(value) == protocol => backend_protocol(annotation, value, object, context),
            // The other prefix has it, too, and goes before this one.
            BACKEND_PROTOCOL => {}
            CANARY if parse(value) != Some(false) => {
                service = Service::Withhold;
                let message = format!("annotation `{annotation}` is not supported; this Ingress is not served");
                context.report(object, Reason::UnsupportedAnnotation, message);
            }
            _ if is_protective(key) => {
                if OFF.contains(&value) || (ALLOWLISTS.contains(&key) && is_everybody(value)) {
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
    Policy { redirect, service, protocol: protocol.and_then(protocol::of_annotation).unwrap_or_default() }
}

fn redirect(ingress: &Ingress, prefixes: [&str; 2], globals: &Globals) -> Redirect {
    let boolean = |key, default| value(key, ingress, prefixes).and_then(parse).unwrap_or(default);
    if boolean(FORCE_SSL_REDIRECT, globals.force_ssl_redirect) {
        Redirect::Always
    } else if boolean(SSL_REDIRECT, globals.ssl_redirect) {
        Redirect::WithTls
    } else {
        Redirect::Never
    }
}

/// Says what is wrong with a value of `backend-protocol`.
fn backend_protocol(annotation: &str, value: &str, object: &ObjectRef, context: &mut Context<'_>) {
    let value = shorten(value);
    match protocol::of_annotation(&value) {
        Some(Wanted::OfPort | Wanted::This(_)) => {}
        Some(Wanted::Unsupported) => {
            let message = format!(
                "annotation `{annotation}` is `{value}`, which is not supported; its rules answer 503, use `HTTP`, `HTTPS` or `GRPC`"
            );
            context.report(object, Reason::UnsupportedAnnotation, message);
        }
        None => {
            let message = format!(
                "annotation `{annotation}` is `{value}`; write `HTTP`, `HTTPS` or `GRPC`, the `appProtocol` of the port applies"
            );
            context.report(object, Reason::InvalidAnnotation, message);
        }
    }
}

/// The value of the annotation `key`, of the first prefix that has it.
fn value<'i>(key: &str, ingress: &'i Ingress, prefixes: [&str; 2]) -> Option<&'i str> {
    let annotations = ingress.metadata.annotations.as_ref()?;
    prefixes.iter().find_map(|prefix| annotations.get(&format!("{prefix}/{key}"))).map(|value| value.trim())
}

fn parse(value: &str) -> Option<bool> {
    match value {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// Whether a list of networks holds all addresses of both families, and so keeps nobody out.
fn is_everybody(value: &str) -> bool {
    let has = |network: &str| value.split(',').any(|entry| entry.trim() == network);
    has("0.0.0.0/0") && has("::/0")
}

fn is_protective(key: &str) -> bool {
    PROTECTIVE.iter().any(|pattern| fits(pattern, key))
}

/// Whether `pattern` names `key`; `*` at its end stands for any rest.
pub(super) fn fits(pattern: &str, key: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => key.starts_with(prefix),
        None => key == pattern,
    }
}

/// A value as it is fit to be printed.
pub(super) fn shorten(value: &str) -> String {
    const MAX_CHARS: usize = 64;
    match value.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.into(),
    }
}
