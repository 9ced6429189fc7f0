//! Mirroring of requests to a second upstream.

use std::fmt;

use http::HeaderValue;

use super::super::{Template, UpstreamKey};

/// A second receiver of requests. Its responses are discarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    pub upstream: UpstreamKey,
    /// Value of `Host` for the mirror.
    pub host: HeaderValue,
    /// Path and query of mirrored requests.
    pub target: Template,
    /// Whether the body is mirrored, too.
    pub body: bool,
}

/// Formats the mirror, such as `default/shadow:80/$request_uri`.
impl fmt::Display for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { upstream, host: _, target, body } = self;
        write!(f, "{upstream}{}", target.as_str())?;
        if *body { Ok(()) } else { f.write_str(", without body") }
    }
}
