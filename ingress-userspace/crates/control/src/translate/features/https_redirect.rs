//! The redirect from plain HTTP to HTTPS.

use std::sync::Arc;

use super::row::{Row, key, prefixes};
use crate::translate::values::{Read, boolean, status};
use ingress_model::{Filter, PathMatch};

const INSTEAD: &str = "attach a route with a filter `RequestRedirect` to the listener for HTTP";

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedHttpsRedirect>] = &[
    key("force-ssl-redirect", "whether requests over plain HTTP are redirected to HTTPS for hosts without TLS, too")
        .default("false")
        .not_on_routes(INSTEAD)
        .reads(|value, parsed| boolean(value, &mut parsed.force_ssl_redirect)),
    key("ssl-redirect", "whether requests over plain HTTP are redirected to HTTPS, for hosts with TLS")
        .default("true")
        .not_on_routes(INSTEAD)
        .reads(|value, parsed| boolean(value, &mut parsed.ssl_redirect)),
];

/// The settings for all Ingresses are those of one.
pub(super) const DEFAULTS: &[Row<ParsedHttpsRedirect>] = ANNOTATIONS;

/// Sorted by name.
pub(super) const SETTINGS: &[Row<RedirectSettings>] = &[
    key("http-redirect-code", "status of redirects to HTTPS: 301, 302, 307 or 308")
        .differs("301, 302, 307 or 308")
        .default("308")
        .reads(|value, redirect| redirect_status(value, &mut redirect.status)),
    key(
        "no-tls-redirect-locations",
        "paths, separated by commas; requests at or below them are not redirected to HTTPS. Those of ACME challenges \
         never are",
    )
    .reads(|value, redirect| {
        redirect.except = prefixes(value)?;
        Ok(())
    }),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParsedHttpsRedirect {
    /// Whether hosts with TLS are redirected to it. Default true.
    ssl_redirect: bool,
    /// Whether all hosts are redirected to TLS. Default false.
    force_ssl_redirect: bool,
}

impl Default for ParsedHttpsRedirect {
    fn default() -> Self {
        Self { ssl_redirect: true, force_ssl_redirect: false }
    }
}

/// The redirect itself, the same for all Ingresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RedirectSettings {
    /// Default 308, which keeps the method, unlike 301 and 302.
    pub(crate) status: u16,
    /// Paths that are never redirected, besides those of challenges. Default none.
    except: Arc<[PathMatch]>,
}

impl Default for RedirectSettings {
    fn default() -> Self {
        Self { status: 308, except: [].into() }
    }
}

/// Requests over plain HTTP that are redirected to HTTPS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// No requests.
    Never,
    /// Requests for hosts that have TLS, from any Ingress: the default.
    #[default]
    WithTls,
    /// All requests.
    Always,
}

// === impl ParsedHttpsRedirect ===

impl ParsedHttpsRedirect {
    pub(super) const fn build(self) -> Redirect {
        match (self.force_ssl_redirect, self.ssl_redirect) {
            (true, _) => Redirect::Always,
            (false, true) => Redirect::WithTls,
            (false, false) => Redirect::Never,
        }
    }
}

// === impl Redirect ===

impl Redirect {
    /// Returns the filter for a rule, once it is known whether its host has TLS.
    pub(crate) fn filter(self, has_tls: bool, settings: &RedirectSettings) -> Option<Filter> {
        let redirects = match self {
            Self::Never => false,
            Self::WithTls => has_tls,
            Self::Always => true,
        };
        let RedirectSettings { status, except } = settings;
        redirects.then(|| Filter::RedirectHttps { status: *status, except: Arc::clone(except) })
    }
}

/// Reads the status of the redirect to HTTPS. 303 (See Other) is refused, because it refers to a different resource.
fn redirect_status(value: &str, field: &mut u16) -> Read {
    if value == "303" { None } else { status(value, field).ok() }.ok_or_else(|| "301, 302, 307 or 308".into())
}
