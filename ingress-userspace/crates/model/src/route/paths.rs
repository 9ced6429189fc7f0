//! Routes by exact key. Prefixes and precedence are unknown here.

use std::collections::HashMap;

use super::{Route, hashing::Hashing};

/// Routes by path. Most hosts have one or two paths, for which comparisons are faster than a hash and take a quarter of
/// the memory.
#[derive(Debug)]
pub(super) enum Paths {
    /// At most [`FEW`] routes.
    Few(Box<[(Box<str>, Route)]>),
    #[allow(clippy::box_collection, reason = "few hosts have that many, and all have the size of the largest")]
    Many(Box<HashMap<Box<str>, Route, Hashing>>),
}

/// Maximum number of paths that are compared in turn.
const FEW: usize = 8;

// === impl Paths ===

impl Paths {
    pub(super) fn get(&self, path: &str) -> Option<&Route> {
        match self {
            Self::Few(routes) => routes.iter().find(|(known, _)| **known == *path).map(|(_, route)| route),
            Self::Many(routes) => routes.get(path),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Few(routes) if routes.is_empty())
    }

    /// Iterates over all routes, in no particular order.
    pub(super) fn values(&self) -> impl Iterator<Item = &Route> {
        let (few, many) = match self {
            Self::Few(routes) => (&**routes, None),
            Self::Many(routes) => (&[][..], Some(routes.values())),
        };
        few.iter().map(|(_, route)| route).chain(many.into_iter().flatten())
    }
}

impl From<HashMap<Box<str>, Route, Hashing>> for Paths {
    fn from(routes: HashMap<Box<str>, Route, Hashing>) -> Self {
        if routes.len() <= FEW { Self::Few(routes.into_iter().collect()) } else { Self::Many(Box::new(routes)) }
    }
}
