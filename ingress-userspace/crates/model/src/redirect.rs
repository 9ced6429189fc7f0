//! Redirects of clients to another URL. The URL is made in [`crate::route::filter`].

use std::{fmt, num::NonZeroU16};

use super::{Host, PathModifier, Template};

/// Redirects the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// Status: 301, 302, 303, 307 or 308.
    pub status: u16,
    pub location: Location,
}

/// The URL to which a redirect leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// URI, or a path on the same host.
    Template(Template),
    /// Parts that replace those of the request. The query stays.
    Parts(LocationParts),
}

/// Parts of a URL; those of the request are used in place of `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocationParts {
    pub scheme: Option<UrlScheme>,
    pub host: Option<Host>,
    /// Port; `None` is the default of `scheme` if that is given, and otherwise the port that the client connected to.
    /// 80 for `http` and 443 for `https` are never written.
    pub port: Option<NonZeroU16>,
    pub path: Option<PathModifier>,
}

/// Scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlScheme {
    Http,
    Https,
}

// === impl UrlScheme ===

impl UrlScheme {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// Returns the port of URLs without one (RFC 9110, 4.2).
    #[must_use]
    pub fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

// === impl Location, LocationParts ===

impl From<Template> for Location {
    fn from(template: Template) -> Self {
        Self::Template(template)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Template(template) => write!(f, "{template}"),
            Self::Parts(parts) => write!(f, "{parts}"),
        }
    }
}

/// Formats the parts as a URL, with the variables of templates for parts of the request.
impl fmt::Display for LocationParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheme, host, port, path } = self;
        let scheme = scheme.map_or("$scheme", UrlScheme::as_str);
        write!(f, "{scheme}://{}", host.as_ref().map_or("$host", Host::as_str))?;
        if let Some(port) = port {
            write!(f, ":{port}")?;
        }
        match path {
            None => f.write_str("$request_uri"),
            Some(PathModifier::Full(replacement)) => f.write_str(replacement.as_str()),
            Some(prefix @ PathModifier::Prefix { .. }) => write!(f, "({prefix})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReplacementPath;

    #[test]
    fn parts_read_like_the_url_that_they_make() {
        let replacement = ReplacementPath::parse("/new").expect("valid");
        let (host, port) = (Host::parse("b.test").ok(), NonZeroU16::new(8443));
        let prefix = PathModifier::Prefix { matched: "/old".into(), replacement: replacement.clone() };
        for (parts, expect) in [
            (LocationParts::default(), "$scheme://$host$request_uri"),
            (
                LocationParts {
                    scheme: Some(UrlScheme::Https),
                    host,
                    port,
                    path: Some(PathModifier::Full(replacement)),
                },
                "https://b.test:8443/new",
            ),
            (LocationParts { path: Some(prefix), ..LocationParts::default() }, "$scheme://$host(/old -> /new)"),
        ] {
            assert_eq!(Location::Parts(parts).to_string(), expect);
        }
    }
}
