//! Demands of a rule on requests: path, method, header fields and query parameters.

use std::collections::HashMap;

use http::{HeaderName, HeaderValue, Method};

use super::report::Flaw;
use crate::{
    gateway::route::{HttpMatch, MatchKind, PathMatch as RoutePath, PathMatchKind, ValueMatch},
    translate::{
        compiled_expressions::Cost,
        text::{shorten, shorten_error},
    },
};
use ingress_model::{
    Conditions, HeaderCondition, ParameterCondition, PathError, PathMatch, PathPattern, Pattern, PatternError,
};

/// Maximum number and memory of the regular expressions of one route. Methods of any service are among them.
const MAX_OF_ROUTE: Cost = Cost { count: 64, bytes: 2 << 20 };

/// The regular expressions of one route, each compiled once, and the remaining allowance for them.
pub(super) struct Expressions {
    known: HashMap<Box<str>, Pattern>,
    left: Cost,
}

// === impl Expressions ===

impl Expressions {
    pub(super) fn new() -> Self {
        Self { known: HashMap::new(), left: MAX_OF_ROUTE }
    }

    /// Begins anew with the allowance, because the same route is read again.
    pub(super) const fn reset(&mut self) {
        self.left = MAX_OF_ROUTE;
    }

    /// Takes one expression from the allowance.
    ///
    /// # Errors
    /// The flaw of a route that has too many.
    fn count(&mut self) -> Result<(), Flaw> {
        self.left.count = self.left.count.checked_sub(1).ok_or_else(|| {
            let count = MAX_OF_ROUTE.count;
            let message =
                format!("there are more than {count} regular expressions or methods of any service; divide the route");
            Flaw::unsupported(message)
        })?;
        Ok(())
    }

    /// Takes expressions that are not of matches from the allowance.
    ///
    /// # Errors
    /// The flaw of a route that has too many.
    pub(super) fn charge(&mut self, Cost { count, bytes }: Cost) -> Result<(), Flaw> {
        for _ in 0..count {
            self.count()?;
        }
        self.weigh(bytes)
    }

    fn weigh(&mut self, bytes: usize) -> Result<(), Flaw> {
        self.left.bytes = self.left.bytes.checked_sub(bytes).ok_or_else(too_large)?;
        Ok(())
    }

    /// Returns the expression `text` for a whole field or parameter.
    fn compile(&mut self, text: &str) -> Result<Pattern, Flaw> {
        self.count()?;
        let pattern = match self.known.get(text) {
            Some(known) => known.clone(),
            None => {
                let new = Pattern::of_field(text).map_err(|error| incorrect(&error))?;
                self.known.insert(text.into(), new.clone());
                new
            }
        };
        self.weigh(pattern.memory())?;
        Ok(pattern)
    }

    /// Returns the match for a method of any service, which goes behind those that name a service.
    pub(super) fn method_of_any_service(&mut self, method: &str) -> Result<PathMatch, Flaw> {
        self.count()?;
        let pattern = PathMatch::pattern_within(&format!("/[^/]+/(?-i:{method})$"), self.left.bytes);
        let pattern = pattern.map_err(|error| match error {
            PathError::Pattern(PatternError::TooLarge(_)) if self.left.bytes < PathPattern::MAX => too_large(),
            error => incorrect(&error),
        })?;
        self.weigh(pattern.size())?;
        Ok(PathMatch::Pattern(pattern.ranked(1).into()))
    }
}

fn too_large() -> Flaw {
    let kib = MAX_OF_ROUTE.bytes / 1024;
    Flaw::unsupported(format!(
        "the regular expressions need more than {kib} KiB; write shorter ones, or divide the route"
    ))
}

fn incorrect(error: &dyn std::error::Error) -> Flaw {
    Flaw::unsupported(format!("{}; correct the match", shorten_error(&error)))
}

/// Reads the demands of one match.
///
/// # Errors
/// The flaw of a demand that is not supported.
pub(super) fn read(demand: &HttpMatch, expressions: &mut Expressions) -> Result<(PathMatch, Conditions), Flaw> {
    let HttpMatch { path, headers, query_params, method } = demand;
    let method =
        match method.as_deref() {
            None => None,
            Some(method) => Some(Method::from_bytes(method.as_bytes()).map_err(|_invalid| {
                Flaw::unsupported(format!("`{}` is no method; correct the match", shorten(method)))
            })?),
        };
    let conditions = Conditions {
        method,
        headers: read_headers(headers, expressions)?,
        parameters: read_parameters(query_params, expressions)?,
    };
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
    expressions: &mut Expressions,
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
            MatchKind::RegularExpression => HeaderCondition::Like(expressions.compile(value)?),
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
    expressions: &mut Expressions,
) -> Result<Vec<(Box<str>, ParameterCondition)>, Flaw> {
    let mut parameters: Vec<(Box<str>, ParameterCondition)> = Vec::new();
    for ValueMatch { kind, name, value } in demands {
        let condition = match kind {
            MatchKind::Exact => ParameterCondition::Exactly(value.clone()),
            MatchKind::RegularExpression => ParameterCondition::Like(expressions.compile(value)?),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_of_a_route_are_bounded_in_number() {
        let mut expressions = Expressions::new();
        for at in 0..MAX_OF_ROUTE.count {
            assert!(expressions.compile("a|b").is_ok(), "{at}");
        }
        let too_many = "there are more than 64 regular expressions or methods of any service; divide the route";
        assert_eq!(expressions.compile("a|b"), Err(Flaw::unsupported(too_many)));
        assert_eq!(expressions.method_of_any_service("Any"), Err(Flaw::unsupported(too_many)));
        assert_eq!(expressions.known.len(), 1);
        // The same route is read again for a Gateway with another certificate.
        expressions.reset();
        assert!(expressions.method_of_any_service("Any").is_ok());
    }

    #[test]
    fn expressions_of_a_route_are_bounded_in_memory() {
        let heavy = |at: usize| format!("{at}_a{{2400}}x?");
        let mut expressions = Expressions::new();
        let compiled = |expressions: &mut Expressions| {
            (0..MAX_OF_ROUTE.count).take_while(|at| expressions.compile(&heavy(*at)).is_ok()).count()
        };
        let count = compiled(&mut expressions);
        assert!((8..MAX_OF_ROUTE.count).contains(&count), "{count}");
        assert_eq!(expressions.compile(&heavy(0)), Err(too_large()));
        let mut methods = Expressions::new();
        let long = "a".repeat(2_400);
        let count = (0..MAX_OF_ROUTE.count).take_while(|_| methods.method_of_any_service(&long).is_ok()).count();
        assert!((8..MAX_OF_ROUTE.count).contains(&count), "{count}");
        assert_eq!(methods.method_of_any_service(&long), Err(too_large()));
    }
}
