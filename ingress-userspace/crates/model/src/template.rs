//! Texts with request variables, under their nginx names. They are parsed once and rendered by
//! [`crate::route::template`].

use std::fmt;

use http::HeaderName;

/// A text with variables, such as `https://new.test$request_uri`.
#[derive(Clone, PartialEq, Eq)]
pub struct Template {
    source: Box<str>,
    pieces: Box<[TemplatePiece]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplatePiece {
    Text(Box<str>),
    Variable(Variable),
}

/// A property of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Variable {
    /// `$scheme`: `http` or `https`, of the client's connection.
    Scheme,
    /// `$host`: without a port.
    Host,
    /// `$http_host`, `$best_http_host`: with the port, if the client sent one.
    Authority,
    /// `$request_uri`: path and query.
    RequestUri,
    /// `$escaped_request_uri`: the same, escaped for use as a query argument.
    EscapedRequestUri,
    /// `$uri`: the path.
    Path,
    /// `$args`, `$query_string`: the query, without `?`.
    Query,
    /// `$is_args`: `?` if there is a query.
    QuestionMark,
    /// `$remote_addr`: the client's address. `$binary_remote_addr`, a shorter form in nginx, is the same here.
    ClientAddress,
    /// `$request_method`.
    Method,
    /// `$remote_user`: the name of `Authorization: Basic` (RFC 7617). Only `auth-secret` verifies it.
    RemoteUser,
    /// `$http_NAME`: the first field of that name.
    Header(HeaderName),
    /// `$cookie_NAME`.
    Cookie(Box<str>),
    /// `$arg_NAME`: an argument of the query, without decoding.
    Argument(Box<str>),
    /// `$1` … `$9`: a group of the rule's regular expression.
    Group(u8),
    /// `$msec`: the time in seconds since 1970, with milliseconds.
    Time,
    /// `$ssl_client_s_dn`: the subject of the client's certificate (RFC 4514), where the host asks for certificates.
    CertificateSubject,
    /// `$ssl_client_i_dn`: its issuer.
    CertificateIssuer,
    /// `$ssl_client_verify`: `SUCCESS`, `NONE`, or `FAILED:` and the reason.
    CertificateResult,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("`${0}` is no variable that is known here")]
    Unknown(String),
    #[error("a `$` must begin the name of a variable")]
    Dollar,
    #[error("`${{` is not closed by `}}`")]
    Unclosed,
    #[error("it is longer than {SOURCE_MAX} bytes, or names more than {VARIABLES_MAX} variables")]
    TooLong,
}

/// Maximum length of a text in bytes.
const SOURCE_MAX: usize = 16 * 1024;
/// Maximum number of variables in a text. Each may be as long as the head of a request.
const VARIABLES_MAX: usize = 64;

// === impl Template ===

impl Template {
    /// Parses `$name` and `${name}`.
    ///
    /// # Errors
    /// Fails if a `$` does not begin a variable of the list above, or the text exceeds its bounds.
    pub fn parse(source: &str) -> Result<Self, TemplateError> {
        let mut pieces = Vec::new();
        let mut rest = source;
        while let Some((text, after)) = rest.split_once('$') {
            if !text.is_empty() {
                pieces.push(TemplatePiece::Text(text.into()));
            }
            let (name, after) = name(after)?;
            pieces.push(TemplatePiece::Variable(Variable::named(name)?));
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(TemplatePiece::Text(rest.into()));
        }
        let variables = pieces.iter().filter(|piece| matches!(piece, TemplatePiece::Variable(_))).count();
        if source.len() > SOURCE_MAX || variables > VARIABLES_MAX {
            return Err(TemplateError::TooLong);
        }
        Ok(Self { source: source.into(), pieces: pieces.into() })
    }

    /// Returns the text of one variable.
    #[must_use]
    pub fn of(variable: Variable) -> Self {
        Self { source: Box::default(), pieces: [TemplatePiece::Variable(variable)].into() }
    }

    #[must_use]
    pub fn pieces(&self) -> &[TemplatePiece] {
        &self.pieces
    }

    /// Returns the text if it has no variables.
    #[must_use]
    pub fn literal(&self) -> Option<&str> {
        match &*self.pieces {
            [] => Some(""),
            [TemplatePiece::Text(text)] => Some(text),
            _ => None,
        }
    }

    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.pieces.iter().filter_map(|piece| match piece {
            TemplatePiece::Text(_) => None,
            TemplatePiece::Variable(variable) => Some(variable),
        })
    }

    /// Returns the text as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.source
    }
}

/// Splits off the name at the start of `text`. A group has one digit: `$10` is the first group and a `0`.
fn name(text: &str) -> Result<(&str, &str), TemplateError> {
    if let Some(text) = text.strip_prefix('{') {
        return text.split_once('}').ok_or(TemplateError::Unclosed);
    }
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(text.split_at(1));
    }
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    if end == 0 { Err(TemplateError::Dollar) } else { Ok(text.split_at(end)) }
}

impl Variable {
    fn named(name: &str) -> Result<Self, TemplateError> {
        let unknown = || TemplateError::Unknown(name.to_owned());
        Ok(match name {
            "scheme" | "pass_access_scheme" => Self::Scheme,
            "host" => Self::Host,
            "http_host" | "best_http_host" => Self::Authority,
            "request_uri" => Self::RequestUri,
            "escaped_request_uri" => Self::EscapedRequestUri,
            "uri" | "document_uri" => Self::Path,
            "args" | "query_string" => Self::Query,
            "is_args" => Self::QuestionMark,
            "remote_addr" | "binary_remote_addr" => Self::ClientAddress,
            "request_method" => Self::Method,
            "remote_user" => Self::RemoteUser,
            "msec" => Self::Time,
            "ssl_client_s_dn" => Self::CertificateSubject,
            "ssl_client_i_dn" => Self::CertificateIssuer,
            "ssl_client_verify" => Self::CertificateResult,
            _ => {
                if let Some(header) = name.strip_prefix("http_") {
                    return HeaderName::try_from(header.replace('_', "-"))
                        .map(Self::Header)
                        .map_err(|_invalid| unknown());
                }
                match (name.strip_prefix("cookie_"), name.strip_prefix("arg_"), name.as_bytes()) {
                    (Some(cookie), _, _) if !cookie.is_empty() => Self::Cookie(cookie.into()),
                    (_, Some(argument), _) if !argument.is_empty() => Self::Argument(argument.into()),
                    (_, _, &[digit @ b'1'..=b'9']) => Self::Group(digit - b'0'),
                    _ => return Err(unknown()),
                }
            }
        })
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.source, f)
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_parsed_within_text() {
        let template = Template::parse("https://b.test/${arg_x}y$10$http_x_a$request_uri").expect("valid");
        let text = |text: &str| TemplatePiece::Text(text.into());
        assert_eq!(
            template.pieces(),
            [
                text("https://b.test/"),
                TemplatePiece::Variable(Variable::Argument("x".into())),
                text("y"),
                TemplatePiece::Variable(Variable::Group(1)),
                text("0"),
                TemplatePiece::Variable(Variable::Header(HeaderName::from_static("x-a"))),
                TemplatePiece::Variable(Variable::RequestUri),
            ]
        );
        assert_eq!(Template::parse("").expect("valid").literal(), Some(""));
        assert_eq!(Template::parse("/a").expect("valid").literal(), Some("/a"));
        assert_eq!(template.literal(), None);
    }

    #[test]
    fn invalid_variables_are_refused() {
        for text in ["$", "a$ b", "$-", "${host", "$nope", "$0", "$http_", "$cookie_", "${}", "$request_urix"] {
            assert!(Template::parse(text).is_err(), "{text}");
        }
    }
}
