//! The head of an HTTP/1.1 response, for clients that parse responses by hand. It reads no body.

use anyhow::Context as _;

/// Maximum number of fields in a response.
pub const FIELDS_MAX: usize = 32;

/// Returns the status of a response and its length including the body; `None` while the head is incomplete.
///
/// # Errors
/// Fails if the bytes are not an HTTP/1.1 response, or its body has no length.
pub fn parse(answer: &[u8]) -> anyhow::Result<Option<(u16, usize)>> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let parsed = response.parse(answer).context("an answer that is no HTTP/1.1")?;
    let httparse::Status::Complete(head) = parsed else { return Ok(None) };
    let length = response.headers.iter().find(|field| field.name.eq_ignore_ascii_case("content-length"));
    let length = length.context("an answer without Content-Length")?.value;
    let length: usize = std::str::from_utf8(length)?.trim().parse().context("a Content-Length that is no number")?;
    Ok(Some((response.code.context("an answer without a status")?, head.saturating_add(length))))
}
