//! A `location` block of nginx, and the path of an Ingress that it is for.

use std::fmt;

use crate::Expression;

/// A `location` of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub matching: LocationMatch,
    pub origin: Origin,
}

/// The paths that a location matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocationMatch {
    /// `= /foo`: this path only.
    Exact(String),
    /// `/foo`: all paths that begin with this text.
    Prefix(String),
    /// `~* "^/foo"`: all paths that begin with a match.
    Expression(Expression),
}

/// The reason for a location. Numbers are those of [`HostIngress`](crate::HostIngress) and of its paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A path of an Ingress.
    Path { ingress: usize, path: usize },
    /// The default backend: no Ingress has `/` as a prefix.
    Default,
}

impl fmt::Display for Location {
    /// Formats the location as the controller writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.matching {
            LocationMatch::Exact(path) => write!(f, "= {path}"),
            LocationMatch::Prefix(path) => f.write_str(path),
            LocationMatch::Expression(expression) => write!(f, "~* \"^{}\"", expression.as_str()),
        }
    }
}
