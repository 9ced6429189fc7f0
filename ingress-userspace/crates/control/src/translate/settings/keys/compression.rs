//! Responses that are compressed, and the compression levels.

use super::super::super::values::boolean;
use crate::translate::settings::row::{Setting, setting};
use ingress_model::MediaTypes;

/// The rows of each coding, sorted by name.
macro_rules! coding {
    ($coding:ident, $first:literal..=$last:literal, $level:literal, $min_length:literal, $remark:literal) => {
        &[
            setting(
                concat!(stringify!($coding), "-level"),
                concat!("compression level, from ", $first, " to ", $last, "; higher is smaller and slower", $remark),
                |value, globals| globals.parsed.compression.$coding.level($first..=$last, value),
            )
            .default($level),
            setting(
                concat!(stringify!($coding), "-min-length"),
                concat!("smallest response to compress, in bytes", $remark),
                |value, globals| globals.parsed.compression.$coding.min_length(value),
            )
            .default($min_length),
            setting(
                concat!(stringify!($coding), "-types"),
                concat!("media types to compress besides `text/html`, separated by spaces; `*` for all", $remark),
                |value, globals| globals.parsed.compression.$coding.types(value),
            )
            .default(MediaTypes::DEFAULT),
        ]
    };
}

pub(super) const BROTLI: &[Setting] = coding!(brotli, 0..=11, "4", "20", "");
pub(super) const GZIP: &[Setting] = coding!(gzip, 1..=9, "1", "256", "");
pub(super) const ZSTD: &[Setting] = coding!(zstd, 1..=12, "3", "256", ". Specific to xdp-ingress");

/// Sorted by name.
pub(super) const SETTINGS: &[Setting] = &[
    setting(
        "enable-brotli",
        "whether responses are compressed with brotli for clients that accept it, unless an Ingress overrides it",
        |value, globals| boolean(value, &mut globals.parsed.compression.brotli.enabled),
    )
    .default("false"),
    setting(
        "enable-zstd",
        "whether responses are compressed with zstd for clients that accept it, unless an Ingress overrides it. \
         Specific to xdp-ingress",
        |value, globals| boolean(value, &mut globals.parsed.compression.zstd.enabled),
    )
    .default("false"),
    setting(
        "gzip-disable",
        "clients without gzip: a regular expression that matches a part of `User-Agent`",
        |value, globals| globals.parsed.compression.disable_gzip(value),
    ),
    setting(
        "use-gzip",
        "whether responses are compressed with gzip for clients that accept it, unless an Ingress overrides it",
        |value, globals| boolean(value, &mut globals.parsed.compression.gzip.enabled),
    )
    .default("false"),
];
