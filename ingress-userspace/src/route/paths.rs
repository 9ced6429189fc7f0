//! Routes by path, each under one of its own. It knows nothing of prefixes, nor which route goes first.

use std::collections::HashMap;

use super::{Route, hashing::Hashing};

/// Most hosts have a path or two. These are found sooner by comparing than by a hash, and take a quarter of the room.
#[derive(Debug)]
pub(super) enum Paths {
    /// At most [`FEW`].
    Few(Box<[(Box<str>, Route)]>),
    #[allow(clippy::box_collection, reason = "few hosts have that many, and all have the size of the largest")]
    Many(Box<HashMap<Box<str>, Route, Hashing>>),
}

/// Paths that are not worth a hash.
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

    /// All routes, in no particular order.
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
