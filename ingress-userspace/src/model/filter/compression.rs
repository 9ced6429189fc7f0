//! How responses are compressed on their way to the client: which codings, of what, and how well.

use std::{fmt, sync::Arc};

use super::super::Pattern;

/// How responses of a rule are compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compression {
    /// Of those that a client likes alike, it gets the first.
    pub offers: Vec<Offer>,
    /// Clients that cannot read gzip, whatever they say, by `User-Agent`. Default none.
    pub without_gzip: Option<Pattern>,
}

/// A coding, and what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub coding: Coding,
    /// The more, the smaller and the slower: 1 to 9 for gzip, 0 to 11 for brotli, 1 to 12 for zstd.
    pub level: u8,
    /// Shorter responses stay as they are, in bytes; those of unknown length do not.
    pub min_length: u64,
    pub types: Arc<MediaTypes>,
}

/// A content coding (IANA's registry of HTTP content codings).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Coding {
    /// RFC 8878.
    Zstd,
    /// RFC 7932.
    Brotli,
    /// RFC 1952.
    Gzip,
}

/// Types of content, in lower case; `text/html` always is among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaTypes(Vec<Box<str>>);

// === impl Coding ===

impl Coding {
    /// In the order of preference.
    pub const ALL: [Self; 3] = [Self::Zstd, Self::Brotli, Self::Gzip];

    /// As fields of HTTP name it.
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
    /// What ingress-nginx compresses.
    pub const DEFAULT: &str = "application/atom+xml application/javascript application/x-javascript application/json \
        application/rss+xml application/vnd.ms-fontobject application/x-font-ttf application/x-web-app-manifest+json \
        application/xhtml+xml application/xml font/opentype image/svg+xml image/x-icon text/css text/javascript text/plain \
        text/x-component";

    /// Reads types, separated by spaces; `*` stands for all.
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

    /// Whether content of the type that `value`, a `Content-Type` field, names is among them.
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

/// `zstd(3) gzip(1)`.
impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Offer { coding, level, min_length: _, types: _ }) in self.offers.iter().enumerate() {
            let space = if at == 0 { "" } else { " " };
            write!(f, "{space}{}({level})", coding.name())?;
        }
        Ok(())
    }
}
