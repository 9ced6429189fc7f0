//! Sizes of bodies and heads, and the bodies that are buffered.

use super::row::{Row, key};
use crate::translate::values::{bytes, limit, switch};
use ingress_model::{Forwarding, Uploads};

/// Bounds of `proxy-buffer-size`, in bytes.
const HEAD_MIN: usize = 1 << 10;
const HEAD_MAX: usize = 1 << 20;

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedBuffering>] = &[
    key(
        "client-body-buffer-size",
        "largest number of bytes of a body to buffer, with `proxy-request-buffering: \"on\"`; from `1k` to `64m`",
    )
    .differs("from `1k` to `64m`, and only with `proxy-request-buffering: \"on\"`")
    .default("1m")
    .reads(|value, parsed| {
        let max = usize::try_from(bytes(value)?).unwrap_or(usize::MAX);
        if !(1 << 10..=64 << 20).contains(&max) {
            return Err("from `1k` to `64m`".into());
        }
        parsed.body_buffer = max;
        Ok(())
    }),
    key("proxy-body-size", "largest body of a request; larger ones get 413; `0` for any")
        .default("0")
        .reads(|value, parsed| limit(value, &mut parsed.body_max)),
    key("proxy-buffer-size", "largest head of a response; larger ones become 502; from `1k` to `1m`")
        .differs("from `1k` to `1m`; the default is `64k` instead of `4k`")
        .default("64k")
        .notes(|value| match bytes(value).map(usize::try_from) {
            Ok(Ok(size)) if size < HEAD_MIN => Some("smaller than `1k`, which applies".into()),
            Ok(size) if size.is_ok_and(|size| size <= HEAD_MAX) => None,
            Ok(_) => Some("larger than `1m`, which applies".into()),
            Err(_) => None,
        })
        .reads(|value, parsed| {
            let max = usize::try_from(bytes(value)?).unwrap_or(usize::MAX);
            parsed.response_head_max = max.clamp(HEAD_MIN, HEAD_MAX);
            Ok(())
        }),
    key(
        "proxy-request-buffering",
        "`on` buffers the whole body of a request in memory before a pod gets the request. Beyond \
         `client-body-buffer-size` the rest is streamed; less is buffered while memory is scarce. Unset or `off`, \
         bodies are streamed as they arrive; with an explicit `off`, `client-body-min-rate` does not apply",
    )
    .differs("without the annotation, bodies are streamed")
    .reads(|value, parsed| {
        let mut buffers = false;
        switch(value, &mut buffers)?;
        parsed.uploads = if buffers { Uploads::Buffered } else { Uploads::StreamedAtAnyRate };
        Ok(())
    }),
];

/// Sorted by name.
pub(super) const DEFAULTS: &[Row<ParsedBuffering>] = &[key(
    "proxy-body-size",
    "largest body of a request, unless an Ingress overrides it; larger ones get 413; `0` for any",
)
.default("0")
.nginx("1m")
.reads(|value, parsed| limit(value, &mut parsed.body_max))];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParsedBuffering {
    pub(super) body_max: Option<u64>,
    pub(super) uploads: Uploads,
    pub(super) body_buffer: usize,
    pub(super) response_head_max: usize,
}

impl Default for ParsedBuffering {
    fn default() -> Self {
        let Forwarding { body_max, uploads, body_buffer, response_head_max, .. } = Forwarding::default();
        Self { body_max, uploads, body_buffer, response_head_max }
    }
}
