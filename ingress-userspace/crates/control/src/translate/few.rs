//! A set that mostly has one member or two.

use std::{collections::HashSet, hash::Hash};

/// Members without duplicates, in any order. It is never empty.
pub(super) enum Few<T> {
    One(T),
    /// At most [`MAX`].
    Several(Vec<T>),
    #[allow(
        clippy::box_collection,
        reason = "few sets have this many members, and the largest variant sets the size of all"
    )]
    Many(Box<HashSet<T>>),
}

/// Number of members up to which a hash set does not pay.
const MAX: usize = 8;

// === impl Few ===

impl<T: Clone + Eq + Hash> Few<T> {
    /// Adds a member that is not there.
    pub(super) fn add(&mut self, member: T) {
        match self {
            Self::One(one) => *self = Self::Several(vec![one.clone(), member]),
            Self::Several(members) if members.len() < MAX => members.push(member),
            Self::Several(members) => *self = Self::Many(Box::new(members.drain(..).chain([member]).collect())),
            Self::Many(members) => drop(members.insert(member)),
        }
    }

    /// Removes `member`; returns `true` if any other remains. Without one, the set must be dropped.
    pub(super) fn remove(&mut self, member: &T) -> bool {
        match self {
            Self::One(one) => one != member,
            Self::Several(members) => {
                members.retain(|one| one != member);
                !members.is_empty()
            }
            Self::Many(members) => {
                members.remove(member);
                !members.is_empty()
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        let (several, many) = match self {
            Self::One(one) => (std::slice::from_ref(one), None),
            Self::Several(members) => (members.as_slice(), None),
            Self::Many(members) => (&[][..], Some(&**members)),
        };
        several.iter().chain(many.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn members_are_found_at_every_count() {
        for count in [1, 2, MAX, MAX + 1, 3 * MAX] {
            let mut set = Few::One(0);
            (1..count).for_each(|member| set.add(member));
            for gone in 0..count {
                assert_eq!(set.iter().copied().collect::<BTreeSet<_>>(), (gone..count).collect(), "of {count}");
                assert_eq!(set.remove(&gone), gone + 1 < count, "of {count}");
            }
        }
    }
}
