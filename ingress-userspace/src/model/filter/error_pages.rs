//! What stands in for pods that err, or that are not there.

use std::{fmt, sync::Arc};

use super::super::UpstreamKey;

/// Who answers where the pods of a rule do not, or not well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorPages {
    /// Whose rules they are, as `namespace/name`.
    pub owner: Arc<str>,
    /// Responses of pods with these are replaced, and the status stays. Sorted.
    pub statuses: Arc<[u16]>,
    /// What is asked for a page.
    pub backend: UpstreamKey,
    /// Whether it gets the requests themselves, too, as long as the rule's service has no endpoints.
    pub stands_in: bool,
}

impl ErrorPages {
    /// Whether a response of this status is replaced.
    #[must_use]
    pub fn replace(&self, status: u16) -> bool {
        self.statuses.binary_search(&status).is_ok()
    }
}

/// `404 503 by default/errors:80`.
impl fmt::Display for ErrorPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner: _, statuses, backend, stands_in } = self;
        statuses.iter().try_for_each(|status| write!(f, "{status} "))?;
        write!(f, "by {backend}")?;
        if *stands_in { f.write_str(", who stands in") } else { Ok(()) }
    }
}
