//! A sorted map with structural sharing between copies. It is generic over its values.
//!
//! A clone is free, a change of a clone copies about twenty nodes, and the comparison of two clones costs only their
//! difference. A consumer that keeps the last version it saw can therefore find the changes without notification.
//!
//! The map is a treap: a binary search tree by key, and a heap by a hash of the key. The shape depends only on the
//! keys, so equal parts of two trees are in the same places regardless of their history. The hash uses a random key per
//! process; otherwise, users could choose object names that make the tree deep.

use std::{
    borrow::Borrow,
    cmp::Ordering,
    fmt,
    hash::{BuildHasher, Hash, RandomState},
    sync::{Arc, LazyLock},
};

pub struct Tree<K, V> {
    root: Link<K, V>,
    len: usize,
}

type Link<K, V> = Option<Arc<TreeNode<K, V>>>;

#[derive(Clone)]
struct TreeNode<K, V> {
    key: K,
    value: V,
    /// A node has a higher rank than its children.
    rank: u64,
    left: Link<K, V>,
    right: Link<K, V>,
}

/// An entry that differs between two trees, with its old and its new value.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference<'t, K, V> {
    pub key: &'t K,
    pub old: Option<&'t V>,
    /// Never `None` if `old` is `None`.
    pub new: Option<&'t V>,
}

/// Iterator over the entries of a [`Tree`] starting at a key.
pub struct IterFrom<'t, K, V> {
    /// Nodes still to visit, as in [`Iter`].
    above: Vec<&'t TreeNode<K, V>>,
}

/// Iterator over the entries of a [`Tree`] in the order of their keys.
pub struct Iter<'t, K, V> {
    /// Nodes still to visit, the next on top; each comes before its right subtree.
    above: Vec<&'t TreeNode<K, V>>,
    left: usize,
}

static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

// === impl Tree ===

impl<K, V> Tree<K, V> {
    #[must_use]
    pub fn new() -> Self {
        Self { root: None, len: 0 }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn clear(&mut self) {
        *self = Self::new();
    }

    /// Iterates over all entries in the order of their keys.
    #[must_use]
    pub fn iter(&self) -> Iter<'_, K, V> {
        let mut iter = Iter { above: Vec::new(), left: self.len };
        descend(&mut iter.above, &self.root);
        iter
    }

    /// Iterates over the entries from `key` on, in the order of their keys. Skipped entries cost nothing.
    pub fn iter_from<Q: Ord + ?Sized>(&self, key: &Q) -> IterFrom<'_, K, V>
    where
        K: Borrow<Q>,
    {
        let (mut above, mut link) = (Vec::new(), &self.root);
        while let Some(node) = link {
            link = if node.key.borrow() < key {
                &node.right
            } else {
                above.push(&**node);
                &node.left
            };
        }
        IterFrom { above }
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    #[must_use]
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let mut link = &self.root;
        while let Some(node) = link {
            link = match key.cmp(node.key.borrow()) {
                Ordering::Less => &node.left,
                Ordering::Equal => return Some(&node.value),
                Ordering::Greater => &node.right,
            };
        }
        None
    }

    #[must_use]
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }
}

impl<K: Clone + Ord + Hash, V: Clone> Tree<K, V> {
    /// Sets the value of `key`, and returns the previous one. `key` replaces an equal key, so that its memory is that of
    /// the newer object.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let rank = HASHER.hash_one(&key);
        let before = insert(&mut self.root, key, value, rank);
        self.len += usize::from(before.is_none());
        before
    }

    /// Returns the value of `key` for a change in this copy alone.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        // Checked first, because the path to a missing key would be copied in vain.
        if !self.contains_key(key) {
            return None;
        }
        let mut link = &mut self.root;
        while let Some(node) = link {
            let node = Arc::make_mut(node);
            link = match key.cmp(node.key.borrow()) {
                Ordering::Less => &mut node.left,
                Ordering::Equal => return Some(&mut node.value),
                Ordering::Greater => &mut node.right,
            };
        }
        None
    }

    /// Removes `key`, and returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        if !self.contains_key(key) {
            return None;
        }
        self.len -= 1;
        remove(&mut self.root, key)
    }
}

impl<K: Ord, V: PartialEq> Tree<K, V> {
    /// Returns the differences to a later tree, in the order of the keys.
    #[must_use]
    pub fn differences<'t>(&'t self, later: &'t Self) -> Vec<Difference<'t, K, V>> {
        let mut found = Vec::new();
        compare(&self.root, &later.root, (None, None), &mut found);
        found
    }
}

impl<K, V> Clone for Tree<K, V> {
    fn clone(&self) -> Self {
        Self { root: self.root.clone(), len: self.len }
    }
}

impl<K, V> Default for Tree<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord, V: PartialEq> PartialEq for Tree<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.differences(other).is_empty()
    }
}

impl<K: Ord, V: Eq> Eq for Tree<K, V> {}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Tree<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<K: Clone + Ord + Hash, V: Clone> Extend<(K, V)> for Tree<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<K: Clone + Ord + Hash, V: Clone> FromIterator<(K, V)> for Tree<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut tree = Self::new();
        tree.extend(entries);
        tree
    }
}

impl<K: Clone + Ord + Hash, V: Clone, const N: usize> From<[(K, V); N]> for Tree<K, V> {
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

impl<'t, K, V> IntoIterator for &'t Tree<K, V> {
    type Item = (&'t K, &'t V);
    type IntoIter = Iter<'t, K, V>;

    fn into_iter(self) -> Iter<'t, K, V> {
        self.iter()
    }
}

// === impl TreeNode ===

impl<K: Ord, V> TreeNode<K, V> {
    /// Returns whether this node belongs above one with `rank` and `key`. For two different nodes, exactly one is above
    /// the other.
    fn is_above(&self, rank: u64, key: &K) -> bool {
        (self.rank, &self.key) > (rank, key)
    }
}

fn insert<K: Clone + Ord, V: Clone>(link: &mut Link<K, V>, key: K, value: V, rank: u64) -> Option<V> {
    match link {
        Some(node) if node.key == key => {
            let node = Arc::make_mut(node);
            node.key = key;
            Some(std::mem::replace(&mut node.value, value))
        }
        Some(node) if node.is_above(rank, &key) => {
            let node = Arc::make_mut(node);
            let below = if key < node.key { &mut node.left } else { &mut node.right };
            insert(below, key, value, rank)
        }
        // The current subtree belongs below `key` and does not contain it: otherwise, `key` would be on top.
        _ => {
            let (left, right) = split(link.take(), &key);
            *link = Some(Arc::new(TreeNode { key, value, rank, left, right }));
            None
        }
    }
}

/// Splits a subtree without `key` into lesser and greater entries.
fn split<K: Clone + Ord, V: Clone>(link: Link<K, V>, key: &K) -> (Link<K, V>, Link<K, V>) {
    let Some(mut node) = link else { return (None, None) };
    let here = Arc::make_mut(&mut node);
    if here.key < *key {
        let (left, right) = split(here.right.take(), key);
        here.right = left;
        (Some(node), right)
    } else {
        let (left, right) = split(here.left.take(), key);
        here.left = right;
        (left, Some(node))
    }
}

fn remove<K: Clone + Ord + Borrow<Q>, V: Clone, Q: Ord + ?Sized>(link: &mut Link<K, V>, key: &Q) -> Option<V> {
    let node = link.as_mut()?;
    match key.cmp(node.key.borrow()) {
        Ordering::Less => remove(&mut Arc::make_mut(node).left, key),
        Ordering::Greater => remove(&mut Arc::make_mut(node).right, key),
        Ordering::Equal => {
            let TreeNode { value, left, right, .. } = Arc::unwrap_or_clone(link.take()?);
            *link = join(left, right);
            Some(value)
        }
    }
}

/// Joins two subtrees; all keys in `left` are less than all keys in `right`.
fn join<K: Clone + Ord, V: Clone>(left: Link<K, V>, right: Link<K, V>) -> Link<K, V> {
    match (left, right) {
        (left, None) => left,
        (None, right) => right,
        (Some(mut left), Some(mut right)) => {
            if left.is_above(right.rank, &right.key) {
                let here = Arc::make_mut(&mut left);
                here.right = join(here.right.take(), Some(right));
                Some(left)
            } else {
                let here = Arc::make_mut(&mut right);
                here.left = join(Some(left), here.left.take());
                Some(right)
            }
        }
    }
}

/// Returns the topmost node with a key strictly between the bounds.
fn within<'t, K: Ord, V>(
    mut link: &'t Link<K, V>,
    (low, high): (Option<&K>, Option<&K>),
) -> Option<&'t Arc<TreeNode<K, V>>> {
    while let Some(node) = link {
        if low.is_some_and(|low| node.key <= *low) {
            link = &node.right;
        } else if high.is_some_and(|high| node.key >= *high) {
            link = &node.left;
        } else {
            return Some(node);
        }
    }
    None
}

/// Collects the differences of two trees for keys between the bounds.
fn compare<'t, K: Ord, V: PartialEq>(
    old: &'t Link<K, V>,
    new: &'t Link<K, V>,
    (low, high): (Option<&'t K>, Option<&'t K>),
    found: &mut Vec<Difference<'t, K, V>>,
) {
    let (a, b) = (within(old, (low, high)), within(new, (low, high)));
    let top = match (a, b) {
        (None, None) => return,
        (Some(a), Some(b)) if Arc::ptr_eq(a, b) => return,
        (Some(a), Some(b)) if b.is_above(a.rank, &a.key) => b,
        (Some(a), _) => a,
        (None, Some(b)) => b,
    };
    // If a tree does not have this key on top, it does not contain the key: the shape depends only on the keys.
    let a = a.filter(|a| a.key == top.key);
    let b = b.filter(|b| b.key == top.key);
    // That of the later tree, so that users of the difference share the memory of its object.
    let key = b.map_or(&top.key, |b| &b.key);
    compare(a.map_or(old, |a| &a.left), b.map_or(new, |b| &b.left), (low, Some(key)), found);
    let (was, is) = (a.map(|node| &node.value), b.map(|node| &node.value));
    if was != is {
        found.push(Difference { key, old: was, new: is });
    }
    compare(a.map_or(old, |a| &a.right), b.map_or(new, |b| &b.right), (Some(key), high), found);
}

// === impl Iter ===

/// Pushes `link` and its chain of left children, so that the first entry is on top.
fn descend<'t, K, V>(above: &mut Vec<&'t TreeNode<K, V>>, mut link: &'t Link<K, V>) {
    while let Some(node) = link {
        above.push(node);
        link = &node.left;
    }
}

impl<'t, K, V> Iterator for Iter<'t, K, V> {
    type Item = (&'t K, &'t V);

    fn next(&mut self) -> Option<Self::Item> {
        let node = self.above.pop()?;
        self.left -= 1;
        descend(&mut self.above, &node.right);
        Some((&node.key, &node.value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<K, V> ExactSizeIterator for Iter<'_, K, V> {}

// === impl IterFrom ===

impl<'t, K, V> Iterator for IterFrom<'t, K, V> {
    type Item = (&'t K, &'t V);

    fn next(&mut self) -> Option<Self::Item> {
        let node = self.above.pop()?;
        descend(&mut self.above, &node.right);
        Some((&node.key, &node.value))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn same(tree: &Tree<u8, u8>, model: &BTreeMap<u8, u8>) {
        assert!(tree.iter().eq(model.iter()), "{tree:?} {model:?}");
        assert_eq!(tree.len(), model.len());
        for key in [0, 7, 20, 39, 40] {
            assert!(tree.iter_from(&key).eq(model.range(key..)), "{tree:?} {model:?}");
        }
    }

    /// Computes the differences of two maps from all keys, as the oracle.
    fn differences(old: &BTreeMap<u8, u8>, new: &BTreeMap<u8, u8>) -> Vec<(u8, Option<u8>, Option<u8>)> {
        let entry = |key: u8| (key, old.get(&key).copied(), new.get(&key).copied());
        (0..=u8::MAX).map(entry).filter(|(_, old, new)| old != new).collect()
    }

    proptest! {
        #[test]
        fn copies_behave_as_independent_maps(
            changes in prop::collection::vec((0..40u8, prop::option::of(0..3u8), any::<bool>()), 0..200)
        ) {
            let (mut tree, mut model) = (Tree::new(), BTreeMap::new());
            let mut copies: Vec<(Tree<u8, u8>, BTreeMap<u8, u8>)> = Vec::new();
            for (key, value, is_copied) in changes {
                if is_copied {
                    copies.push((tree.clone(), model.clone()));
                }
                match value {
                    Some(value) => prop_assert_eq!(tree.insert(key, value), model.insert(key, value)),
                    None => prop_assert_eq!(tree.remove(&key), model.remove(&key)),
                }
                prop_assert_eq!(tree.get_mut(&key).map(|value| *value ^= 4), model.get_mut(&key).map(|value| *value ^= 4));
                prop_assert_eq!(tree.get(&key), model.get(&key));
            }
            same(&tree, &model);
            let anew: Tree<u8, u8> = model.iter().rev().map(|(key, value)| (*key, *value)).collect();
            prop_assert_eq!(&anew, &tree, "whatever became of it before");
            for (copy, as_it_was) in &copies {
                same(copy, as_it_was);
                let found: Vec<_> =
                    copy.differences(&tree).iter().map(|found| (*found.key, found.old.copied(), found.new.copied())).collect();
                prop_assert_eq!(found, differences(as_it_was, &model));
                prop_assert_eq!(copy == &tree, as_it_was == &model);
            }
        }
    }

    #[test]
    fn an_update_shares_its_key() {
        let [old, new]: [Arc<str>; 2] = ["a".into(), "a".into()];
        let mut tree = Tree::from([(Arc::clone(&old), 1)]);
        let copy = tree.clone();
        tree.insert(Arc::clone(&new), 2);
        let differences = copy.differences(&tree);
        assert!(matches!(&differences[..], [found] if Arc::ptr_eq(found.key, &new)));
        for (tree, key) in [(&tree, &new), (&copy, &old)] {
            assert!(tree.keys().eq([key]) && tree.keys().all(|found| Arc::ptr_eq(found, key)));
        }
    }

    /// Counts its comparisons.
    #[derive(Clone, Debug)]
    struct Counting(u32, Arc<std::sync::atomic::AtomicUsize>);

    impl PartialEq for Counting {
        fn eq(&self, other: &Self) -> bool {
            self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.0 == other.0
        }
    }

    #[test]
    fn comparison_cost_is_proportional_to_the_differences() {
        let count = Arc::default();
        let tree: Tree<u32, Counting> = (0..10_000).map(|key| (key, Counting(key, Arc::clone(&count)))).collect();
        let mut later = tree.clone();
        later.insert(5_000, Counting(1, Arc::clone(&count)));
        later.remove(&7_000);
        let keys: Vec<u32> = tree.differences(&later).iter().map(|found| *found.key).collect();
        assert_eq!(keys, [5_000, 7_000]);
        let compared = count.load(std::sync::atomic::Ordering::Relaxed);
        assert!(compared < 500, "{compared} of 10000");
    }
}
