//! Selection of problems by the parameters of a request, for the API and the dashboard.

use ingress_control::Outcome;

use super::{api::ApiError, query::Query};

/// The parameters `namespace`, `reason` and `severity`. Those that are not given select all.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProblemSelection<'q> {
    namespace: Option<&'q str>,
    reason: Option<&'q str>,
    severity: Option<&'q str>,
}

impl<'q> ProblemSelection<'q> {
    /// # Errors
    /// Fails for a severity that is neither `warning` nor `note`.
    pub(super) fn of(query: &'q Query) -> Result<Self, ApiError> {
        let severity = query.text("severity");
        if severity.is_some_and(|severity| !matches!(severity, "warning" | "note")) {
            return Err(ApiError::Parameter("`severity` is neither `warning` nor `note`".to_owned()));
        }
        Ok(Self { namespace: query.text("namespace"), reason: query.text("reason"), severity })
    }

    pub(super) fn takes(&self, outcome: &Outcome) -> bool {
        self.namespace.is_none_or(|namespace| *outcome.object.namespace == *namespace)
            && self.reason.is_none_or(|reason| outcome.reason.as_str() == reason)
            && self.severity.is_none_or(|severity| outcome.severity().to_string() == severity)
    }
}
