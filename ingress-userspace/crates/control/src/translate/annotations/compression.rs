//! Compression settings of each coding, and the codings that an Ingress chooses.

use std::{ops::RangeInclusive, sync::Arc};

use super::super::values::{Read, bytes, number};
use ingress_model::{Coding, Compression, Filter, MediaTypes, Offer, Pattern};

/// Settings of each coding, and the choice of an annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::translate) struct ParsedCompression {
    pub(in crate::translate) gzip: ParsedCoding,
    pub(in crate::translate) brotli: ParsedCoding,
    pub(in crate::translate) zstd: ParsedCoding,
    /// Clients that get no gzip.
    without_gzip: Option<Pattern>,
    /// Overrides the `enabled` flags.
    chosen: Option<Vec<Coding>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::translate) struct ParsedCoding {
    /// Default false.
    pub(in crate::translate) enabled: bool,
    level: u8,
    min_length: u64,
    types: Arc<MediaTypes>,
}

impl Default for ParsedCompression {
    fn default() -> Self {
        let types = Arc::<MediaTypes>::default();
        let coding = |level, min_length| ParsedCoding { enabled: false, level, min_length, types: Arc::clone(&types) };
        Self { gzip: coding(1, 256), brotli: coding(4, 20), zstd: coding(3, 256), without_gzip: None, chosen: None }
    }
}

// === impl ParsedCompression ===

impl ParsedCompression {
    /// Reads the codings that an Ingress chooses.
    pub(super) fn choose(&mut self, value: &str) -> Read {
        let coding = |word: &str| Coding::ALL.into_iter().find(|coding| coding.name() == word);
        let words = value.split([',', ' ']).filter(|word| !word.is_empty());
        let codings = if value == "off" { Some(Vec::new()) } else { words.map(coding).collect() };
        let codings = codings.filter(|codings: &Vec<_>| value == "off" || !codings.is_empty());
        self.chosen = Some(codings.ok_or("`gzip`, `br` and `zstd`, separated by commas, or `off`")?);
        Ok(())
    }

    pub(in crate::translate) fn disable_gzip(&mut self, value: &str) -> Read {
        let pattern = Pattern::within_field(value).map_err(|error| format!("a regular expression ({error})"))?;
        self.without_gzip = (!value.is_empty()).then_some(pattern);
        Ok(())
    }

    /// Returns the compression filter of rules, or `None` if no coding is offered.
    pub(super) fn filter(self) -> Option<Filter> {
        let Self { gzip, brotli, zstd, without_gzip, chosen } = self;
        let parsed = |coding| match coding {
            Coding::Gzip => &gzip,
            Coding::Brotli => &brotli,
            Coding::Zstd => &zstd,
        };
        let enabled = || Coding::ALL.into_iter().filter(|coding| parsed(*coding).enabled).collect();
        let offer = |coding| {
            let ParsedCoding { enabled: _, level, min_length, types } = parsed(coding);
            Offer { coding, level: *level, min_length: *min_length, types: Arc::clone(types) }
        };
        let offers: Vec<_> = chosen.unwrap_or_else(enabled).into_iter().map(offer).collect();
        (!offers.is_empty()).then(|| Filter::Compression(Arc::new(Compression { offers, without_gzip })))
    }
}

// === impl ParsedCoding ===

/// Each method reads the value of one setting.
impl ParsedCoding {
    pub(in crate::translate) fn level(&mut self, range: RangeInclusive<u8>, value: &str) -> Read {
        let (first, last) = (*range.start(), *range.end());
        number(value, range, &mut self.level).ok_or_else(|| format!("a number from {first} to {last}").into())
    }

    pub(in crate::translate) fn min_length(&mut self, value: &str) -> Read {
        self.min_length = bytes(value)?;
        Ok(())
    }

    pub(in crate::translate) fn types(&mut self, value: &str) -> Read {
        self.types = MediaTypes::parse(value).ok_or("types, as `text/css application/json`, or `*`")?.into();
        Ok(())
    }
}
