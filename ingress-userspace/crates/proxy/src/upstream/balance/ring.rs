//! Consistent hashing: the same key maps to the same endpoint on every node, and few keys move when endpoints are added
//! or removed.

use std::net::SocketAddr;

use aws_lc_rs::digest::{SHA256, digest};

/// Points of each endpoint on the ring, the same number as in ketama; shares differ by a few percent.
const POINTS: usize = 160;

/// The hash ring of one upstream: many points for each endpoint, sorted by hash.
#[derive(Debug)]
pub(super) struct Ring {
    /// The hash of a point, and the index of its endpoint.
    points: Box<[(u64, u32)]>,
    /// Ids of the endpoints, by index.
    ids: Box<[u64]>,
}

/// Returns the hash of a key or of any other bytes.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    parts(bytes)[0]
}

/// Returns four hashes of one text, which is the number that fits into a digest.
fn parts(bytes: &[u8]) -> [u64; 4] {
    let digest = digest(&SHA256, bytes);
    let mut parts =
        digest.as_ref().chunks_exact(8).map(|part| part.iter().fold(0, |hash, b| hash << 8 | u64::from(*b)));
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

// === impl Ring ===

impl Ring {
    pub(super) fn new(addresses: impl Iterator<Item = SocketAddr>) -> Self {
        let (mut points, mut ids) = (Vec::new(), Vec::new());
        for (index, address) in (0..).zip(addresses) {
            ids.push(hash(address.to_string().as_bytes()));
            for number in 0..POINTS / 4 {
                points.extend(parts(format!("{address}-{number}").as_bytes()).map(|point| (point, index)));
            }
        }
        points.sort_unstable();
        Self { points: points.into(), ids: ids.into() }
    }

    /// Returns the indices of endpoints from `key` on, each as often as it has points.
    pub(super) fn from(&self, key: u64) -> impl Iterator<Item = usize> {
        let start = self.points.partition_point(|(point, _)| *point < key);
        let (before, after) = self.points.split_at(start);
        after.iter().chain(before).map(|(_, index)| *index as usize)
    }

    /// Returns the id that identifies the endpoint `index` to clients.
    pub(super) fn id(&self, index: usize) -> Option<u64> {
        self.ids.get(index).copied()
    }

    /// Returns the index of the endpoint with this id.
    pub(super) fn index(&self, id: u64) -> Option<usize> {
        self.ids.iter().position(|known| *known == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(hosts: impl Iterator<Item = u8>) -> Ring {
        Ring::new(hosts.map(|host| ([10, 0, 0, host], 80).into()))
    }

    fn choice(ring: &Ring, key: u64) -> usize {
        ring.from(hash(&key.to_be_bytes())).next().expect("an endpoint")
    }

    #[test]
    fn shares_are_about_equal() {
        let ring = ring(0..10);
        let mut counts = [0; 10];
        (0..10_000).for_each(|key| counts[choice(&ring, key)] += 1);
        assert!(counts.iter().all(|count| (700..1300).contains(count)), "{counts:?}");
    }

    #[test]
    fn only_keys_of_a_removed_endpoint_move() {
        let (before, after) = (ring(0..10), ring(0..9));
        let moved = (0..10_000).filter(|key| choice(&before, *key) != choice(&after, *key)).count();
        let lost = (0..10_000).filter(|key| choice(&before, *key) == 9).count();
        assert_eq!(moved, lost, "only what it had");
    }

    #[test]
    fn ids_map_back_to_their_endpoints() {
        let ring = ring(0..3);
        assert_eq!(
            (0..3).map(|index| ring.index(ring.id(index).expect("an id"))).collect::<Vec<_>>(),
            [Some(0), Some(1), Some(2)]
        );
        assert_eq!((ring.id(3), ring.index(0)), (None, None));
    }

    /// Nodes of all versions must agree on these hashes.
    #[test]
    fn hashes_are_stable_across_versions() {
        assert_eq!(hash(b"a"), 0xca97_8112_ca1b_bdca);
    }
}
