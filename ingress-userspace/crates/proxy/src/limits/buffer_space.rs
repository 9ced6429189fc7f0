//! The memory that request bodies waiting for a pod may take up, shared by all workers.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

/// The buffered bytes of all bodies. A namespace may buffer more as long as it has less than is still free. One
/// namespace therefore gets half of the space, and the next one half of the rest. Switches share a buffer between ports
/// in the same way (the dynamic thresholds of Choudhury and Hahne, 1998). Some space remains however many namespaces
/// take all they can.
#[derive(Debug)]
pub(crate) struct BufferSpace {
    total: AtomicUsize,
    max: AtomicUsize,
    namespaces: Mutex<HashMap<Box<str>, Share>>,
}

/// The buffered bytes for pods of one namespace.
pub(crate) type Share = Arc<AtomicUsize>;

impl BufferSpace {
    pub(crate) fn new() -> Self {
        Self { total: AtomicUsize::new(0), max: AtomicUsize::new(MAX), namespaces: Mutex::default() }
    }

    /// Sets the space by the memory limit, if there is one.
    pub(crate) fn limit(&self, memory: Option<u64>) {
        let part = usize::try_from(memory.unwrap_or(u64::MAX) / PART).unwrap_or(usize::MAX);
        self.max.store(part.min(MAX), Relaxed);
    }

    pub(crate) fn total(&self) -> usize {
        self.total.load(Relaxed)
    }

    pub(crate) fn share(&self, namespace: &str) -> Share {
        let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = namespaces.get(namespace) {
            return Arc::clone(share);
        }
        // Namespaces come and go. A namespace without buffered bodies needs no entry.
        namespaces.retain(|_, share| Arc::strong_count(share) > 1);
        Arc::clone(namespaces.entry(namespace.into()).or_default())
    }

    pub(crate) fn has_room(&self, share: &Share) -> bool {
        let free = self.max.load(Relaxed).saturating_sub(self.total());
        share.load(Relaxed) < free
    }

    pub(crate) fn add(&self, share: &Share, count: usize) {
        share.fetch_add(count, Relaxed);
        self.total.fetch_add(count, Relaxed);
    }

    pub(crate) fn subtract(&self, share: &Share, count: usize) {
        share.fetch_sub(count, Relaxed);
        self.total.fetch_sub(count, Relaxed);
    }
}

/// Most buffered bytes per process, and the divisor of the cgroup's memory limit for the same.
const MAX: usize = 256 << 20;

const PART: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_together_cannot_exhaust_the_buffer_space() {
        const LIMIT: usize = 1 << 20;
        let buffer_space = BufferSpace::new();
        buffer_space.limit(Some((LIMIT as u64) * PART));
        let fill = |namespace: &str| {
            let share = buffer_space.share(namespace);
            while buffer_space.has_room(&share) {
                buffer_space.add(&share, 1);
            }
            share
        };
        let mut shares = Vec::new();
        // Each gets half of what those before it have left.
        for (namespace, expect) in [("a", LIMIT / 2), ("b", LIMIT / 4), ("c", LIMIT / 8), ("a", LIMIT / 2)] {
            shares.push(fill(namespace));
            assert_eq!(shares.last().expect("one").load(Relaxed), expect, "{namespace}");
        }
        assert_eq!((buffer_space.total(), buffer_space.namespaces.lock().expect("whole").len()), (LIMIT / 8 * 7, 3));
        for share in &shares[..3] {
            buffer_space.subtract(share, share.load(Relaxed));
        }
        shares.clear();
        assert_eq!(fill("d").load(Relaxed), LIMIT / 2);
        assert_eq!(buffer_space.namespaces.lock().expect("whole").len(), 1, "those that keep nothing are forgotten");
    }
}
