//! Entries as lines. Pure.

use std::{borrow::Cow, fmt::Write as _, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{HeaderMap, Version, header};
use jiff::{
    Timestamp,
    fmt::{strtime, temporal::DateTimePrinter},
    tz::Offset,
};

use super::{Entry, Notes, UpstreamAnswer};
use crate::{
    model::{LogEscape, LogField, LogFormat, LogPiece},
    proxy::{Authority, fields::Field},
};

/// The fields of a line of JSON, in this order; the name, what it says, and whether that is a number.
const JSON: [(&str, LogField, bool); 19] = [
    ("time", LogField::TimeIso, false),
    ("remote_addr", LogField::ClientAddress, false),
    ("method", LogField::Method, false),
    ("scheme", LogField::Scheme, false),
    ("host", LogField::Host, false),
    ("uri", LogField::Target, false),
    ("protocol", LogField::Version, false),
    ("status", LogField::Status, true),
    ("received", LogField::Received, true),
    ("sent", LogField::Sent, true),
    ("seconds", LogField::Took, true),
    ("request_id", LogField::RequestId, false),
    ("namespace", LogField::Namespace, false),
    ("ingress", LogField::Ingress, false),
    ("upstream", LogField::Upstream, false),
    ("upstream_addr", LogField::UpstreamAddress, false),
    ("upstream_status", LogField::UpstreamStatus, true),
    ("upstream_seconds", LogField::UpstreamTime, true),
    ("user_agent", LogField::Header(header::USER_AGENT), false),
];

/// Times to the second.
const TIME: DateTimePrinter = DateTimePrinter::new().precision(Some(0));

/// The line of a request that took so long until `now`.
pub(super) fn line(entry: &Entry, took: Duration, now: Timestamp) -> Vec<u8> {
    let mut line = String::with_capacity(512);
    match &entry.log.format {
        LogFormat::Json => json(&mut line, entry, took, now),
        LogFormat::Template { pieces, escape } => {
            for piece in &**pieces {
                match piece {
                    LogPiece::Text(text) => line.push_str(text),
                    LogPiece::Field(field) => match value(field, entry, took, now) {
                        Some(value) => push(&mut line, &value, *escape),
                        None => line.push('-'),
                    },
                }
            }
        }
    }
    line.push('\n');
    line.into_bytes()
}

fn json(line: &mut String, entry: &Entry, took: Duration, now: Timestamp) {
    line.push('{');
    for (name, field, is_number) in &JSON {
        let Some(value) = value(field, entry, took, now) else { continue };
        if line.len() > 1 {
            line.push(',');
        }
        let quote = if *is_number { "" } else { "\"" };
        line.extend(["\"", *name, "\":", quote]);
        push(line, &value, LogEscape::Json);
        line.push_str(quote);
    }
    line.push('}');
}

/// What there is to say; `None` if nothing.
fn value<'e>(field: &LogField, entry: &'e Entry, took: Duration, now: Timestamp) -> Option<Cow<'e, str>> {
    let Entry { log: _, sink: _, request, client, secure, begun: _, notes, status, sent } = entry;
    let Notes { owner, upstream, answer, request_id, received } = notes;
    let target = || request.uri.path_and_query().map_or("/", |target| target.as_str());
    let owner = || owner.as_deref().and_then(|owner| owner.split_once('/'));
    let authority = || Authority::of(request.version, &request.uri, Field::of(&request.headers, &header::HOST)).ok();
    let seconds = |time: Duration| format!("{:.3}", time.as_secs_f64());
    Some(match field {
        LogField::ClientAddress => client.to_string().into(),
        LogField::User => user(&request.headers)?.into(),
        LogField::TimeCommon => strtime::format("%d/%b/%Y:%H:%M:%S +0000", now).ok()?.into(),
        LogField::TimeIso => TIME.timestamp_with_offset_to_string(&now, Offset::UTC).into(),
        LogField::TimeUnix => format!("{}.{:03}", now.as_second(), now.subsec_millisecond()).into(),
        LogField::Request => format!("{} {} {}", request.method, target(), version(request.version)).into(),
        LogField::Method => request.method.as_str().into(),
        LogField::Target => target().into(),
        LogField::Path => request.uri.path().into(),
        LogField::Query => request.uri.query()?.into(),
        LogField::Version => version(request.version).into(),
        LogField::Scheme => if *secure { "https" } else { "http" }.into(),
        LogField::Host => authority()?.into_host(),
        LogField::Authority => authority()?.into_text(),
        LogField::Header(name) => String::from_utf8_lossy(request.headers.get(name)?.as_bytes()),
        LogField::Status => status.to_string().into(),
        LogField::Sent => sent.to_string().into(),
        LogField::Received => received.as_ref().map_or(0, |received| received.get()).to_string().into(),
        LogField::Took => seconds(took).into(),
        LogField::RequestId => String::from_utf8_lossy(request_id.as_ref()?.as_bytes()),
        LogField::Namespace => owner()?.0.into(),
        LogField::Ingress => owner()?.1.into(),
        LogField::Upstream => upstream.as_ref()?.as_str().into(),
        LogField::UpstreamAddress => answer.as_ref()?.address.to_string().into(),
        LogField::UpstreamStatus => answer.as_ref()?.status.to_string().into(),
        LogField::UpstreamTime => seconds(answer.as_ref().map(|UpstreamAnswer { took, .. }| *took)?).into(),
        LogField::Nothing => return None,
    })
}

fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    }
}

/// The user of `Authorization: Basic` (RFC 7617, 2), without the password.
fn user(headers: &HeaderMap) -> Option<String> {
    let (scheme, credentials) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let decoded = BASE64_STANDARD.decode(credentials.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let end = decoded.iter().position(|b| *b == b':')?;
    Some(String::from_utf8_lossy(&decoded[..end]).into_owned()).filter(|user| !user.is_empty())
}

/// Appends a value so that nothing in it ends what it stands in.
fn push(line: &mut String, value: &str, escape: LogEscape) {
    // Nearly every value has nothing to escape. What needs it is one byte of ASCII, or part of another character.
    let is_plain = |byte: u8| match escape {
        LogEscape::Json => !matches!(byte, b'"' | b'\\' | 0..=0x1f | 0x7f),
        LogEscape::Default => !matches!(byte, b'"' | b'\\' | 0..=0x1f | 0x7f..),
    };
    if value.bytes().all(is_plain) {
        return line.push_str(value);
    }
    for c in value.chars() {
        match (c, escape) {
            ('"' | '\\', LogEscape::Json) => line.extend(['\\', c]),
            ('\0'..='\x1f' | '\x7f', LogEscape::Json) => write!(line, "\\u{:04x}", u32::from(c)).unwrap_or_default(),
            ('"' | '\\' | '\0'..='\x1f' | '\x7f'.., LogEscape::Default) => {
                let mut utf8 = [0; 4];
                for byte in c.encode_utf8(&mut utf8).bytes() {
                    write!(line, "\\x{byte:02X}").unwrap_or_default();
                }
            }
            _ => line.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_cannot_break_out() {
        for (value, default, json) in [
            ("plain", "plain", "plain"),
            ("a\"b\\c", "a\\x22b\\x5Cc", "a\\\"b\\\\c"),
            ("a\r\nb", "a\\x0D\\x0Ab", "a\\u000d\\u000ab"),
            ("é", "\\xC3\\xA9", "é"),
        ] {
            for (escape, expect) in [(LogEscape::Default, default), (LogEscape::Json, json)] {
                let mut line = String::new();
                push(&mut line, value, escape);
                assert_eq!(line, expect);
            }
        }
    }

    #[test]
    fn a_user_is_told_without_its_password() {
        let user_of = |value: &str| {
            let headers = [(header::AUTHORIZATION, value.parse().expect("a value"))].into_iter().collect();
            user(&headers)
        };
        assert_eq!(user_of("Basic YWxpY2U6c2VjcmV0").as_deref(), Some("alice"));
        assert_eq!(user_of("Bearer YWxpY2U6c2VjcmV0"), None);
        assert_eq!(user_of("Basic !!!"), None);
    }
}
