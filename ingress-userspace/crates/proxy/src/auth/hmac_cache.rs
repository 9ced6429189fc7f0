//! A bounded cache of results, shared by all workers. Its keys are derived from secrets but do not reveal them.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use aws_lc_rs::{error::Unspecified, hmac, rand};

const SHARDS: usize = 16;

/// Values by tag. Entries that are not looked up are evicted first.
pub(crate) struct HmacCache<V> {
    /// Key of this process alone.
    key: hmac::Key,
    shards: [Mutex<Shard<V>>; SHARDS],
    /// Most values in the later half of a shard.
    half: usize,
}

/// HMAC that identifies a secret without revealing it.
pub(crate) type Tag = [u8; 32];

/// A shard in two generations: entries inserted or looked up lately, and those before.
struct Shard<V> {
    later: HashMap<Tag, V>,
    earlier: HashMap<Tag, V>,
}

// === impl HmacCache ===

impl<V: Clone> HmacCache<V> {
    /// Creates a cache for about `max` values.
    ///
    /// # Errors
    /// Fails if the system has no randomness.
    pub(crate) fn new(max: usize) -> Result<Self, Unspecified> {
        let mut secret = [0; 32];
        rand::fill(&mut secret)?;
        let shards = std::array::from_fn(|_| Mutex::new(Shard { later: HashMap::new(), earlier: HashMap::new() }));
        Ok(Self { key: hmac::Key::new(hmac::HMAC_SHA256, &secret), shards, half: (max / SHARDS / 2).max(1) })
    }

    /// Returns the tag that is unique to `parts`.
    pub(crate) fn tag(&self, parts: &[&[u8]]) -> Tag {
        let mut context = hmac::Context::with_key(&self.key);
        for part in parts {
            context.update(&part.len().to_be_bytes());
            context.update(part);
        }
        let mut tag = Tag::default();
        tag.copy_from_slice(context.sign().as_ref());
        tag
    }

    pub(crate) fn get(&self, tag: &Tag) -> Option<V> {
        let mut shard = self.shard(tag).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = shard.later.get(tag) {
            return Some(value.clone());
        }
        let value = shard.earlier.remove(tag)?;
        shard.insert(*tag, value.clone(), self.half);
        Some(value)
    }

    pub(crate) fn insert(&self, tag: Tag, value: V) {
        self.shard(&tag).lock().unwrap_or_else(PoisonError::into_inner).insert(tag, value, self.half);
    }

    fn shard(&self, tag: &Tag) -> &Mutex<Shard<V>> {
        &self.shards[usize::from(tag[0]) % SHARDS]
    }
}

// === impl Shard ===

impl<V> Shard<V> {
    fn insert(&mut self, tag: Tag, value: V, half: usize) {
        if self.later.len() >= half {
            self.earlier = std::mem::take(&mut self.later);
        }
        self.later.insert(tag, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_bounded_and_keeps_entries_in_use() {
        let cache = HmacCache::new(320).expect("randomness");
        let tag = |n: u32| cache.tag(&[&n.to_be_bytes()]);
        cache.insert(tag(0), 0);
        for n in 1..5_000 {
            cache.insert(tag(n), n);
            assert_eq!(cache.get(&tag(0)), Some(0), "{n}");
        }
        let count = (0..5_000).filter(|n| cache.get(&tag(*n)).is_some()).count();
        assert!((100..=320).contains(&count), "{count}");
        assert_eq!(cache.get(&tag(4_999)), Some(4_999));
    }

    #[test]
    fn tags_are_unambiguous_and_keyed() {
        let (one, other) = (HmacCache::<()>::new(1).expect("randomness"), HmacCache::<()>::new(1).expect("randomness"));
        assert_eq!(one.tag(&[b"ab", b"c"]), one.tag(&[b"ab", b"c"]));
        assert_ne!(one.tag(&[b"ab", b"c"]), one.tag(&[b"a", b"bc"]));
        assert_ne!(one.tag(&[b"ab"]), other.tag(&[b"ab"]));
    }
}
