//! Pages of other origins that may use the rules.

use std::sync::Arc;

use http::{HeaderName, HeaderValue};

use super::row::{Row, key};
use crate::translate::values::{Read, boolean, number};
use ingress_model::{Cors, CorsWildcards, Filter, Origins};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedCors>] = &[
    key("cors-allow-credentials", "whether browsers may send credentials, such as cookies")
        .default("true")
        .reads(|value, parsed| boolean(value, &mut parsed.cors.credentials)),
    key("cors-allow-headers", "fields that browsers may send")
        .default(
            "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,\
         Authorization",
        )
        .reads(|value, parsed| names(value, &mut parsed.cors.headers)),
    key("cors-allow-methods", "methods that browsers may use")
        .default("GET, PUT, POST, DELETE, PATCH, OPTIONS")
        .reads(|value, parsed| names(value, &mut parsed.cors.methods)),
    key(
        "cors-allow-origin",
        "allowed origins, separated by commas; `https://*.a.test` matches one further label, `*` every origin",
    )
    .default("*")
    .or_refuse()
    .reads(|value, parsed| {
        parsed.cors.origins =
            Origins::parse(value).map_err(|error| format!("origins, separated by commas ({error})"))?;
        Ok(())
    }),
    key("cors-expose-headers", "fields that scripts may read").reads(|value, parsed| {
        let mut fields = HeaderValue::from_static("");
        names(value, &mut fields)?;
        parsed.cors.expose = Some(fields).filter(|fields| !fields.is_empty());
        Ok(())
    }),
    key("cors-max-age", "how long browsers may cache the answer to a preflight, in seconds").default("1728000").reads(
        |value, parsed| {
            number(value, 0..=31_536_000, &mut parsed.cors.max_age).ok_or("a number of seconds up to 31536000")?;
            Ok(())
        },
    ),
    key(
        "enable-cors",
        "whether pages of other origins may use the rules. Only real preflights are answered; other `OPTIONS` \
         requests reach the pods",
    )
    .differs("preflights alone are answered; other requests with `OPTIONS` reach the pod")
    .default("false")
    .reads(|value, parsed| boolean(value, &mut parsed.enabled)),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedCors {
    enabled: bool,
    cors: Cors,
}

impl Default for ParsedCors {
    fn default() -> Self {
        Self {
            enabled: false,
            cors: Cors {
                origins: Origins::Any,
                methods: HeaderValue::from_static("GET, PUT, POST, DELETE, PATCH, OPTIONS"),
                headers: HeaderValue::from_static(
                    "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization",
                ),
                expose: None,
                credentials: true,
                max_age: 1_728_000,
                wildcards: CorsWildcards::AsConfigured,
            },
        }
    }
}

// === impl ParsedCors ===

impl ParsedCors {
    pub(super) fn filter(self) -> Option<Filter> {
        let Self { enabled, cors } = self;
        enabled.then(|| Filter::Cors(Arc::new(cors)))
    }
}

/// Reads names of fields or methods, separated by commas, as they are sent on.
fn names(value: &str, field: &mut HeaderValue) -> Read {
    let is_token = |name: &str| name.is_empty() || name == "*" || HeaderName::try_from(name).is_ok();
    if !value.split(',').map(str::trim).all(is_token) {
        return Err("names, separated by commas".into());
    }
    *field = HeaderValue::from_str(value).map_err(|_invalid| "names, separated by commas")?;
    Ok(())
}
