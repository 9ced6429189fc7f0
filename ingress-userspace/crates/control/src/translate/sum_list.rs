//! A sorted list of members with amounts, and those that do not fit into a budget. A search skips the members that do
//! fit, since the list has sums.

use super::amount::Amount;

/// Members in order, each with its amount.
pub(super) struct SumList<K, A> {
    /// In order, and none is empty.
    chunks: Vec<Chunk<K, A>>,
    sum: A,
}

struct Chunk<K, A> {
    sum: A,
    members: Vec<(K, A)>,
}

/// A member that does not fit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Excess<'l, K, A> {
    pub(super) member: &'l K,
    pub(super) amount: A,
    /// The amount, together with those of the members before it that fit.
    pub(super) together: A,
}

/// Maximum number of members of a chunk. A search looks at each chunk, and at the members of few.
const MAX: usize = 256;

// === impl SumList ===

impl<K: Ord, A: Amount> SumList<K, A> {
    pub(super) fn sum(&self) -> &A {
        &self.sum
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(K, A)> {
        self.chunks.iter().flat_map(|chunk| &chunk.members)
    }

    /// Adds a member that is not there.
    pub(super) fn insert(&mut self, member: K, amount: A) {
        self.sum += amount;
        let at = self.chunk_of(&member);
        let Some(chunk) = self.chunks.get_mut(at) else {
            self.chunks.push(Chunk { sum: amount, members: vec![(member, amount)] });
            return;
        };
        let place = chunk.members.partition_point(|(other, _)| *other < member);
        chunk.members.insert(place, (member, amount));
        chunk.sum += amount;
        if chunk.members.len() > MAX {
            let upper = chunk.members.split_off(MAX / 2);
            chunk.members.shrink_to_fit();
            let upper = Chunk::of(upper);
            chunk.sum -= upper.sum;
            self.chunks.insert(at + 1, upper);
        }
    }

    /// Removes a member, if it is there.
    pub(super) fn remove(&mut self, member: &K) {
        let at = self.chunk_of(member);
        let Some(chunk) = self.chunks.get_mut(at) else { return };
        let Ok(place) = chunk.members.binary_search_by(|(other, _)| other.cmp(member)) else { return };
        let (_, amount) = chunk.members.remove(place);
        chunk.sum -= amount;
        self.sum -= amount;
        let count = chunk.members.len();
        // Many small chunks would cost as much as a list without sums.
        let next = self.chunks.get(at + 1).map(|next| next.members.len());
        if count == 0 {
            self.chunks.remove(at);
        } else if next.is_some_and(|next| count + next <= MAX / 2) {
            let next = self.chunks.remove(at + 1);
            let chunk = &mut self.chunks[at];
            chunk.sum += next.sum;
            chunk.members.extend(next.members);
        }
    }

    /// Returns the members that do not fit into `limit`, in order. Each takes its amount unless it exceeds the rest that
    /// those before it have left.
    pub(super) fn excess(&self, limit: &A) -> Vec<Excess<'_, K, A>> {
        let (mut taken, mut found) = (A::default(), Vec::new());
        for chunk in &self.chunks {
            let mut whole = taken;
            whole += chunk.sum;
            if !whole.exceeds(limit) {
                taken = whole;
                continue;
            }
            for (member, amount) in &chunk.members {
                let mut together = taken;
                together += *amount;
                if together.exceeds(limit) {
                    found.push(Excess { member, amount: *amount, together });
                } else {
                    taken = together;
                }
            }
        }
        found
    }

    /// Returns the index of the chunk where `member` is, or belongs; it exists unless there is none.
    fn chunk_of(&self, member: &K) -> usize {
        let begins_before = |chunk: &Chunk<K, A>| chunk.members.first().is_some_and(|(first, _)| first <= member);
        self.chunks.partition_point(begins_before).saturating_sub(1)
    }
}

impl<K, A: Amount> Default for SumList<K, A> {
    fn default() -> Self {
        Self { chunks: Vec::new(), sum: A::default() }
    }
}

// === impl Chunk ===

impl<K, A: Amount> Chunk<K, A> {
    fn of(members: Vec<(K, A)>) -> Self {
        let mut sum = A::default();
        members.iter().for_each(|(_, amount)| sum += *amount);
        Self { sum, members }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        collections::BTreeMap,
        ops::{AddAssign, SubAssign},
    };

    use proptest::prelude::*;

    use super::*;

    /// Finds the excess by a look at each member, as the oracle.
    fn excess(members: &BTreeMap<u16, usize>, limit: usize) -> Vec<(u16, usize, usize)> {
        let (mut taken, mut found) = (0, Vec::new());
        for (member, amount) in members {
            if taken + amount > limit {
                found.push((*member, *amount, taken + amount));
            } else {
                taken += amount;
            }
        }
        found
    }

    proptest! {
        #[test]
        fn excess_is_that_of_a_look_at_each_member(
            changes in prop::collection::vec((0..2_000_u16, prop::option::weighted(0.7, 1..9_usize)), 0..3_000),
            limit in 0..6_000_usize,
            removed in 0..2_000_u16,
        ) {
            let (mut list, mut model) = (SumList::default(), BTreeMap::new());
            for (member, amount) in changes.into_iter().chain((0..removed).map(|member| (member, None))) {
                list.remove(&member);
                model.remove(&member);
                if let Some(amount) = amount {
                    list.insert(member, amount);
                    model.insert(member, amount);
                }
            }
            prop_assert!(list.iter().map(|(member, amount)| (member, amount)).eq(&model));
            prop_assert_eq!(*list.sum(), model.values().sum::<usize>());
            prop_assert_eq!(list.is_empty(), model.is_empty());
            let found = list.excess(&limit);
            let found: Vec<_> = found.into_iter().map(|one| (*one.member, one.amount, one.together)).collect();
            prop_assert_eq!(found, excess(&model, limit));
        }
    }

    thread_local! {
        static ADDITIONS: Cell<usize> = const { Cell::new(0) };
    }

    /// Counts its additions.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    struct Counting(usize);

    impl AddAssign for Counting {
        fn add_assign(&mut self, other: Self) {
            ADDITIONS.set(ADDITIONS.get() + 1);
            self.0 += other.0;
        }
    }

    impl SubAssign for Counting {
        fn sub_assign(&mut self, other: Self) {
            self.0 -= other.0;
        }
    }

    impl Amount for Counting {
        fn exceeds(&self, limit: &Self) -> bool {
            self.0 > limit.0
        }
    }

    #[test]
    fn a_search_skips_the_members_that_fit() {
        let mut list = SumList::default();
        (0..100_000_u32).for_each(|member| list.insert(member, Counting(1)));
        // Chunks stay large when members go.
        (0..100_000_u32).filter(|member| member % 100 > 0).for_each(|member| list.remove(&member));
        (0..100_000_u32).filter(|member| member % 100 > 0).for_each(|member| list.insert(member, Counting(1)));
        ADDITIONS.set(0);
        let found: Vec<_> = list.excess(&Counting(99_998)).iter().map(|one| *one.member).collect();
        assert_eq!(found, [99_998, 99_999]);
        let additions = ADDITIONS.get();
        assert!(additions < 3_000, "{additions} additions for 100000 members");
    }
}
