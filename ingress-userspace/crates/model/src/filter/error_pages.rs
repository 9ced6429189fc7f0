//! Custom error pages in place of responses from failing or missing pods.

use std::{fmt, sync::Arc};

use super::super::UpstreamKey;

/// Source of error pages for the pods of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorPages {
    /// Ingress that owns the rule, as `namespace/name`.
    pub owner: Arc<str>,
    /// Statuses of pods' responses to replace. The status itself is kept. Sorted.
    pub statuses: Arc<[u16]>,
    /// Service that renders the pages.
    pub backend: UpstreamKey,
    /// Whether this service also gets the original requests while the rule's own service has no endpoints.
    pub stands_in: bool,
}

impl ErrorPages {
    /// Returns whether responses with this status are replaced.
    #[must_use]
    pub fn replace(&self, status: u16) -> bool {
        self.statuses.binary_search(&status).is_ok()
    }
}

/// Formats the rule, such as `404 503 by default/errors:80`.
impl fmt::Display for ErrorPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner: _, statuses, backend, stands_in } = self;
        statuses.iter().try_for_each(|status| write!(f, "{status} "))?;
        write!(f, "by {backend}")?;
        if *stands_in { f.write_str(", who stands in") } else { Ok(()) }
    }
}
