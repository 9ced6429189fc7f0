//! Formats access log entries as lines. Pure.

use std::{
    borrow::Cow,
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{HeaderMap, Version, header};
use jiff::{
    Timestamp,
    fmt::{strtime, temporal::DateTimePrinter},
    tz::Offset,
};

use ingress_model::{LogEscape, LogField, LogFormat, LogPiece};

use crate::{
    Authority,
    http::{client_address::push_address, fields::Field},
    observe::access_log::entry::{LogRecord, Notes},
};

/// The fields of a JSON line in order: the text before the value, the field, and the text after it.
const JSON: [(&str, LogField, &str); 19] = [
    (r#""time":""#, LogField::TimeIso, QUOTE),
    (r#""remote_addr":""#, LogField::ClientAddress, QUOTE),
    (r#""method":""#, LogField::Method, QUOTE),
    (r#""scheme":""#, LogField::Scheme, QUOTE),
    (r#""host":""#, LogField::Host, QUOTE),
    (r#""uri":""#, LogField::Target, QUOTE),
    (r#""protocol":""#, LogField::Version, QUOTE),
    (r#""status":"#, LogField::Status, ""),
    (r#""received":"#, LogField::Received, ""),
    (r#""sent":"#, LogField::Sent, ""),
    (r#""seconds":"#, LogField::Took, ""),
    (r#""request_id":""#, LogField::RequestId, QUOTE),
    (r#""namespace":""#, LogField::Namespace, QUOTE),
    (r#""ingress":""#, LogField::Ingress, QUOTE),
    (r#""upstream":""#, LogField::Upstream, QUOTE),
    (r#""upstream_addr":""#, LogField::UpstreamAddress, QUOTE),
    (r#""upstream_status":"#, LogField::UpstreamStatus, ""),
    (r#""upstream_seconds":"#, LogField::UpstreamTime, ""),
    (r#""user_agent":""#, LogField::Header(header::USER_AGENT), QUOTE),
];

const QUOTE: &str = "\"";

/// Formats times with a precision of seconds.
const TIME: DateTimePrinter = DateTimePrinter::new().precision(Some(0));

/// The value of one field in a line.
enum FieldValue<'e> {
    /// Text that may need escaping.
    Text(Cow<'e, str>),
    /// The request line. The client chose the target in its middle.
    Request {
        method: &'e str,
        target: &'e str,
        version: &'static str,
    },
    Address(IpAddr),
    Socket(SocketAddr),
    Number(u64),
    /// Seconds with three decimals.
    Seconds(Duration),
    /// A timestamp in RFC 3339 format.
    Time(Timestamp),
}

/// Appends the line of a request that took `took` and ended at `now`.
pub(super) fn line(line: &mut String, entry: &LogRecord, took: Duration, now: Timestamp) {
    match &entry.log.format {
        LogFormat::Json => json(line, entry, took, now),
        LogFormat::Template { pieces, escape } => {
            for piece in &**pieces {
                match piece {
                    LogPiece::Text(text) => line.push_str(text),
                    LogPiece::Field(field) => match value(field, entry, took, now) {
                        Some(value) => value.push(line, *escape),
                        None => line.push('-'),
                    },
                }
            }
        }
    }
    line.push('\n');
}

fn json(line: &mut String, entry: &LogRecord, took: Duration, now: Timestamp) {
    let mut before = '{';
    for (begin, field, end) in &JSON {
        let Some(value) = value(field, entry, took, now) else { continue };
        line.push(std::mem::replace(&mut before, ','));
        line.push_str(begin);
        value.push(line, LogEscape::Json);
        line.push_str(end);
    }
    line.push('}');
}

/// Returns the value of `field`, or `None` if the request has none.
fn value<'e>(field: &LogField, entry: &'e LogRecord, took: Duration, now: Timestamp) -> Option<FieldValue<'e>> {
    let LogRecord { log: _, request, client, secure, begun: _, notes, status, sent } = entry;
    let Notes { owner, upstream, answer, request_id, received } = notes;
    let target = || request.uri.path_and_query().map_or("/", |target| target.as_str());
    let owner = || owner.as_deref().and_then(|owner| owner.split_once('/'));
    let authority = || Authority::of(request.version, &request.uri, Field::of(&request.headers, &header::HOST)).ok();
    let text = |text: &'e str| FieldValue::Text(Cow::Borrowed(text));
    Some(match field {
        LogField::ClientAddress => FieldValue::Address(*client),
        LogField::User => FieldValue::Text(user(&request.headers)?.into()),
        LogField::TimeCommon => FieldValue::Text(strtime::format("%d/%b/%Y:%H:%M:%S +0000", now).ok()?.into()),
        LogField::TimeIso => FieldValue::Time(now),
        // Truncated to whole seconds like the other times, then printed with milliseconds.
        LogField::TimeUnix => FieldValue::Seconds(Duration::from_millis(now.as_millisecond().unsigned_abs())),
        LogField::Request => {
            FieldValue::Request { method: request.method.as_str(), target: target(), version: version(request.version) }
        }
        LogField::Method => text(request.method.as_str()),
        LogField::Target => text(target()),
        LogField::Path => text(request.uri.path()),
        LogField::Query => text(request.uri.query()?),
        LogField::Version => text(version(request.version)),
        LogField::Scheme => text(if *secure { "https" } else { "http" }),
        LogField::Host => FieldValue::Text(authority()?.into_host()),
        LogField::Authority => FieldValue::Text(authority()?.into_text()),
        LogField::Header(name) => FieldValue::Text(String::from_utf8_lossy(request.headers.get(name)?.as_bytes())),
        LogField::Status => FieldValue::Number((*status).into()),
        LogField::Sent => FieldValue::Number(*sent),
        LogField::Received => FieldValue::Number(received.as_ref().map_or(0, |received| received.get())),
        LogField::Took => FieldValue::Seconds(took),
        LogField::RequestId => FieldValue::Text(String::from_utf8_lossy(request_id.as_ref()?.as_bytes())),
        LogField::Namespace => text(owner()?.0),
        LogField::Ingress => text(owner()?.1),
        LogField::Upstream => text(upstream.as_ref()?.as_str()),
        LogField::UpstreamAddress => FieldValue::Socket(answer.as_ref()?.address),
        LogField::UpstreamStatus => FieldValue::Number(answer.as_ref()?.status.into()),
        LogField::UpstreamTime => FieldValue::Seconds(answer.as_ref()?.took),
        LogField::Nothing => return None,
    })
}

impl FieldValue<'_> {
    /// Appends the value. Writing to a `String` cannot fail.
    fn push(&self, line: &mut String, escape: LogEscape) {
        match self {
            Self::Text(text) => push(line, text, escape),
            Self::Request { method, target, version } => {
                line.extend([*method, " "]);
                push(line, target, escape);
                line.extend([" ", *version]);
            }
            Self::Address(address) => push_address(line, *address),
            Self::Socket(SocketAddr::V6(address)) => write!(line, "{address}").unwrap_or_default(),
            Self::Socket(SocketAddr::V4(address)) => {
                push_address(line, (*address.ip()).into());
                line.push(':');
                push_number(line, address.port().into());
            }
            Self::Number(number) => push_number(line, *number),
            Self::Seconds(time) => {
                // Rounds to milliseconds; most of these times are a few hundred microseconds.
                let time = time.saturating_add(Duration::from_micros(500));
                push_number(line, time.as_secs());
                // Prints the fraction with its leading zeros: prints 1000 more, then replaces the `1` by the point.
                let mark = line.len();
                push_number(line, u64::from(1000 + time.subsec_millis()));
                line.replace_range(mark..=mark, ".");
            }
            Self::Time(time) => TIME.print_timestamp_with_offset(time, Offset::UTC, line).unwrap_or_default(),
        }
    }
}

fn push_number(line: &mut String, number: u64) {
    line.push_str(itoa::Buffer::new().format(number));
}

fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        Version::HTTP_3 => "HTTP/3.0",
        _ => "HTTP/1.1",
    }
}

/// Returns the user of `Authorization: Basic` (RFC 7617, section 2), without the password.
fn user(headers: &HeaderMap) -> Option<String> {
    let (scheme, credentials) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let decoded = BASE64_STANDARD.decode(credentials.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let end = decoded.iter().position(|b| *b == b':')?;
    Some(String::from_utf8_lossy(&decoded[..end]).into_owned()).filter(|user| !user.is_empty())
}

/// Appends a value so that no character in it can end the enclosing string or line.
fn push(line: &mut String, value: &str, escape: LogEscape) {
    // Fast path: nearly no value needs escaping. The bytes to escape are ASCII, or part of a multi-byte character.
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
    fn values_are_formatted_as_numbers_and_seconds() {
        let millis = Duration::from_millis;
        for (value, expect) in [
            (FieldValue::Number(0), "0"),
            (FieldValue::Number(u64::MAX), "18446744073709551615"),
            (FieldValue::Seconds(Duration::ZERO), "0.000"),
            (FieldValue::Seconds(Duration::from_micros(499)), "0.000"),
            (FieldValue::Seconds(Duration::from_micros(500)), "0.001"),
            (FieldValue::Seconds(millis(1_042)), "1.042"),
            (FieldValue::Seconds(Duration::from_micros(59_999_600)), "60.000"),
            (FieldValue::Socket(SocketAddr::from(([10, 0, 0, 1], 80))), "10.0.0.1:80"),
            (FieldValue::Socket(SocketAddr::from(([0; 16], 80))), "[::]:80"),
            (FieldValue::Time(Timestamp::UNIX_EPOCH), "1970-01-01T00:00:00+00:00"),
        ] {
            let mut line = String::new();
            value.push(&mut line, LogEscape::Json);
            assert_eq!(line, expect);
        }
    }

    #[test]
    fn values_are_escaped() {
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
    fn the_user_is_logged_without_its_password() {
        let user_of = |value: &str| {
            let headers = [(header::AUTHORIZATION, value.parse().expect("a value"))].into_iter().collect();
            user(&headers)
        };
        assert_eq!(user_of("Basic YWxpY2U6c2VjcmV0").as_deref(), Some("alice"));
        assert_eq!(user_of("Bearer YWxpY2U6c2VjcmV0"), None);
        assert_eq!(user_of("Basic !!!"), None);
    }
}
