//! Requests that the access log records, and the format of its lines.

use super::super::super::values::boolean;
use crate::translate::settings::row::{Setting, elements, setting};
use ingress_model::{LogEscape, LogFormat, PathMatch};

/// The format of ingress-nginx.
const UPSTREAM_INFO: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
     \"$http_referer\" \"$http_user_agent\" $request_length $request_time [$proxy_upstream_name] \
     [$proxy_alternative_upstream_name] $upstream_addr $upstream_response_length $upstream_response_time \
     $upstream_status $req_id";

/// Sorted by name.
pub(super) const SETTINGS: &[Setting] = &[
    setting(
        "disable-access-log",
        "whether the access log, a line for each request on standard output, is off",
        |value, globals| boolean(value, &mut globals.log.disabled),
    )
    .default("true")
    .nginx("false"),
    setting(
        "log-format-escape-json",
        "whether values in `log-format-upstream` are escaped for JSON",
        |value, globals| boolean(value, &mut globals.log.escapes_json),
    )
    .default("false"),
    setting(
        "log-format-upstream",
        "format of a line: a text with variables of nginx, of which the size variables count only bodies; if empty, \
         JSON with all values",
        |value, globals| {
            LogFormat::parse(value, LogEscape::Default).map_err(|error| format!("a text with variables ({error})"))?;
            value.clone_into(&mut globals.log.format);
            Ok(())
        },
    )
    .nginx(UPSTREAM_INFO),
    setting(
        "skip-access-log-urls",
        "paths of requests to omit from the access log, separated by commas",
        |value, globals| {
            let paths = elements(value).map(PathMatch::exact).collect::<Result<Vec<_>, _>>();
            globals.log.skip = paths.map_err(|error| format!("paths, separated by commas ({error})"))?.into();
            Ok(())
        },
    ),
];
