//! Requests to the address of a Service, instead of its pods.

use super::row::{Row, key};
use crate::translate::{destination::Through, values::boolean};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedServiceUpstream>] =
    &[key("service-upstream", "whether requests go to the Service's own address, so that the cluster chooses the pod")
        .default("false")
        .reads(|value, parsed| boolean(value, &mut parsed.through_service))];

/// Sorted by name.
pub(super) const DEFAULTS: &[Row<ParsedServiceUpstream>] = &[key(
    "service-upstream",
    "whether requests go to the Service's own address, so that the cluster chooses the pod, unless an Ingress \
         overrides it",
)
.default("false")
.reads(|value, parsed| boolean(value, &mut parsed.through_service))];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedServiceUpstream {
    through_service: bool,
}

// === impl ParsedServiceUpstream ===

impl ParsedServiceUpstream {
    pub(super) const fn build(self) -> Through {
        if self.through_service { Through::Service } else { Through::Pods }
    }
}
