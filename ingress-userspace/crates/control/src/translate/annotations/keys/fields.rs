//! Header fields of requests and responses, and access logging.

use http::{HeaderName, HeaderValue, uri::Authority};

use super::super::super::values::{Read, boolean, number};
use crate::{
    change::Kind,
    translate::annotations::row::{Key, key},
};
use ingress_model::{HeaderEdit, HeaderEdits, HeaderText, Origins};

/// Sorted by name.
pub(super) const KEYS: &[Key] = &[
    key(
        "compression",
        "codings for responses, from `gzip`, `br` and `zstd`, separated by commas, the preferred one first, or `off`; \
         replaces `use-gzip`, `enable-brotli` and `enable-zstd`, but their types and lengths apply. Specific to \
         xdp-ingress",
        |value, parsed| parsed.compression.choose(value),
    ),
    key("cors-allow-credentials", "whether browsers may send credentials, such as cookies", |value, parsed| {
        boolean(value, &mut parsed.cors.credentials)
    })
    .default("true"),
    key("cors-allow-headers", "fields that browsers may send", |value, parsed| names(value, &mut parsed.cors.headers))
        .default(
            "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,\
         Authorization",
        ),
    key("cors-allow-methods", "methods that browsers may use", |value, parsed| names(value, &mut parsed.cors.methods))
        .default("GET, PUT, POST, DELETE, PATCH, OPTIONS"),
    key(
        "cors-allow-origin",
        "allowed origins, separated by commas; `https://*.a.test` matches one further label, `*` every origin",
        |value, parsed| {
            parsed.cors.origins =
                Origins::parse(value).map_err(|error| format!("origins, separated by commas ({error})"))?;
            Ok(())
        },
    )
    .default("*")
    .or_refuse(),
    key("cors-expose-headers", "fields that scripts may read", |value, parsed| {
        let mut fields = HeaderValue::from_static("");
        names(value, &mut fields)?;
        parsed.cors.expose = Some(fields).filter(|fields| !fields.is_empty());
        Ok(())
    }),
    key("cors-max-age", "how long browsers may cache the answer to a preflight, in seconds", |value, parsed| {
        number(value, 0..=31_536_000, &mut parsed.cors.max_age).ok_or("a number of seconds up to 31536000")?;
        Ok(())
    })
    .default("1728000"),
    key(
        "custom-headers",
        "a ConfigMap with fields to add to every response; `global-allowed-response-headers` may limit them",
        |value, parsed| {
            parsed.custom_headers = Some(value.to_owned());
            Ok(())
        },
    )
    .naming(Kind::ConfigMap)
    .or_refuse(),
    key("enable-access-log", "whether requests appear in the access log, if it is on", |value, parsed| {
        boolean(value, &mut parsed.forwarding.logged)
    })
    .default("true"),
    key(
        "enable-cors",
        "whether pages of other origins may use the rules. Only real preflights are answered; other `OPTIONS` \
         requests reach the pods",
        |value, parsed| boolean(value, &mut parsed.enable_cors),
    )
    .default("false"),
    key(
        "request-headers",
        "changes to the fields for pods, one per line: `Name: value` sets, `+Name: value` adds, `-Name` removes. \
         Specific to xdp-ingress",
        |value, parsed| edits(value, &mut parsed.request_headers),
    )
    .or_refuse(),
    key(
        "response-headers",
        "changes to the fields for clients, in the same form. Specific to xdp-ingress",
        |value, parsed| edits(value, &mut parsed.response_headers),
    )
    .or_refuse(),
    key("upstream-vhost", "`Host` for pods, instead of the client's", |value, parsed| {
        let authority: Authority = value.parse().map_err(|_invalid| "a host, as `a.test` or `a.test:8080`")?;
        if authority.as_str().contains('@') {
            return Err("a host, without a user".into());
        }
        parsed.upstream_host = HeaderValue::from_str(authority.as_str()).ok();
        Ok(())
    })
    .or_refuse(),
    key("x-forwarded-prefix", "`X-Forwarded-Prefix` for pods", |value, parsed| {
        let text = HeaderValue::from_str(value).map_err(|_invalid| "a path")?;
        let name = HeaderName::from_static("x-forwarded-prefix");
        parsed.request_headers.push(HeaderEdit::Set(name, HeaderText::Fixed(text)));
        Ok(())
    }),
];

/// Reads names of fields or methods, separated by commas, as they are sent on.
fn names(value: &str, field: &mut HeaderValue) -> Read {
    let is_token = |name: &str| name.is_empty() || name == "*" || HeaderName::try_from(name).is_ok();
    if !value.split(',').map(str::trim).all(is_token) {
        return Err("names, separated by commas".into());
    }
    *field = HeaderValue::from_str(value).map_err(|_invalid| "names, separated by commas")?;
    Ok(())
}

fn edits(value: &str, field: &mut HeaderEdits) -> Read {
    let edits = HeaderEdits::parse(value).map_err(|error| format!("a change a line, as `Name: value` ({error})"))?;
    field.extend(edits);
    Ok(())
}
