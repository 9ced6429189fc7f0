//! Unpredictable random numbers, for occasional use.

/// Returns a number that clients and tenants cannot predict from others they have seen. It comes from the generator of
/// the crypto provider. `fastrand` is for choices without security impact, because its output reveals later values.
///
/// # Panics
/// Panics if the operating system has no random numbers, as any key of the provider would be worthless then, too.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    aws_lc_rs::rand::fill(&mut bytes).expect("the operating system has random numbers");
    u64::from_ne_bytes(bytes)
}
