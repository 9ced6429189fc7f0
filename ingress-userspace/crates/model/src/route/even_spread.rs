//! Spreads a share of requests evenly over all of them, without randomness.
//!
//! Each request gets the next point of a sequence of low discrepancy: multiples of the golden ratio, modulo 1. Among 1,000
//! requests in a row, a share is at most 5 off, where dice would often be 30 off. The state is one number that workers
//! add to without a lock, so the sequence is that of all workers together.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// The golden ratio's fraction, in units of 2⁻³². It is odd, so that the sequence has every point once in 2³² steps.
const STEP: u32 = 0x9e37_79b9;
/// The fraction of √2 in the same units: the distance between the starts of two sequences.
const START_STEP: u32 = 0x6a09_e667;

/// The start of the next sequence.
static NEXT_START: AtomicU32 = AtomicU32::new(0);

/// A sequence of points between 0 and 1. Its state is no part of a value's identity: any two are equal, and a clone is a
/// new sequence. The starts of sequences are spread, too, so that a share holds even if sequences are replaced before
/// they have given many points.
#[derive(Debug)]
pub struct EvenSpread(AtomicU32);

// === impl EvenSpread ===

impl EvenSpread {
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU32::new(NEXT_START.fetch_add(START_STEP, Relaxed)))
    }

    /// Returns whether the next request belongs to a share of `numerator` out of `denominator`.
    #[must_use]
    pub fn takes(&self, numerator: u32, denominator: NonZeroU32) -> bool {
        u64::from(self.next()) * u64::from(denominator.get()) < u64::from(numerator) << 32
    }

    /// Returns a number below `total` for the next request; each comes equally often. With weights, the number selects
    /// the first whose running sum is above it.
    #[must_use]
    pub fn below(&self, total: NonZeroU32) -> u32 {
        let scaled = u64::from(self.next()) * u64::from(total.get());
        // Both factors are below 2³², so the upper half is below `total`.
        (scaled >> 32) as u32
    }

    fn next(&self) -> u32 {
        self.0.fetch_add(STEP, Relaxed)
    }
}

impl Default for EvenSpread {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for EvenSpread {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl PartialEq for EvenSpread {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for EvenSpread {}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(total: u32) -> NonZeroU32 {
        NonZeroU32::new(total).expect("not 0")
    }

    #[test]
    fn a_share_of_a_thousand_requests_is_at_most_five_off() {
        for start in (0..1000).map(|n: u32| n.wrapping_mul(4_294_967)) {
            for (numerator, denominator) in
                [(1, 100), (20, 100), (25, 50), (35, 100), (1, 3), (999, 1000), (7, 1_000_000)]
            {
                let spread = EvenSpread(AtomicU32::new(start));
                let taken = (0..1000).filter(|_| spread.takes(numerator, of(denominator))).count();
                let due = 1000.0 * f64::from(numerator) / f64::from(denominator);
                assert!((taken as f64 - due).abs() <= 5.0, "{numerator}/{denominator} from {start}: {taken}");
            }
        }
    }

    #[test]
    fn nothing_and_everything_are_exact() {
        let spread = EvenSpread::new();
        for denominator in [1, 100, u32::MAX] {
            assert!(
                (0..10_000).all(|_| spread.takes(denominator, of(denominator)) && !spread.takes(0, of(denominator)))
            );
        }
    }

    #[test]
    fn weights_are_met_by_a_thousand_requests() {
        for weights in [[1, 1, 1], [70, 30, 0], [1, 0, 999], [1_000_000, 1_000_000, 2_000_000]] {
            let total: u32 = weights.iter().sum();
            let spread = EvenSpread::new();
            let mut counts = [0; 3];
            for _ in 0..1000 {
                let mut left = spread.below(of(total));
                let chosen = weights.iter().position(|weight| {
                    let is_chosen = left < *weight;
                    left = left.wrapping_sub(*weight);
                    is_chosen
                });
                counts[chosen.expect("below the sum")] += 1;
            }
            for (count, weight) in counts.into_iter().zip(weights) {
                let due = 1000.0 * f64::from(weight) / f64::from(total);
                assert!((f64::from(count) - due).abs() <= 5.0, "{weights:?}: {counts:?}");
            }
        }
    }

    #[test]
    fn short_sequences_meet_a_share_together() {
        let first = |_: &u32| EvenSpread::new().takes(20, of(100));
        let taken = (0..1000).filter(first).count();
        // Other tests begin sequences at the same time.
        assert!((150..=250).contains(&taken), "{taken}");
    }

    #[test]
    fn workers_share_a_sequence() {
        let spread = EvenSpread::new();
        let count = || (0..500).filter(|_| spread.takes(1, of(5))).count();
        let taken: usize = std::thread::scope(|scope| {
            let workers = [scope.spawn(count), scope.spawn(count)];
            workers.map(|worker| worker.join().expect("joined")).iter().sum()
        });
        assert!((195..=205).contains(&taken), "{taken}");
    }
}
