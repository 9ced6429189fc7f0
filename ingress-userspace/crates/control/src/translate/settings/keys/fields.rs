//! Header fields of requests and responses, and responses that an error page replaces.

use http::HeaderName;

use super::super::super::values::{Read, boolean};
use crate::{
    change::ObjectName,
    translate::settings::row::{Setting, elements, setting},
};

/// Sorted by name.
pub(super) const SETTINGS: &[Setting] = &[
    setting(
        "add-headers",
        "a ConfigMap, as `namespace/name`, with fields to add to every response",
        |value, globals| config_map(value, &mut globals.add_headers),
    ),
    setting(
        "custom-http-errors",
        "statuses of pods' responses to replace, unless an Ingress overrides it: see the annotation",
        |value, globals| globals.parsed.error_pages.statuses(value),
    ),
    setting(
        "disable-proxy-intercept-errors",
        "whether all responses of pods stay as they are, unless an Ingress overrides it",
        |value, globals| boolean(value, &mut globals.parsed.error_pages.disabled),
    )
    .default("false"),
    setting(
        "enable-underscores-in-headers",
        "whether pods get fields of clients with `_` in their names, which many pods read as `-`; a field that a pod \
         could take for one of the proxy's own is dropped in any case",
        |value, globals| boolean(value, &mut globals.settings.underscores),
    )
    .default("false"),
    setting(
        "global-allowed-response-headers",
        "fields that `custom-headers` of an Ingress may set, separated by commas; if empty, all",
        |value, globals| {
            globals.allowed_headers = header_names(value)?;
            Ok(())
        },
    ),
    setting("hide-headers", "fields of pods' responses to hide from clients, separated by commas", |value, globals| {
        globals.hidden_headers = header_names(value)?;
        Ok(())
    }),
    setting(
        "proxy-set-headers",
        "a ConfigMap, as `namespace/name`, with fields to add to every request for a pod",
        |value, globals| config_map(value, &mut globals.set_headers),
    ),
];

fn header_names(value: &str) -> Read<Vec<HeaderName>> {
    let names = elements(value).map(HeaderName::try_from).collect::<Result<_, _>>();
    names.map_err(|_invalid| "names of header fields, separated by commas".into())
}

/// Reads the name of a ConfigMap in any namespace, since the operator names it.
fn config_map(value: &str, field: &mut Option<ObjectName>) -> Read {
    *field = match value.split_once('/') {
        _ if value.is_empty() => None,
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => Some(ObjectName::new(namespace, name)),
        _ => return Err("a ConfigMap, as `namespace/name`".into()),
    };
    Ok(())
}
