//! A hash of bytes (FNV-1a) for names that must be the same in every version of the program.

/// Returns the 64-bit FNV-1a hash, which is the same in all versions of this program.
pub const fn fnv(bytes: &[u8]) -> u64 {
    let (mut hash, mut at) = (0xcbf2_9ce4_8422_2325, 0);
    while at < bytes.len() {
        // `u64::from` is no constant function.
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}
