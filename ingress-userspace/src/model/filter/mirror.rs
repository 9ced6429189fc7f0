//! Where requests are sent a second time.

use std::fmt;

use http::HeaderValue;

use super::super::{Template, UpstreamKey};

/// A second receiver of requests, whose answers nobody waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    pub upstream: UpstreamKey,
    /// `Host` that it is told.
    pub host: HeaderValue,
    /// Path and query that it is asked for.
    pub target: Template,
    /// Whether it gets the body, too.
    pub body: bool,
}

/// `default/shadow:80/$request_uri`.
impl fmt::Display for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { upstream, host: _, target, body } = self;
        write!(f, "{upstream}{}", target.as_str())?;
        if *body { Ok(()) } else { f.write_str(", without body") }
    }
}
