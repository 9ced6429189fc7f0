//! Regular expressions of locations, as PCRE would match them.

use regex_automata::{meta::Regex, util::syntax};

use crate::Unmodelled;

/// A regular expression of a `~*` location: it begins at the start of the path, and ignores the case of ASCII letters.
#[derive(Clone, Debug)]
pub struct Expression {
    text: String,
    regex: Regex,
}

/// Parts of expressions that PCRE reads in another way than the library here, and that the library accepts.
const READ_OTHERWISE: [&str; 12] = ["&&", "~~", "++", "*+", "?+", "}+", "\\<", "\\>", "\\b{", "(?x", "(?P<", "\\u"];

// === impl Expression ===

impl Expression {
    pub(crate) fn parse(text: &str) -> Result<Self, Unmodelled> {
        let unmodelled = |reason: String| Unmodelled::Expression { text: text.to_owned(), reason };
        if let Some(part) = READ_OTHERWISE.iter().find(|part| text.contains(*part)) {
            return Err(unmodelled(format!("`{part}` may mean something else to PCRE")));
        }
        if text.contains('[') && text.contains("--") {
            return Err(unmodelled("`--` within brackets may mean something else to PCRE".to_owned()));
        }
        if !text.is_ascii() || text.bytes().any(|byte| byte.is_ascii_control() || byte == b'"') {
            return Err(unmodelled("it has quotes, control characters or characters beyond ASCII".to_owned()));
        }
        let syntax = syntax::Config::new().case_insensitive(true).unicode(false).utf8(false);
        let full = format!("^{}", unquoted(text));
        let regex = Regex::builder().syntax(syntax).build(&full);
        // The library's text shows the expression over several lines; its last one has the reason.
        let reason = |error: String| error.lines().last().unwrap_or_default().trim().to_owned();
        let regex = regex.map_err(|error| {
            unmodelled(error.syntax_error().map_or_else(|| error.to_string(), |error| reason(error.to_string())))
        })?;
        Ok(Self { text: text.to_owned(), regex })
    }

    /// Returns the expression as the Ingress has it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns whether `path`, in nginx' normal form, begins with a match.
    #[must_use]
    pub fn is_match(&self, path: &[u8]) -> bool {
        self.regex.is_match(path)
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Expression {}

/// Returns `text` as nginx reads it between quotes in its configuration.
fn unquoted(text: &str) -> String {
    let mut read = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        let escaped = match (character, rest.clone().next()) {
            ('\\', Some(quoted @ ('"' | '\'' | '\\'))) => quoted,
            ('\\', Some('t')) => '\t',
            ('\\', Some('r')) => '\r',
            ('\\', Some('n')) => '\n',
            (other, _) => {
                read.push(other);
                continue;
            }
        };
        read.push(escaped);
        rest.next();
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_match_the_beginning_in_any_case() {
        for (text, path, expect) in [
            ("/head", "/HEADers", true),
            ("/head$", "/headers", false),
            ("/v1.0", "/v1x0", true),
            (r"/v1\.0", "/v1x0", false),
            ("/foo(/|$)(.*)", "/foobar", false),
            ("/foo(/|$)(.*)", "/foo/bar", true),
            ("/a|b", "/x/b", true),
        ] {
            let expression = Expression::parse(text).expect("modelled");
            assert_eq!(expression.is_match(path.as_bytes()), expect, "{text} {path}");
        }
    }

    #[test]
    fn expressions_that_pcre_reads_otherwise_are_not_guessed() {
        for text in ["/(?!api)", r"/(a)\1", "/a++", "/[a&&b]", "/[a--b]", r"/\<a", "/ü", "/a\"b", "/("] {
            assert!(matches!(Expression::parse(text), Err(Unmodelled::Expression { .. })), "{text}");
        }
        assert!(Expression::parse("/a--b").is_ok());
    }
}
