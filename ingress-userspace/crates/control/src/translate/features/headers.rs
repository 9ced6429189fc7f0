//! Header fields that are set, added or removed, in requests for pods and in responses.

use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use k8s_openapi::api::core::v1::ConfigMap;

use super::{
    row::{Row, elements, key},
    scope::{Refusal, Scope},
};
use crate::{
    change::{Kind, ObjectName},
    outcome::{Origin, Reason},
    translate::{Context, values::Read},
};
use ingress_model::{Filter, HeaderEdit, HeaderEdits, HeaderText};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedHeaders>] = &[
    key(
        "custom-headers",
        "a ConfigMap with fields to add to every response; `global-allowed-response-headers` may limit them",
    )
    .naming(Kind::ConfigMap)
    .or_refuse()
    .reads(|value, parsed| {
        parsed.custom = Some(value.to_owned());
        Ok(())
    }),
    key(
        "request-headers",
        "changes to the fields for pods, one per line: `Name: value` sets, `+Name: value` adds, `-Name` removes. \
         Specific to xdp-ingress",
    )
    .or_refuse()
    .reads(|value, parsed| edits(value, &mut parsed.request)),
    key("response-headers", "changes to the fields for clients, in the same form. Specific to xdp-ingress")
        .or_refuse()
        .reads(|value, parsed| edits(value, &mut parsed.response)),
    key("x-forwarded-prefix", "`X-Forwarded-Prefix` for pods").reads(|value, parsed| {
        let text = HeaderValue::from_str(value).map_err(|_invalid| "a path")?;
        let name = HeaderName::from_static("x-forwarded-prefix");
        parsed.request.push(HeaderEdit::Set(name, HeaderText::Fixed(text)));
        Ok(())
    }),
];

/// Sorted by name.
pub(super) const SETTINGS: &[Row<HeaderSettings>] = &[
    key("add-headers", "a ConfigMap, as `namespace/name`, with fields to add to every response")
        .naming(Kind::ConfigMap)
        .reads(|value, headers| config_map(value, &mut headers.added)),
    key(
        "global-allowed-response-headers",
        "fields that `custom-headers` of an Ingress may set, separated by commas; if empty, all",
    )
    .differs("if empty, Ingresses may set all fields")
    .reads(|value, headers| {
        headers.allowed = header_names(value)?;
        Ok(())
    }),
    key("hide-headers", "fields of pods' responses to hide from clients, separated by commas").reads(
        |value, headers| {
            headers.hidden = header_names(value)?;
            Ok(())
        },
    ),
    key("proxy-set-headers", "a ConfigMap, as `namespace/name`, with fields to add to every request for a pod")
        .naming(Kind::ConfigMap)
        .reads(|value, headers| config_map(value, &mut headers.set)),
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedHeaders {
    request: HeaderEdits,
    response: HeaderEdits,
    /// A ConfigMap with fields of responses.
    custom: Option<String>,
}

/// Fields for all Ingresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeaderSettings {
    /// Fields that Ingresses may add to their responses by a ConfigMap; empty allows any. Default none.
    pub(super) allowed: Vec<HeaderName>,
    hidden: Vec<HeaderName>,
    /// ConfigMaps with fields of responses, and of requests.
    added: Option<ObjectName>,
    set: Option<ObjectName>,
}

/// The filters of one Ingress.
#[derive(Debug, Default)]
pub(super) struct HeaderFilters {
    pub(super) requests: Option<Filter>,
    pub(super) responses: Option<Filter>,
}

// === impl ParsedHeaders ===

impl ParsedHeaders {
    /// Returns the filters for requests and responses. `allowed` are the fields that a ConfigMap may have; empty allows
    /// any.
    pub(super) fn filters(self, allowed: &[HeaderName], scope: &mut Scope<'_, '_>) -> HeaderFilters {
        let Self { request, mut response, custom } = self;
        if let Some(value) = custom {
            match self::custom(&value, allowed, scope) {
                Ok(fields) => response.extend(fields),
                Err(refusal) => scope.refuse(refusal),
            }
        }
        HeaderFilters {
            requests: (!request.is_empty()).then(|| Filter::RequestHeaders(Arc::new(request))),
            responses: (!response.is_empty()).then(|| Filter::ResponseHeaders(Arc::new(response))),
        }
    }
}

// === impl HeaderSettings ===

impl HeaderSettings {
    /// Adds to `parsed` the fields for all Ingresses, with the content of the ConfigMaps.
    pub(crate) fn apply(&self, parsed: &mut ParsedHeaders, context: &mut Context<'_, '_>) {
        let Self { allowed: _, hidden, added, set } = self;
        for name in hidden {
            parsed.response.push(HeaderEdit::Remove(name.clone()));
        }
        if let Some(name) = added {
            parsed.response.extend(fields("add-headers", name, context));
        }
        if let Some(name) = set {
            parsed.request.extend(fields("proxy-set-headers", name, context));
        }
    }
}

/// Returns the header fields in the ConfigMap `name`, which `key` names; none if it cannot be read, which is reported
/// on it.
fn fields(key: &str, name: &ObjectName, context: &mut Context<'_, '_>) -> HeaderEdits {
    let Some(stored) = context.config_map(name) else {
        let message = format!("`{key}` names it, but it does not exist; create it, its fields are missing until then");
        context.report(&name.refer(Kind::ConfigMap, &Origin::Api), Reason::ConfigMapNotFound, message);
        return HeaderEdits::default();
    };
    let ConfigMap { data, .. } = &*stored.object;
    let fields = data.iter().flatten().map(|(field, value)| (field.as_str(), value.as_str()));
    HeaderEdits::setting(fields).unwrap_or_else(|error| {
        let message = format!("`{key}` names it, but {error}; correct it, its fields are missing until then");
        context.report(&stored.refer(Kind::ConfigMap, name), Reason::InvalidSetting, message);
        HeaderEdits::default()
    })
}

/// Returns the header fields in the ConfigMap `value`, or the reason why they are not available.
fn custom(value: &str, allowed: &[HeaderName], scope: &mut Scope<'_, '_>) -> Result<HeaderEdits, Refusal> {
    let name = scope.own("custom-headers", value, "ConfigMap")?;
    let Some(stored) = scope.lookup.config_map(&name) else {
        let message = format!("ConfigMap `{name}` of `custom-headers` does not exist; its rules answer 503, create it");
        return Err((Reason::ConfigMapNotFound, message));
    };
    let ConfigMap { data, .. } = &*stored.object;
    let fields = data.iter().flatten().map(|(field, value)| (field.as_str(), value.as_str()));
    let edits = HeaderEdits::setting(fields).map_err(|error| {
        let message =
            format!("ConfigMap `{name}` of `custom-headers`: {error}; its rules answer 503, correct the ConfigMap");
        (Reason::InvalidAnnotation, message)
    })?;
    match edits.iter().find(|edit| !allowed.is_empty() && !allowed.contains(edit.name())) {
        None => Ok(edits),
        Some(edit) => {
            let message = format!(
                "field `{}` of `custom-headers` is not in `global-allowed-response-headers`; its rules answer 503, remove it or ask the operator",
                edit.name()
            );
            Err((Reason::InvalidAnnotation, message))
        }
    }
}

fn edits(value: &str, field: &mut HeaderEdits) -> Read {
    let edits = HeaderEdits::parse(value).map_err(|error| format!("a change a line, as `Name: value` ({error})"))?;
    field.extend(edits);
    Ok(())
}

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
