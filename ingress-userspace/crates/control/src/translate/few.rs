//! Sets by key that mostly have one member or two.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
};

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

/// Adds a member to the set of `key`, where it is not yet.
pub(super) fn add<K: Clone + Eq + Hash, T: Clone + Eq + Hash>(sets: &mut HashMap<K, Few<T>>, key: &K, member: T) {
    match sets.get_mut(key) {
        Some(set) => set.add(member),
        None => drop(sets.insert(key.clone(), Few::One(member))),
    }
}

/// Removes `member` from the set of `key`. Returns `true` if it was the last.
pub(super) fn remove<K: Eq + Hash, T: Clone + Eq + Hash>(sets: &mut HashMap<K, Few<T>>, key: &K, member: &T) -> bool {
    let is_last = sets.get_mut(key).is_some_and(|set| !set.remove(member));
    if is_last {
        sets.remove(key);
    }
    is_last
}

// === impl Few ===

impl<T: Clone + Eq + Hash> Few<T> {
    /// Adds a member that is not there.
    fn add(&mut self, member: T) {
        match self {
            Self::One(one) => {
                debug_assert!(*one != member, "it is there");
                *self = Self::Several(vec![one.clone(), member]);
            }
            Self::Several(members) if members.len() < MAX => {
                debug_assert!(!members.contains(&member), "it is there");
                members.push(member);
            }
            Self::Several(members) => *self = Self::Many(Box::new(members.drain(..).chain([member]).collect())),
            Self::Many(members) => {
                let is_new = members.insert(member);
                debug_assert!(is_new, "it is there");
            }
        }
    }

    /// Removes `member`; returns `true` if any other remains. Without one, the set must be dropped.
    fn remove(&mut self, member: &T) -> bool {
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
            let mut sets = HashMap::new();
            (0..count).for_each(|member| add(&mut sets, &"key", member));
            for gone in 0..count {
                let members = sets.get("key").into_iter().flat_map(Few::iter).copied().collect::<BTreeSet<_>>();
                assert_eq!(members, (gone..count).collect(), "of {count}");
                assert_eq!(remove(&mut sets, &"key", &gone), gone + 1 == count, "of {count}");
            }
            assert!(sets.is_empty() && !remove(&mut sets, &"key", &0), "of {count}");
        }
    }
}
