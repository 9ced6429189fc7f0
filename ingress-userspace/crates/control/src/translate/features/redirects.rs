//! Redirects to other places, instead of pods.

use std::sync::Arc;

use super::row::{Row, key};
use crate::translate::values::{location, status};
use ingress_model::{Redirect, Template};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedRedirects>] = &[
    key("app-root", "redirects requests for `/` to this path or URL, with 302")
        .or_refuse()
        .not_on_routes("write a rule for the exact path `/` with a filter `RequestRedirect`")
        .reads(|value, parsed| {
            parsed.app_root = Some(location(value)?);
            Ok(())
        }),
    key("permanent-redirect", "redirects all requests to this location, instead of forwarding them").or_refuse().reads(
        |value, parsed| {
            parsed.permanent_redirect = Some(location(value)?);
            Ok(())
        },
    ),
    key("permanent-redirect-code", "status of `permanent-redirect`")
        .differs("301, 302, 303, 307 or 308")
        .default("301")
        .reads(|value, parsed| status(value, &mut parsed.permanent_status)),
    key("temporal-redirect", "the same as `permanent-redirect`, with another status; it takes precedence")
        .or_refuse()
        .reads(|value, parsed| {
            parsed.temporal_redirect = Some(location(value)?);
            Ok(())
        }),
    key("temporal-redirect-code", "status of `temporal-redirect`")
        .differs("301, 302, 303, 307 or 308")
        .default("302")
        .reads(|value, parsed| status(value, &mut parsed.temporal_status)),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedRedirects {
    app_root: Option<Template>,
    permanent_redirect: Option<Template>,
    permanent_status: u16,
    temporal_redirect: Option<Template>,
    temporal_status: u16,
}

impl Default for ParsedRedirects {
    fn default() -> Self {
        Self {
            app_root: None,
            permanent_redirect: None,
            permanent_status: 301,
            temporal_redirect: None,
            temporal_status: 302,
        }
    }
}

/// The redirects of one Ingress.
#[derive(Clone, Debug, Default)]
pub(crate) struct Redirects {
    /// Redirect of every rule, instead of a service.
    pub(crate) elsewhere: Option<Arc<Redirect>>,
    /// Redirect of requests for `/`.
    pub(crate) app_root: Option<Arc<Redirect>>,
}

// === impl ParsedRedirects ===

impl ParsedRedirects {
    pub(super) fn build(self) -> Redirects {
        let Self { app_root, permanent_redirect, permanent_status, temporal_redirect, temporal_status } = self;
        let redirect = |status, location: Template| Arc::new(Redirect { status, location: location.into() });
        let elsewhere = temporal_redirect
            .map(|location| redirect(temporal_status, location))
            .or_else(|| permanent_redirect.map(|location| redirect(permanent_status, location)));
        Redirects { elsewhere, app_root: app_root.map(|location| redirect(302, location)) }
    }
}
