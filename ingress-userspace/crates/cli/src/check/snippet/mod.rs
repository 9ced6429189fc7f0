//! Converts snippets of nginx' configuration into annotations, without running anything.
//!
//! ```text
//! text ──parse──> directives ──convert──> Conversion: annotations, settings, ConfigMap
//!                                └──────> Rest: what is not converted, and why
//! ```
//!
//! Annotations are written only where their effect is that of the snippet. All else is named.

mod condition;
mod convert;
mod directives;
mod headers;
mod parse;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use convert::convert;
pub use parse::{Directive, ParseError, parse};

/// The annotation that a snippet stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// `configuration-snippet`, for the paths of one Ingress.
    Location,
    /// `server-snippet`, for a host.
    Server,
    /// `auth-snippet`, for the requests to `auth-url`.
    Auth,
}

/// Properties of the Ingress of a snippet, which some variables stand for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub namespace: String,
    pub name: String,
    /// The Service and its port, if all paths lead to the same.
    pub service: Option<(String, String)>,
}

/// The result for the snippets of one Ingress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversion {
    /// Values by the names of annotations, without prefix.
    pub annotations: BTreeMap<String, String>,
    /// Settings for all hosts, by key; an operator must decide on them.
    pub settings: BTreeMap<String, String>,
    /// Fields for the requests to `auth-url`, which stand in a ConfigMap.
    pub auth_fields: BTreeMap<String, String>,
    /// Directives that need no counterpart, each with the reason.
    pub dropped: Vec<Remark>,
    /// Differences of what is converted.
    pub differences: Vec<Remark>,
    /// Directives that are not converted, each with the reason.
    pub rest: Vec<Remark>,
}

/// A remark about a directive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    pub place: Place,
    /// Line within the snippet, the first one is 1.
    pub line: usize,
    /// The directive in short.
    pub subject: String,
    pub text: String,
}

// === impl Place ===

impl Place {
    pub const ALL: [Self; 3] = [Self::Location, Self::Server, Self::Auth];

    /// Returns the name of the annotation.
    #[must_use]
    pub const fn annotation(self) -> &'static str {
        match self {
            Self::Location => "configuration-snippet",
            Self::Server => "server-snippet",
            Self::Auth => "auth-snippet",
        }
    }
}

// === impl Conversion ===

impl Conversion {
    /// Returns whether everything is converted, or needs no counterpart.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.rest.is_empty()
    }
}
