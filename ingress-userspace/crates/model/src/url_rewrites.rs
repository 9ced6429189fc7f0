//! Rewriting of URLs and cookies in responses of pods: the values, as `proxy_redirect`, `proxy_cookie_domain` and
//! `proxy_cookie_path` of nginx have them. [`crate::route::filter`] applies them.

use std::fmt;

use crate::{ExpressionCost, Pattern, PatternError, Template, TemplateError, Variable};

/// Rewriting of the heads of a pod's responses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UrlRewrites {
    /// Rewriting of `Location`, and of the URL in `Refresh`.
    pub redirect: Option<UrlRewrite>,
    /// Rewriting of `Domain` in `Set-Cookie`. Case, and a dot at the beginning, do not matter.
    pub cookie_domain: Option<UrlRewrite>,
    /// Rewriting of `Path` in `Set-Cookie`.
    pub cookie_path: Option<UrlRewrite>,
}

/// A text to look for, and its replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlRewrite {
    pub from: RewriteSource,
    /// May hold variables of the request, and groups of an expression.
    pub to: Template,
}

/// The texts that are replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RewriteSource {
    /// The beginning of a URL or of a path, or a whole domain. It may hold variables of the request.
    Text(Template),
    /// The whole text, if the expression matches anywhere in it.
    Expression(Pattern),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlRewriteError {
    #[error("`{0}` must have two parts, the old text and the new one")]
    Parts(String),
    #[error("a quotation mark is not closed in `{0}`")]
    Quote(String),
    #[error("`{0}` names a group, but the old text is no regular expression")]
    Group(String),
    #[error("`{0}` holds a control character")]
    Control(String),
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Pattern(#[from] PatternError),
}

// === impl UrlRewrites ===

impl UrlRewrites {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { redirect, cookie_domain, cookie_path } = self;
        redirect.is_none() && cookie_domain.is_none() && cookie_path.is_none()
    }

    #[must_use]
    pub fn cost(&self) -> ExpressionCost {
        let Self { redirect, cookie_domain, cookie_path } = self;
        let sources = [redirect, cookie_domain, cookie_path].into_iter().flatten().map(|rewrite| &rewrite.from);
        sources.fold(ExpressionCost::default(), |ExpressionCost { count, bytes }, source| match source {
            RewriteSource::Text(_) => ExpressionCost { count, bytes },
            RewriteSource::Expression(pattern) => ExpressionCost { count: count + 1, bytes: bytes + pattern.memory() },
        })
    }
}

// === impl RewriteSource ===

impl RewriteSource {
    /// Parses the beginning of a URL or of a path, an expression behind `~`, or one behind `~*` without regard to case.
    ///
    /// # Errors
    /// Fails if the text or the expression is not valid.
    pub fn of_url(text: &str) -> Result<Self, UrlRewriteError> {
        match (text.strip_prefix("~*"), text.strip_prefix('~')) {
            (Some(expression), _) => Ok(Self::Expression(Pattern::of_rule(expression, true)?)),
            (None, Some(expression)) => Ok(Self::Expression(Pattern::of_rule(expression, false)?)),
            (None, None) => Self::text(text),
        }
    }

    fn text(text: &str) -> Result<Self, UrlRewriteError> {
        let text = Template::parse(text)?;
        if has_group(&text) { Err(UrlRewriteError::Group(text.to_string())) } else { Ok(Self::Text(text)) }
    }
}

fn has_group(text: &Template) -> bool {
    text.variables().any(|variable| matches!(variable, Variable::Group(_)))
}

// === impl UrlRewrite ===

impl UrlRewrite {
    /// Makes a rewriting of a URL or of a path.
    ///
    /// # Errors
    /// Fails if a part is not valid: `from` is a text, or an expression behind `~`, or behind `~*` without regard to
    /// case.
    pub fn new(from: &str, to: &str) -> Result<Self, UrlRewriteError> {
        Self::with(RewriteSource::of_url(from)?, Template::parse(to)?)
    }

    /// Makes a rewriting of a domain. Its expressions disregard case.
    ///
    /// # Errors
    /// Fails like [`UrlRewrite::new`].
    pub fn of_domain(from: &str, to: &str) -> Result<Self, UrlRewriteError> {
        let to = Template::parse(to.strip_prefix('.').unwrap_or(to))?;
        let from = match from.strip_prefix('~') {
            Some(expression) => RewriteSource::Expression(Pattern::of_rule(expression, true)?),
            None => RewriteSource::text(from.strip_prefix('.').unwrap_or(from))?,
        };
        Self::with(from, to)
    }

    /// Puts the parts together.
    ///
    /// # Errors
    /// Fails if `to` names groups that `from` does not have, or holds control characters.
    pub fn with(from: RewriteSource, to: Template) -> Result<Self, UrlRewriteError> {
        if matches!(from, RewriteSource::Text(_)) && has_group(&to) {
            return Err(UrlRewriteError::Group(to.to_string()));
        }
        if to.as_str().chars().any(char::is_control) {
            return Err(UrlRewriteError::Control(to.to_string()));
        }
        Ok(Self { from, to })
    }
}

/// Splits the two arguments of a directive at blanks, as nginx does: an argument may be within quotation marks of either
/// kind, where a backslash precedes a mark.
///
/// # Errors
/// Fails if there are not two arguments, or if a quotation mark is not closed.
pub fn two_arguments(text: &str) -> Result<(String, String), UrlRewriteError> {
    let mut arguments = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let Some(mark) = rest.chars().next().filter(|first| matches!(first, '"' | '\'')) else {
            let (argument, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            arguments.push(argument.to_owned());
            rest = after.trim_start();
            continue;
        };
        let (mut argument, mut end, mut is_escaped) = (String::new(), None, false);
        for (at, character) in rest.char_indices().skip(1) {
            if character == mark && !is_escaped {
                end = Some(at + 1);
                break;
            }
            if character == mark {
                argument.pop();
            }
            argument.push(character);
            is_escaped = character == '\\' && !is_escaped;
        }
        rest = rest[end.ok_or_else(|| UrlRewriteError::Quote(text.to_owned()))?..].trim_start();
        arguments.push(argument);
    }
    match <[String; 2]>::try_from(arguments) {
        Ok([from, to]) if !from.is_empty() && !from.contains(';') => Ok((from, to)),
        _ => Err(UrlRewriteError::Parts(text.to_owned())),
    }
}

/// Shows the rewritings, such as `cookie-path(/old -> /)`.
impl fmt::Display for UrlRewrites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { redirect, cookie_domain, cookie_path } = self;
        let all = [("redirect", redirect), ("cookie-domain", cookie_domain), ("cookie-path", cookie_path)];
        let all = all.into_iter().filter_map(|(name, rewrite)| Some((name, rewrite.as_ref()?)));
        for (at, (name, UrlRewrite { from, to })) in all.enumerate() {
            let space = if at == 0 { "" } else { " " };
            match from {
                RewriteSource::Text(from) => write!(f, "{space}{name}({from} -> {to})")?,
                RewriteSource::Expression(from) => write!(f, "{space}{name}(~ {} -> {to})", from.as_str())?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_split_as_in_nginx() {
        for (text, expect) in [
            ("/a /b", Some(("/a", "/b"))),
            ("  /a\t/b ", Some(("/a", "/b"))),
            ("/ \"/; Secure; HttpOnly\"", Some(("/", "/; Secure; HttpOnly"))),
            ("'~^/a b$' '/it\\'s'", Some(("~^/a b$", "/it's"))),
            ("\"~\\.test\" \"\"", Some(("~\\.test", ""))),
            ("/a", None),
            ("/a /b /c", None),
            ("/a \"/b", None),
            ("/a; /b", None),
            ("\"\" /b", None),
            ("", None),
        ] {
            let found = two_arguments(text).ok();
            assert_eq!(found.as_ref().map(|(from, to)| (from.as_str(), to.as_str())), expect, "{text}");
        }
    }

    #[test]
    fn invalid_rewritings_are_refused() {
        for (from, to) in
            [("/a", "/$1"), ("/$1", "/a"), ("~(", "/"), ("~(?=a)", "/"), ("/$nope", "/"), ("/a", "/\u{7}")]
        {
            assert!(UrlRewrite::new(from, to).is_err(), "{from} {to}");
        }
        let rewrites = UrlRewrites {
            redirect: Some(UrlRewrite::new("~*^http://A/(.*)", "/$1").expect("valid")),
            cookie_domain: Some(UrlRewrite::of_domain(".a.test", ".$host").expect("valid")),
            cookie_path: None,
        };
        assert_eq!(rewrites.to_string(), "redirect(~ ^http://A/(.*) -> /$1) cookie-domain(a.test -> $host)");
        assert_eq!(rewrites.cost().count, 1);
        assert!(!rewrites.is_empty());
    }
}
