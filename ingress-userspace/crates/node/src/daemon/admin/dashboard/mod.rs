//! The dashboard: pages about the configuration and the node, for people. Read-only, without sessions or cookies.
//!
//! ```text
//!            ┌ overview ── hosts ── host ── explain ┐
//! Request ──>│ drops ── workers ── configuration    │──> Page ──> layout ──> document, or event for an open page
//!            └ certificates                         ┘
//! ```
//!
//! Each page is a pure function from data of the [`AdminSource`] to markup. The server makes complete tables, so pages
//! work without scripts. With its script, an open page asks for the same URL as a stream of events, and each event
//! brings its changed content ([`live`]). The permission to see a page is that for the API ([`api::permit`]), and no
//! page has addresses of clients.

mod assets;
mod certificates;
mod configuration;
mod drops;
mod explain;
mod format;
mod host;
mod hosts;
mod layout;
mod live;
mod overview;
mod table;
mod workers;

use std::{borrow::Cow, sync::Arc};

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use maud::{Markup, html};
use percent_encoding::percent_decode_str;

use super::{
    AdminSource, Answers, Reach, answers,
    api::{self, ApiError},
    body::AdminBody,
    query::Query,
};

/// Path of the first page, and prefix of all others.
const PREFIX: &str = "/dashboard";
/// Rows of a table on one page.
const ROWS: usize = 200;
/// Allows nothing but what this process serves; in particular no inline scripts, inline styles, frames or plugins.
const CONTENT_POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'";

/// A page of the dashboard.
struct PageKind {
    /// Path below [`PREFIX`]; with a `/` at the end, names below it are pages, too.
    path: &'static str,
    /// Text in the navigation; empty for a page that is not in it.
    label: &'static str,
    /// Names of parameters in the query.
    parameters: &'static [&'static str],
    refresh: Refresh,
    page: fn(&dyn AdminSource, &Target) -> Result<Page, PageError>,
}

/// Time at which the content of an open page is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refresh {
    EverySecond,
    /// After a change of the configuration, and once an hour for the sake of dates.
    WithConfiguration,
}

/// The wish of a request to a page.
#[derive(Debug, Default)]
struct Target {
    /// The name below the path of the page.
    name: String,
    query: Query,
}

/// Content of a page.
struct Page {
    status: StatusCode,
    title: String,
    main: Markup,
}

/// A page that cannot be shown.
#[derive(Debug, thiserror::Error)]
enum PageError {
    #[error(transparent)]
    Refused(#[from] ApiError),
    #[error("there is no page `{0}`")]
    NoPage(String),
    #[error("no host `{0}` is served or counted here; its name may be misspelled, or its Ingress has a problem")]
    NoHost(String),
    #[error("the name of the host is not UTF-8")]
    NotText,
}

const PAGES: [PageKind; 8] = [
    PageKind {
        path: "",
        label: "Overview",
        parameters: &[],
        refresh: Refresh::EverySecond,
        page: |source, _| Ok(overview::page(source)),
    },
    PageKind {
        path: "hosts",
        label: "Hosts",
        parameters: &["name", "sort", "page"],
        refresh: Refresh::EverySecond,
        page: |source, target| hosts::page(source, &target.query),
    },
    PageKind { path: "hosts/", label: "", parameters: &["page"], refresh: Refresh::EverySecond, page: host::page },
    PageKind {
        path: "explain",
        label: "Explain",
        parameters: &["url"],
        refresh: Refresh::WithConfiguration,
        page: |source, target| Ok(explain::page(source, &target.query)),
    },
    PageKind {
        path: "drops",
        label: "Drops",
        parameters: &[],
        refresh: Refresh::EverySecond,
        page: |source, _| Ok(drops::page(source)),
    },
    PageKind {
        path: "workers",
        label: "Workers",
        parameters: &[],
        refresh: Refresh::EverySecond,
        page: |source, _| Ok(workers::page(source)),
    },
    PageKind {
        path: "configuration",
        label: "Configuration",
        parameters: &["namespace", "reason", "severity", "page"],
        refresh: Refresh::WithConfiguration,
        page: |source, target| configuration::page(source, &target.query),
    },
    PageKind {
        path: "certificates",
        label: "Certificates",
        parameters: &["name", "page"],
        refresh: Refresh::WithConfiguration,
        page: |source, target| certificates::page(source, &target.query),
    },
];

/// Returns whether `path` is one of the dashboard.
pub(super) fn is_below(path: &str) -> bool {
    path.strip_prefix(PREFIX).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Answers a request for a page, its events, or an asset.
pub(super) fn answer<B>(answers: &Answers, request: &Request<B>, reach: Reach) -> Response<AdminBody> {
    let path = request.uri().path().strip_prefix(PREFIX).unwrap_or_default().trim_matches('/');
    let mut response = match find(answers, request, reach, path) {
        Ok(response) => response,
        Err(error) => document(&error.page(), None),
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Assets have a tag instead.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn find<B>(
    answers: &Answers,
    request: &Request<B>,
    reach: Reach,
    path: &str,
) -> Result<Response<AdminBody>, PageError> {
    api::permit(reach, request.headers())?;
    if let Some(asset) = path.strip_prefix("assets/") {
        let held = request.headers().get(header::IF_NONE_MATCH);
        return assets::answer(asset, held).ok_or_else(|| PageError::NoPage(request.uri().path().to_owned()));
    }
    let below = |kind: &&PageKind| match kind.path.strip_suffix('/') {
        Some(_) => path.strip_prefix(kind.path).is_some_and(|name| !name.is_empty()),
        None => path == kind.path,
    };
    let kind = PAGES.iter().find(below).ok_or_else(|| PageError::NoPage(request.uri().path().to_owned()))?;
    let target = Target::parse(kind, path, request.uri().query().unwrap_or_default())?;
    let page = (kind.page)(&*answers.source, &target)?;
    if request.method() == Method::GET && page.status == StatusCode::OK && live::is_wanted(request.headers()) {
        let source = Arc::clone(&answers.source);
        return Ok(live::response(answers.open(live::events(source, kind, target))?));
    }
    Ok(document(&page, Some(kind)))
}

fn document(page: &Page, kind: Option<&PageKind>) -> Response<AdminBody> {
    let text = layout::document(page, kind, live::now_millis()).into_string();
    let mut response = answers::typed(page.status, "text/html; charset=utf-8", text);
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    response
}

// === impl Page ===

impl Page {
    fn new(title: impl Into<String>, main: Markup) -> Self {
        Self { status: StatusCode::OK, title: title.into(), main }
    }
}

// === impl Target ===

impl Target {
    fn parse(kind: &PageKind, path: &str, query: &str) -> Result<Self, PageError> {
        let name = path.strip_prefix(kind.path).unwrap_or_default();
        let name = percent_decode_str(name).decode_utf8().map_err(|_invalid| PageError::NotText)?;
        Ok(Self { name: Cow::into_owned(name), query: Query::parse(query, kind.parameters)? })
    }
}

// === impl PageError ===

impl PageError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Refused(error) => error.status(),
            Self::NoPage(_) | Self::NoHost(_) => StatusCode::NOT_FOUND,
            Self::NotText => StatusCode::BAD_REQUEST,
        }
    }

    /// Returns a page that explains the error.
    fn page(&self) -> Page {
        let status = self.status();
        let title = status.canonical_reason().unwrap_or("Error");
        let main = html! {
            h1 { (title) }
            p.error { (format::marked(&self.to_string())) }
            p { a href=(PREFIX) { "Go to the overview" } }
        };
        Page { status, title: format!("{} {title}", status.as_u16()), main }
    }
}

#[cfg(test)]
mod tests;
