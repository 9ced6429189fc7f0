//! The rate at which clients get the body of a response.

use std::num::NonZeroU64;

use super::row::{Row, key};
use crate::translate::values::{Read, number};
use ingress_model::ResponseRate;

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedResponseRate>] = &[
    key("limit-rate", "largest rate of the body of each response, in KiB per second; `0` means unlimited")
        .default("0")
        .or_refuse()
        .reads(|value, parsed| kib(value, &mut parsed.rate)),
    key("limit-rate-after", "KiB of a response that a client gets before `limit-rate` applies")
        .default("0")
        .or_refuse()
        .reads(|value, parsed| kib(value, &mut parsed.after)),
];

/// Sorted by name.
pub(super) const DEFAULTS: &[Row<ParsedResponseRate>] = &[
    key("limit-rate", "see the annotation `limit-rate`")
        .default("0")
        .reads(|value, parsed| kib(value, &mut parsed.rate)),
    key("limit-rate-after", "see the annotation `limit-rate-after`")
        .default("0")
        .reads(|value, parsed| kib(value, &mut parsed.after)),
];

/// In KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedResponseRate {
    rate: u32,
    after: u32,
}

// === impl ParsedResponseRate ===

impl ParsedResponseRate {
    pub(super) fn build(self) -> Option<ResponseRate> {
        let Self { rate, after } = self;
        let bytes_per_second = NonZeroU64::new(u64::from(rate) << 10)?;
        Some(ResponseRate { bytes_per_second, after: u64::from(after) << 10 })
    }
}

fn kib(value: &str, field: &mut u32) -> Read {
    number(value, 0..=1 << 30, field).ok_or_else(|| "a number of KiB".into())
}
