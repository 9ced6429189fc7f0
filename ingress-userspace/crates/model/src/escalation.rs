//! Escalation: when a client with repeated refusals is denied altogether. Refusals are not counted here.

use std::{num::NonZeroU32, time::Duration};

/// Threshold at which refusals by the proxy lead to a denial by the kernel part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Escalation {
    /// Number of refusals.
    pub after: NonZeroU32,
    /// Window in which refusals add up, starting at the first.
    pub within: Duration,
    /// Duration of the denial.
    pub lasts: Duration,
    /// Dry run: denials are logged and counted, but not made.
    pub dry_run: bool,
    /// Refusals that count in addition to those of requests no browser sends.
    pub also: FurtherViolations,
}

/// Refusals that a web page can provoke through its visitors' browsers. They count only if the operator enables them.
/// Default none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FurtherViolations {
    /// Matches of `block-…` settings: a script can set `User-Agent`, and every request from a page carries its
    /// `Referer`.
    pub blocked: bool,
    /// Wrong passwords and tokens. The owner of the Ingress defines which are wrong.
    pub credentials: bool,
    /// Addresses refused by the lists of allowed and denied networks of an Ingress.
    pub denied: bool,
    /// Requests above the limits of an Ingress.
    pub limit: bool,
}
