//! CORS fields in responses (Fetch standard, 3.2.3 to 3.2.5).

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};

use super::Subject;
use crate::{Cors, CorsWildcards, Origins};

const TRUE: HeaderValue = HeaderValue::from_static("true");
const ANY: HeaderValue = HeaderValue::from_static("*");

/// Returns whether the request is a preflight (Fetch standard, 3.2.2): a plain `OPTIONS` may be meant for the pod.
pub(super) fn is_preflight(subject: &Subject<'_>) -> bool {
    let Subject { method, headers, .. } = subject;
    *method == Method::OPTIONS
        && headers.contains_key(header::ORIGIN)
        && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Replaces the pod's CORS fields, because browsers reject duplicates.
pub(super) fn respond(cors: &Cors, subject: &Subject<'_>, response: &mut HeaderMap) {
    let Cors { origins, methods, headers, expose, credentials, max_age, wildcards } = cors;
    let is_resolved = *wildcards == CorsWildcards::Resolved;
    // `*` is of no use to a browser that sends credentials.
    let replaces_any = is_resolved && *credentials;
    for name in [
        header::ACCESS_CONTROL_ALLOW_ORIGIN,
        header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
        header::ACCESS_CONTROL_ALLOW_METHODS,
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        header::ACCESS_CONTROL_MAX_AGE,
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
    ] {
        response.remove(name);
    }
    let origin = match origins {
        Origins::Any if replaces_any => {
            vary(response, "Origin");
            let Some(asked) = subject.headers.get(header::ORIGIN) else { return };
            asked.clone()
        }
        Origins::Any => ANY,
        Origins::These(origins) => {
            // The response depends on the origin, even if this origin is not allowed.
            vary(response, "Origin");
            let asked = subject.headers.get(header::ORIGIN);
            let is_allowed = |asked: &&HeaderValue| {
                asked.to_str().is_ok_and(|asked| origins.iter().any(|origin| origin.matches(asked)))
            };
            let Some(origin) = asked.filter(is_allowed) else { return };
            origin.clone()
        }
    };
    response.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    if *credentials {
        response.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, TRUE);
    }
    if is_preflight(subject) {
        for (name, allowed, asked) in [
            (header::ACCESS_CONTROL_ALLOW_METHODS, methods, header::ACCESS_CONTROL_REQUEST_METHOD),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, headers, header::ACCESS_CONTROL_REQUEST_HEADERS),
        ] {
            let value = if replaces_any && *allowed == ANY { subject.headers.get(asked) } else { Some(allowed) };
            if let Some(value) = value.filter(|value| !is_resolved || !value.is_empty()) {
                response.insert(name, value.clone());
            }
        }
        response.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from(*max_age));
    }
    let expose = match expose {
        Some(expose) if replaces_any && *expose == ANY => names(response),
        expose => expose.clone(),
    };
    if let Some(expose) = expose {
        response.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, expose);
    }
}

/// Returns the names of the fields that scripts may read. They never read cookies (Fetch standard, 2.2.2).
fn names(response: &HeaderMap) -> Option<HeaderValue> {
    let is_readable = |name: &&HeaderName| {
        **name != header::SET_COOKIE && **name != header::VARY && !name.as_str().starts_with("access-control-")
    };
    let names: Vec<_> = response.keys().filter(is_readable).map(HeaderName::as_str).collect();
    HeaderValue::try_from(names.join(", ")).ok().filter(|names| !names.is_empty())
}

/// Adds `name` to `Vary`, unless `name` or `*` is already listed.
pub(super) fn vary(headers: &mut HeaderMap, name: &'static str) {
    let mut names =
        headers.get_all(header::VARY).iter().filter_map(|value| value.to_str().ok()).flat_map(|v| v.split(','));
    if !names.any(|known| known.trim() == "*" || known.trim().eq_ignore_ascii_case(name)) {
        headers.append(header::VARY, HeaderValue::from_static(name));
    }
}
