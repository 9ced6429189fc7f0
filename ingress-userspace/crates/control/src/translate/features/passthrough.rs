//! TLS connections that are passed through to pods.

use super::{
    row::{Row, key},
    scope::Scope,
};
use crate::{outcome::Reason, translate::values::boolean};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedPassthrough>] = &[key(
    "ssl-passthrough",
    "whether TLS connections for the hosts go to the pods unterminated, by server name; paths then have no \
         effect. See [streams](streams.md)",
)
.differs("refused beside authentication and limits, which it would bypass")
.default("false")
.or_refuse()
.not_on_routes("write a TLSRoute")
.reads(|value, parsed| boolean(value, &mut parsed.enabled))];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedPassthrough {
    /// Default false.
    enabled: bool,
}

// === impl ParsedPassthrough ===

impl ParsedPassthrough {
    /// Returns whether connections are passed through. That is refused if clients must be authenticated or counted
    /// (`is_guarded`).
    pub(super) fn build(self, is_guarded: bool, scope: &mut Scope<'_, '_>) -> bool {
        if self.enabled && is_guarded {
            let message = "annotation `ssl-passthrough` forwards connections without reading them, so that clients cannot \
             be authenticated and requests cannot be counted; its rules answer 503, remove it or the annotations that \
             require these";
            scope.refuse((Reason::InvalidAnnotation, message.to_owned()));
        }
        self.enabled
    }
}
