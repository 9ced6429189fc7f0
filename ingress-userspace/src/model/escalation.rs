//! When whoever is refused again and again is no longer let in at all. It counts nothing.

use std::{num::NonZeroU32, time::Duration};

/// From refusals by the proxy to a denial by the kernel part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Escalation {
    /// How many refusals.
    pub after: NonZeroU32,
    /// The time, from the first of them on, in which they count together.
    pub within: Duration,
    /// How long the client is denied.
    pub lasts: Duration,
    /// Whether it is only said who would be.
    pub dry_run: bool,
}
