//! Converts snippets of nginx' configuration into annotations, without running anything.
//!
//! ```text
//! text ──parse──> directives ──convert──> Conversion: annotations, settings, ConfigMap
//!                                └──────> Rest: what is not converted, and why
//! ```
//!
//! Annotations are written only where their effect is that of the snippet. All else is named.

mod access;
mod condition;
mod convert;
mod cors;
mod directives;
mod expand;
mod headers;
mod inheritance;
#[cfg(test)]
mod laws;
mod locations;
mod look_ahead;
mod parse;
mod pattern;
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

/// Properties of the Ingress of a snippet. Some variables stand for them, and some decide whether nginx takes a
/// directive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub namespace: String,
    pub name: String,
    /// The Service and its port, if all paths lead to the same.
    pub service: Option<(String, String)>,
    /// Hosts of the rules, empty for any host. Default none, if they are not known.
    pub hosts: Vec<String>,
    /// Paths of the hosts, of all Ingresses. Default none, if they are not known.
    pub paths: Vec<HostPath>,
    /// Whether an Ingress makes all paths of a host regular expressions. Default false.
    pub has_expressions: bool,
    /// Whether pods speak gRPC. Default unknown.
    pub speaks_grpc: Option<bool>,
    /// Annotations of the Ingress, by their names without prefix.
    pub annotations: BTreeMap<String, String>,
    /// Settings for all hosts, by key.
    pub settings: BTreeMap<String, String>,
}

/// A path of a host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPath {
    pub path: String,
    pub is_exact: bool,
    /// Whether it belongs to the Ingress of the snippet.
    pub is_own: bool,
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

// === impl Facts ===

impl Facts {
    /// Returns whether an annotation has a value, by itself or from the setting of the same name.
    fn has(&self, key: &str) -> bool {
        [&self.annotations, &self.settings].iter().any(|values| values.get(key).is_some_and(|value| !value.is_empty()))
    }

    /// Returns whether clients must authenticate.
    fn authenticates(&self) -> bool {
        ["auth-url", "auth-secret", "auth-type"].iter().any(|key| self.has(key))
            || self.settings.get("global-auth-url").is_some_and(|url| !url.is_empty())
    }

    /// Returns the name of all requests for the Ingress, if there is only one.
    fn only_host(&self) -> Option<&str> {
        match &*self.hosts {
            [host] if !host.is_empty() && !host.starts_with('*') && !self.has("server-alias") => Some(host),
            _ => None,
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
