//! Outcome of a request to the API server, and the retry policy for failures. A failure is logged once, together with
//! the function that is lost, and then retried with growing pauses. This module sends no requests itself.

use std::{error::Error as _, fmt, time::Duration};

use tokio::time::timeout;

use super::WriteResult;

/// A permission that this process uses, in the words of RBAC, and the function that is lost without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Permission {
    pub(super) verb: &'static str,
    /// Includes the API group, e.g. `events.events.k8s.io`.
    pub(super) resource: &'static str,
    pub(super) lost: &'static str,
}

/// Reason why a request failed.
#[derive(Debug)]
pub(super) enum RequestFailure {
    /// Status 401 or 403.
    Forbidden(String),
    /// Status 404, or the namespace is terminating.
    Gone(String),
    /// Status 409.
    Conflict,
    /// Status 400 or 422: the server refuses this object as it is. Other objects may succeed.
    Refused(String),
    /// No response within the time limit.
    Timeout,
    /// All other errors, most of which are temporary.
    Other(String),
}

/// Failures of one kind of request: the last one logged, and the pause before the next attempt.
#[derive(Debug)]
pub(super) struct RetryLog {
    access: Permission,
    /// The kind of the last failure that was logged; reset on success.
    reported: Option<&'static str>,
    pause: Duration,
}

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Awaits `request` for at most `limit`.
pub(super) async fn ask<T>(
    limit: Duration,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, RequestFailure> {
    match timeout(limit, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(RequestFailure::of(&error)),
        Err(_elapsed) => Err(RequestFailure::Timeout),
    }
}

// === impl RequestFailure ===

impl RequestFailure {
    pub(super) fn of(error: &kube::Error) -> Self {
        let kube::Error::Api(status) = error else { return Self::Other(chain(error)) };
        // The namespace is terminating and takes its objects with it.
        let is_ending =
            status.details.iter().flat_map(|d| &d.causes).any(|cause| cause.reason == "NamespaceTerminating");
        match status.code {
            403 if is_ending => Self::Gone(status.message.clone()),
            401 | 403 => Self::Forbidden(status.message.clone()),
            404 => Self::Gone(status.message.clone()),
            409 => Self::Conflict,
            400 | 422 => Self::Refused(status.message.clone()),
            _ => Self::Other(format!("{} {}", status.code, status.message)),
        }
    }

    pub(super) fn result(&self) -> WriteResult {
        match self {
            Self::Forbidden(_) => WriteResult::Forbidden,
            Self::Gone(_) | Self::Conflict | Self::Refused(_) => WriteResult::Conflict,
            Self::Timeout => WriteResult::Timeout,
            Self::Other(_) => WriteResult::Error,
        }
    }

    /// Returns `true` if the failure concerns one object only, so that requests about other objects may succeed.
    pub(super) fn is_particular(&self) -> bool {
        self.result() == WriteResult::Conflict
    }

    fn name(&self) -> &'static str {
        self.result().as_str()
    }
}

impl fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forbidden(message) | Self::Gone(message) | Self::Refused(message) | Self::Other(message) => {
                f.write_str(message)
            }
            Self::Conflict => f.write_str("the object has changed"),
            Self::Timeout => f.write_str("no answer in time"),
        }
    }
}

fn chain(error: &kube::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    text
}

// === impl RetryLog ===

impl RetryLog {
    pub(super) fn new(access: Permission) -> Self {
        Self { access, reported: None, pause: FIRST_PAUSE }
    }

    /// Logs `failure` if its kind differs from the last one logged. Returns how long to pause before the next attempt.
    pub(super) fn failed(&mut self, failure: &RequestFailure) -> Duration {
        let Permission { verb, resource, lost: _ } = self.access;
        if self.reported == Some(failure.name()) {
            tracing::debug!(verb, resource, %failure, "still failing");
        } else {
            self.reported = Some(failure.name());
            tracing::warn!(verb, resource, %failure, "{}", self.access.complain(failure));
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        pause
    }

    pub(super) fn succeeded(&mut self) {
        let Permission { verb, resource, lost: _ } = self.access;
        if self.reported.take().is_some() {
            tracing::info!(verb, resource, "works again");
        }
        self.pause = FIRST_PAUSE;
    }
}

// === impl Permission ===

impl Permission {
    fn complain(&self, failure: &RequestFailure) -> String {
        let Self { verb, resource, lost } = self;
        match failure {
            RequestFailure::Forbidden(_) => {
                format!(
                    "the API server forbids `{verb}` on `{resource}`, so {lost}; grant the verb in the role, attempts go on"
                )
            }
            _ => format!("cannot `{verb}` `{resource}`, so {lost} for now; attempts go on"),
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::response::{Status, StatusCause, StatusDetails};

    use super::*;

    const ACCESS: Permission = Permission { verb: "patch", resource: "ingresses/status", lost: "no address is shown" };

    fn failure(code: u16) -> RequestFailure {
        RequestFailure::of(&kube::Error::Api(Status::failure("scripted", "Scripted").with_code(code).boxed()))
    }

    #[test]
    fn responses_of_the_server_are_classified() {
        for (code, expect) in [
            (401, WriteResult::Forbidden),
            (403, WriteResult::Forbidden),
            (404, WriteResult::Conflict),
            (409, WriteResult::Conflict),
            (422, WriteResult::Conflict),
            (429, WriteResult::Error),
            (500, WriteResult::Error),
        ] {
            assert_eq!(failure(code).result(), expect, "{code}");
        }
        let cause = StatusCause { reason: "NamespaceTerminating".into(), message: String::new(), field: String::new() };
        let mut details: StatusDetails = serde_json::from_str("{}").expect("all fields are optional");
        details.causes.push(cause);
        let status = Status::failure("going", "Forbidden").with_code(403).with_details(details);
        assert!(matches!(RequestFailure::of(&kube::Error::Api(status.boxed())), RequestFailure::Gone(_)));
    }

    #[test]
    fn retry_pauses_grow_to_a_limit_and_reset_after_a_success() {
        let mut retry_log = RetryLog::new(ACCESS);
        let pauses: Vec<u64> = (0..8).map(|_| retry_log.failed(&failure(500)).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        retry_log.succeeded();
        assert_eq!(retry_log.failed(&failure(500)), FIRST_PAUSE);
    }

    #[test]
    fn a_refusal_names_the_verb_the_resource_and_the_loss() {
        assert_eq!(
            ACCESS.complain(&failure(403)),
            "the API server forbids `patch` on `ingresses/status`, so no address is shown; grant the verb in the role, attempts go on"
        );
    }
}
