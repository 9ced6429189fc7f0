//! A model of how ingress-nginx v1.15 chooses the rule for a request: the `location` blocks that its controller writes
//! for a host, and the choice that nginx makes among them. A test compares it with a real nginx.
//!
//! ```text
//! HostIngress (all of one host, oldest first) ──Server::of──> Location ──Server::decide(path)──> Decision
//!                                             └─boundaries──> paths that are worth a question
//! ```
//!
//! The model knows hosts and paths only. Filters, TLS, canaries and what pods answer are not modelled, and neither is
//! nginx' choice among hosts. Text that PCRE could read in another way than this crate is an error, never a guess.
#![forbid(unsafe_code)]

mod boundary;
mod expression;
mod location;
mod locations;
mod server;
mod uri;

pub use boundary::boundaries;
pub use expression::Expression;
pub use location::{Location, LocationMatch, Origin};
pub use server::{Decision, Server};
pub use uri::normalise;

/// The part of an Ingress that concerns one host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostIngress {
    /// Annotation `use-regex`. Default false.
    pub use_regex: bool,
    /// Annotation `rewrite-target`. Default none.
    pub rewrite_target: Option<String>,
    /// Whether `app-root` redirects requests for `/`. Default false.
    pub has_app_root: bool,
    /// In order of the rules of the Ingress.
    pub paths: Vec<IngressPath>,
}

/// A path of an Ingress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngressPath {
    pub kind: PathKind,
    /// The path as written. Empty for `/`.
    pub text: String,
}

/// How a path is meant. The controller reads `ImplementationSpecific` as [`PathKind::Prefix`] (since v0.41).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathKind {
    Exact,
    Prefix,
}

/// A configuration for which the model knows no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unmodelled {
    #[error("nginx refuses the whole configuration, because `location {0}` occurs twice")]
    Duplicate(String),
    #[error("path `{0}` has characters that are not modelled outside of regular expressions")]
    Text(String),
    #[error("regular expression `{text}` is not modelled: {reason}")]
    Expression { text: String, reason: String },
}

// === impl PathKind ===

impl PathKind {
    /// Returns the kind for a `pathType` of an Ingress, or `None` if there is no such type.
    #[must_use]
    pub fn of_path_type(path_type: &str) -> Option<Self> {
        match path_type {
            "Exact" => Some(Self::Exact),
            "Prefix" | "ImplementationSpecific" => Some(Self::Prefix),
            _ => None,
        }
    }
}
