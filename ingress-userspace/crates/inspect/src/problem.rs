//! Problems of objects, as documents.

use ingress_control::{ObjectRef, Origin, Outcome};
use serde::{Deserialize, Serialize};

/// A remark about one object, as in the events and the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProblemDocument {
    /// `warning` if a requested function is not in effect, `note` otherwise.
    pub severity: String,
    /// Stable name of the reason, as in events, such as `ServiceNotFound`.
    pub reason: String,
    pub object: ProblemObject,
    /// The problem and, after a `;`, the remedy.
    pub message: String,
    /// Time since when this process has known the problem, in RFC 3339; `None` where nothing observes time.
    pub since: Option<String>,
}

/// The object of a problem.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProblemObject {
    pub kind: String,
    /// Empty for cluster-scoped kinds.
    pub namespace: String,
    pub name: String,
    /// File that defines the object; `None` for objects of an API server.
    pub file: Option<String>,
}

// === impl ProblemDocument ===

impl ProblemDocument {
    /// Returns the document of `outcome`, known since this time in RFC 3339.
    #[must_use]
    pub fn of(outcome: &Outcome, since: Option<String>) -> Self {
        let Outcome { object, reason, message, refuses: _ } = outcome;
        Self {
            severity: outcome.severity().to_string(),
            reason: reason.to_string(),
            object: object.into(),
            message: message.clone(),
            since,
        }
    }
}

// === impl ProblemObject ===

impl From<&ObjectRef> for ProblemObject {
    fn from(object: &ObjectRef) -> Self {
        let ObjectRef { kind, namespace, name, origin } = object;
        let file = match origin {
            Origin::Api => None,
            Origin::File(path) => Some(path.display().to_string()),
        };
        Self { kind: kind.to_string(), namespace: namespace.to_string(), name: name.to_string(), file }
    }
}

/// Example: `Ingress default/web (web.yaml)`.
impl std::fmt::Display for ProblemObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, namespace, name, file } = self;
        f.write_str(kind)?;
        match (namespace.is_empty(), name.is_empty()) {
            (_, true) => {}
            (true, false) => write!(f, " {name}")?,
            (false, false) => write!(f, " {namespace}/{name}")?,
        }
        match file {
            Some(file) => write!(f, " ({file})"),
            None => Ok(()),
        }
    }
}
