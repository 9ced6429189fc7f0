//! Lines of an access log, by a format of nginx.
//!
//! A value ends where the text behind its variable begins. nginx escapes quotes in values, so texts with a quote are
//! found for sure.

use std::borrow::Cow;

use anyhow::{Result, bail, ensure};
use ingress_model::{FormatPiece, format_pieces};

/// A format, arranged for reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LineFormat {
    /// Text before the first variable.
    start: String,
    variables: Vec<Variable>,
}

/// A variable, and the text behind it; only the last may have none.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Variable {
    /// `None` if it decides nothing.
    field: Option<Field>,
    /// Whether it has a value for each pod that was tried, with `, ` or ` : ` between.
    is_list: bool,
    after: String,
}

/// A variable that decides about a request or its answer. Others are skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Host,
    /// `$http_host`: the fallback for a format without `$host`.
    Authority,
    Request,
    Method,
    Target,
    Scheme,
    /// `$https`: `on`, or nothing.
    Https,
    Status,
    Client,
    Upstream,
    UpstreamAddress,
    /// `$http_NAME`: the name of the field.
    Header(String),
}

/// A line with its values, unescaped. Values that the format lacks, and `-`, are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LogLine<'l> {
    pub(super) host: Option<Cow<'l, str>>,
    pub(super) method: Cow<'l, str>,
    pub(super) target: Cow<'l, str>,
    pub(super) is_secure: Option<bool>,
    pub(super) status: u16,
    pub(super) client: Option<Cow<'l, str>>,
    pub(super) upstream: Option<Cow<'l, str>>,
    pub(super) upstream_address: Option<Cow<'l, str>>,
    pub(super) headers: Vec<(String, String)>,
}

/// Why a line cannot be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unreadable {
    /// The line has another form than the format.
    Form,
    /// The line has no request, as after a connection without one, or after a broken head.
    NoRequest,
    /// The line names no host.
    NoHost,
}

// === impl LineFormat ===

impl LineFormat {
    /// Arranges a format.
    ///
    /// # Errors
    /// Fails if a part that is needed is missing, or two variables cannot be told apart.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut format = Self { start: String::new(), variables: Vec::new() };
        for piece in format_pieces(text) {
            match (piece, format.variables.last_mut()) {
                (FormatPiece::Text(text), None) => format.start += text,
                (FormatPiece::Text(text), Some(last)) => last.after += text,
                (FormatPiece::Variable(name), Some(last)) if last.after.is_empty() => {
                    bail!("there is no text before `${name}`, so its value cannot be told from the one before it")
                }
                (FormatPiece::Variable(name), _) => {
                    let (field, is_list) = (Field::named(name), name.starts_with("upstream_"));
                    format.variables.push(Variable { field, is_list, after: String::new() });
                }
            }
        }
        let has = |wanted: Field| format.variables.iter().any(|variable| variable.field.as_ref() == Some(&wanted));
        ensure!(
            has(Field::Request) || has(Field::Method) && has(Field::Target),
            "it has no `$request`; without the request there is nothing to replay"
        );
        ensure!(has(Field::Status), "it has no `$status`; without the answer there is nothing to compare");
        ensure!(
            has(Field::Host) || has(Field::Authority),
            "it has no `$host`, and many hosts have the same paths; `--print-format` prints a patch for the ConfigMap of \
             ingress-nginx that adds it, so log for some time with that"
        );
        Ok(format)
    }

    /// Reads a line, without its end.
    ///
    /// # Errors
    /// Fails if the line has another form.
    pub(super) fn read<'l>(&self, line: &'l str) -> Result<LogLine<'l>, Unreadable> {
        let mut rest = line.strip_prefix(&*self.start).ok_or(Unreadable::Form)?;
        let (mut found, mut authority, mut has_status, mut has_request) = (LogLine::default(), None, false, false);
        for Variable { field, is_list, after } in &self.variables {
            let end = if after.is_empty() { Some(rest.len()) } else { find(rest, after, *is_list) };
            let end = end.ok_or(Unreadable::Form)?;
            let value = &rest[..end];
            rest = &rest[end + after.len()..];
            let Some(field) = field else { continue };
            let value = Some(value).filter(|value| !matches!(*value, "" | "-")).map(unescaped);
            match (field, value) {
                (Field::Https, value) => found.is_secure = Some(value.is_some_and(|value| value == "on")),
                (_, None) => {}
                (Field::Host, value) => found.host = value,
                (Field::Authority, value) => authority = value,
                (Field::Request, Some(value)) => {
                    (found.method, found.target) = request(value).ok_or(Unreadable::NoRequest)?;
                    has_request = true;
                }
                (Field::Method, Some(value)) => found.method = value,
                (Field::Target, Some(value)) => {
                    found.target = value;
                    has_request = true;
                }
                (Field::Scheme, Some(value)) => found.is_secure = Some(value == "https"),
                (Field::Status, Some(value)) => {
                    found.status = value.parse().map_err(|_no_number| Unreadable::Form)?;
                    has_status = true;
                }
                (Field::Client, value) => found.client = value,
                (Field::Upstream, value) => found.upstream = value,
                (Field::UpstreamAddress, value) => found.upstream_address = value,
                (Field::Header(name), Some(value)) => found.headers.push((name.clone(), value.into_owned())),
            }
        }
        if !has_status || !rest.is_empty() {
            return Err(Unreadable::Form);
        }
        if !has_request || found.method.is_empty() {
            return Err(Unreadable::NoRequest);
        }
        found.host = found.host.or(authority);
        if found.host.is_none() { Err(Unreadable::NoHost) } else { Ok(found) }
    }

    /// Returns the fields of requests that lines tell.
    pub(super) fn fields(&self) -> impl Iterator<Item = &str> {
        self.variables.iter().filter_map(|variable| match &variable.field {
            Some(Field::Header(name)) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Returns whether lines tell which requests a pod answered.
    pub(super) fn tells_pods(&self) -> bool {
        self.variables.iter().any(|variable| variable.field == Some(Field::UpstreamAddress))
    }
}

/// Returns the method and the target of a request line; `None` if it has another form.
fn request(line: Cow<'_, str>) -> Option<(Cow<'_, str>, Cow<'_, str>)> {
    let parts = |line: &str| {
        let (method, rest) = line.split_once(' ')?;
        let (target, version) = rest.rsplit_once(' ')?;
        (version.starts_with("HTTP/") && !target.contains(' ')).then_some((method.len(), target.len()))
    };
    let (method, target) = parts(&line)?;
    Some(match line {
        Cow::Borrowed(line) => (line[..method].into(), line[method + 1..method + 1 + target].into()),
        Cow::Owned(line) => (line[..method].to_owned().into(), line[method + 1..method + 1 + target].to_owned().into()),
    })
}

/// Returns the place of `text` in `value`, outside escapes, and outside of what stands between the values of a list.
fn find(value: &str, text: &str, is_list: bool) -> Option<usize> {
    let first = *text.as_bytes().first()?;
    let bytes = value.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let is_between = || {
            let (before, after) = (&bytes[..at], &bytes[at + 1..]);
            is_list && first == b' ' && (before.ends_with(b",") || before.ends_with(b" :") || after.starts_with(b": "))
        };
        match bytes[at] {
            byte if byte == first && bytes[at..].starts_with(text.as_bytes()) && !is_between() => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    None
}

/// Undoes both escapes of nginx: `\xXX` and those of JSON.
fn unescaped(value: &str) -> Cow<'_, str> {
    let Some(first) = value.find('\\') else { return value.into() };
    let mut bytes = value.as_bytes()[..first].to_vec();
    let mut rest = &value[first..];
    while let Some((before, after)) = rest.split_once('\\') {
        bytes.extend_from_slice(before.as_bytes());
        let number = |digits: usize| u32::from_str_radix(after.get(1..1 + digits)?, 16).ok();
        let (byte, taken) = match after.as_bytes().first() {
            Some(b'x') => (number(2).and_then(|number| u8::try_from(number).ok()), 3),
            Some(b'u') => (number(4).and_then(|number| u8::try_from(number).ok()), 5),
            Some(b'n') => (Some(b'\n'), 1),
            Some(b'r') => (Some(b'\r'), 1),
            Some(b't') => (Some(b'\t'), 1),
            Some(b'b') => (Some(8), 1),
            Some(b'f') => (Some(12), 1),
            Some(byte @ (b'"' | b'\\' | b'/')) => (Some(*byte), 1),
            _ => (None, 0),
        };
        match byte {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[taken..];
            }
            // No escape of nginx: the backslash stands for itself.
            None => {
                bytes.push(b'\\');
                rest = after;
            }
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&bytes).into_owned().into()
}

// === impl Field ===

impl Field {
    /// Returns the field for a variable; `None` if it decides nothing.
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "host" => Self::Host,
            "http_host" => Self::Authority,
            "request" => Self::Request,
            "request_method" => Self::Method,
            "request_uri" => Self::Target,
            "scheme" | "pass_access_scheme" => Self::Scheme,
            "https" => Self::Https,
            "status" => Self::Status,
            "remote_addr" | "the_real_ip" => Self::Client,
            "proxy_upstream_name" => Self::Upstream,
            "upstream_addr" => Self::UpstreamAddress,
            _ => Self::Header(name.strip_prefix("http_")?.replace('_', "-")),
        })
    }
}

// === impl Unreadable ===

impl Unreadable {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Form => "the line has another form than the format",
            Self::NoRequest => "the line has no request",
            Self::NoHost => "the line names no host",
        }
    }
}
