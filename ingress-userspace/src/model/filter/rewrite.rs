//! Another path than the client's for the pods.

use std::fmt;

use crate::model::{Pattern, Template, TemplateError, Variable};

/// What becomes of the path of a request. Its query stays, behind that of the new target if that has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// The rule's path as a regular expression, for its groups; `None` if it is another kind of path, which has none.
    pub pattern: Option<Pattern>,
    /// The new path, and the beginning of its query if there is a `?`. A group that is not there is empty.
    pub target: Template,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RewriteError {
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error("only groups, as `$1`, can be in a path, not {0}")]
    Variable(String),
    #[error("`{0}` must begin with `/` or with a group, as `$1`")]
    NotAbsolute(String),
    #[error("`{0}` holds a character that no path has; write it as an escape, as `%20`")]
    Character(String),
}

impl Rewrite {
    /// Parses a new target without knowing the path that it is for.
    ///
    /// # Errors
    /// If it could not be the target of a request, or names what no target can hold.
    pub fn parse(text: &str) -> Result<Template, RewriteError> {
        let template = Template::parse(text)?;
        // Anything else is for clients to choose, and need not be fit for a path.
        if let Some(other) = template.variables().find(|variable| !matches!(variable, Variable::Group(_))) {
            return Err(RewriteError::Variable(format!("{other:?}")));
        }
        if !text.starts_with(['/', '$']) {
            return Err(RewriteError::NotAbsolute(text.to_owned()));
        }
        // What a target is made of (RFC 3986, 3.3 and 3.4), and the signs of variables.
        let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@%/?{}".contains(&b);
        if !text.bytes().all(is_allowed) {
            return Err(RewriteError::Character(text.to_owned()));
        }
        Ok(template)
    }
}

impl fmt::Display for Rewrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pattern: _, target } = self;
        write!(f, "{target}")
    }
}
