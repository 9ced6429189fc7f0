//! Rewriting of request paths for pods.

use std::fmt;

use crate::{PathModifier, Pattern, Template, TemplateError, Variable};

/// New path of a request. The query is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rewrite {
    /// A target from the groups of an expression. The query is appended to that of the target if it has one.
    Template {
        /// The rule's path as a regular expression, for its groups; `None` if the path is of another kind, without
        /// groups.
        pattern: Option<Pattern>,
        /// The new path, and the beginning of its query if there is a `?`. Groups that did not participate are empty.
        target: Template,
    },
    Path(PathModifier),
    /// Redirects the client to a URL, with 302. The query is appended as for [`Rewrite::Template`].
    Redirect {
        pattern: Option<Pattern>,
        target: Template,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RewriteError {
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error("only groups, as `$1`, can be in a path, not {0}")]
    Variable(String),
    #[error("the host of `{0}` holds a group, so that clients could choose it")]
    Host(String),
    #[error("`{0}` must begin with `/`, with a group, as `$1`, or with `https://` or `http://`")]
    NotAbsolute(String),
    #[error("`{0}` holds a character that no path has; write it as an escape, as `%20`")]
    Character(String),
}

impl Rewrite {
    /// Parses a target without knowing the path of its rule.
    ///
    /// # Errors
    /// Fails if the text is not a valid request target, or uses variables other than groups.
    pub fn parse(text: &str) -> Result<Template, RewriteError> {
        let template = Template::parse(text)?;
        // Other variables are under the control of clients, and need not be valid in a path.
        if let Some(other) = template.variables().find(|variable| !matches!(variable, Variable::Group(_))) {
            return Err(RewriteError::Variable(format!("{other:?}")));
        }
        if let Some(rest) = Self::after_scheme(text) {
            let host = rest.split(['/', '?']).next().unwrap_or_default();
            if host.contains('$') || host.is_empty() {
                return Err(RewriteError::Host(text.to_owned()));
            }
        } else if !text.starts_with(['/', '$']) {
            return Err(RewriteError::NotAbsolute(text.to_owned()));
        }
        // Characters of a target (RFC 3986, 3.3 and 3.4), and of variables.
        let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@%/?{}".contains(&b);
        if !text.bytes().all(is_allowed) {
            return Err(RewriteError::Character(text.to_owned()));
        }
        Ok(template)
    }

    /// Returns the rewrite to a target that [`Rewrite::parse`] has read.
    #[must_use]
    pub fn to(target: Template, pattern: Option<Pattern>) -> Self {
        match Self::after_scheme(target.as_str()) {
            Some(_) => Self::Redirect { pattern, target },
            None => Self::Template { pattern, target },
        }
    }

    fn after_scheme(text: &str) -> Option<&str> {
        text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"))
    }
}

impl fmt::Display for Rewrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Template { pattern: _, target } => write!(f, "{target}"),
            Self::Path(modifier) => write!(f, "{modifier}"),
            Self::Redirect { pattern: _, target } => write!(f, "redirect to {target}"),
        }
    }
}
