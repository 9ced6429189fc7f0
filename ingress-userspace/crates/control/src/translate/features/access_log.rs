//! The access log: the format of its lines, and the requests that it contains.

use std::sync::Arc;

use super::row::{Row, elements, key};
use crate::translate::values::boolean;
use ingress_model::{AccessLog, LogEscape, LogFormat, PathMatch};

/// The format of ingress-nginx.
const UPSTREAM_INFO: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
     \"$http_referer\" \"$http_user_agent\" $request_length $request_time [$proxy_upstream_name] \
     [$proxy_alternative_upstream_name] $upstream_addr $upstream_response_length $upstream_response_time \
     $upstream_status $req_id";

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedAccessLog>] =
    &[key("enable-access-log", "whether requests appear in the access log, if it is on")
        .default("true")
        .reads(|value, parsed| boolean(value, &mut parsed.logged))];

/// Sorted by name.
pub(super) const SETTINGS: &[Row<Log>] = &[
    key("disable-access-log", "whether the access log, a line for each request on standard output, is off")
        .default("true")
        .nginx("false")
        .reads(|value, log| boolean(value, &mut log.disabled)),
    key("log-format-escape-json", "whether values in `log-format-upstream` are escaped for JSON")
        .default("false")
        .reads(|value, log| boolean(value, &mut log.escapes_json)),
    key(
        "log-format-upstream",
        "format of a line: a text with variables of nginx, of which the size variables count only bodies; if empty, \
         JSON with all values",
    )
    .differs("variables that are not listed for settings are refused; sizes count bodies alone")
    .nginx(UPSTREAM_INFO)
    .reads(|value, log| {
        LogFormat::parse(value, LogEscape::Default).map_err(|error| format!("a text with variables ({error})"))?;
        value.clone_into(&mut log.format);
        Ok(())
    }),
    key("skip-access-log-urls", "paths of requests to omit from the access log, separated by commas").reads(
        |value, log| {
            let paths = elements(value).map(PathMatch::exact).collect::<Result<Vec<_>, _>>();
            log.skip = paths.map_err(|error| format!("paths, separated by commas ({error})"))?.into();
            Ok(())
        },
    ),
];

/// Values for one Ingress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParsedAccessLog {
    /// Default true.
    pub(crate) logged: bool,
}

impl Default for ParsedAccessLog {
    fn default() -> Self {
        Self { logged: true }
    }
}

/// Settings of the access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    disabled: bool,
    /// The text as it was written; empty for JSON.
    format: String,
    escapes_json: bool,
    skip: Arc<[PathMatch]>,
}

impl Default for Log {
    fn default() -> Self {
        Self { disabled: true, format: String::new(), escapes_json: false, skip: [].into() }
    }
}

// === impl Log ===

impl Log {
    pub(crate) fn build(&self) -> Option<Arc<AccessLog>> {
        let Self { disabled, format, escapes_json, skip } = self;
        let escape = if *escapes_json { LogEscape::Json } else { LogEscape::Default };
        // Formats that could not be parsed were not stored.
        let format = LogFormat::parse(format, escape).ok().filter(|_| !format.is_empty()).unwrap_or_default();
        (!disabled).then(|| Arc::new(AccessLog { format, skip: Arc::clone(skip) }))
    }
}
