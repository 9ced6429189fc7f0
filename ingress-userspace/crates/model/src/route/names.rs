//! A map by name, mostly of hosts, with lookups by one hash and copies at the cost of the change. Wildcards are unknown
//! here.

use std::{array, borrow::Borrow, hash::BuildHasher as _, sync::Arc};

use hashbrown::HashTable;

use super::hashing::{Hashing, hashing};
use crate::Host;

/// A map from names to values with structural sharing between copies.
///
/// Names are distributed over shards by hash. A change copies one shard: a 256th of a large configuration.
#[derive(Clone, Debug)]
pub struct NameMap<V, K = Host> {
    /// `None` until the first name is set: many listeners of Gateways have few names.
    shards: Option<Box<Shards<V, K>>>,
    hasher: Hashing,
    len: usize,
}

type Shard<V, K> = HashTable<(K, V)>;

type Shards<V, K> = [Arc<Shard<V, K>>; SHARDS];

const SHARDS: usize = 256;

fn text<K: Borrow<str>>(name: &K) -> &str {
    name.borrow()
}

/// Returns the shard of a hash. The table within a shard uses the lowest and the highest bits.
fn shard(hash: u64) -> usize {
    usize::from(hash.to_be_bytes()[3])
}

// === impl NameMap ===

impl<V, K> Default for NameMap<V, K> {
    fn default() -> Self {
        Self { shards: None, hasher: hashing(), len: 0 }
    }
}

impl<V, K> NameMap<V, K> {
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&V>
    where
        K: Borrow<str>,
    {
        let shards = self.shards.as_ref()?;
        let hash = self.hasher.hash_one(name);
        shards[shard(hash)].find(hash, |(known, _)| text(known) == name).map(|(_, value)| value)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Iterates over all values, in no particular order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        let shards = self.shards.iter().flat_map(|shards| shards.iter());
        shards.flat_map(|shard| shard.iter()).map(|(_, value)| value)
    }
}

impl<V: Clone, K: Borrow<str> + Clone> NameMap<V, K> {
    /// Sets the value of `name`; `None` removes it.
    pub fn set(&mut self, name: &K, value: Option<V>) {
        let Self { shards, hasher, len } = self;
        let shards = shards.get_or_insert_with(|| {
            let empty = Arc::new(Shard::new());
            Box::new(array::from_fn(|_| Arc::clone(&empty)))
        });
        let hash = hasher.hash_one(text(name));
        let shard = Arc::make_mut(&mut shards[shard(hash)]);
        match (shard.find_entry(hash, |(known, _)| text(known) == text(name)), value) {
            (Ok(mut entry), Some(value)) => entry.get_mut().1 = value,
            (Ok(entry), None) => {
                entry.remove();
                *len -= 1;
            }
            (Err(_), Some(value)) => {
                shard.insert_unique(hash, (name.clone(), value), |(known, _)| hasher.hash_one(text(known)));
                *len += 1;
            }
            (Err(_), None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn copies_behave_as_independent_maps() {
        let host = |number: u32| Host::parse(&format!("h{number}.test")).expect("valid");
        let (mut names, mut model) = (NameMap::default(), BTreeMap::new());
        let check = |names: &NameMap<u32>, model: &BTreeMap<u32, u32>| {
            for number in 0..3_000 {
                assert_eq!(names.get(host(number).as_str()), model.get(&number), "{number}");
            }
            let mut values: Vec<_> = names.values().collect();
            values.sort();
            let mut expect: Vec<_> = model.values().collect();
            expect.sort();
            assert_eq!(values, expect);
            assert_eq!(names.is_empty(), model.is_empty());
        };
        for number in 0..2_000 {
            names.set(&host(number), Some(number));
            model.insert(number, number);
        }
        let (copy, as_it_was) = (names.clone(), model.clone());
        for number in 1_000..3_000 {
            let value = (number % 3 > 0).then_some(number + 1);
            names.set(&host(number), value);
            match value {
                Some(value) => drop(model.insert(number, value)),
                None => drop(model.remove(&number)),
            }
        }
        check(&names, &model);
        check(&copy, &as_it_was);
        for number in 0..3_000 {
            names.set(&host(number), None);
        }
        check(&names, &BTreeMap::new());
    }
}
