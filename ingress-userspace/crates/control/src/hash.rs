//! A hash of bytes (FNV-1a) for names that must be the same in every version of the program.

/// Returns the 64-bit FNV-1a hash, which is the same in all versions of this program.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
