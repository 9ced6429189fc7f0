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
    /// Which refusals count beside those of what no browser sends.
    pub also: FurtherOffences,
}

/// Refusals that a web page can make its visitors' browsers ask for, and that count only where the operator says so.
/// Default none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FurtherOffences {
    /// `block-…` of the settings: a script sets `User-Agent`, and every request from a page has its `Referer`.
    pub blocked: bool,
    /// Wrong passwords and tokens. Which are wrong, an Ingress says.
    pub credentials: bool,
    /// The lists of networks of Ingresses.
    pub denied: bool,
    /// The limits of Ingresses.
    pub limit: bool,
}
