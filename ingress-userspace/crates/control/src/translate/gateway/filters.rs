//! Filters of rules and backends of HTTPRoutes and GRPCRoutes.

use std::{num::NonZeroU16, sync::Arc};

use http::HeaderValue;

use super::report::Flaw;
use crate::{
    gateway::{BackendRef, route},
    translate::text::{shorten, shorten_error},
};
use ingress_model::{
    Action, Cors, CorsWildcards, Filter, HeaderEdits, HeaderText, Host, Location, LocationParts, Mirror, MirrorShare,
    Origins, PathMatch, PathModifier, Redirect, ReplacementPath, Rewrite, UpstreamKey, UrlScheme,
};

/// The filters of a rule or backend, as far as they do not depend on the path of a match.
#[derive(Default)]
pub(super) struct ReadFilters<'f> {
    redirect: Option<&'f route::Redirect>,
    rewrite: Option<&'f route::Rewrite>,
    cors: Option<Arc<Cors>>,
    request_headers: Option<Arc<HeaderEdits>>,
    mirrors: Vec<Arc<Mirror>>,
    response_headers: Option<Arc<HeaderEdits>>,
    /// Whether one of the filters names a ConfigMap.
    is_extended: bool,
}

/// Statuses that a redirect may have.
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

// === impl ReadFilters ===

impl<'f> ReadFilters<'f> {
    /// Reads the filters of a rule. `upstream` resolves the backend of a mirror; without one, there are no copies.
    ///
    /// # Errors
    /// The flaw of the first filter that cannot be applied.
    pub(super) fn of_rule(
        filters: &'f [route::Filter],
        upstream: &mut dyn FnMut(&BackendRef) -> Option<UpstreamKey>,
    ) -> Result<Self, Flaw> {
        let mut read = Self::default();
        for filter in filters {
            read.add(filter, upstream)?;
        }
        if read.redirect.is_some() && read.rewrite.is_some() {
            let message = "a redirect and a rewrite exclude each other; remove one";
            return Err(Flaw::new("IncompatibleFilters", message));
        }
        Ok(read)
    }

    /// Reads the filters of a backend.
    ///
    /// # Errors
    /// The flaw of the first filter that cannot be applied.
    pub(super) fn of_backend(
        filters: &'f [route::Filter],
        upstream: &mut dyn FnMut(&BackendRef) -> Option<UpstreamKey>,
    ) -> Result<Self, Flaw> {
        let read = Self::of_rule(filters, upstream)?;
        if read.redirect.is_some() || read.cors.is_some() || read.is_extended {
            let message = "filters `RequestRedirect`, `CORS` and `ExtensionRef` are not supported for a backend; move them \
                           to the rule";
            return Err(Flaw::unsupported(message));
        }
        Ok(read)
    }

    fn add(
        &mut self,
        filter: &'f route::Filter,
        upstream: &mut dyn FnMut(&BackendRef) -> Option<UpstreamKey>,
    ) -> Result<(), Flaw> {
        fn set<T>(place: &mut Option<T>, value: T, filter: &route::Filter) -> Result<(), Flaw> {
            if place.replace(value).is_some() {
                return Err(Flaw::unsupported(format!("filter `{}` is there twice; remove one", filter.kind())));
            }
            Ok(())
        }
        match filter {
            route::Filter::RequestHeaderModifier(modifier) => set(&mut self.request_headers, edits(modifier)?, filter),
            route::Filter::ResponseHeaderModifier(modifier) => {
                set(&mut self.response_headers, edits(modifier)?, filter)
            }
            route::Filter::RequestRedirect(redirect) => set(&mut self.redirect, redirect, filter),
            route::Filter::UrlRewrite(rewrite) => set(&mut self.rewrite, rewrite, filter),
            route::Filter::Cors(policy) => set(&mut self.cors, cors(policy)?, filter),
            route::Filter::RequestMirror(mirror) => {
                let share = share(mirror)?;
                if let Some(upstream) = upstream(&mirror.backend_ref) {
                    self.mirrors.push(Mirror { upstream, host: None, target: None, body: true, share }.into());
                }
                Ok(())
            }
            // Its content is read with the annotations of the route.
            route::Filter::ExtensionRef(reference) if reference.is_own_config_map() => {
                self.is_extended = true;
                Ok(())
            }
            route::Filter::ExtensionRef(reference) => {
                let kind = shorten(reference.kind.as_str());
                let message = format!(
                    "filter `ExtensionRef` names an object of kind `{kind}`, which is not supported; name a ConfigMap of \
                     the core group, or remove it"
                );
                Err(Flaw::unsupported(message))
            }
            route::Filter::Other(_) => {
                Err(Flaw::unsupported(format!("filter `{}` is not supported; remove it", shorten(filter.kind()))))
            }
        }
    }

    /// Returns the filters for a match with this path, in the order of [`Filter`]'s variants.
    ///
    /// # Errors
    /// The flaw of a filter that does not fit the path.
    pub(super) fn at(&self, path: &PathMatch) -> Result<Vec<Filter>, Flaw> {
        let mut filters = Vec::new();
        filters.extend(self.cors.clone().map(Filter::Cors));
        if let Some(route::Rewrite { hostname, path: modifier }) = self.rewrite {
            if let Some(modifier) = modifier {
                filters.push(Filter::Rewrite(Rewrite::Path(path_modifier(modifier, path)?).into()));
            }
            if let Some(hostname) = hostname {
                let host = host(hostname)?;
                let value = HeaderValue::from_str(host.as_str()).map_err(|error| not_a_host(hostname, &error))?;
                filters.push(Filter::UpstreamHost(HeaderText::Fixed(value)));
            }
        }
        filters.extend(self.request_headers.clone().map(Filter::RequestHeaders));
        filters.extend(self.mirrors.iter().cloned().map(Filter::Mirror));
        filters.extend(self.response_headers.clone().map(Filter::ResponseHeaders));
        Ok(filters)
    }

    /// Returns the redirect for a match with this path, if there is one.
    ///
    /// # Errors
    /// The flaw of a redirect that does not fit the path.
    pub(super) fn redirect(&self, matched: &PathMatch) -> Result<Option<Action>, Flaw> {
        let Some(redirect) = self.redirect else { return Ok(None) };
        let route::Redirect { scheme, hostname, path, port, status_code } = redirect;
        if !REDIRECTS.contains(status_code) {
            let message = format!("status `{status_code}` is no redirect; use 301, 302, 303, 307 or 308");
            return Err(Flaw::unsupported(message));
        }
        let scheme = match scheme.as_deref() {
            None => None,
            Some("http") => Some(UrlScheme::Http),
            Some("https") => Some(UrlScheme::Https),
            Some(other) => {
                let message = format!("scheme `{}` is not supported; use `http` or `https`", shorten(other));
                return Err(Flaw::unsupported(message));
            }
        };
        let parts = LocationParts {
            scheme,
            host: hostname.as_deref().map(host).transpose()?,
            port: port.and_then(NonZeroU16::new),
            path: path.as_ref().map(|modifier| path_modifier(modifier, matched)).transpose()?,
        };
        Ok(Some(Action::Redirect(Redirect { status: *status_code, location: Location::Parts(parts) }.into())))
    }
}

fn edits(modifier: &route::HeaderModifier) -> Result<Arc<HeaderEdits>, Flaw> {
    fn pairs(headers: &[route::Header]) -> impl Iterator<Item = (&str, &str)> {
        headers.iter().map(|route::Header { name, value }| (&**name, &**value))
    }
    let route::HeaderModifier { set, add, remove } = modifier;
    HeaderEdits::literal(pairs(set), pairs(add), remove.iter().map(|name| &**name))
        .map(Arc::new)
        .map_err(|error| Flaw::unsupported(format!("{}; correct the filter", shorten_error(&error))))
}

/// Returns the share of requests of which a mirror gets copies.
fn share(route::Mirror { backend_ref: _, percent, fraction }: &route::Mirror) -> Result<Option<MirrorShare>, Flaw> {
    let (numerator, denominator) = match (percent, fraction) {
        (None, None) => return Ok(None),
        (Some(percent), None) => (*percent, 100),
        (None, Some(route::Fraction { numerator, denominator })) => (*numerator, *denominator),
        (Some(_), Some(_)) => {
            return Err(Flaw::unsupported("`percent` and `fraction` of a mirror exclude each other; remove one"));
        }
    };
    let share = MirrorShare::new(numerator, denominator);
    let message = || format!("`{numerator}` of `{denominator}` is no share of requests; correct the mirror");
    share.map(Some).ok_or_else(|| Flaw::unsupported(message()))
}

fn cors(policy: &route::Cors) -> Result<Arc<Cors>, Flaw> {
    let route::Cors { allow_origins, allow_credentials, allow_methods, allow_headers, expose_headers, max_age } =
        policy;
    let list = |values: &[Box<str>]| {
        let list = values.join(", ");
        HeaderValue::from_str(&list).map_err(|_invalid| {
            Flaw::unsupported(format!("`{}` cannot be in a header field; correct the filter", shorten(&list)))
        })
    };
    let origins = Origins::parse_list(allow_origins.iter().map(|origin| &**origin))
        .map_err(|error| Flaw::unsupported(format!("{}; correct `allowOrigins`", shorten_error(&error))))?;
    let cors = Cors {
        origins,
        methods: list(allow_methods)?,
        headers: list(allow_headers)?,
        expose: (!expose_headers.is_empty()).then(|| list(expose_headers)).transpose()?,
        credentials: *allow_credentials,
        max_age: *max_age,
        wildcards: CorsWildcards::Resolved,
    };
    Ok(Arc::new(cors))
}

fn host(hostname: &str) -> Result<Host, Flaw> {
    Host::parse(hostname).map_err(|error| not_a_host(hostname, &error))
}

fn not_a_host(hostname: &str, error: &dyn std::fmt::Display) -> Flaw {
    Flaw::unsupported(format!("`{}` cannot be a hostname: {}; correct the filter", shorten(hostname), error))
}

fn path_modifier(modifier: &route::PathModifier, matched: &PathMatch) -> Result<PathModifier, Flaw> {
    let parse = |path: &str| {
        ReplacementPath::parse(path)
            .map_err(|error| Flaw::unsupported(format!("{}; correct the filter", shorten_error(&error))))
    };
    match (modifier, matched) {
        (route::PathModifier::Full(path), _) => parse(path).map(PathModifier::Full),
        (route::PathModifier::Prefix(path), PathMatch::Prefix(prefix)) => {
            Ok(PathModifier::Prefix { matched: (**prefix).into(), replacement: parse(path)? })
        }
        (route::PathModifier::Prefix(_), PathMatch::Exact(_) | PathMatch::Pattern(_) | PathMatch::Beginning(_)) => {
            Err(Flaw::unsupported("`ReplacePrefixMatch` needs matches of type `PathPrefix`; change one of them"))
        }
        (route::PathModifier::Other(kind), _) => {
            let message = format!(
                "path modifier `{}` is not known; use `ReplaceFullPath` or `ReplacePrefixMatch`",
                shorten(kind)
            );
            Err(Flaw::unsupported(message))
        }
    }
}
