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
        "a ConfigMap, as `namespace/name`, whose data are fields that every response gets",
        |value, globals| config_map(value, &mut globals.add_headers),
    ),
    setting(
        "custom-http-errors",
        "statuses of pods' responses that are replaced, where an Ingress does not say: as the annotation",
        |value, globals| globals.parsed.error_pages.statuses(value),
    ),
    setting(
        "disable-proxy-intercept-errors",
        "whether no response of a pod is replaced, where an Ingress does not say",
        |value, globals| boolean(value, &mut globals.parsed.error_pages.disabled),
    )
    .default("false"),
    setting(
        "enable-underscores-in-headers",
        "whether pods get fields of clients whose names have `_` in them, which many pods take for `-`; those that would \
         be taken for a field that only the proxy may set are dropped in any case",
        |value, globals| boolean(value, &mut globals.settings.underscores),
    )
    .default("false"),
    setting(
        "global-allowed-response-headers",
        "fields that `custom-headers` of an Ingress may set, separated by commas; all if there are none",
        |value, globals| {
            globals.allowed_headers = header_names(value)?;
            Ok(())
        },
    ),
    setting("hide-headers", "fields of pods that clients do not get, separated by commas", |value, globals| {
        globals.hidden_headers = header_names(value)?;
        Ok(())
    }),
    setting(
        "proxy-set-headers",
        "a ConfigMap, as `namespace/name`, whose data are fields that every pod gets",
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
