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
        "codings in which clients get responses, of `gzip`, `br` and `zstd`, separated by commas, the best first, or \
         `off`; instead of `use-gzip`, `enable-brotli` and `enable-zstd`, whose types and lengths apply. Specific to \
         xdp-ingress",
        |value, parsed| parsed.compression.choose(value),
    ),
    key("cors-allow-credentials", "whether browsers may send cookies and the like", |value, parsed| {
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
        "origins that may ask, separated by commas; `https://*.a.test` stands for one label more, `*` for all",
        |value, parsed| {
            parsed.cors.origins =
                Origins::parse(value).map_err(|error| format!("origins, separated by commas ({error})"))?;
            Ok(())
        },
    )
    .default("*")
    .or_refuse(),
    key("cors-expose-headers", "fields that browsers may show to scripts", |value, parsed| {
        let mut fields = HeaderValue::from_static("");
        names(value, &mut fields)?;
        parsed.cors.expose = Some(fields).filter(|fields| !fields.is_empty());
        Ok(())
    }),
    key("cors-max-age", "how long browsers may keep the answer to a preflight, in seconds", |value, parsed| {
        number(value, 0..=31_536_000, &mut parsed.cors.max_age).ok_or("a number of seconds up to 31536000")?;
        Ok(())
    })
    .default("1728000"),
    key(
        "custom-headers",
        "a ConfigMap whose data are fields that every response gets; `global-allowed-response-headers` may limit them",
        |value, parsed| {
            parsed.custom_headers = Some(value.to_owned());
            Ok(())
        },
    )
    .naming(Kind::ConfigMap)
    .or_refuse(),
    key("enable-access-log", "whether requests are in the access log, if there is one", |value, parsed| {
        boolean(value, &mut parsed.forwarding.logged)
    })
    .default("true"),
    key(
        "enable-cors",
        "whether other sites' pages may use the rules. Only real preflights are answered, other `OPTIONS` reach the \
         pods",
        |value, parsed| boolean(value, &mut parsed.enable_cors),
    )
    .default("false"),
    key(
        "request-headers",
        "changes of the fields that pods get, one a line: `Name: value`, `+Name: value` for one more, `-Name` for \
         none. Specific to xdp-ingress",
        |value, parsed| edits(value, &mut parsed.request_headers),
    )
    .or_refuse(),
    key("response-headers", "the same for the fields that clients get. Specific to xdp-ingress", |value, parsed| {
        edits(value, &mut parsed.response_headers)
    })
    .or_refuse(),
    key("upstream-vhost", "`Host` that pods get instead of the client's", |value, parsed| {
        let authority: Authority = value.parse().map_err(|_invalid| "a host, as `a.test` or `a.test:8080`")?;
        if authority.as_str().contains('@') {
            return Err("a host, without a user".into());
        }
        parsed.upstream_host = HeaderValue::from_str(authority.as_str()).ok();
        Ok(())
    })
    .or_refuse(),
    key("x-forwarded-prefix", "`X-Forwarded-Prefix` that pods get", |value, parsed| {
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
