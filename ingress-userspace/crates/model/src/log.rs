//! Format of the access log. Nothing is written here.

use std::{fmt, sync::Arc};

use http::HeaderName;

use super::PathMatch;

/// The access log of all hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessLog {
    pub format: LogFormat,
    /// Requests for these paths are not logged.
    pub skip: Arc<[PathMatch]>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// A JSON object per line, with all known fields.
    #[default]
    Json,
    /// A line of text with variables.
    Template { pieces: Arc<[LogPiece]>, escape: LogEscape },
}

/// Escaping of values, some of which clients control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEscape {
    /// `\xXX` for quotes, backslashes and unprintable characters, like nginx's default.
    Default,
    /// Escaping for JSON strings.
    Json,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogPiece {
    Text(Box<str>),
    Field(LogField),
}

/// A field of the access log, under its name in nginx and ingress-nginx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogField {
    /// `$remote_addr`.
    ClientAddress,
    /// `$remote_user`: user name sent by the client (RFC 7617), even if it was not required.
    User,
    /// `$time_local`, in UTC.
    TimeCommon,
    /// `$time_iso8601`, in UTC.
    TimeIso,
    /// `$msec`: seconds since 1970, to the millisecond.
    TimeUnix,
    /// `$request`: method, target and version.
    Request,
    /// `$request_method`.
    Method,
    /// `$request_uri`.
    Target,
    /// `$uri`.
    Path,
    /// `$args`, `$query_string`.
    Query,
    /// `$server_protocol`.
    Version,
    /// `$scheme`.
    Scheme,
    /// `$host`.
    Host,
    /// `$http_host`: with the port, if the client sent one.
    Authority,
    /// `$http_NAME`.
    Header(HeaderName),
    /// `$status`.
    Status,
    /// `$body_bytes_sent`: bytes of the response body.
    Sent,
    /// `$request_length`: bytes of the request body only, unlike nginx.
    Received,
    /// `$request_time`: seconds from the head of the request to the end of the response.
    Took,
    /// `$req_id`, `$request_id`: value of `X-Request-ID` in the request to the pod.
    RequestId,
    /// `$namespace` and `$ingress_name`: the owner of the rule.
    Namespace,
    Ingress,
    /// `$proxy_upstream_name`.
    Upstream,
    /// `$upstream_addr`: address of the pod that answered.
    UpstreamAddress,
    /// `$upstream_status`.
    UpstreamStatus,
    /// `$upstream_response_time`, `$upstream_header_time`: seconds until the response began, including earlier
    /// attempts.
    UpstreamTime,
    /// `$proxy_alternative_upstream_name`, `$service_name` and other variables without a value: `-`.
    Nothing,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`${0}` is no variable of the access log")]
pub struct LogError(String);

/// A piece of the text of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatPiece<'t> {
    Text(&'t str),
    /// The name of `$name` or `${name}`.
    Variable(&'t str),
}

/// Splits the text of a format of nginx into its pieces. A `$` without a name is a variable with an empty one.
pub fn format_pieces(text: &str) -> impl Iterator<Item = FormatPiece<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, after) = match rest.strip_prefix('$') {
            None if rest.is_empty() => return None,
            None => {
                let (before, after) = rest.split_at(rest.find('$').unwrap_or(rest.len()));
                (FormatPiece::Text(before), after)
            }
            Some(name) => match name.strip_prefix('{').and_then(|name| name.split_once('}')) {
                Some((name, after)) => (FormatPiece::Variable(name), after),
                None => {
                    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                    let (name, after) = name.split_at(name.find(|c| !is_name(c)).unwrap_or(name.len()));
                    (FormatPiece::Variable(name), after)
                }
            },
        };
        rest = after;
        Some(piece)
    })
}

// === impl LogFormat ===

impl LogFormat {
    /// Parses a text with `$name` and `${name}`.
    ///
    /// # Errors
    /// Fails if a variable is unknown.
    pub fn parse(text: &str, escape: LogEscape) -> Result<Self, LogError> {
        let piece = |piece| match piece {
            FormatPiece::Text(text) => Ok(LogPiece::Text(text.into())),
            FormatPiece::Variable(name) => {
                LogField::named(name).map(LogPiece::Field).ok_or_else(|| LogError(name.to_owned()))
            }
        };
        let pieces: Arc<[_]> = format_pieces(text).map(piece).collect::<Result<_, _>>()?;
        Ok(Self::Template { pieces, escape })
    }
}

impl LogField {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "remote_addr" | "the_real_ip" => Self::ClientAddress,
            "remote_user" => Self::User,
            "time_local" => Self::TimeCommon,
            "time_iso8601" => Self::TimeIso,
            "msec" => Self::TimeUnix,
            "request" => Self::Request,
            "request_method" => Self::Method,
            "request_uri" => Self::Target,
            "uri" | "document_uri" => Self::Path,
            "args" | "query_string" => Self::Query,
            "server_protocol" => Self::Version,
            "scheme" => Self::Scheme,
            "host" => Self::Host,
            "http_host" => Self::Authority,
            "status" => Self::Status,
            "body_bytes_sent" => Self::Sent,
            "request_length" => Self::Received,
            "request_time" => Self::Took,
            "req_id" | "request_id" => Self::RequestId,
            "namespace" => Self::Namespace,
            "ingress_name" => Self::Ingress,
            "proxy_upstream_name" => Self::Upstream,
            "upstream_addr" => Self::UpstreamAddress,
            "upstream_status" => Self::UpstreamStatus,
            "upstream_response_time" | "upstream_header_time" => Self::UpstreamTime,
            "proxy_alternative_upstream_name" | "upstream_response_length" | "service_name" | "service_port" => {
                Self::Nothing
            }
            _ => Self::Header(HeaderName::try_from(name.strip_prefix("http_")?.replace('_', "-")).ok()?),
        })
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json => f.write_str("json"),
            Self::Template { pieces, escape: _ } => write!(f, "template of {} pieces", pieces.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Default format of ingress-nginx.
    const UPSTREAM_INFO: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\" $request_length $request_time [$proxy_upstream_name] [$proxy_alternative_upstream_name] $upstream_addr $upstream_response_length $upstream_response_time $upstream_status $req_id";

    #[test]
    fn common_log_formats_are_parsed() {
        let Ok(LogFormat::Template { pieces, .. }) = LogFormat::parse(UPSTREAM_INFO, LogEscape::Default) else {
            panic!("{UPSTREAM_INFO}")
        };
        assert_eq!(pieces.len(), 33);
        assert_eq!(pieces[0], LogPiece::Field(LogField::ClientAddress));
        for text in ["{\"a\": \"$host\"}", "${status}x", "plain", "$http_x_a-$uri"] {
            assert!(LogFormat::parse(text, LogEscape::Json).is_ok(), "{text}");
        }
        for text in ["$nope", "$", "${status", "$http_"] {
            assert!(LogFormat::parse(text, LogEscape::Json).is_err(), "{text}");
        }
    }
}
