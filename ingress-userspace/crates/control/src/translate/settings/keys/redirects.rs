//! Redirects to TLS, and HSTS.

use super::super::super::values::{Read, boolean, number, status};
use crate::translate::settings::row::{Setting, prefixes, setting};

/// Sorted by name.
pub(super) const SETTINGS: &[Setting] = &[
    setting(
        "force-ssl-redirect",
        "whether requests over plain HTTP are redirected to HTTPS for hosts without TLS, too",
        |value, globals| boolean(value, &mut globals.parsed.force_ssl_redirect),
    )
    .default("false"),
    setting(
        "hsts",
        "whether hosts with TLS send `Strict-Transport-Security` (RFC 6797), so that browsers use only TLS afterwards",
        |value, globals| boolean(value, &mut globals.hsts.enabled),
    )
    .default("false")
    .nginx("true"),
    setting("hsts-include-subdomains", "whether `Strict-Transport-Security` includes subdomains", |value, globals| {
        boolean(value, &mut globals.hsts.include_subdomains)
    })
    .default("true"),
    setting("hsts-max-age", "`max-age` of `Strict-Transport-Security`, in seconds", |value, globals| {
        number(value, 0..=u64::from(u32::MAX), &mut globals.hsts.max_age)
            .ok_or_else(|| "a number of seconds up to 4294967295".into())
    })
    .default("31536000"),
    setting("hsts-preload", "whether `Strict-Transport-Security` has `preload`", |value, globals| {
        boolean(value, &mut globals.hsts.preload)
    })
    .default("false"),
    setting("http-redirect-code", "status of redirects to HTTPS: 301, 302, 307 or 308", |value, globals| {
        redirect_status(value, &mut globals.redirect_status)
    })
    .default("308"),
    setting(
        "no-tls-redirect-locations",
        "paths, separated by commas; requests at or below them are not redirected to HTTPS. Those of ACME challenges \
         never are",
        |value, globals| {
            globals.redirect_except = prefixes(value)?;
            Ok(())
        },
    ),
    setting(
        "ssl-redirect",
        "whether requests over plain HTTP are redirected to HTTPS, for hosts with TLS",
        |value, globals| boolean(value, &mut globals.parsed.ssl_redirect),
    )
    .default("true"),
];

/// Reads the status of the redirect to HTTPS. 303 (See Other) is refused, because it refers to a different resource.
fn redirect_status(value: &str, field: &mut u16) -> Read {
    if value == "303" { None } else { status(value, field).ok() }.ok_or_else(|| "301, 302, 307 or 308".into())
}
