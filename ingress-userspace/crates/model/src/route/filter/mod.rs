//! Applies a rule's filters to a request and to its response. Pure: decisions are made here and carried out by the
//! proxy.

use std::{borrow::Cow, fmt::Write as _, net::IpAddr, num::NonZeroU16, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, Method, header, uri::Authority};
use regex::Captures;

use super::template::render;
use crate::{
    Authentication, ClientCertificates, Compression, Demand, ErrorPages, Filter, HeaderEdit, HeaderEdits, HeaderText,
    Host, Location, LocationParts, Mirror, PathMatch, Redirect, Rewrite, Template, UrlScheme, filter::Limit,
    path::ACME_CHALLENGE,
};

mod compression;
mod cors;
mod rules;
mod urls;

pub use compression::compress;
pub use rules::{exempts, undecided_by};
pub use urls::rewrite_urls;

/// Properties of a request that filters use.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'r> {
    pub method: &'r Method,
    /// Canonical host, without port.
    pub host: &'r str,
    /// Port as sent by the client.
    pub port: Option<u16>,
    /// Path and query, in normal form.
    pub target: &'r str,
    pub headers: &'r HeaderMap,
    /// Whether the client's connection is encrypted.
    pub secure: bool,
    pub certificate: Shown,
    /// Fields for pods about the client's certificate, as lines of a head; empty if the host asks for none.
    pub certificate_fields: &'r str,
    pub client: IpAddr,
    /// HTTPS port for clients; 443 is omitted in redirects.
    pub https_port: u16,
    /// Port that the client connected to: the listener's, or that of a trusted proxy in front of it.
    pub listener_port: u16,
    /// Returns the Unix time, for `$msec`.
    pub clock: fn() -> Duration,
}

/// Validity of the client's certificate for the host of the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shown {
    /// No certificate was sent.
    #[default]
    Nothing,
    Valid,
    /// The issuer is not a known authority.
    OfUnknownIssuer,
    /// The certificate is expired, revoked, for another purpose, or otherwise invalid.
    Invalid,
    /// The host demands another name, and would admit the client otherwise.
    OfAnotherName,
}

impl Shown {
    /// Returns the reason for which `demand` refuses the client, if it does.
    #[must_use]
    pub fn lack(self, demand: Demand) -> Option<Lack> {
        match (self, demand) {
            (Self::Valid, _)
            | (Self::Nothing, Demand::Optional | Demand::OfAnyIssuer)
            | (Self::OfUnknownIssuer, Demand::OfAnyIssuer) => None,
            (Self::Nothing, Demand::Required) => Some(Lack::Certificate),
            (Self::OfUnknownIssuer, Demand::Required | Demand::Optional) | (Self::Invalid, _) => {
                Some(Lack::ValidCertificate)
            }
            (Self::OfAnotherName, _) => Some(Lack::Name),
        }
    }
}

/// Reason for which a client is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    Tls,
    Certificate,
    ValidCertificate,
    Name,
}

/// Verdict of a filter on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<'f> {
    /// Go on with the next filter, and with the rule's action after the last one.
    Continue,
    /// Answer with this redirect.
    Redirect { status: u16, location: String },
    /// Answer 403, or 400 if the request came over TLS.
    Unproven(Lack),
    /// Answer 403.
    Deny,
    /// Answer with this status, which a rule of the configuration demands.
    Refuse { status: u16 },
    /// Answer with this status and text, which a rule of the configuration demands.
    Respond { status: u16, body: &'f str },
    /// Count the request, and refuse it above the limit.
    Limit(&'f Limit),
    /// Answer a preflight with 204; [`respond`] adds the CORS fields.
    Preflight,
    /// Go on with the next filter if the client authenticates.
    Authenticate(&'f Authentication),
}

/// Edits of a request before it is forwarded.
#[derive(Debug, Default)]
pub struct Edits<'f> {
    /// Path and query that replace the client's.
    pub target: Option<String>,
    /// `Host` that replaces the client's.
    pub host: Option<Cow<'f, HeaderValue>>,
    /// Fields computed by the proxy (authentication, tracing, error pages), which replace the client's: zero, one or
    /// more per name. Edits in `headers` take precedence.
    pub found: Vec<(HeaderName, Option<HeaderValue>)>,
    /// Field edits, in the order of their application.
    pub headers: Vec<&'f HeaderEdit>,
}

impl Edits<'_> {
    /// Returns whether no field is edited.
    #[must_use]
    pub fn leave_fields(&self) -> bool {
        self.found.is_empty() && self.headers.is_empty()
    }

    /// Returns whether fields of the client or the proxy are removed for `name`. Names that differ only in `_` and `-`
    /// are equal here, because CGI and its descendants (RFC 3875, 4.1.18) do not distinguish them.
    #[must_use]
    pub fn replace(&self, name: &str) -> bool {
        self.found.iter().any(|(found, _)| is_alias(found.as_str(), name)) || self.is_edited(name)
    }

    /// Iterates over the fields that replace or complement the client's.
    pub fn fields(&self, subject: &Subject<'_>) -> impl Iterator<Item = (&HeaderName, HeaderValue)> {
        let last = |at: usize, name: &HeaderName| {
            !self.headers[at + 1..].iter().any(|later| later.replaces() && later.name() == name)
        };
        let found = self.found.iter().filter(|(name, _)| !self.is_edited(name.as_str()));
        let found = found.filter_map(|(name, value)| Some((name, value.clone()?)));
        found.chain(self.headers.iter().enumerate().filter_map(move |(at, edit)| match edit {
            HeaderEdit::Set(name, text) | HeaderEdit::Add(name, text) if last(at, name) => {
                Some((name, value(text, subject)?))
            }
            HeaderEdit::Set(..) | HeaderEdit::Add(..) | HeaderEdit::Remove(_) => None,
        }))
    }

    fn is_edited(&self, name: &str) -> bool {
        self.headers.iter().any(|edit| edit.replaces() && is_alias(edit.name().as_str(), name))
    }
}

fn is_alias(one: &str, other: &str) -> bool {
    let plain = |b: u8| if b == b'_' { b'-' } else { b };
    one.len() == other.len() && one.bytes().map(plain).eq(other.bytes().map(plain))
}

/// Applies one filter to a request.
pub fn apply<'f>(filter: &'f Filter, subject: &Subject<'_>, edits: &mut Edits<'f>) -> Verdict<'f> {
    match filter {
        Filter::RedirectHttps { status, except } => return redirect_https(*status, except, subject),
        Filter::ClientCertificate(clients) => {
            return match (lack(clients, subject), &clients.error_page) {
                (None, _) => Verdict::Continue,
                (Some(Lack::Certificate | Lack::ValidCertificate), Some(page)) => {
                    Verdict::Redirect { status: 302, location: render(page, subject, None) }
                }
                (Some(lack), _) => Verdict::Unproven(lack),
            };
        }
        Filter::Access(access) if access.admits(subject.client) => {}
        Filter::Access(_) => return Verdict::Deny,
        Filter::RequestRules(rules) => return rules::apply(rules, subject, edits),
        Filter::Limit(limit) => return Verdict::Limit(limit),
        Filter::Cors(_) if cors::is_preflight(subject) => return Verdict::Preflight,
        Filter::Authentication(authentication) => {
            // Passwords are verified here, so pods do not need them.
            if authentication.basic.is_some() {
                edits.found.push((header::AUTHORIZATION, None));
            }
            // Values claimed by the client itself are always removed.
            let claimed = authentication.token.iter().flat_map(|token| &token.passed);
            edits.found.extend(claimed.map(|(name, _)| (name.clone(), None)));
            if !authentication.is_met_by(subject.client) {
                return Verdict::Authenticate(authentication);
            }
            // The service is not asked, so its fields can only be claims.
            edits.found.extend(authentication.claimed());
        }
        // `*` refers to the server as a whole (RFC 9110, 9.3.7).
        Filter::Rewrite(_) if subject.target == "*" => {}
        Filter::Rewrite(rewrite) => {
            let target = rewritten(rewrite, subject);
            if matches!(**rewrite, Rewrite::Redirect { .. }) {
                return Verdict::Redirect { status: 302, location: target };
            }
            edits.target = Some(target);
        }
        Filter::UpstreamHost(HeaderText::Fixed(host)) => edits.host = Some(Cow::Borrowed(host)),
        Filter::UpstreamHost(HeaderText::Template(template)) => match upstream_host(template, subject) {
            Some(host) => edits.host = Some(Cow::Owned(host)),
            None => return Verdict::Refuse { status: 400 },
        },
        Filter::RequestHeaders(headers) => edits.headers.extend(headers.iter()),
        Filter::Cors(_)
        | Filter::Mirror(_)
        | Filter::ErrorPages(_)
        | Filter::ResponseHeaders(_)
        | Filter::Compression(_)
        | Filter::StrictTransportSecurity(_) => {}
    }
    Verdict::Continue
}

/// Applies the filters to the head of a response, from the pod or from the proxy.
pub fn respond(filters: &[Filter], subject: &Subject<'_>, headers: &mut HeaderMap) {
    for filter in filters {
        match filter {
            Filter::Cors(cors) => cors::respond(cors, subject, headers),
            Filter::ResponseHeaders(edits) => edit(edits, subject, headers),
            Filter::StrictTransportSecurity(value) if subject.secure => {
                headers.insert(header::STRICT_TRANSPORT_SECURITY, value.clone());
            }
            Filter::StrictTransportSecurity(_)
            | Filter::RedirectHttps { .. }
            | Filter::ClientCertificate(_)
            | Filter::Access(_)
            | Filter::RequestRules(_)
            | Filter::Limit(_)
            | Filter::Authentication(_)
            | Filter::Rewrite(_)
            | Filter::UpstreamHost(_)
            | Filter::RequestHeaders(_)
            | Filter::Mirror(_)
            | Filter::ErrorPages(_)
            | Filter::Compression(_) => {}
        }
    }
}

/// Iterates over the mirrors of a rule, whether or not they take the next request.
pub fn mirrors(filters: &[Filter]) -> impl Iterator<Item = &Mirror> {
    filters.iter().filter_map(|filter| match filter {
        Filter::Mirror(mirror) => Some(&**mirror),
        _ => None,
    })
}

/// Returns the custom error pages, if any.
#[must_use]
pub fn error_pages(filters: &[Filter]) -> Option<&ErrorPages> {
    filters.iter().find_map(|filter| match filter {
        Filter::ErrorPages(pages) => Some(&**pages),
        _ => None,
    })
}

/// Returns the compression policy, to be applied to the otherwise final head of the response.
#[must_use]
pub fn compression(filters: &[Filter]) -> Option<&Compression> {
    filters.iter().find_map(|filter| match filter {
        Filter::Compression(compression) => Some(&**compression),
        _ => None,
    })
}

/// Returns the target of a redirect for this request.
#[must_use]
pub fn location(redirect: &Redirect, subject: &Subject<'_>) -> String {
    location_with(redirect, subject, None)
}

/// Returns the target of a redirect, with the groups of an expression.
fn location_with(redirect: &Redirect, subject: &Subject<'_>, groups: Option<&Captures<'_>>) -> String {
    let template = match &redirect.location {
        Location::Template(template) => template,
        Location::Parts(parts) => return url(parts, subject),
    };
    let location = render(template, subject, groups);
    // RFC 9110, 10.2.2, allows a bare path, but old clients expect an absolute URI.
    if location.starts_with('/') {
        let scheme = if subject.secure { "https" } else { "http" };
        return format!("{scheme}://{}{location}", subject.host);
    }
    location
}

/// Returns the URL of the request with `parts` in place of its own.
fn url(parts: &LocationParts, subject: &Subject<'_>) -> String {
    let LocationParts { scheme, host, port, path: modifier } = parts;
    let own_scheme = if subject.secure { UrlScheme::Https } else { UrlScheme::Http };
    let port = port.map_or_else(|| scheme.map_or(subject.listener_port, UrlScheme::default_port), NonZeroU16::get);
    let scheme = scheme.unwrap_or(own_scheme);
    let mut url = format!("{}://{}", scheme.as_str(), host.as_ref().map_or(subject.host, Host::as_str));
    if port != scheme.default_port() {
        // Writing to a string cannot fail.
        let _infallible = write!(url, ":{port}");
    }
    let old = path(subject.target);
    let new = modifier.as_ref().map_or(Cow::Borrowed(old), |modifier| modifier.apply(old).into());
    // `*` is the server as a whole, which a URL names by an empty path (RFC 9112, 3.2.4).
    if new != "*" {
        url.push_str(&new);
    }
    url.push_str(&subject.target[old.len()..]);
    url
}

/// Renders the value of a field, or returns `None` if the request's data does not form a valid one.
#[must_use]
pub fn value(text: &HeaderText, subject: &Subject<'_>) -> Option<HeaderValue> {
    match text {
        HeaderText::Fixed(value) => Some(value.clone()),
        HeaderText::Template(template) => HeaderValue::try_from(render(template, subject, None)).ok(),
    }
}

/// Renders a `Host`, or returns `None` if the request's data makes no host.
fn upstream_host(template: &Template, subject: &Subject<'_>) -> Option<HeaderValue> {
    let host = render(template, subject, None);
    let is_host = !host.contains('@') && host.parse::<Authority>().is_ok();
    HeaderValue::try_from(host).ok().filter(|_| is_host)
}

fn edit(edits: &HeaderEdits, subject: &Subject<'_>, headers: &mut HeaderMap) {
    for edit in edits {
        match edit {
            HeaderEdit::Set(name, text) => match value(text, subject) {
                Some(value) => drop(headers.insert(name, value)),
                None => drop(headers.remove(name)),
            },
            HeaderEdit::Add(name, text) => {
                if let Some(value) = value(text, subject) {
                    headers.append(name, value);
                }
            }
            HeaderEdit::Remove(name) => drop(headers.remove(name)),
        }
    }
}

fn redirect_https(status: u16, except: &[PathMatch], subject: &Subject<'_>) -> Verdict<'static> {
    let Subject { host, target, secure, https_port, .. } = *subject;
    // `*` is not a path, so there is no target for a redirect.
    if secure || target == "*" {
        return Verdict::Continue;
    }
    let path = path(target);
    let is_challenge = path.strip_prefix(ACME_CHALLENGE).is_some_and(|below| below.starts_with('/'));
    if is_challenge || except.iter().any(|except| except.matches(path)) {
        return Verdict::Continue;
    }
    let location = match https_port {
        443 => format!("https://{host}{target}"),
        port => format!("https://{host}:{port}{target}"),
    };
    Verdict::Redirect { status, location }
}

fn lack(clients: &ClientCertificates, subject: &Subject<'_>) -> Option<Lack> {
    if subject.secure { subject.certificate.lack(clients.demand) } else { Some(Lack::Tls) }
}

fn rewritten(rewrite: &Rewrite, subject: &Subject<'_>) -> String {
    let (pattern, target) = match rewrite {
        Rewrite::Template { pattern, target } | Rewrite::Redirect { pattern, target } => (pattern, target),
        Rewrite::Path(modifier) => {
            let old = path(subject.target);
            return modifier.apply(old) + &subject.target[old.len()..];
        }
    };
    let captures = pattern.as_ref().and_then(|pattern| pattern.captures(path(subject.target)));
    let mut rewritten = render(target, subject, captures.as_ref());
    if !rewritten.starts_with('/') && matches!(rewrite, Rewrite::Template { .. }) {
        rewritten.insert(0, '/');
    }
    if let Some((_, query)) = subject.target.split_once('?').filter(|(_, query)| !query.is_empty()) {
        rewritten.push(if rewritten.contains('?') { '&' } else { '?' });
        rewritten.push_str(query);
    }
    rewritten
}

fn path(target: &str) -> &str {
    target.split_once('?').map_or(target, |(path, _)| path)
}

#[cfg(test)]
mod tests;
