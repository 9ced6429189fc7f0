//! Demands of a rule on requests: path, method, header fields and query parameters.

use http::{HeaderName, HeaderValue, Method};

use super::report::Flaw;
use crate::{
    gateway::route::{HttpMatch, MatchKind, PathMatch as RoutePath, PathMatchKind, ValueMatch},
    translate::text::{shorten, shorten_error},
};
use ingress_model::{Conditions, HeaderCondition, ParameterCondition, PathMatch, Pattern, PatternError};

/// Maximum number of regular expressions in one route.
pub(super) const MAX_EXPRESSIONS: usize = 256;

/// Number of regular expressions that a route may still have.
pub(super) struct ExpressionsLeft(usize);

// === impl ExpressionsLeft ===

impl ExpressionsLeft {
    pub(super) const fn new() -> Self {
        Self(MAX_EXPRESSIONS)
    }

    fn compile(&mut self, text: &str) -> Result<Pattern, Flaw> {
        let Some(left) = self.0.checked_sub(1) else {
            let message = format!("there are more than {MAX_EXPRESSIONS} regular expressions; divide the route");
            return Err(Flaw::unsupported(message));
        };
        self.0 = left;
        Pattern::of_field(text)
            .map_err(|error: PatternError| Flaw::unsupported(format!("{}; correct the match", shorten_error(&error))))
    }
}

/// Reads the demands of one match.
///
/// # Errors
/// The flaw of a demand that is not supported.
pub(super) fn read(demand: &HttpMatch, left: &mut ExpressionsLeft) -> Result<(PathMatch, Conditions), Flaw> {
    let HttpMatch { path, headers, query_params, method } = demand;
    let method =
        match method.as_deref() {
            None => None,
            Some(method) => Some(Method::from_bytes(method.as_bytes()).map_err(|_invalid| {
                Flaw::unsupported(format!("`{}` is no method; correct the match", shorten(method)))
            })?),
        };
    let conditions =
        Conditions { method, headers: read_headers(headers, left)?, parameters: read_parameters(query_params, left)? };
    Ok((read_path(path)?, conditions))
}

fn read_path(RoutePath { kind, value }: &RoutePath) -> Result<PathMatch, Flaw> {
    let path = match kind {
        PathMatchKind::Exact => PathMatch::exact(value),
        // A trailing slash has no meaning, not even for precedence.
        PathMatchKind::Prefix if value.len() > 1 => PathMatch::prefix(value.strip_suffix('/').unwrap_or(value)),
        PathMatchKind::Prefix => PathMatch::prefix(value),
        PathMatchKind::RegularExpression | PathMatchKind::Other(_) => {
            let message =
                format!("paths of type `{}` are not supported; use `Exact` or `PathPrefix`", shorten(kind.as_str()));
            return Err(Flaw::unsupported(message));
        }
    };
    path.map_err(|error| Flaw::unsupported(format!("{}; correct the match", shorten_error(&error))))
}

/// Reads demands on header fields, in the order of their names. Of several for one name, the first counts.
pub(super) fn read_headers(
    demands: &[ValueMatch],
    left: &mut ExpressionsLeft,
) -> Result<Vec<(HeaderName, HeaderCondition)>, Flaw> {
    let mut headers: Vec<(HeaderName, HeaderCondition)> = Vec::new();
    for ValueMatch { kind, name, value } in demands {
        let invalid = |part: &str| Flaw::unsupported(format!("`{}` is no header {part}; correct it", shorten(value)));
        let name = HeaderName::try_from(&**name).map_err(|_invalid| {
            Flaw::unsupported(format!("`{}` is no name of a header field; correct the match", shorten(name)))
        })?;
        let condition = match kind {
            MatchKind::Exact => {
                HeaderCondition::Exactly(HeaderValue::from_str(value).map_err(|_invalid| invalid("value"))?)
            }
            MatchKind::RegularExpression => HeaderCondition::Like(left.compile(value)?),
            MatchKind::Other(kind) => return Err(unknown(kind)),
        };
        if !headers.iter().any(|(known, _)| *known == name) {
            headers.push((name, condition));
        }
    }
    headers.sort_by(|(a, _), (b, _)| a.as_str().cmp(b.as_str()));
    Ok(headers)
}

fn read_parameters(
    demands: &[ValueMatch],
    left: &mut ExpressionsLeft,
) -> Result<Vec<(Box<str>, ParameterCondition)>, Flaw> {
    let mut parameters: Vec<(Box<str>, ParameterCondition)> = Vec::new();
    for ValueMatch { kind, name, value } in demands {
        let condition = match kind {
            MatchKind::Exact => ParameterCondition::Exactly(value.clone()),
            MatchKind::RegularExpression => ParameterCondition::Like(left.compile(value)?),
            MatchKind::Other(kind) => return Err(unknown(kind)),
        };
        if !parameters.iter().any(|(known, _)| known == name) {
            parameters.push((name.clone(), condition));
        }
    }
    parameters.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(parameters)
}

fn unknown(kind: &str) -> Flaw {
    Flaw::unsupported(format!("matches of type `{}` are not known; use `Exact` or `RegularExpression`", shorten(kind)))
}
