//! Which responses are compressed, and how well.

use super::{super::super::values::boolean, Setting, setting};
use crate::model::MediaTypes;

/// Sorted by name.
pub(super) const SETTINGS: &[Setting] = &[
    setting("brotli-level", "how well, from 0 to 11; more is smaller and slower", |value, globals| {
        globals.asked.compression.brotli.level(0..=11, value)
    })
    .default("4"),
    setting("brotli-min-length", "shorter responses stay as they are, in bytes", |value, globals| {
        globals.asked.compression.brotli.min_length(value)
    })
    .default("20"),
    setting(
        "brotli-types",
        "types that are compressed besides `text/html`, separated by spaces; `*` for all",
        |value, globals| globals.asked.compression.brotli.types(value),
    )
    .default(MediaTypes::DEFAULT),
    setting("enable-brotli", "the same with brotli", |value, globals| {
        boolean(value, &mut globals.asked.compression.brotli.enabled)
    })
    .default("false"),
    setting("enable-zstd", "the same with zstd. Ours alone", |value, globals| {
        boolean(value, &mut globals.asked.compression.zstd.enabled)
    })
    .default("false"),
    setting(
        "gzip-disable",
        "clients without gzip: a regular expression for something in `User-Agent`",
        |value, globals| globals.asked.compression.disable_gzip(value),
    ),
    setting("gzip-level", "how well, from 1 to 9; more is smaller and slower", |value, globals| {
        globals.asked.compression.gzip.level(1..=9, value)
    })
    .default("1"),
    setting("gzip-min-length", "shorter responses stay as they are, in bytes", |value, globals| {
        globals.asked.compression.gzip.min_length(value)
    })
    .default("256"),
    setting(
        "gzip-types",
        "types that are compressed besides `text/html`, separated by spaces; `*` for all",
        |value, globals| globals.asked.compression.gzip.types(value),
    )
    .default(MediaTypes::DEFAULT),
    setting(
        "use-gzip",
        "whether responses are compressed with gzip for clients that take it, where an Ingress does not say",
        |value, globals| boolean(value, &mut globals.asked.compression.gzip.enabled),
    )
    .default("false"),
    setting("zstd-level", "how well, from 1 to 12; more is smaller and slower. Ours alone", |value, globals| {
        globals.asked.compression.zstd.level(1..=12, value)
    })
    .default("3"),
    setting("zstd-min-length", "shorter responses stay as they are, in bytes. Ours alone", |value, globals| {
        globals.asked.compression.zstd.min_length(value)
    })
    .default("256"),
    setting(
        "zstd-types",
        "types that are compressed besides `text/html`, separated by spaces; `*` for all. Ours alone",
        |value, globals| globals.asked.compression.zstd.types(value),
    )
    .default(MediaTypes::DEFAULT),
];
