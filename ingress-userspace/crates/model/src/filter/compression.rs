//! Compression of responses to the client: the codings, their levels and the content types.

use std::{fmt, sync::Arc};

use super::super::Pattern;

/// Compression policy of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compression {
    /// Offered codings. If the client prefers several equally, the first is used.
    pub offers: Vec<Offer>,
    /// Clients, by `User-Agent`, that cannot decode gzip even if they accept it. Default none.
    pub without_gzip: Option<Pattern>,
}

/// A coding with its level, and the responses it applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub coding: Coding,
    /// Compression level; higher is smaller and slower: 1 to 9 for gzip, 0 to 11 for brotli, 1 to 12 for zstd.
    pub level: u8,
    /// Minimum length of a response in bytes; shorter ones are not compressed. Responses of unknown length are.
    pub min_length: u64,
    pub types: Arc<MediaTypes>,
}

/// Content coding (IANA registry of HTTP content codings).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Coding {
    /// Zstandard, RFC 8878.
    Zstd,
    /// Brotli, RFC 7932.
    Brotli,
    /// Gzip, RFC 1952.
    Gzip,
}

/// Media types in lower case; `text/html` is always included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaTypes(Vec<Box<str>>);

// === impl Coding ===

impl Coding {
    /// All codings in order of preference.
    pub const ALL: [Self; 3] = [Self::Zstd, Self::Brotli, Self::Gzip];

    /// Returns the name used in HTTP fields.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }
}

// === impl MediaTypes ===

impl MediaTypes {
    /// Types that ingress-nginx compresses by default.
    pub const DEFAULT: &str = "application/atom+xml application/javascript application/x-javascript application/json \
        application/rss+xml application/vnd.ms-fontobject application/x-font-ttf application/x-web-app-manifest+json \
        application/xhtml+xml application/xml font/opentype image/svg+xml image/x-icon text/css text/javascript text/plain \
        text/x-component";

    /// Parses media types separated by spaces; `*` stands for all. Returns `None` if a word is not a media type.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_type = |word: &str| {
            let parts = word.split_once('/');
            let is_token = |part: &str| {
                !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&b))
            };
            word == "*" || parts.is_some_and(|(of, sub)| is_token(of) && is_token(sub))
        };
        let words = text.split_whitespace();
        words.clone().all(is_type).then(|| Self(words.map(|word| word.to_ascii_lowercase().into()).collect()))
    }

    /// Returns whether the media type of `value`, a `Content-Type` field, is in the list.
    #[must_use]
    pub fn hold(&self, value: &str) -> bool {
        let essence = value.split_once(';').map_or(value, |(essence, _)| essence).trim();
        let is = |known: &str| known.eq_ignore_ascii_case(essence);
        is("text/html") || self.0.iter().any(|known| &**known == "*" || is(known))
    }
}

impl Default for MediaTypes {
    fn default() -> Self {
        Self(Self::DEFAULT.split_whitespace().map(Into::into).collect())
    }
}

/// Formats the offers, such as `zstd(3) gzip(1)`.
impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Offer { coding, level, min_length: _, types: _ }) in self.offers.iter().enumerate() {
            let space = if at == 0 { "" } else { " " };
            write!(f, "{space}{}({level})", coding.name())?;
        }
        Ok(())
    }
}
