//! Whom an operator lets in nowhere. It reads no field.

use std::fmt;

use super::{Networks, Pattern, PatternError};

/// Clients that get 403 from every host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocked {
    /// Kernel programs, where there are any, drop what comes from there; the clients that a hop speaks for are found
    /// out later.
    pub networks: Networks,
    /// By `User-Agent`.
    pub agents: Texts,
    /// By `Referer`.
    pub referers: Texts,
}

/// What a field may not say.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Texts(Vec<Text>);

#[derive(Clone, PartialEq, Eq)]
enum Text {
    /// All of it, whatever the case.
    Whole(Box<str>),
    /// Something in it.
    Like(Pattern),
}

// === impl Blocked ===

impl Blocked {
    /// Whether nobody is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { networks, agents: Texts(agents), referers: Texts(referers) } = self;
        networks.is_empty() && agents.is_empty() && referers.is_empty()
    }
}

// === impl Texts ===

impl Texts {
    /// Reads texts as nginx' `map` has them, separated by commas: behind `~` a regular expression, behind `~*` one
    /// whatever the case.
    ///
    /// # Errors
    /// If one of them is no regular expression, or one without bounds.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        let text = |word: &str| match (word.strip_prefix("~*"), word.strip_prefix('~')) {
            (Some(pattern), _) => Pattern::within_any_case(pattern).map(Text::Like),
            (None, Some(pattern)) => Pattern::within(pattern).map(Text::Like),
            (None, None) => Ok(Text::Whole(word.into())),
        };
        words.map(text).collect::<Result<_, _>>().map(Self)
    }

    /// Whether `value` is one of them.
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
    fn texts_are_whole_or_expressions() {
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
        // The case counts for what is compared as a text, too.
        assert_ne!(Texts::parse("~a"), Texts::parse("~*a"));
    }
}
