//! Clients that an operator blocks for all hosts. Header fields are not read here.

use std::fmt;

use super::{Networks, Pattern, PatternError};

/// Clients that get 403 from every host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocked {
    /// Blocked networks. Kernel programs, if attached, drop packets from there. Clients behind a trusted proxy are
    /// blocked later, by the proxy.
    pub networks: Networks,
    /// Blocked values of `User-Agent`.
    pub agents: Texts,
    /// Blocked values of `Referer`.
    pub referers: Texts,
}

/// A set of blocked texts for the value of a header field.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Texts(Vec<Text>);

#[derive(Clone, PartialEq, Eq)]
enum Text {
    /// Equals the whole value, ignoring case.
    Whole(Box<str>),
    /// Matches anywhere in the value.
    Like(Pattern),
}

// === impl Blocked ===

impl Blocked {
    /// Returns whether the lists are all empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { networks, agents: Texts(agents), referers: Texts(referers) } = self;
        networks.is_empty() && agents.is_empty() && referers.is_empty()
    }
}

// === impl Texts ===

impl Texts {
    /// Parses a comma-separated list with the syntax of nginx's `map`: `~` introduces a regular expression, `~*` one
    /// that ignores case, and any other text is compared as a whole.
    ///
    /// # Errors
    /// Fails if an entry is not a valid regular expression, or is one without bounds on its matching time.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        let text = |word: &str| match (word.strip_prefix("~*"), word.strip_prefix('~')) {
            (Some(pattern), _) => Pattern::within_any_case(pattern).map(Text::Like),
            (None, Some(pattern)) => Pattern::within(pattern).map(Text::Like),
            (None, None) => Ok(Text::Whole(word.into())),
        };
        words.map(text).collect::<Result<_, _>>().map(Self)
    }

    /// Returns whether an entry matches `value`.
    #[must_use]
    pub fn hold(&self, value: &str) -> bool {
        self.0.iter().any(|text| match text {
            Text::Whole(whole) => whole.eq_ignore_ascii_case(value),
            Text::Like(pattern) => pattern.is_match(value),
        })
    }
}

impl fmt::Debug for Texts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |text: &Text| match text {
            Text::Whole(whole) => whole.to_string(),
            Text::Like(pattern) => format!("~{}", pattern.as_str()),
        };
        f.debug_list().entries(self.0.iter().map(text)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_whole_values_or_expressions() {
        let texts = Texts::parse("curl/8, ~^Evil, ~*scan(ner)?/").expect("texts");
        for (value, expect) in [
            ("curl/8", true),
            ("CURL/8", true),
            ("curl/8.1", false),
            ("EvilBot", true),
            ("evilbot", false),
            ("not Evil", false),
            ("The SCANNER/1", true),
            ("scanned", false),
            ("", false),
        ] {
            assert_eq!(texts.hold(value), expect, "{value}");
        }
        assert_eq!(Texts::parse(" , "), Ok(Texts::default()));
        assert!(Texts::parse("~(").is_err() && Texts::parse("~*(?=a)").is_err());
        // Expressions with the same text differ if only one of them ignores case.
        assert_ne!(Texts::parse("~a"), Texts::parse("~*a"));
    }
}
