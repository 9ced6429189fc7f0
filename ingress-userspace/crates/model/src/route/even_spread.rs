//! An even sequence of fractions, by which shares are exact after few requests.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A sequence of fractions from 0 to 1 (exclusive). Any number of successive ones are spread evenly: of 1,000 requests,
/// a share of 70 % gets 700 ± 3, where random numbers would give ± 15.
///
/// Each fraction is the previous one plus the golden ratio, modulo 1 (Weyl's sequence with the number of lowest
/// discrepancy). Workers share a sequence by one atomic addition.
#[derive(Debug, Default)]
pub struct EvenSpread(AtomicU64);

/// The fractional part of the golden ratio, in units of 2⁻⁶⁴.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

// === impl EvenSpread ===

impl EvenSpread {
    /// Returns the next fraction of the sequence, multiplied by `total` and rounded down.
    pub fn next_below(&self, total: u64) -> u64 {
        let fraction = self.0.fetch_add(GOLDEN, Relaxed);
        let product = (u128::from(fraction) * u128::from(total)) >> 64;
        u64::try_from(product).unwrap_or_default()
    }
}

/// All sequences are equal: the position is no part of a configuration.
impl PartialEq for EvenSpread {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for EvenSpread {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_exact_within_half_a_percent() {
        for (share, total) in [(70, 100), (1, 2), (1, 3), (999, 1_000), (1, 1_000_000), (u64::from(u32::MAX), 1 << 36)]
        {
            let sequence = EvenSpread::default();
            let taken = (0..1_000).filter(|_| sequence.next_below(total) < share).count();
            let expect = share as f64 / total as f64 * 1_000.0;
            assert!((taken as f64 - expect).abs() <= 5.0, "{share} of {total}: {taken} instead of {expect}");
        }
    }
}
