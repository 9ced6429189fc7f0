//! Compression of responses: the settings of each coding, and the codings that an Ingress chooses.

use std::{ops::RangeInclusive, sync::Arc};

use super::row::{Row, key};
use crate::translate::values::{Read, boolean, bytes, number};
use ingress_model::{Coding, Compression, Filter, MediaTypes, Offer, Pattern};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedCompression>] = &[key(
    "compression",
    "codings for responses, from `gzip`, `br` and `zstd`, separated by commas, the preferred one first, or `off`; \
         replaces `use-gzip`, `enable-brotli` and `enable-zstd`, but their types and lengths apply. Specific to \
         xdp-ingress",
)
.reads(|value, parsed| parsed.choose(value))];

/// The rows of each coding, sorted by name.
macro_rules! coding {
    ($coding:ident, $first:literal..=$last:literal, $level:literal, $min_length:literal, $remark:literal) => {
        &[
            key(
                concat!(stringify!($coding), "-level"),
                concat!("compression level, from ", $first, " to ", $last, "; higher is smaller and slower", $remark),
            )
            .default($level)
            .reads(|value, parsed| parsed.$coding.level($first..=$last, value)),
            key(
                concat!(stringify!($coding), "-min-length"),
                concat!("smallest response to compress, in bytes", $remark),
            )
            .default($min_length)
            .reads(|value, parsed| parsed.$coding.min_length(value)),
            key(
                concat!(stringify!($coding), "-types"),
                concat!("media types to compress besides `text/html`, separated by spaces; `*` for all", $remark),
            )
            .default(MediaTypes::DEFAULT)
            .reads(|value, parsed| parsed.$coding.types(value)),
        ]
    };
}

pub(super) const BROTLI: &[Row<ParsedCompression>] = coding!(brotli, 0..=11, "4", "20", "");
pub(super) const GZIP: &[Row<ParsedCompression>] = coding!(gzip, 1..=9, "1", "256", "");
pub(super) const ZSTD: &[Row<ParsedCompression>] = coding!(zstd, 1..=12, "3", "256", ". Specific to xdp-ingress");

/// Sorted by name.
pub(super) const DEFAULTS: &[Row<ParsedCompression>] = &[
    key(
        "enable-brotli",
        "whether responses are compressed with brotli for clients that accept it, unless an Ingress overrides it",
    )
    .default("false")
    .reads(|value, parsed| boolean(value, &mut parsed.brotli.enabled)),
    key(
        "enable-zstd",
        "whether responses are compressed with zstd for clients that accept it, unless an Ingress overrides it. \
         Specific to xdp-ingress",
    )
    .default("false")
    .reads(|value, parsed| boolean(value, &mut parsed.zstd.enabled)),
    key("gzip-disable", "clients without gzip: a regular expression that matches a part of `User-Agent`")
        .reads(|value, parsed| parsed.disable_gzip(value)),
    key(
        "use-gzip",
        "whether responses are compressed with gzip for clients that accept it, unless an Ingress overrides it",
    )
    .default("false")
    .reads(|value, parsed| boolean(value, &mut parsed.gzip.enabled)),
];

/// Settings of each coding, and the choice of an annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedCompression {
    gzip: ParsedCoding,
    brotli: ParsedCoding,
    zstd: ParsedCoding,
    /// Clients that get no gzip.
    without_gzip: Option<Pattern>,
    /// Overrides the `enabled` flags.
    chosen: Option<Vec<Coding>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedCoding {
    /// Default false.
    enabled: bool,
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
    fn choose(&mut self, value: &str) -> Read {
        let coding = |word: &str| Coding::ALL.into_iter().find(|coding| coding.name() == word);
        let words = value.split([',', ' ']).filter(|word| !word.is_empty());
        let codings = if value == "off" { Some(Vec::new()) } else { words.map(coding).collect() };
        let codings = codings.filter(|codings: &Vec<_>| value == "off" || !codings.is_empty());
        self.chosen = Some(codings.ok_or("`gzip`, `br` and `zstd`, separated by commas, or `off`")?);
        Ok(())
    }

    fn disable_gzip(&mut self, value: &str) -> Read {
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
    fn level(&mut self, range: RangeInclusive<u8>, value: &str) -> Read {
        let (first, last) = (*range.start(), *range.end());
        number(value, range, &mut self.level).ok_or_else(|| format!("a number from {first} to {last}").into())
    }

    fn min_length(&mut self, value: &str) -> Read {
        self.min_length = bytes(value)?;
        Ok(())
    }

    fn types(&mut self, value: &str) -> Read {
        self.types = MediaTypes::parse(value).ok_or("types, as `text/css application/json`, or `*`")?.into();
        Ok(())
    }
}
