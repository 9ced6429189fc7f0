//! Conditions of a rule on the method, fields and query of a request, besides its path.

use std::{fmt, sync::LazyLock};

use http::{HeaderMap, HeaderName, HeaderValue, Method, uri::PathAndQuery};
use percent_encoding::percent_decode_str;

use super::Pattern;

/// Conditions that must all hold. A request for which one fails goes on to the next rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Conditions {
    /// Exactly this method.
    pub method: Option<Method>,
    /// Header fields with their values. Of several fields with one name, the first counts.
    pub headers: Vec<(HeaderName, HeaderCondition)>,
    /// Parameters of the query with their values. Names and values are compared after percent-decoding. Of several
    /// parameters with one name, the first counts.
    pub parameters: Vec<(Box<str>, ParameterCondition)>,
}

/// Condition on the value of a header field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HeaderCondition {
    Exactly(HeaderValue),
    /// A value that is not UTF-8 does not match.
    Like(Pattern),
}

/// Condition on the value of a query parameter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ParameterCondition {
    Exactly(Box<str>),
    /// A value that is not UTF-8 does not match.
    Like(Pattern),
}

/// The properties of a request to which conditions apply.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'r> {
    /// An extended CONNECT (RFC 8441) has the method GET, as the request that a pod gets.
    pub method: &'r Method,
    pub headers: &'r HeaderMap,
    /// The target as the client sent it. Only conditions on the query split it.
    pub target: Option<&'r PathAndQuery>,
}

// === impl RequestHead ===

impl RequestHead<'static> {
    /// Returns the head of a GET request without fields and query.
    #[must_use]
    pub fn bare() -> Self {
        static NO_FIELDS: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);
        Self { method: &Method::GET, headers: &NO_FIELDS, target: None }
    }
}

// === impl Conditions ===

impl Conditions {
    /// Returns whether every request fulfils the conditions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { method, headers, parameters } = self;
        method.is_none() && headers.is_empty() && parameters.is_empty()
    }

    /// Returns whether all conditions hold for the request.
    #[must_use]
    pub fn hold(&self, request: &RequestHead<'_>) -> bool {
        let Self { method, headers, parameters } = self;
        method.as_ref().is_none_or(|method| method == request.method)
            && headers
                .iter()
                .all(|(name, condition)| request.headers.get(name).is_some_and(|value| condition.holds(value)))
            && (parameters.is_empty() || {
                let query = request.target.and_then(PathAndQuery::query).unwrap_or_default();
                parameters.iter().all(|(name, condition)| condition.holds(name, query))
            })
    }
}

impl HeaderCondition {
    fn holds(&self, value: &HeaderValue) -> bool {
        match self {
            Self::Exactly(wanted) => wanted == value,
            Self::Like(pattern) => str::from_utf8(value.as_bytes()).is_ok_and(|value| pattern.is_match(value)),
        }
    }
}

impl ParameterCondition {
    fn holds(&self, name: &str, query: &str) -> bool {
        let mut pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let Some((_, value)) = pairs.find(|(key, _)| percent_decode_str(key).eq(name.bytes())) else { return false };
        match self {
            Self::Exactly(wanted) => percent_decode_str(value).eq(wanted.bytes()),
            Self::Like(pattern) => {
                let decoded: Vec<u8> = percent_decode_str(value).collect();
                str::from_utf8(&decoded).is_ok_and(|value| pattern.is_match(value))
            }
        }
    }
}

/// Formats the conditions, such as `GET x-version=2 ?debug~[01]`.
impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, headers, parameters } = self;
        let mut space = "";
        if let Some(method) = method {
            write!(f, "{method}")?;
            space = " ";
        }
        for (name, condition) in headers {
            match condition {
                HeaderCondition::Exactly(value) => {
                    write!(f, "{space}{name}={}", String::from_utf8_lossy(value.as_bytes()))?;
                }
                HeaderCondition::Like(pattern) => write!(f, "{space}{name}~{pattern}")?,
            }
            space = " ";
        }
        for (name, condition) in parameters {
            match condition {
                ParameterCondition::Exactly(value) => write!(f, "{space}?{name}={value}")?,
                ParameterCondition::Like(pattern) => write!(f, "{space}?{name}~{pattern}")?,
            }
            space = " ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions() -> Conditions {
        Conditions {
            method: Some(Method::GET),
            headers: vec![
                (HeaderName::from_static("x-a"), HeaderCondition::Exactly(HeaderValue::from_static("1"))),
                (HeaderName::from_static("x-b"), HeaderCondition::Like(Pattern::of_field("[0-9]+").expect("valid"))),
            ],
            parameters: vec![
                ("a b".into(), ParameterCondition::Exactly("ü".into())),
                ("n".into(), ParameterCondition::Like(Pattern::of_field("x|").expect("valid"))),
            ],
        }
    }

    fn holds(method: &Method, headers: &[(&'static str, &str)], query: &str) -> bool {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a valid value")));
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, value);
        }
        let target: PathAndQuery = format!("/?{query}").parse().expect("a target");
        conditions().hold(&RequestHead { method, headers: &map, target: Some(&target) })
    }

    #[test]
    fn all_conditions_must_hold() {
        let (headers, query) = ([("x-a", "1"), ("x-b", "23")], "z=1&a%20b=%C3%BC&n");
        assert!(holds(&Method::GET, &headers, query));
        assert!(!holds(&Method::HEAD, &headers, query));
        assert!(!holds(&Method::GET, &headers[..1], query));
        assert!(!holds(&Method::GET, &[("x-a", "2"), ("x-b", "23")], query));
        assert!(!holds(&Method::GET, &[("x-a", "1"), ("x-b", "x23")], query));
        for other in ["", "a%20b=u&n", "a+b=%C3%BC&n", "a%20b=%C3%BC", "a%20b=%C3%BC&n=y", "a%20b=%C3%BC&n=%FF"] {
            assert!(!holds(&Method::GET, &headers, other), "{other}");
        }
    }

    #[test]
    fn the_first_of_repeated_names_counts() {
        let query = "a%20b=%C3%BC&n=x";
        assert!(holds(&Method::GET, &[("x-a", "1"), ("x-a", "2"), ("x-b", "3")], query));
        assert!(!holds(&Method::GET, &[("x-a", "2"), ("x-a", "1"), ("x-b", "3")], query));
        assert!(!holds(&Method::GET, &[("x-a", "1"), ("x-b", "3")], "a%20b=other&a%20b=%C3%BC&n=x"));
    }

    #[test]
    fn conditions_have_a_short_text() {
        assert_eq!(conditions().to_string(), "GET x-a=1 x-b~[0-9]+ ?a b=ü ?n~x|");
        assert!(Conditions::default().is_empty() && !conditions().is_empty());
    }
}
